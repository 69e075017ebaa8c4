"""Distributions with quantiles: a log-bucket histogram of constant memory, and an exact twin for small inputs.

Both answer nearest-rank quantiles: the value whose rank is ceil(q * n), the smallest sample such that at least the
share q of all samples is no larger. The histogram's answer differs from the exact one by at most 1 %.

Knows nothing of tokens, rounds or events: values are non-negative numbers of whatever unit the caller uses.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from typing import Protocol

# The representative of bucket [g^i, g^(i+1)) is 2 g^(i+1) / (g + 1), which is off by at most (g - 1) / (g + 1) of
# the true value (DDSketch: Masson, Rim and Lee 2019). 1.0198 makes that 0.98 %, inside 1 % with room for rounding.
GROWTH = 1.0198
_LOG_GROWTH = math.log(GROWTH)
# Values outside of this range share the outermost buckets, so that a histogram never holds more than about 1,800
# counts. In microseconds: a picosecond to eleven days.
_LOWEST = math.floor(math.log(1e-6) / _LOG_GROWTH)
_HIGHEST = math.floor(math.log(1e12) / _LOG_GROWTH)
_ZERO = _LOWEST - 1  # the bucket of exact zeros


class Samples(Protocol):
    """What both distributions do. Quantiles of an empty one are None."""

    @property
    def count(self) -> int: ...

    @property
    def smallest(self) -> float | None: ...

    @property
    def largest(self) -> float | None: ...

    def add(self, value: float, count: int = 1) -> None: ...

    def quantile(self, q: float) -> float | None: ...

    def merge(self, other: Samples) -> None: ...


def rank(q: float, count: int) -> int:
    """The 1-based nearest rank of quantile `q` (0 to 1) among `count` samples.

    The tiny subtrahend keeps products such as 0.07 * 100 = 7.000000000000001 on their rank.
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"a quantile is 0 to 1, not {q}")
    return min(count, max(1, math.ceil(q * count - 1e-9)))


class Histogram:
    """Counts in logarithmic buckets: at most 1 % error, mergeable in any order, bounded memory."""

    __slots__ = ("_buckets", "_keys", "count", "largest", "smallest")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._keys: list[int] = []  # the keys of `_buckets` in order
        self.count = 0
        self.smallest: float | None = None
        self.largest: float | None = None

    def add(self, value: float, count: int = 1) -> None:
        """Counts `value` (at least 0) `count` times."""
        if count <= 0:
            return
        if not value >= 0.0:  # also refuses NaN
            raise ValueError(f"a sample must be 0 or more, not {value}")
        self._count(_bucket(value), count)
        self._widen(value, value)

    def merge(self, other: Samples) -> None:
        """Adds all samples of `other`, also a `Histogram`. Merging is associative and commutative."""
        if not isinstance(other, Histogram):
            raise TypeError("a histogram merges with a histogram only")
        if other.smallest is None or other.largest is None:
            return
        for key, count in list(other._buckets.items()):
            self._count(key, count)
        self._widen(other.smallest, other.largest)

    def quantile(self, q: float) -> float | None:
        """The nearest-rank quantile, within 1 %; None without samples."""
        wanted = rank(q, self.count)
        if self.smallest is None or self.largest is None:
            return None
        seen = 0
        for key in self._keys:
            seen += self._buckets[key]
            if seen >= wanted:
                # The extremes are known exactly, so nothing reported lies outside of what was seen.
                return min(max(_value(key), self.smallest), self.largest)
        raise AssertionError("the buckets hold fewer samples than counted")

    def _count(self, key: int, count: int) -> None:
        if key not in self._buckets:
            self._buckets[key] = 0
            insort(self._keys, key)
        self._buckets[key] += count
        self.count += count

    def _widen(self, low: float, high: float) -> None:
        self.smallest = low if self.smallest is None else min(self.smallest, low)
        self.largest = high if self.largest is None else max(self.largest, high)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        mine = (self._buckets, self.smallest, self.largest)
        return mine == (other._buckets, other.smallest, other.largest)

    __hash__ = None  # type: ignore[assignment]  # it changes


class ExactSamples:
    """Every sample kept, in order: exact quantiles, memory that grows. For reading a finished trace."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: list[float] = []

    @property
    def count(self) -> int:
        return len(self._values)

    @property
    def smallest(self) -> float | None:
        return self._values[0] if self._values else None

    @property
    def largest(self) -> float | None:
        return self._values[-1] if self._values else None

    def add(self, value: float, count: int = 1) -> None:
        """Keeps `value` (at least 0) `count` times."""
        if count <= 0:
            return
        if not value >= 0.0:
            raise ValueError(f"a sample must be 0 or more, not {value}")
        place = bisect_right(self._values, value)
        self._values[place:place] = [value] * count

    def merge(self, other: Samples) -> None:
        """Adds all samples of `other`, also an `ExactSamples`."""
        if not isinstance(other, ExactSamples):
            raise TypeError("exact samples merge with exact samples only")
        self._values = sorted(self._values + other._values)

    def quantile(self, q: float) -> float | None:
        """The nearest-rank quantile; None without samples."""
        wanted = rank(q, len(self._values))
        return self._values[wanted - 1] if self._values else None


def _bucket(value: float) -> int:
    if value == 0.0:
        return _ZERO
    if value == math.inf:
        return _HIGHEST
    return min(max(math.floor(math.log(value) / _LOG_GROWTH), _LOWEST), _HIGHEST)


def _value(key: int) -> float:
    return 0.0 if key == _ZERO else float(2.0 * GROWTH ** (key + 1) / (GROWTH + 1.0))
