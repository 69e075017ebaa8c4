"""Threads step back where they only wait for each other, and come back when the cores are free."""

from __future__ import annotations

import pytest

from lingchat.errors import UsageError
from lingchat.runtime import threads
from lingchat.runtime.threads import Threads, choose_threads, physical_cores

ALONE = {1: 10.0, 4: 16.0, 8: 24.0}


def make(most: int = 4) -> tuple[Threads, list[int]]:
    used: list[int] = []
    return Threads(most, used.append, ALONE), used


def feed(threads: Threads, rounds: int, factor: float, rows: int = 1) -> None:
    for _ in range(rounds):
        threads.learn(rows, factor * {1: 10.0, 2: 12.0, 4: 16.0, 8: 24.0}[rows])


def test_all_threads_while_they_help() -> None:
    threads, used = make()
    feed(threads, 200, 0.6)
    feed(threads, 200, 0.7, rows=2)
    assert used == [4] and threads.count == 4


def test_one_thread_when_a_core_is_taken_and_all_again_later() -> None:
    threads, used = make()
    feed(threads, 3, 3.0)
    assert threads.count == 1
    feed(threads, 64, 1.0)
    assert used == [4, 1, 4]
    feed(threads, 100, 0.6)
    assert threads.count == 4


def test_the_wait_doubles_while_the_core_stays_taken() -> None:
    threads, _ = make()
    tried = 0
    for _ in range(1000):
        tried += threads.count == 4
        feed(threads, 1, 3.0 if threads.count == 4 else 1.0)
    assert tried < 30


def test_a_machine_that_is_slow_altogether_keeps_its_threads() -> None:
    threads, _ = make()
    feed(threads, 7, 1.3)
    assert threads.count == 4
    feed(threads, 1, 1.3)  # everything became slower: several threads look worse than one used to be
    assert threads.count == 1
    feed(threads, 64, 2.0)  # but one is now slower still
    feed(threads, 50, 1.3)
    assert threads.count == 4


def test_one_spike_changes_nothing() -> None:
    threads, used = make()
    for _ in range(10):
        feed(threads, 7, 0.6)
        feed(threads, 1, 30.0)
    assert used == [4]


def test_rounds_of_unknown_width_are_not_judged_until_it_is_measured() -> None:
    used: list[int] = []
    threads = Threads(4, used.append, {1: 10.0})
    for _ in range(20):
        threads.learn(8, 90.0)
    assert used == [4]
    threads.measured(8, 30.0)
    threads.measured(8, 24.0)
    feed(threads, 3, 3.0, rows=8)
    assert used == [4, 1]
    for _ in range(64):
        threads.learn(12, 90.0)  # they count as rounds all the same
    assert used[:3] == [4, 1, 4]


def test_what_waits_for_a_core_is_told_from_what_is_slow() -> None:
    threads, _ = make()
    assert not threads.far_worse(1, 12.0)
    assert threads.far_worse(1, 16.0) and threads.far_worse(8, 40.0)


def test_counts_that_are_asked_for() -> None:
    assert choose_threads(3) == 3
    with pytest.raises(UsageError):
        choose_threads(0)


@pytest.mark.parametrize(("limit", "most"), [(0.0, 512), (0.5, 1), (1.0, 1), (2.9, 2), (600.0, 512)])
def test_by_itself_all_cores_or_what_the_container_may_use(
    limit: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "core_limit", lambda: limit)
    assert choose_threads(None) == min(physical_cores(), most) >= 1
