"""What passes cost on this machine, measured before anybody needs it: a little at load, the rest while nothing is asked.

How deep to draft and how many threads to use rest on these costs. A person who waits for the first token pays for two
passes only; every round corrects what was not measured. Nothing of a measured pass is kept.
"""

from __future__ import annotations

from lingchat.runtime.drafts.width import Width
from lingchat.runtime.drivers.base import Driver
from lingchat.runtime.ops.protocol import Ops
from lingchat.runtime.threads import FEW, Threads

WIDTHS = (2, 4, 8)  # rows of a round, beside the single one
REPEATS = 2
SLOW_ROW_S = 0.1  # a row that takes longer is measured no more often than it must


class WarmUp:
    """`threads` is the most of them; with `adapt` their number may follow what else the machine does."""

    def __init__(self, ops: Ops, driver: Driver, width: Width, threads: int, adapt: bool) -> None:
        self._ops, self._driver, self._width = ops, driver, width
        self._most = threads
        self._adapt = adapt and threads > 1
        self._left: list[tuple[bool, int]] = []  # alone, rows

    def begin(self) -> None:
        """What must be known before the first reply."""
        self._driver.seconds(1)  # what is used for the first time costs more
        if self._adapt:
            self._ops.use_threads(1)
            self._driver.threads = Threads(self._most, self._ops.use_threads, {1: self._driver.seconds(1)})
        one = self._driver.seconds(1)
        self._width.learn(0, 0, one)
        self._step_back(one)
        if one > SLOW_ROW_S:
            widths, repeats = WIDTHS[:1], 1
        else:
            widths, repeats = WIDTHS, REPEATS
        widths = tuple(n for n in widths if n <= self._driver.rounds.width)
        alone_too = (True, False) if self._adapt else (False,)
        self._left = [(alone, n) for alone in alone_too for n in repeats * widths]

    def _step_back(self, one: float) -> None:
        """Where a core is taken, several threads show it at once; the first reply need not find that out."""
        threads = self._driver.threads
        if threads is None:
            return
        for _ in range(FEW):
            threads.learn(1, one)
            if threads.count == 1 or not threads.far_worse(1, one):
                return
            one = self._driver.seconds(1)

    def go_on(self) -> bool:
        """One more pass; whether another one is left. Raises Stopped, and that pass is still to be done."""
        if not self._left:
            return False
        alone, rows = self._left[0]
        threads = self._driver.threads
        if alone:
            assert threads is not None
            self._ops.use_threads(1)
            try:
                threads.measured(rows, self._driver.seconds(rows))
            finally:
                self._ops.use_threads(threads.count)
        else:
            self._width.learn(rows - 1, 0, self._driver.seconds(rows))
        del self._left[0]
        return bool(self._left)
