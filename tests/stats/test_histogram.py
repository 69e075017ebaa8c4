"""The histogram answers within 1 % of the exact quantile, merges in any order and never grows past its range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingchat.stats.histogram import ExactSamples, Histogram, rank

VALUES = st.floats(min_value=1e-3, max_value=1e9, allow_nan=False)
SAMPLES = st.lists(st.tuples(VALUES, st.integers(1, 5)), min_size=1, max_size=60)
QUANTILES = st.sampled_from([0.0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 1.0])


def filled(kind, samples):
    made = kind()
    for value, count in samples:
        made.add(value, count)
    return made


@given(SAMPLES, QUANTILES)
def test_a_quantile_is_within_one_per_cent(samples, q):
    exact = sorted(value for value, count in samples for _ in range(count))[rank(q, sum(c for _, c in samples)) - 1]
    assert filled(Histogram, samples).quantile(q) == pytest.approx(exact, rel=0.01)
    assert filled(ExactSamples, samples).quantile(q) == exact


@given(SAMPLES, SAMPLES, SAMPLES)
def test_merging_is_associative_and_equals_adding(one, two, three):
    left = filled(Histogram, one)
    left.merge(filled(Histogram, two))
    left.merge(filled(Histogram, three))
    tail = filled(Histogram, two)
    tail.merge(filled(Histogram, three))
    right = filled(Histogram, one)
    right.merge(tail)
    assert left == right == filled(Histogram, one + two + three) == filled(Histogram, three + one + two)


@given(SAMPLES, SAMPLES, QUANTILES)
def test_exact_samples_merge(one, two, q):
    merged = filled(ExactSamples, one)
    merged.merge(filled(ExactSamples, two))
    assert merged.quantile(q) == filled(ExactSamples, one + two).quantile(q)


def test_memory_is_bounded():
    histogram = Histogram()
    for i in range(200_000):
        histogram.add(1e-12 * 1.0005**i)  # 43 decades
    assert len(histogram._buckets) < 2200
    assert histogram.count == 200_000


def test_zero_empty_and_refused_values():
    histogram = Histogram()
    assert histogram.quantile(0.5) is None
    histogram.add(0.0, 3)
    assert histogram.quantile(0.5) == 0.0
    histogram.add(5.0, 0)
    assert histogram.count == 3
    for bad in (-1.0, float("nan")):
        with pytest.raises(ValueError):
            histogram.add(bad)
    with pytest.raises(ValueError):
        histogram.quantile(50)  # percent is a mistake, not a quantile
    with pytest.raises(TypeError):
        histogram.merge(ExactSamples())


def test_nearest_rank():
    assert [rank(q, 4) for q in (0, 0.25, 0.26, 0.5, 0.75, 1)] == [1, 1, 2, 2, 3, 4]
    assert rank(0.07, 100) == 7  # 0.07 * 100 is a little above 7 in floating point
