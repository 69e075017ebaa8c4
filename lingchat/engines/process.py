"""The engine's process: started before anything else is imported, since it has the most to do.

Starting it needs no setting: what it shall load is sent to it later. So this file imports neither asyncio nor msgspec,
which cost more than all it does. Knows pipes and the log; knows nothing of what is said through them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from lingchat.errors import DiskError
from lingchat.folders import paths

WORKER = ("-m", "lingchat.runtime.worker")
_LOGS = 20  # worker logs that are kept


class Worker(NamedTuple):
    """A process and our ends of its two pipes, which do not block."""

    process: subprocess.Popen[bytes]
    read_fd: int
    write_fd: int
    log: Path  # what it prints
    started_ns: int  # on the clock of events

    def discard(self) -> None:
        """End it at once and leave nothing of it: nobody wants it after all."""
        os.close(self.read_fd)
        os.close(self.write_fd)
        self.process.kill()
        self.process.wait()
        self.log.unlink(missing_ok=True)


def start_worker(program: Sequence[str] = WORKER) -> Worker:
    """Start the engine's process; it waits for its first command. Raises DiskError when its log cannot be made.

    `program` are the interpreter's arguments; the numbers of the two pipes' ends follow them.
    """
    started_ns = time.monotonic_ns()
    log = paths().state / f"worker-{os.getpid()}-{started_ns:x}.log"
    log_file = _open_log(log)
    from_front, write_fd = os.pipe()
    read_fd, to_front = os.pipe()
    with log_file:
        process = subprocess.Popen(
            # -P: a module of that name in the user's folder is not imported.
            [sys.executable, "-P", *program, str(from_front), str(to_front)],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            pass_fds=(from_front, to_front),
            start_new_session=True,  # keys of the terminal (ctrl+c, ctrl+z) are the front end's
        )
    os.close(from_front)
    os.close(to_front)
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    return Worker(process, read_fd, write_fd, log, started_ns)


def _open_log(log: Path) -> IO[bytes]:
    """A file of this process's own; the logs of dead front ends go with it."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        _sweep(log.parent)
        return open(log, "wb", opener=_private)
    except OSError as error:
        raise DiskError(f"The engine's log {log} cannot be written: {error.strerror}.") from error


def _sweep(folder: Path) -> None:
    """Keep the newest logs: the last deaths are worth reading, the hundredth is not."""
    logs = sorted(folder.glob("worker-*.log"), key=lambda path: path.stat().st_mtime)
    for old in logs[:-_LOGS]:
        old.unlink(missing_ok=True)


def _private(path: str, flags: int) -> Any:
    return os.open(path, flags, 0o600)
