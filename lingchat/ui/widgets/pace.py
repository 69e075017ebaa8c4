"""When streamed text moves, and how far the view scrolls for it.

Text moves at most 10 times a second, and less often when a flush is dear, so that flushing never takes more than a
fifth of a core. Following the bottom, the view scrolls a few lines ahead of fast text: a scrolled line repaints the
whole view, and 11 of them a second (200 tokens/s at 75 columns) are more than a slow terminal takes.

Knows seconds and lines; its clock is injected.
"""

from __future__ import annotations

from collections.abc import Callable

MIN_FLUSH_S = 0.1
FLUSH_SHARE = 4  # a flush waits at least this many times what the last one cost
SCROLL_S = 0.5  # the time between two scrolls of fast text
MOST_AHEAD = 8  # lines
PAUSE_S = 2.0  # after so long without text its rate is unknown


class Pace:
    """Costs of flushes and the rate of new lines."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.cost = 0.0  # seconds the last flush took, with the painting since the one before
        self._painting = 0.0
        self._next = 0.0
        self._last: float | None = None
        self._lines_per_s = 0.0

    def wait(self) -> float:
        """Seconds until the next flush may begin; 0 or less: now."""
        return self._next - self.clock()

    def painted(self, seconds: float) -> None:
        self._painting += seconds

    def flushed(self, start: float) -> None:
        """A flush that began at `start` has ended."""
        end = self.clock()
        self.cost = end - start + self._painting
        self._painting = 0.0
        self._next = end + max(MIN_FLUSH_S, FLUSH_SHARE * self.cost)

    def lines_ahead(self, new_lines: int) -> int:
        """Lines to scroll beyond what must be, after a flush that added `new_lines`."""
        now = self.clock()
        since = None if self._last is None else max(now - self._last, 0.001)
        self._last = now
        if since is None or since > PAUSE_S:
            self._lines_per_s = 0.0
        else:
            self._lines_per_s += (max(new_lines, 0) / since - self._lines_per_s) * min(2 * since, 1.0)
        return min(int(self._lines_per_s * SCROLL_S), MOST_AHEAD)
