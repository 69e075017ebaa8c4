"""When text moves: at most 10 times a second, seldom when it is dear, and ahead when it is fast."""

from __future__ import annotations

import pytest
from ui.helpers import FakeClock

from lingchat.ui.widgets.pace import MIN_FLUSH_S, MOST_AHEAD, Pace


def flush(pace: Pace, clock: FakeClock, seconds: float) -> None:
    start = clock()
    clock.advance(seconds)
    pace.flushed(start)


def test_the_first_flush_is_at_once_and_the_next_waits() -> None:
    clock = FakeClock()
    pace = Pace(clock)
    assert pace.wait() <= 0
    flush(pace, clock, 0.001)
    assert pace.wait() == pytest.approx(MIN_FLUSH_S)


def test_a_dear_flush_waits_four_times_its_cost_painting_included() -> None:
    clock = FakeClock()
    pace = Pace(clock)
    pace.painted(0.03)
    flush(pace, clock, 0.02)
    assert pace.cost == pytest.approx(0.05)
    assert pace.wait() == pytest.approx(0.2)
    clock.advance(0.2)
    flush(pace, clock, 0.001)
    assert pace.wait() == pytest.approx(MIN_FLUSH_S)


def test_slow_text_scrolls_line_by_line_and_fast_text_ahead() -> None:
    clock = FakeClock()
    pace = Pace(clock)
    for _ in range(50):
        clock.advance(1.0)
        assert pace.lines_ahead(1) == 0  # one line a second
    for _ in range(100):
        clock.advance(0.07)
        ahead = pace.lines_ahead(2)
    assert ahead == MOST_AHEAD
    clock.advance(5)
    assert pace.lines_ahead(1) == 0
