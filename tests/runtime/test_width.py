"""The depth of drafting follows measured costs and acceptance."""

from __future__ import annotations

import pytest

from lingchat.runtime.costs import interpolate
from lingchat.runtime.drafts.width import Width


def trained(costs: list[float], hits: int, rounds: int = 200) -> Width:
    width = Width(7, adaptive=True)
    for drafts, seconds in enumerate(costs):
        for _ in range(40):
            width.learn(drafts, 0, seconds)
    width.begin()
    for _ in range(rounds):
        width.learn(7, hits, costs[-1])
    return width


def test_cheap_rows_and_good_drafts_go_deep() -> None:
    assert trained([1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35], hits=7).depth() == 7


def test_dear_rows_and_bad_drafts_stop_drafting_but_keep_probing() -> None:
    width = trained([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], hits=0)
    depths = [width.depth() for _ in range(64)]
    assert set(depths) == {0, 1} and sum(depths) == 4


def test_middling_acceptance_goes_part_of_the_way() -> None:
    assert 0 < trained([1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4], hits=1).depth() < 7


def test_a_new_reply_tries_again() -> None:
    width = trained([1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35], hits=0)
    assert width.depth() == 0
    width.begin()
    assert width.depth() > 0


def test_fixed_depth_is_fixed() -> None:
    width = Width(3, adaptive=False)
    for _ in range(50):
        width.learn(3, 0, 9.0)
    assert width.depth() == 3


@pytest.mark.parametrize(("at", "cost"), [(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0), (7, 5.0), (11, 6.0)])
def test_costs_lie_on_the_line_between_what_was_measured(at: int, cost: float) -> None:
    assert interpolate({7: 5.0, 0: 1.0, 3: 4.0}, at) == pytest.approx(cost)


def test_costs_never_fall_beyond_what_was_measured() -> None:
    assert interpolate({0: 3.0, 4: 2.0}, 9) == 2.0
    assert interpolate({1: 3.0}, 9) == 3.0
