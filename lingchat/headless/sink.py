"""Where the result goes: standard output, or a file that appears whole.

Standard output is written by a thread of its own, so that a reader who is slow, or stopped, holds up neither the
engine's events nor signals. Nothing but the result ever goes there. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import queue
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from lingchat.errors import DiskError


class Sink(Protocol):
    def write(self, data: bytes) -> None: ...

    async def finish(self, *, keep: bool) -> None:
        """Everything is written when this returns. `keep` is False when what was written is only a part."""
        ...


class StdoutClosed(Exception):
    """Whoever read standard output has gone: nothing is wrong, and nothing is left to do."""


class Stdout:
    """Standard output. `on_failure` is called in the loop as soon as a write fails; `finish` raises the failure."""

    def __init__(self, on_failure: Callable[[], None], fd: int = 1) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._on_failure = on_failure
        self._blocks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._failure: OSError | None = None
        self._written = asyncio.Event()
        threading.Thread(target=self._run, name="stdout", daemon=True).start()

    def write(self, data: bytes) -> None:
        if data:
            self._blocks.put(data)

    async def finish(self, *, keep: bool) -> None:
        self._blocks.put(None)
        await self._written.wait()
        if self._failure is None:
            return
        if self._failure.errno in (errno.EPIPE, errno.ECONNRESET):
            raise StdoutClosed
        raise DiskError(f"cannot write standard output: {self._failure.strerror}") from self._failure

    def _run(self) -> None:
        while (block := self._blocks.get()) is not None:
            view = memoryview(block)
            try:
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError as cause:
                self._failure = cause
                self._in_loop(self._on_failure)
                break
        self._in_loop(self._written.set)

    def _in_loop(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is waiting any more
            self._loop.call_soon_threadsafe(call)


class OutFile:
    """A file that keeps its old content until the new one is whole. A device or pipe is written as it comes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._path = Path(os.path.realpath(name))
        try:
            mode = self._path.stat().st_mode
        except OSError:
            mode = None
        self._whole = mode is None or stat.S_ISREG(mode)
        try:
            if self._whole:
                import tempfile  # most replies go to standard output

                fd, self._temporary = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
                os.fchmod(fd, stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask())
            else:
                fd, self._temporary = os.open(self._path, os.O_WRONLY), ""
        except OSError as cause:
            raise DiskError(f"cannot write {name}: {cause.strerror}") from cause
        self._file = os.fdopen(fd, "wb")

    def write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as cause:
            raise DiskError(f"cannot write {self.name}: {cause.strerror}") from cause

    async def finish(self, *, keep: bool) -> None:
        """Without `keep` the file stays as it was."""
        try:
            with self._file:
                if keep:
                    self._file.flush()
                    if self._whole:
                        os.fsync(self._file.fileno())
            if self._whole and keep:
                os.replace(self._temporary, self._path)
                self._temporary = ""
        except OSError as cause:
            raise DiskError(f"cannot write {self.name}: {cause.strerror}") from cause
        finally:
            if self._temporary:
                with contextlib.suppress(OSError):
                    os.unlink(self._temporary)
                self._temporary = ""


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
