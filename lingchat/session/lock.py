"""One writer for a session: a file lock that dies with its process and tells whose it is."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from lingchat.errors import DiskError, SessionError


class WriterLock:
    """Holds `<id>.lock` beside the session, with the holder's process id in it."""

    def __init__(self, path: Path, session: str) -> None:
        """Takes the lock; `SessionError` names the process that has it."""
        self._path = path
        try:
            self._fd = _taken(path, session)
        except OSError as error:
            raise DiskError(f"cannot lock session {session}: {error.strerror} ({path})") from error

    def release(self) -> None:
        """Gives the lock back and removes its file. Idempotent."""
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)  # still locked: whoever waits for this file sees that it is gone
            os.close(self._fd)
            self._fd = -1


def _taken(path: Path, session: str) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, fd):
                os.truncate(fd, 0)
                os.pwrite(fd, str(os.getpid()).encode(), 0)
                return fd
        except BlockingIOError as error:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace") or "?"
            os.close(fd)
            raise SessionError(
                f"session {session} is open in another lingchat (process {holder}): close it there, or start a new session"
            ) from error
        except OSError:
            os.close(fd)
            raise
        os.close(fd)  # its holder removed it between our open and our lock: take the new one


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
