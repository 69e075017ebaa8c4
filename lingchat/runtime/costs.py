"""What a pass of some rows costs, from the widths that were measured. Pure Python."""

from __future__ import annotations

import itertools
from collections.abc import Mapping


def interpolate(measured: Mapping[int, float], at: int) -> float:
    """The cost at width `at`, on the line through the measured widths around it.

    Beyond the ends the nearest line goes on, but never downwards: more rows are never cheaper than what was measured.
    A single measurement holds everywhere.
    """
    known = sorted(measured.items())
    if len(known) == 1:
        return known[0][1]
    around = next((pair for pair in itertools.pairwise(known) if at <= pair[1][0]), (known[-2], known[-1]))
    (left, low), (right, high) = around
    slope = (high - low) / (right - left)
    if at > right:
        return high + max(slope, 0.0) * (at - right)
    return low + slope * (at - left)
