"""How many threads decode: the physical cores this process may use, or one while something else keeps them busy.

Threads that decode together wait for each other many hundred times a token, spinning. On free cores that is the
fastest way; when another process takes one of the cores, every wait lasts until the scheduler comes round, and two
threads become several times slower than one. So each round's cost is held against what one thread would need.

Pure Python: it is told costs and calls a function that sets the number.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from lingchat.errors import UsageError
from lingchat.machine import core_limit
from lingchat.runtime.costs import interpolate

_WINDOW = 8  # rounds that are judged together
_WORSE = 1.1  # several threads must not take longer than this share of one thread's time
_FAR_WORSE, FEW = 1.5, 3  # so much in so many rounds is no accident, and each such round is dear
# Rounds alone before the others are tried again; doubles while they keep failing. Few at first: rounds become dearer
# with the context too, and then one thread is slower still.
_PATIENCE = 16
_MOST_PATIENCE = 1024


def choose_threads(asked: int | None) -> int:
    """As many as asked for, else the physical cores, or as many of them as the container may keep busy."""
    if asked is None:
        limit = core_limit()
        return min(physical_cores(), max(1, int(limit))) if limit else physical_cores()
    if not 1 <= asked <= 512:
        raise UsageError(f"--threads {asked} is out of range; give 1 to 512.")
    return asked


def physical_cores() -> int:
    """Cores, not hyperthreads, of those this process may run on; at least 1."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in usable:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(topology.read_text() if topology.exists() else str(cpu))
    return max(1, len(siblings))


class Threads:
    """Decides between `most` threads and one. `alone`: seconds of a pass with one thread, by its number of rows.

    Rounds of more rows than are known of one thread are not judged; `measured` adds what is found out later.
    """

    def __init__(self, most: int, use: Callable[[int], None], alone: Mapping[int, float]) -> None:
        self.count = self.most = most
        self._use = use
        self._alone = dict(alone)
        self._window: deque[float] = deque(maxlen=_WINDOW)
        self._single = 1.0  # how one thread did lately, in units of `alone`
        self._patience = _PATIENCE
        self._rest = 0  # rounds until the others are tried again
        use(most)

    def measured(self, rows: int, seconds: float) -> None:
        """A pass of one thread over `rows` rows took that long; the shortest counts."""
        self._alone[rows] = min(seconds, self._alone.get(rows, seconds))

    def far_worse(self, rows: int, seconds: float) -> bool:
        """Whether a round took so much longer than one thread needs that it was waiting for something."""
        return seconds > _FAR_WORSE * self._single * interpolate(self._alone, rows)

    def learn(self, rows: int, seconds: float) -> None:
        """A round of `rows` rows took that long."""
        if self.most == 1:
            return
        known = rows <= max(self._alone, default=0)
        if known:
            self._window.append(seconds / interpolate(self._alone, rows))
        if self.count == 1:
            self._rest -= 1
            if self._rest <= 0:
                self._single = _median(self._window) if self._window else 1.0
                self._switch(self.most)
        elif known and self._too_slow():
            self._rest, self._patience = self._patience, min(2 * self._patience, _MOST_PATIENCE)
            self._switch(1)
        elif len(self._window) == _WINDOW:
            self._patience = _PATIENCE

    def _too_slow(self) -> bool:
        seen = self._window
        far = len(seen) >= FEW and min(list(seen)[-FEW:]) > _FAR_WORSE * self._single
        return far or (len(seen) == _WINDOW and _median(seen) > _WORSE * self._single)

    def _switch(self, count: int) -> None:
        self.count = count
        self._window.clear()
        self._use(count)


def _median(values: Iterable[float]) -> float:
    """Of an odd or even number of them; the standard library's comes with more than a start should wait for."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
