"""A helper process that ends with its caller: pip, and the hub's client.

It has a session of its own, so that Ctrl-C reaches the caller alone, which then ends it; and a pipe as its standard
input, whose end tells it that the caller is gone, however it went.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO


def leave_with_caller(work: str | None = None) -> None:
    """In the child: end this process when the pipe on its standard input does, and take the folder `work` along."""

    def leave() -> None:
        os.read(0, 1)  # not sys.stdin, whose lock a thread would hold when the interpreter ends
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)  # whoever would do it is gone
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()


def start(
    command: list[str], output: int | IO[bytes], log: IO[bytes], scratch: Path | None = None
) -> subprocess.Popen[bytes]:
    """Run `command`, its standard output into `output`, its standard error into `log`, temporary files in `scratch`."""
    environment = {**os.environ, "LC_ALL": "C"}
    if scratch is not None:
        environment["TMPDIR"] = str(scratch)
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=output, stderr=log, env=environment, start_new_session=True
    )


def end(child: subprocess.Popen[bytes]) -> None:
    """Leave no child behind, however the wait for it ended."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
