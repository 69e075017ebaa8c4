"""Digits: how numbers are written, and that every place writes the same ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_turns import round_rows, turn_events

from lingchat import stats
from lingchat.stats import METRICS, RunStats, footer, summary, timings


def folded(rounds, **options):
    run = RunStats()
    for event in turn_events(rounds, **options):
        run.add(event)
    return run


@pytest.mark.parametrize(
    ("format", "value", "text"),
    [
        (stats.format_ms, None, "–"),
        (stats.format_ms, float("nan"), "–"),
        (stats.format_ms, 0.0, "0.00"),
        (stats.format_ms, 3.899, "3.90"),
        (stats.format_ms, 9.994, "9.99"),
        (stats.format_ms, 9.996, "10.0"),
        (stats.format_ms, 52.14, "52.1"),
        (stats.format_ms, 99.96, "100"),
        (stats.format_ms, 143.2, "143"),
        (stats.format_ms, 12345.6, "12346"),
        (stats.format_rate, 251.4, "251"),
        (stats.format_rate, 7.251, "7.25"),
        (stats.format_ratio, 2.5714, "2.57"),
        (stats.format_ratio, None, "–"),
        (stats.format_percent, 0.523, "52%"),
        (stats.format_percent, None, "–"),
        (stats.format_share, 0.724, ".72"),
        (stats.format_share, 1.0, "1.0"),
        (stats.format_share, 0.0, ".00"),
        (stats.format_count, 1020, "1,020"),
        (stats.format_count, None, "–"),
        (stats.format_seconds, 1834.0, "1.8 s"),
        (stats.format_seconds, 9960.0, "10 s"),
        (stats.format_seconds, 59_700.0, "1 m 00 s"),
        (stats.format_seconds, 185_000.0, "3 m 05 s"),
        (stats.format_seconds, None, "–"),
        (stats.format_bytes, 0, "–"),
        (stats.format_bytes, 512, "512 B"),
        (stats.format_bytes, 411_900_000, "412 MB"),
        (stats.format_bytes, 9_800_000_000, "9.8 GB"),
        (stats.format_bytes, 999_700_000, "1.0 GB"),
    ],
)
def test_digits(format, value, text):
    assert format(value) == text


def test_change_against_a_baseline():
    assert stats.format_change(5.2, 3.97) == "+31 %"
    assert stats.format_change(2.0, 4.0) == "-50 %"
    assert stats.format_change(None, 4.0) == stats.format_change(1.0, 0.0) == "–"


def test_footers():
    rounds = [(14_000, 1, 4, 0), *[(10_000, 3, 4, 2)] * 20]
    turn = folded(rounds).current
    assert footer(turn) == "61 tok · TTFT 143 · p50 3.33 p95 3.33 · L 2.90"
    assert footer(folded(rounds, stop="cancel").current).endswith(" · L 2.90 · stopped")
    assert footer(folded(rounds, stop="length").current).endswith(" · length limit")
    assert footer(turn, stop="interrupted").endswith(" · interrupted")
    assert footer(folded([(5_000, 1, 0, 0)] * 3).current).endswith(" · no draft")


def test_timings_have_the_names_of_the_endpoint():
    names = (
        "ttft_ms prompt_ms reused tpot_p50_ms tpot_p95_ms tpot_p99_ms tok_s rounds drafter draft_n draft_n_accepted "
        "accept_len accept_rate accept_hist"
    )
    assert list(timings(folded([(5_000, 1, 0, 0)] * 3).current)) == names.split()


@given(round_rows())
def test_json_carries_the_digits_of_the_text(rounds):
    turn = folded(rounds).current
    figures = summary(turn)
    for metric in METRICS:
        text, number = metric.text(turn), figures[metric.name]
        if number is None:
            assert text == "–"
        elif text.endswith("%"):
            assert round(number * 100) == int(text[:-1])
        else:
            assert float(text.replace(",", "")) == number


@given(st.floats(min_value=0, max_value=1e9))
def test_a_time_keeps_three_digits(ms):
    text = stats.format_ms(ms)
    assert float(text) == pytest.approx(ms, rel=0.006, abs=0.005)
