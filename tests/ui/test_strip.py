"""The strip: spikes survive, columns and scale move no faster than the eye, and it reads without colour."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingchat.events import Decode
from lingchat.ui.widgets.strip import ABOVE, BARS, StripModel

MS = 1_000_000
S = 1000 * MS


def decode(start_ns: int, *rounds: tuple[float, int]) -> Decode:
    """A batch of (ms, tokens) rounds from `start_ns` on."""
    us = tuple(round(ms * 1000) for ms, _ in rounds)
    k = tuple(tokens for _, tokens in rounds)
    zero = (0,) * len(rounds)
    return Decode(t_ns=start_ns + 1000 * sum(us), turn=1, t0_ns=start_ns, dt_us=us, k=k, m=zero, a=zero)


def test_slow_tokens_have_a_column_each() -> None:
    model = StripModel()
    model.feed(decode(0, (200, 1), (300, 1), (250, 1)))
    assert list(model.columns) == [200, 300, 250]


def test_fast_tokens_share_columns_and_the_spike_survives() -> None:
    model = StripModel()
    rounds = [(4.0, 1)] * 250
    rounds[100] = (40.0, 1)
    model.feed(decode(0, *rounds))
    assert max(model.columns) == 40.0
    assert len(model.columns) <= 8 * (250 * 0.004 + 0.036) + 1


@given(st.lists(st.tuples(st.floats(0.1, 2000), st.integers(0, 9)), min_size=1, max_size=80))
def test_at_most_eight_columns_a_second(rounds: list[tuple[float, int]]) -> None:
    model = StripModel()
    start = 5 * S
    at, now = start, start
    for ms, tokens in rounds:
        event = decode(at, (ms, tokens))
        model.feed(event)
        at = now = event.t_ns
    assert len(model.columns) <= 8 * (now - start) / S + 1.001
    tokens = [ms for ms, count in rounds if count]
    if tokens:
        biggest = max(round(ms * 1000) / count / 1000 for ms, count in rounds if count)
        assert max(model.columns) == pytest.approx(biggest)


def test_batches_do_not_matter() -> None:
    rounds = [(30.0, 3), (8.0, 1), (0.5, 0), (90.0, 4)] * 10
    whole, parts = StripModel(), StripModel()
    whole.feed(decode(S, *rounds))
    at = S
    for one in rounds:
        event = decode(at, one)
        parts.feed(event)
        at = event.t_ns
    assert whole.columns == parts.columns


def test_the_scale_changes_at_most_once_a_second_and_never_shrinks_in_a_turn() -> None:
    model = StripModel()
    model.rescale(4.0, 5.0, S)
    assert model.top_ms == 16.0  # 4 x p50
    model.rescale(4.0, 40.0, S + 999 * MS)
    assert model.top_ms == 16.0
    model.rescale(4.0, 40.0, 2 * S)
    assert model.top_ms == 50.0  # 25 % above p95
    model.rescale(2.0, 3.0, 9 * S)
    assert model.top_ms == 50.0
    model.start_turn()
    assert model.top_ms is None
    model.rescale(2.0, 3.0, 9 * S + MS)
    assert model.top_ms == 8.0


def test_unknown_percentiles_change_nothing() -> None:
    model = StripModel()
    model.rescale(None, None, S)
    assert model.top_ms is None


def test_glyphs_tell_height_and_what_is_above_without_colour() -> None:
    model = StripModel()
    model.feed(decode(0, (200, 1), (400, 1), (800, 1), (801, 1)))
    model.rescale(200.0, 250.0, S)
    assert model.top_ms == 800
    assert [glyph for glyph, _ in model.glyphs(10)] == [BARS[1], BARS[3], BARS[7], ABOVE]
    assert [glyph for glyph, _ in model.glyphs(2)] == [BARS[7], ABOVE]
    upper = [glyph for glyph, _ in model.glyphs(10, 0, 2)]
    lower = [glyph for glyph, _ in model.glyphs(10, 1, 2)]
    assert upper == [" ", " ", "█", ABOVE]
    assert lower == ["▄", "█", "█", "█"]


def test_colours_are_multiples_of_p50() -> None:
    model = StripModel()
    model.feed(decode(0, (300, 1), (301, 1), (600, 1), (601, 1)))
    model.rescale(200.0, 250.0, S)
    assert [tone for _, tone in model.glyphs(10)] == ["good", "slow", "slow", "bad"]


def test_of_many_tokens_in_a_column_a_slow_one_colours_nothing_and_a_bad_one_all() -> None:
    def tones(*rounds: tuple[float, int]) -> set[str]:
        model = StripModel()
        model.feed(decode(0, (4, 1), *rounds))  # a column of about thirty
        model.rescale(4.0, 5.0, S)
        assert len(model.columns) == 1
        return {tone for _, tone in model.glyphs(10)}

    assert tones(*[(4, 1)] * 20, (7, 1)) == {"good"}
    assert tones(*[(4, 1)] * 20, (13, 1)) == {"bad"}
    assert tones(*[(4, 1)] * 18, *[(7, 1)] * 3) == {"slow"}
    assert tones(*[(4, 1)] * 6, (7, 1)) == {"slow"}  # few share the column: one is a tenth


def test_the_version_changes_exactly_when_something_does() -> None:
    model = StripModel()
    model.rescale(4.0, 5.0, S)
    version = model.version
    model.rescale(4.0, 5.0, 3 * S)
    assert model.version == version
    model.feed(decode(0, (4, 1)))
    assert model.version > version
