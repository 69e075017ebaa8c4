"""Finds, checks and opens the native CPU library, and has it built where there is none.

A library lies beside this file when the installation built it, else in the user's cache under its stamp. It is opened
only when its seal is right, and used only when it carries the stamp of the sources that lie here, agrees on the size of
every struct, and computes on this machine's instruction set what plain C++ computes. What is not right is built again.

Imports neither torch nor numpy, and is quick to import: a start waits for it. Run as a program it builds into the
cache folder it is given: `build_in_background` does that.
"""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from ctypes import c_char_p, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path

from lingchat.kernels.cpu import build as building
from lingchat.kernels.cpu import structs
from lingchat.kernels.cpu.build import BuildError, Progress

BESIDE = building.HERE / "built"
KEPT = 4  # libraries in the cache: of as many versions of lingchat
NICENESS = 19

_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "lc_stamp": (c_char_p, ()),
    "lc_sizeof": (c_int64, (c_char_p,)),
    "lc_isa_count": (c_int64, ()),
    "lc_isa_name": (c_char_p, (c_int64,)),
    "lc_isa_runs": (c_int64, (c_int64,)),
    "lc_isa_alike": (c_int64, (c_int64,)),
    "lc_operation": (c_int64, (c_char_p,)),
    "lc_words": (c_int64, (c_int64,)),
    # pool, instruction set, instructions, how many, Run -> 0 done, 1 stopped, -1 refused
    "lc_run": (c_int64, (c_void_p, c_int64, c_void_p, c_int64, c_void_p)),
    "lc_pool_new": (c_void_p, (c_int64, c_int64)),  # most threads, bytes of scratch of each
    "lc_pool_threads": (c_int64, (c_void_p, c_int64)),  # pool, threads from the next run on -> what it became
    "lc_pool_free": (None, (c_void_p,)),
    "lc_allocate": (c_void_p, (c_int64,)),
    "lc_allocate_large": (c_void_p, (c_int64,)),
    "lc_release": (None, (c_void_p,)),
    "lc_kind": (c_int64, (c_char_p, c_char_p)),  # a weight file's type, "int8", "f32" or "f16" -> kind
    "lc_pack": (ctypes.c_int, (c_void_p, c_void_p, c_int64, c_void_p)),  # pool, PackSource, kind, panels
    "lc_decode": (ctypes.c_int, (c_int64, c_void_p, c_int64, c_int64, c_void_p)),  # kind, panels, rows, columns, fp32
    "lc_rotations": (None, (c_void_p, c_int64, c_int64, c_int64, c_void_p)),  # frequencies, pairs, begin, end, table
}


class Unusable(Exception):
    """A library that is there but must not be used; the text says why."""


class Native:
    """An opened library. `lib` has its functions, typed; `isas` numbers the instruction sets that run here, best
    first; `isa` is the one in use, the best unless a test sets another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lib = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        self.isas: dict[str, int] = {
            self.lib.lc_isa_name(i).decode(): i for i in range(self.lib.lc_isa_count()) if self.lib.lc_isa_runs(i)
        }
        self.isa = next(iter(self.isas))

    @property
    def is_installed(self) -> bool:
        """Built by the installation, not on this machine at first use."""
        return self.path.parent == BESIDE

    def operation(self, name: str) -> int:
        """The number of an operation; KeyError when there is none of that name."""
        found: int = self.lib.lc_operation(name.encode())
        if found < 0:
            raise KeyError(name)
        return found

    def words(self, operation: int) -> int:
        """How many arguments an operation takes."""
        return int(self.lib.lc_words(operation))


@dataclass(frozen=True)
class Status:
    """`native`, or `why` there is none, in a few words. `compiler`: one is installed."""

    native: Native | None
    why: str = ""
    compiler: bool = True


def cache_folder() -> Path:
    """Where libraries that lingchat built by itself lie."""
    from lingchat.config import paths

    return paths().cache / "native"


def find(cache: Path | None = None) -> Native | None:
    """The library, when there is a good one. Builds nothing."""
    return status(cache).native


def status(cache: Path | None = None) -> Status:
    """The library, or why there is none. Builds and changes nothing."""
    cache = cache_folder() if cache is None else cache
    stamp = building.stamp()
    damage = ""
    for folder in (BESIDE, cache / stamp):
        try:
            return Status(open_library(folder, stamp))
        except FileNotFoundError:
            continue
        except (Unusable, OSError) as error:
            if folder != BESIDE:
                damage = f"the one in {folder} cannot be used: {error}"
    compiler = building.find_compiler()
    if compiler is None:
        return Status(None, damage or building.no_compiler(), compiler=False)
    failure = _failure(cache, stamp, compiler)
    return Status(None, f"building it failed: {failure}" if failure else damage or "it is not built yet")


def open_library(folder: Path, stamp: str) -> Native:
    """The library in `folder`, checked. Raises Unusable, and OSError (FileNotFoundError when there is none)."""
    path = folder / building.LIBRARY
    told = (folder / building.SEAL).read_text(errors="replace")
    if told.split()[:1] != [stamp]:
        raise Unusable("it was built from other sources")
    if told != building.seal(path, stamp):
        raise Unusable("it is damaged")
    try:
        native = Native(path)
    except OSError as error:
        raise Unusable(str(error)) from error
    except AttributeError as error:
        raise Unusable(f"{error}") from error
    fault = _fault(native, stamp)
    if fault:
        _ctypes.dlclose(native.lib._handle)  # else a better one of that name is not opened
        raise Unusable(fault)
    return native


def _fault(native: Native, stamp: str) -> str:
    if native.lib.lc_stamp().decode() != stamp:
        return "it was built from other sources"
    for name, kind in structs.STRUCTS.items():
        size = native.lib.lc_sizeof(name.encode())
        if size != ctypes.sizeof(kind):
            return f"its {name} has {size} bytes, not {ctypes.sizeof(kind)}"
    if not native.lib.lc_isa_alike(native.isas[native.isa]):
        return f"it computes other numbers with {native.isa} than in plain C++"
    return ""


# Building


def build(cache: Path | None = None, progress: Progress | None = None) -> Native:
    """Build into the cache, unless a good library is there, and open it. Waits for another process that builds.

    Raises BuildError. A failure that will last is remembered for `status`, until the compiler is another one.
    """
    cache = cache_folder() if cache is None else cache
    stamp = building.stamp()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache):
            with contextlib.suppress(Unusable, OSError):
                return open_library(cache / stamp, stamp)
            _failed(cache, stamp).unlink(missing_ok=True)
            building.build(cache / stamp, progress=progress)
            native = open_library(cache / stamp, stamp)
            _tidy(cache, stamp)
    except BuildError as error:
        if error.lasting:
            _remember(cache, stamp, str(error))
        raise
    except Unusable as error:
        raise BuildError(str(error)) from error
    except OSError as error:
        raise BuildError(f"{error.filename or cache}: {error.strerror}") from error
    return native


def build_in_background(
    done: Callable[[Native | BuildError], None], cache: Path | None = None, progress: Progress | None = None
) -> threading.Thread:
    """Build in a process of its own, which has only what others leave of the processor, and tell `done` from a thread.

    The process goes on when this one ends: who leaves after one question finds the library at the next start. A
    failure that was remembered is told again without trying.
    """
    cache = cache_folder() if cache is None else cache
    thread = threading.Thread(target=_follow, args=(cache, done, progress), name="native build", daemon=True)
    thread.start()
    return thread


def _follow(cache: Path, done: Callable[[Native | BuildError], None], progress: Progress | None) -> None:
    before = status(cache)
    if before.native is not None:
        done(before.native)
        return
    stamp, compiler = building.stamp(), building.find_compiler()
    if compiler is None or _failure(cache, stamp, compiler):
        done(BuildError(before.why))
        return
    command = [sys.executable, "-P", "-m", "lingchat.kernels.cpu.library", str(cache)]
    words = ""
    try:
        # A session of its own: what ends the terminal's programs does not end this one.
        builder = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        done(BuildError(str(error)))
        return
    with builder:
        for line in builder.stdout or ():
            word, _, rest = line.rstrip("\n").partition(" ")
            if word == "step" and progress is not None:
                steps = rest.split()
                progress(int(steps[0]), int(steps[1]))
            elif word == "failed":
                words = rest
    after = status(cache)
    done(after.native or BuildError(words or after.why))


def _main(cache: Path) -> int:
    """Build into `cache` on what others leave of the processor; a line for each step, and for a failure."""
    os.nice(NICENESS)
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    def say(line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # whoever asked for it has gone
            print(line, flush=True)

    try:
        build(cache, lambda done, total: say(f"step {done} {total}"))
    except BuildError as error:
        say(f"failed {_first_words(str(error))}")
        return 1
    return 0


@contextlib.contextmanager
def _lock(cache: Path) -> Iterator[None]:
    """One builder at a time. The system takes the lock back from a process that dies."""
    with (cache / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _tidy(cache: Path, stamp: str) -> None:
    """Under the lock: remove what a killed builder left, and libraries of versions that are long gone."""
    folders = [path for path in cache.iterdir() if path.is_dir()]
    unfinished = [path for path in folders if path.name.startswith(building.UNFINISHED)]
    libraries = [path for path in folders if path not in unfinished and path.name != stamp]
    libraries.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in (*unfinished, *libraries[KEPT - 1 :]):
        shutil.rmtree(path, ignore_errors=True)


# Failures that are remembered: a file beside the library's folder, first line the compiler, then its words.


def _failed(cache: Path, stamp: str) -> Path:
    return cache / f"{stamp}.failed"


def _compiler_told(compiler: list[str]) -> str:
    path = shutil.which(compiler[0]) or compiler[0]
    try:
        about = os.stat(path)
    except OSError:
        return path
    return f"{path} {' '.join(compiler[1:])} {about.st_size} {about.st_mtime_ns}"


def _remember(cache: Path, stamp: str, words: str) -> None:
    compiler = building.find_compiler()
    if compiler is not None:
        with contextlib.suppress(OSError):
            _failed(cache, stamp).write_text(f"{_compiler_told(compiler)}\n{words}\n")


def _failure(cache: Path, stamp: str, compiler: list[str]) -> str:
    """The first words of the failure that this compiler had with these sources; empty when it had none."""
    try:
        told, _, words = _failed(cache, stamp).read_text(errors="replace").partition("\n")
    except OSError:
        return ""
    return _first_words(words) if told == _compiler_told(compiler) else ""


def _first_words(words: str) -> str:
    """The line of a compiler's complaint that says most."""
    lines = [line.strip() for line in words.splitlines() if line.strip()] or ["it said nothing"]
    return next((line for line in lines if "error" in line), lines[0])[:300]


if __name__ == "__main__":
    raise SystemExit(_main(Path(sys.argv[1])))
