"""What the tests of screens and widgets share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot


async def wait_until(pilot: Pilot[Any], predicate: Callable[[], object], *, timeout_s: float = 10.0) -> None:
    """Lets the app run until `predicate` holds; fails with its source line when it does not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"still not true after {timeout_s} s: {predicate}")
        await pilot.pause(0.005)


class FakeClock:
    """A clock that stands still until it is told."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
