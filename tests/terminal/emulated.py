"""The app on an emulated terminal: a pseudo terminal whose output feeds a pyte screen. Nothing sleeps: `until` polls."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pexpect
import pyte

HERE = Path(__file__).parent


class Emulated:
    """A program on a terminal of `size` (columns, rows), its home in `home`."""

    def __init__(self, arguments: Sequence[str], home: Path, size: tuple[int, int] = (80, 24), **env: str) -> None:
        columns, rows = size
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = bytearray()
        base = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLORTERM", "TMUX")}
        self.child = pexpect.spawn(
            sys.executable,
            list(arguments),
            env={**base, "TERM": "xterm-256color", "LINGCHAT_HOME": str(home), **env},
            dimensions=(rows, columns),
        )
        self.child.delaybeforesend = None

    def read(self, seconds: float = 0.05) -> int:
        """Feed what arrives within `seconds`; the number of bytes."""
        try:
            data = self.child.read_nonblocking(65536, seconds)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return 0
        self.raw += data
        self.stream.feed(data)
        return len(data)

    def until(self, holds: Callable[[], object], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, "\n".join(self.screen.display)
            self.read()

    @property
    def text(self) -> str:
        """The screen as text, its lines joined, so that a message that wraps is still found."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def shows(self, text: str) -> bool:
        return any(text in line for line in self.screen.display)

    def send(self, keys: str) -> None:
        self.child.send(keys)

    def resize(self, columns: int, rows: int) -> None:
        self.child.setwinsize(rows, columns)
        self.screen.resize(rows, columns)

    def finish(self) -> int:
        """Wait for the end; the exit code, minus the signal if one ended it."""
        self.until(lambda: not self.read() and not self.child.isalive())
        self.child.close()
        return self.child.exitstatus if self.child.exitstatus is not None else -(self.child.signalstatus or 0)
