"""Why a row's bits do not depend on the rows beside it, in one place. Knows tensors, no models.

Drafting verifies T rows and must find the very numbers that one row alone would have given. On the CPU torch computes
the end of a contiguous run of elements with other instructions than the rest, and an exponential then differs in its
last bit: where a row ends in such a run depends on T. So up to `MAX_WIDTH` rows are handed over one by one. Additions,
products and roots are rounded exactly everywhere and need no such care.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

MAX_WIDTH = 16


def by_rows(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    """`function` of tensors [T, ...], whose rows do not meet in it, with bits that do not depend on T <= MAX_WIDTH."""
    rows = inputs[0].shape[0]
    if inputs[0].device.type != "cpu" or not 1 < rows <= MAX_WIDTH:
        return function(*inputs)
    return torch.cat([function(*(x[r : r + 1] for x in inputs)) for r in range(rows)])


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """x [T, ...] of any float type -> fp32, row by row."""
    return by_rows(torch.sigmoid, x.float())
