"""What is said beside the result, on standard error: progress while loading, warnings, errors.

A terminal gets one line that redraws itself and disappears; anything else gets plain lines, and only about what takes
long. Knows nothing of the result.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

from lingchat.events import Engine
from lingchat.visible import visible, visible_line

QUIET_NS = 400_000_000  # a load shorter than this is not worth a line that flickers
PLAIN_QUIET_NS = 3_000_000_000
_BUSY = {"download": "downloading", "load": "loading", "compile": "compiling"}


class Notes:
    """Writes to `stream`, whose loss is no reason to stop. `color` is the setting: auto, always or never."""

    def __init__(self, color: str = "auto", stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        dumb = os.environ.get("TERM", "") in ("", "dumb")
        self._terminal = self._stream is not None and self._stream.isatty()
        self._redraws = self._terminal and not dumb
        self._color = color == "always" or (color == "auto" and self._redraws)
        self._drawn = 0
        self._named: set[str] = set()
        self._since_ns: int | None = None

    def say(self, text: str, *, error: bool = False) -> None:
        """One message, from `lingchat:` on."""
        self.clear()
        head = "\x1b[31mlingchat:\x1b[0m" if error and self._color else "lingchat:"
        self._write(f"{head} {visible(text)}\n")

    def block(self, text: str) -> None:
        """Text as it is, on lines of its own."""
        self.clear()
        self._write(text.rstrip("\n") + "\n")

    def engine(self, event: Engine) -> None:
        """Progress of a download or a load."""
        busy = _BUSY.get(event.phase)
        if busy is None:
            if event.phase in ("ready", "idle"):
                self.clear()
            return
        if self._since_ns is None:
            self._since_ns = event.t_ns
        waited = event.t_ns - self._since_ns
        what = " ".join(part for part in (busy, event.model or "the model") if part)
        if self._redraws:
            if waited >= QUIET_NS or event.phase == "download":
                self._redraw(f"{what} {_share(event)}".rstrip())
        elif event.phase not in self._named and (waited >= PLAIN_QUIET_NS or event.phase == "download"):
            self._named.add(event.phase)
            size = f" ({event.total_bytes / 1e6:,.0f} MB)" if event.total_bytes else ""
            self.say(f"{what}{size}")

    def clear(self) -> None:
        """Take the progress line away."""
        if self._drawn:
            self._write("\r" + " " * self._drawn + "\r")
            self._drawn = 0

    def _redraw(self, text: str) -> None:
        try:
            width = os.get_terminal_size(self._stream.fileno()).columns - 1
        except (OSError, ValueError):
            width = 79
        text = visible_line(text)[: max(width, 1)]
        self._write("\r" + text.ljust(self._drawn))
        self._drawn = len(text)

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None  # nobody listens: the result still counts


def _share(event: Engine) -> str:
    if event.total_bytes:
        return f"{event.done_bytes / 1e6:,.1f} of {event.total_bytes / 1e6:,.1f} MB"
    return f"{event.progress * 100:.0f}%" if event.progress >= 0 else ""
