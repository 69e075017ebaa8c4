"""What is measured before the first reply, and what while nothing is asked; a stop leaves the rest for later."""

from __future__ import annotations

import pytest

from lingchat.runtime.drafts.width import Width
from lingchat.runtime.ops.protocol import Stopped
from lingchat.runtime.threads import Threads
from lingchat.runtime.warmup import WarmUp


class Rounds:
    width = 8


class Machine:
    """Back end and driver at once: `alone` and `together` are what a row costs with one thread and with two."""

    def __init__(self, alone: float, together: float) -> None:
        self._costs = {1: alone, 2: together}
        self.count = 2
        self.threads: Threads | None = None
        self.rounds = Rounds()
        self.asked: list[tuple[int, int]] = []  # threads, rows
        self.stopped = False

    def use_threads(self, count: int) -> None:
        self.count = count

    def seconds(self, n_rows: int) -> float:
        if self.stopped:
            raise Stopped
        self.asked.append((self.count, n_rows))
        return self._costs[self.count] * (0.75 + n_rows / 4)


def warm_up(machine: Machine, adapt: bool = True) -> tuple[WarmUp, Width]:
    width = Width(7, adaptive=True)
    made = WarmUp(machine, machine, width, 2, adapt)  # type: ignore[arg-type]
    made.begin()
    return made, width


def test_three_passes_before_the_first_reply() -> None:
    machine = Machine(0.007, 0.004)
    warm, width = warm_up(machine)
    assert machine.asked == [(2, 1), (1, 1), (2, 1)] and machine.count == 2
    assert width.depth() == 7  # nothing is known of drafts yet
    left = 0
    while warm.go_on():
        left += 1
    assert left == 11 and machine.count == 2
    assert {rows for threads, rows in machine.asked if threads == 1} == {1, 2, 4, 8}
    assert not warm.go_on()


def test_a_taken_core_is_seen_before_the_first_reply() -> None:
    machine = Machine(0.007, 0.060)
    warm_up(machine)
    assert machine.threads is not None and machine.threads.count == machine.count == 1
    assert len(machine.asked) == 5


def test_threads_that_were_asked_for_stay() -> None:
    machine = Machine(0.007, 0.060)
    warm, _ = warm_up(machine, adapt=False)
    while warm.go_on():
        pass
    assert machine.threads is None and {threads for threads, _ in machine.asked} == {2}


def test_a_slow_model_measures_little() -> None:
    machine = Machine(0.7, 0.4)
    warm, _ = warm_up(machine)
    while warm.go_on():
        pass
    assert machine.asked[3:] == [(1, 2), (2, 2)]


def test_a_stopped_pass_is_done_again_with_all_threads_back() -> None:
    machine = Machine(0.007, 0.004)
    warm, _ = warm_up(machine)
    machine.stopped = True
    with pytest.raises(Stopped):
        warm.go_on()
    assert machine.count == 2
    machine.stopped = False
    while warm.go_on():
        pass
    assert len(machine.asked) == 3 + 12
