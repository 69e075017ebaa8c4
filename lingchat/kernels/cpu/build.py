"""Compiles the native CPU library: for `setup.py` when lingchat is installed, for `first_use.py` when it is first used.

A built library is a folder that holds the shared library and a seal, its stamp and checksum. It is put together
elsewhere, and appears at its place whole and checked, or not at all.

Needs nothing but the standard library: it runs where nothing is installed yet.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lingchat.kernels.cpu.sources import HERE, LIBRARY, LINK_FLAGS, SEAL, seal, stamp, units

UNFINISHED = ".building-"  # what folders in which a library is put together begin with
COMPILERS = ("c++", "g++", "clang++")
JOBS = 2
TIMEOUT_S = 600.0  # of one compilation; a slow machine needs a minute
WORDS = 4000  # characters of a compiler's complaint that are kept

_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)  # by a folder, or by a file

# Opened in a process of its own before anybody else does: a library can do worse than give wrong numbers.
_CHECK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.lc_isa_name.restype = ctypes.c_char_p
for i in range(library.lc_isa_count()):
    if library.lc_isa_runs(i) and not library.lc_isa_alike(i):
        raise SystemExit(f"it computes other numbers with {library.lc_isa_name(i).decode()} than in plain C++")
"""

Progress = Callable[[int, int], None]  # steps done, and of how many


class BuildError(Exception):
    """The library could not be built. The text is the compiler's, or says what was the matter.

    `lasting`: the same sources and the same compiler will fail again.
    """

    def __init__(self, words: str, *, lasting: bool = False) -> None:
        super().__init__(words)
        self.lasting = lasting


def find_compiler() -> list[str] | None:
    """The command of a C++ compiler: `$CXX`, or the first that is installed."""
    for name in (os.environ.get("CXX", ""), *COMPILERS):
        command = name.split()
        if command and shutil.which(command[0]):
            return command
    return None


def no_compiler() -> str:
    return f"there is no C++ compiler ({', '.join(COMPILERS)})"


def build(target: Path, folder: Path = HERE, progress: Progress | None = None, jobs: int = JOBS) -> None:
    """Compile `folder` and leave the library in the new folder `target`, replacing what is there.

    Raises BuildError, and OSError where `target` cannot be written. Of two at a time for one target both succeed.
    """
    compiler = find_compiler()
    if compiler is None:
        raise BuildError(no_compiler())
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=target.parent))
    work.chmod(0o755)  # as other folders that an installation makes
    try:
        _make(compiler, folder, work, progress or (lambda done, total: None), jobs)
        _place(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _make(compiler: Sequence[str], folder: Path, work: Path, progress: Progress, jobs: int) -> None:
    """Leaves library and seal in `work`, and nothing else."""
    todo, stamped = units(folder), stamp(folder)
    steps = len(todo) + 1

    def compile_one(unit: tuple[Path, tuple[str, ...]]) -> Path:
        path, flags = unit
        define = (f'-DLC_STAMP="{stamped}"',) if path.name == "api.cpp" else ()
        made = work / f"{path.stem}.o"
        _run([*compiler, *flags, *define, "-c", str(path), "-o", str(made)])
        return made

    pool = ThreadPoolExecutor(jobs)
    try:
        objects = []
        for made in pool.map(compile_one, todo):
            objects.append(made)
            progress(len(objects), steps)
    finally:
        pool.shutdown(cancel_futures=True)
    library = work / LIBRARY
    _run([*compiler, *LINK_FLAGS, *map(str, objects), "-o", str(library)])
    for path in objects:
        path.unlink()
    _run([sys.executable, "-I", "-c", _CHECK, str(library)])
    (work / SEAL).write_text(seal(library, stamped))
    progress(steps, steps)


def _run(command: Sequence[str]) -> None:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} took more than {TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror}") from error
    if result.returncode < 0:
        raise BuildError(f"{command[0]} was ended by {signal.Signals(-result.returncode).name}")
    if result.returncode:
        words = (result.stderr or result.stdout).strip()[:WORDS]
        raise BuildError(words or f"{command[0]} ended with status {result.returncode}", lasting=True)


def _place(work: Path, target: Path) -> None:
    """Rename `work` to `target`. What is there is moved away first; a rival that comes between them made the same."""
    away = work.with_name(work.name + "-old")
    for _ in range(10):
        try:
            os.rename(work, target)
            return
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
        try:
            os.rename(target, away)
        except FileNotFoundError:
            continue  # a rival moved it away
        if away.is_dir() and not away.is_symlink():
            shutil.rmtree(away, ignore_errors=True)
        else:
            away.unlink(missing_ok=True)
    raise BuildError(f"{target} cannot be replaced")
