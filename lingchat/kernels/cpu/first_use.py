"""Builds the native CPU library into the user's cache when it is first needed: one builder at a time, out of the way.

Run as a program it builds into the folder it is given, a line for each step.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from lingchat.kernels.cpu import build as building
from lingchat.kernels.cpu.build import BuildError, Progress
from lingchat.kernels.cpu.native import Native, Status, Unusable, open_library
from lingchat.kernels.cpu.sources import stamp

KEPT = 4  # libraries in the cache: of as many versions of lingchat
NICENESS = 19


def build(cache: Path, progress: Progress | None = None) -> Native:
    """As `library.build`."""
    stamped = stamp()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache):
            with contextlib.suppress(Unusable, OSError):
                return open_library(cache / stamped, stamped)
            _failed(cache, stamped).unlink(missing_ok=True)
            building.build(cache / stamped, progress=progress)
            native = open_library(cache / stamped, stamped)
            _tidy(cache, stamped)
    except BuildError as error:
        if error.lasting:
            _remember(cache, stamped, str(error))
        raise
    except Unusable as error:
        raise BuildError(str(error)) from error
    except OSError as error:
        raise BuildError(f"{error.filename or cache}: {error.strerror}") from error
    return native


def build_in_background(
    done: Callable[[Native | BuildError], None], cache: Path, progress: Progress | None, look: Callable[[], Status]
) -> threading.Thread:
    """As `library.build_in_background`; `look` finds the library, or why there is none."""
    thread = threading.Thread(target=_follow, args=(done, cache, progress, look), name="native build", daemon=True)
    thread.start()
    return thread


def _follow(
    done: Callable[[Native | BuildError], None], cache: Path, progress: Progress | None, look: Callable[[], Status]
) -> None:
    before = look()
    if before.native is not None:
        done(before.native)
        return
    if before.failed or not before.compiler:
        done(BuildError(before.why))
        return
    # A session of its own: what ends the terminal's programs does not end this one.
    command = [sys.executable, "-P", "-m", "lingchat.kernels.cpu.first_use", str(cache)]
    words = ""
    try:
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
    after = look()
    done(after.native or BuildError(words or after.why))


def main(cache: Path) -> int:
    """Build on what others leave of the processor."""
    os.nice(NICENESS)
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # whoever asked for it has gone
            print(line, flush=True)

    try:
        build(cache, lambda done, total: say(f"step {done} {total}"))
    except BuildError as error:
        say(f"failed {first_words(str(error))}")
        return 1
    return 0


@contextlib.contextmanager
def _lock(cache: Path) -> Iterator[None]:
    """One builder at a time. The system takes the lock back from a process that dies."""
    with (cache / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _tidy(cache: Path, stamped: str) -> None:
    """Under the lock: remove what a killed builder left, and libraries of versions that are long gone."""
    folders = [path for path in cache.iterdir() if path.is_dir()]
    unfinished = [path for path in folders if path.name.startswith(building.UNFINISHED)]
    libraries = [path for path in folders if path not in unfinished and path.name != stamped]
    libraries.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in (*unfinished, *libraries[KEPT - 1 :]):
        shutil.rmtree(path, ignore_errors=True)


# Failures that are remembered: a file beside the library's folder, first line the compiler, then its words.


def remembered(cache: Path, stamped: str, compiler: list[str]) -> str:
    """The first words of the failure that this compiler had with these sources; empty when it had none."""
    try:
        told, _, words = _failed(cache, stamped).read_text(errors="replace").partition("\n")
    except OSError:
        return ""
    return first_words(words) if told == _about(compiler) else ""


def first_words(words: str) -> str:
    """The line of a compiler's complaint that says most."""
    lines = [line.strip() for line in words.splitlines() if line.strip()] or ["it said nothing"]
    return next((line for line in lines if "error" in line), lines[0])[:300]


def _failed(cache: Path, stamped: str) -> Path:
    return cache / f"{stamped}.failed"


def _about(compiler: list[str]) -> str:
    """One line that changes when the compiler does."""
    path = shutil.which(compiler[0]) or compiler[0]
    try:
        about = os.stat(path)
    except OSError:
        return path
    return f"{path} {' '.join(compiler[1:])} {about.st_size} {about.st_mtime_ns}"


def _remember(cache: Path, stamped: str, words: str) -> None:
    compiler = building.find_compiler()
    if compiler is not None:
        with contextlib.suppress(OSError):
            _failed(cache, stamped).write_text(f"{_about(compiler)}\n{words}\n")


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
