"""Libraries of empty functions, and compilers that give them.

With these, what finds, checks, builds and installs a library is tested without compiling the real one.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lingchat.kernels.cpu import build, native, sources, structs

STAMP = sources.stamp()
Make = Callable[..., Path]


def make_library(folder: Path, stamp: str = STAMP, alike: str = "return 1;", leave_out: str = "") -> Path:
    """A library in the new `folder` that has all functions and does nothing."""
    sizes = "".join(
        f'if (!strcmp(name, "{name}")) return {ctypes.sizeof(kind)};' for name, kind in structs.STRUCTS.items()
    )
    bodies = {
        "lc_stamp": f'const char* lc_stamp() {{ return "{stamp}"; }}',
        "lc_sizeof": f"long lc_sizeof(const char* name) {{ {sizes} return -1; }}",
        "lc_isa_count": "long lc_isa_count() { return 1; }",
        "lc_isa_name": 'const char* lc_isa_name(long) { return "plain"; }',
        "lc_isa_runs": "long lc_isa_runs(long) { return 1; }",
        "lc_isa_alike": f"long lc_isa_alike(long) {{ {alike} }}",
    }
    text = "".join(
        f'extern "C" {bodies.get(name, f"long {name}() {{ return 0; }}")}\n'
        for name in native._SIGNATURES
        if name != leave_out
    )
    folder.mkdir(parents=True)
    (folder / "empty.cpp").write_text(f"#include <stdlib.h>\n#include <string.h>\n{text}")
    compiler = build.find_compiler()
    if compiler is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(build.no_compiler())
    made = folder / sources.LIBRARY
    subprocess.run([*compiler, "-shared", "-fPIC", str(folder / "empty.cpp"), "-o", str(made)], check=True)
    return made


def make_compiler(program: Path, gives: Path, words: str = "") -> Path:
    """A compiler that gives this library whenever it links, or fails with `words`; returns its log, a line a call."""
    log = program.with_name(f"{program.name}.log")
    program.write_text(
        f"""#!/bin/sh
echo "$*" >> {shlex.quote(str(log))}
if [ -n {shlex.quote(words)} ]; then printf %s {shlex.quote(words)} >&2; exit 1; fi
while [ $# -gt 0 ]; do
  case "$1" in -shared) gives={shlex.quote(str(gives))};; -o) target="$2";; esac
  shift
done
cp "${{gives:-/dev/null}}" "$target"
"""
    )
    program.chmod(0o755)
    return log
