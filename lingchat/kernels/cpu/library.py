"""Finds the native CPU library, and has it built where there is none.

It lies beside this file when the installation built it, else in the user's cache under the stamp of the sources. What
is not right there is not used (`native.py`), and built again.

Imports neither torch nor numpy, and is quick to import: a start waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lingchat.kernels.cpu.native import BESIDE, Native, Status, Unusable, open_library
from lingchat.kernels.cpu.sources import stamp

if TYPE_CHECKING:
    from threading import Thread

    from lingchat.kernels.cpu.build import BuildError, Progress

__all__ = ["Native", "Status", "build", "build_in_background", "cache_folder", "find", "status"]


def cache_folder() -> Path:
    """Where libraries that lingchat built by itself lie."""
    from lingchat.folders import paths

    return paths().cache / "native"


def find(cache: Path | None = None) -> Native | None:
    """The library, when there is a good one. Builds nothing."""
    return status(cache).native


def status(cache: Path | None = None) -> Status:
    """The library, or why there is none. Builds and changes nothing."""
    cache = cache_folder() if cache is None else cache
    stamped = stamp()
    why = "it is not built yet"
    for folder in (BESIDE, cache / stamped):
        try:
            return Status(open_library(folder, stamped))
        except FileNotFoundError:
            continue
        except (Unusable, OSError) as error:
            if folder != BESIDE:
                why = f"the one in {folder} cannot be used: {error}"
    from lingchat.kernels.cpu import build, first_use

    compiler = build.find_compiler()
    if compiler is None:
        return Status(None, build.no_compiler(), compiler=False)
    failure = first_use.remembered(cache, stamped, compiler)
    return Status(None, f"building it failed: {failure}", failed=True) if failure else Status(None, why)


def build(cache: Path | None = None, progress: Progress | None = None) -> Native:
    """Build into the cache, unless a good library is there, and open it. Waits for another process that builds.

    Raises BuildError. A failure that will last is remembered for `status`, until the compiler is another one.
    """
    from lingchat.kernels.cpu import first_use

    return first_use.build(cache_folder() if cache is None else cache, progress)


def build_in_background(
    done: Callable[[Native | BuildError], None], cache: Path | None = None, progress: Progress | None = None
) -> Thread:
    """Build in a process of its own, which has only what others leave of the processor, and tell `done` from a thread.

    The process goes on when this one ends: who leaves after one question finds the library at the next start. A
    failure that is remembered is told again without trying.
    """
    from lingchat.kernels.cpu import first_use

    cache = cache_folder() if cache is None else cache
    return first_use.build_in_background(done, cache, progress, lambda: status(cache))
