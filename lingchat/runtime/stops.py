"""Stop strings over streamed text: hold back what may become one. Pure Python."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Text that is safe to show, and whether a stop string was completed (it and what follows are dropped)."""
        if not self._stops:
            return text, False
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            shown, self._held = self._held[: min(found)], ""
            return shown, True
        keep = max(self._overlap(stop) for stop in self._stops)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown, False

    def finish(self) -> str:
        """The reply is over: what was held back was no stop string."""
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        """Length of the longest end of the held text that begins `stop`."""
        for size in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if stop.startswith(self._held[-size:]):
                return size
        return 0
