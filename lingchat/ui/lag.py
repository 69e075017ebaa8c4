"""How late the screen's event loop runs, so that a slow terminal is not mistaken for a slow model.

A timer asks to be woken every 100 ms while a reply streams; how much later it is woken is one sample. The figure is
the 95th percentile of the last ten seconds. It never runs while nothing streams.
"""

from __future__ import annotations

import asyncio
from collections import deque

PERIOD_S = 0.1
WINDOW = 100


class LagMeter:
    """Start and stop it with a reply. `p95_ms` is None until something was measured."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=WINDOW)
        self._handle: asyncio.TimerHandle | None = None

    @property
    def running(self) -> bool:
        return self._handle is not None

    @property
    def p95_ms(self) -> float | None:
        if not self._samples:
            return None
        ordered = sorted(self._samples)
        return 1000.0 * ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]

    def start(self) -> None:
        if self._handle is None:
            loop = asyncio.get_running_loop()
            self._arm(loop, loop.time() + PERIOD_S)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._handle = loop.call_at(due, self._wake, loop, due)

    def _wake(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        self._samples.append(max(0.0, now - due))
        self._arm(loop, now + PERIOD_S)
