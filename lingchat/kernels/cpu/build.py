"""How the native CPU library is compiled: its sources, the flags of each, and the stamp that names them all.

Whoever needs the library asks here: `setup.py` when lingchat is installed, `library.py` when it is first used. A built
library is a folder that holds the shared library and its checksum; it is put together elsewhere and appears at its
place whole or not at all.

Knows the standard library only, so that it can be loaded where nothing is installed; run as a program it builds into
the folder it is given.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = "lingchat_cpu.dylib" if sys.platform == "darwin" else "lingchat_cpu.so"
CHECKSUM = "sha256"
COMPILERS = ("c++", "g++", "clang++")
JOBS = 2
TIMEOUT_S = 600.0  # of one compilation; a slow machine needs a minute
WORDS = 2000  # characters of a compiler's complaint that are kept

# No contraction into fused multiply-adds and no fast math: every instruction set must give the same bits.
FLAGS = (
    *("-O3", "-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"),
    *("-fno-strict-aliasing",),  # an instruction's words are read as the struct of its operation
    *("-ffp-contract=off", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"),
)
LINK_FLAGS = ("-shared", "-pthread") if sys.platform == "darwin" else ("-shared", "-pthread", "-Wl,--as-needed,-s")
AVX2 = ("-mavx2", "-mf16c")
ISA_FLAGS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "isa_avx2.cpp": AVX2,
        "isa_avx512.cpp": (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"),
    },
    "arm64": {"isa_neon.cpp": ("-march=armv8.2-a+dotprod+fp16",)},
}

Progress = Callable[[int, int], None]  # steps done, and of how many


class BuildError(Exception):
    """The library could not be built. The text is the compiler's own, or says what there is not."""


def machine() -> str:
    name = os.uname().machine
    return {"aarch64": "arm64", "amd64": "x86_64"}.get(name, name)


def sources(folder: Path = HERE) -> list[Path]:
    """Every file that is compiled, or included by one."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".h", ".cpp"))


def units(folder: Path = HERE) -> list[tuple[Path, tuple[str, ...]]]:
    """What is compiled for this machine, each with its flags. Instruction sets of other machines are left out."""
    own = ISA_FLAGS.get(machine(), {})
    others = {name for flags in ISA_FLAGS.values() for name in flags} - own.keys()
    paths = [path for path in sources(folder) if path.suffix == ".cpp" and path.name not in others]
    return [(path, (*FLAGS, *own.get(path.name, ()))) for path in paths]


def stamp(folder: Path = HERE) -> str:
    """Names the sources, the flags and the machine: a library that carries another stamp is another library."""
    told = hashlib.sha256(f"{sys.platform} {machine()} {LINK_FLAGS}".encode())
    for path, flags in units(folder):
        told.update(f"\n{path.name} {flags}".encode())
    for path in sources(folder):
        text = path.read_bytes()
        told.update(f"\n{path.name} {len(text)}\n".encode() + text)
    return told.hexdigest()[:32]


def find_compiler() -> list[str] | None:
    """The command of a C++ compiler: `$CXX`, or the first that is installed."""
    asked = shlex.split(os.environ.get("CXX", ""))
    for command in ([asked] if asked else []) + [[name] for name in COMPILERS]:
        if shutil.which(command[0]):
            return command
    return None


def checksum(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def build(target: Path, folder: Path = HERE, progress: Progress | None = None, jobs: int = JOBS) -> None:
    """Compile `folder` and leave the library in the new folder `target`, replacing what is there.

    Raises BuildError, and OSError where `target` cannot be written. Of two at a time for one target both succeed.
    """
    compiler = find_compiler()
    if compiler is None:
        raise BuildError(f"there is no C++ compiler ({', '.join(COMPILERS)})")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
    try:
        _compile(compiler, folder, work, progress or (lambda done, total: None), jobs)
        _place(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _compile(compiler: Sequence[str], folder: Path, work: Path, progress: Progress, jobs: int) -> None:
    """Leaves library and checksum in `work`, and nothing else."""
    todo = units(folder)
    named = stamp(folder)
    done = 0

    def compile_one(unit: tuple[Path, tuple[str, ...]]) -> Path:
        nonlocal done
        path, flags = unit
        define = (f'-DLC_STAMP="{named}"',) if path.name == "api.cpp" else ()
        made = work / f"{path.stem}.o"
        _run([*compiler, *flags, *define, "-c", str(path), "-o", str(made)])
        done += 1
        progress(done, len(todo) + 1)
        return made

    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compile_one, todo))
    library = work / LIBRARY
    _run([*compiler, *LINK_FLAGS, *map(str, objects), "-o", str(library)])
    (work / CHECKSUM).write_text(checksum(library))
    for path in objects:
        path.unlink()
    progress(len(todo) + 1, len(todo) + 1)


def _run(command: Sequence[str]) -> None:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(str(error)) from error
    if result.returncode != 0:
        words = (result.stderr or result.stdout).strip()[:WORDS]
        raise BuildError(words or f"{command[0]} ended with status {result.returncode}")


def _place(work: Path, target: Path) -> None:
    """Rename `work` to `target`. What is there is moved away first; a rival that comes between them has the same."""
    away = work.with_name(work.name + ".old")
    for _ in range(10):
        try:
            os.rename(work, target)
            return
        except OSError:
            if not target.exists():
                raise
        try:
            os.rename(target, away)
        except FileNotFoundError:
            continue  # a rival moved it away
        shutil.rmtree(away, ignore_errors=True) if away.is_dir() else away.unlink(missing_ok=True)
