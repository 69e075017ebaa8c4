"""Clocks a scripted engine can run on: the system's, a virtual one for tests, and one that runs at a multiple.

A clock tells the time and hands out timers. A timer is a future, so that `cancel` can resolve it early and a wait of
an hour ends at once. Knows nothing of engines.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from typing import Protocol

from lingchat.events import now_ns


class Clock(Protocol):
    def now_ns(self) -> int: ...

    def at(self, when_ns: float) -> asyncio.Future[None]:
        """A future that is done at `when_ns` of this clock (`math.inf`: never). Anyone may resolve it earlier."""
        ...


def _resolve(timer: asyncio.Future[None]) -> None:
    if not timer.done():
        timer.set_result(None)


class SpeedClock:
    """The system's monotonic clock, running at `speed` times its pace from the moment of construction."""

    def __init__(self, speed: float = 1.0) -> None:
        if not (speed > 0 and math.isfinite(speed)):
            raise ValueError(f"speed must be above 0, not {speed}")
        self.speed = speed
        self._origin = now_ns()

    def now_ns(self) -> int:
        if self.speed == 1.0:  # the very instants of every other event in the process, with no rounding
            return now_ns()
        return self._origin + round((now_ns() - self._origin) * self.speed)

    def at(self, when_ns: float) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        timer: asyncio.Future[None] = loop.create_future()
        if math.isfinite(when_ns):
            delay = (when_ns - self.now_ns()) / 1e9 / self.speed
            if delay <= 0:  # still one turn of the loop, so that a late stream never starves the screen
                loop.call_soon(_resolve, timer)
            else:
                handle = loop.call_later(delay, _resolve, timer)
                timer.add_done_callback(lambda _: handle.cancel())
        return timer


class VirtualClock:
    """Time that moves only when asked.

    With `auto` (the default) a timer jumps the clock to its instant and is done on the next turn of the loop: a
    script of minutes plays in milliseconds. Without it, timers wait for `advance`.
    """

    def __init__(self, start_ns: int = 1_000_000_000, *, auto: bool = True) -> None:
        self._now = start_ns
        self._auto = auto
        self._timers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._made = 0

    def now_ns(self) -> int:
        return self._now

    def at(self, when_ns: float) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        timer: asyncio.Future[None] = loop.create_future()
        if not math.isfinite(when_ns):
            return timer
        if self._auto or when_ns <= self._now:
            self._now = max(self._now, round(when_ns))
            loop.call_soon(_resolve, timer)
        else:
            self._made += 1
            heapq.heappush(self._timers, (when_ns, self._made, timer))
        return timer

    async def advance(self, ms: float) -> None:
        """Move the clock by `ms`, resolving timers in order; each gets a few turns of the loop to act."""
        until = self._now + round(ms * 1e6)
        await self._settle()
        while self._timers and self._timers[0][0] <= until:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, round(when))
            _resolve(timer)
            await self._settle()
        self._now = max(self._now, until)

    async def _settle(self) -> None:
        for _ in range(8):  # what a timer wakes may set the next timer before time goes on
            await asyncio.sleep(0)
