"""An append-only file of lines that survives crashes and full disks: the ground under traces and sessions.

Bytes wait in memory until `flush`; a failed write raises `DiskError` and keeps every byte not yet written, so that
the caller can make room and flush again. Only this process may append to the file. Files are private (mode 0600), the
folders made for them too (0700).

Knows nothing of what the lines mean.
"""

from __future__ import annotations

import os
from pathlib import Path

from lingchat.errors import DiskError

# Text waits here for at most this long and one tick of the front end, which is as long. With what is on its way from
# the engine (`outbox`, and the pipe that is read 30 times a second) a kill costs less than 250 ms of it.
FLUSH_NS = 100_000_000


def private_folder(folder: Path) -> Path:
    """Makes the folder where it is missing, open to its user alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        reason = "a file is in its place" if isinstance(error, FileExistsError) else error.strerror
        raise DiskError(f"cannot make the folder {folder}: {reason}") from error
    return folder


class Journal:
    """Appends to one file. `unsaved` bytes are in memory only."""

    def __init__(self, path: Path, *, new: bool) -> None:
        """Opens `path` for appending: a `new` file must not exist yet, an old one loses a torn last line.

        A torn line is one that a kill or a full disk cut before its newline; it was never a record. One that lacks
        nothing but the newline cannot be told apart here and goes too: readers must not count on it.
        """
        self.path = path
        self._pending = bytearray()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if new else 0)
        try:
            if not new:
                _cut_torn_line(path)
            self._fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise DiskError(f"cannot open {path} for writing: {error.strerror}") from error

    @property
    def unsaved(self) -> int:
        """Bytes that `flush` has still to write."""
        return len(self._pending)

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def append(self, line: bytes) -> None:
        """Queues a line (without its newline) for the next `flush`."""
        self._pending += line
        self._pending += b"\n"

    def flush(self) -> None:
        """Hands everything to the operating system, where a kill of this process cannot reach it."""
        try:
            while self._pending:
                written = os.write(self._fd, self._pending)
                del self._pending[:written]
        except OSError as error:
            raise DiskError(
                f"cannot write {self.path}: {error.strerror}. Nothing is lost while lingchat runs: "
                f"make room and go on, {len(self._pending):,} bytes are waiting"
            ) from error

    def sync(self) -> None:
        """Flushes, and waits until the disk has it."""
        self.flush()
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise DiskError(f"cannot write {self.path} to the disk: {error.strerror}") from error

    def close(self) -> None:
        """Syncs and closes. Idempotent. When the last write fails the file is closed all the same, and it raises."""
        if self.closed:
            return
        try:
            self.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Closes without writing what waits. Idempotent."""
        if not self.closed:
            os.close(self._fd)
            self._fd = -1


def _cut_torn_line(path: Path) -> None:
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        keep = end
        while keep > 0:
            start = max(0, keep - 65536)
            file.seek(start)
            block = file.read(keep - start)
            newline = block.rfind(b"\n")
            if newline >= 0:
                keep = start + newline + 1
                break
            keep = start
        if keep < end:
            file.truncate(keep)


def utf8(text: str) -> str:
    """The text as it can be written: what is no Unicode (a file name's stray bytes, half a surrogate pair) becomes ?."""
    return text.encode("utf-8", "replace").decode()
