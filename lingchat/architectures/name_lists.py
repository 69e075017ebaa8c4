"""Very many tensor names in few words: those that differ in numbers only are one entry, and no name is lost.

`model.layers.{1-3}.mlp.experts.{0-15}.up_proj.weight (48 tensors)` stands for exactly 48 names. Knows texts only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

# A whole number as the names have it: 0, or without a leading zero.
_NUMBER = re.compile(r"(?<!\d)(0|[1-9]\d*)(?!\d)")

Numbers = tuple[int, ...]


def folded(names: Iterable[str]) -> list[str]:
    """Entries that together stand for all of `names`, in the order of each kind's first.

    A name may be followed by a space and what is said of it; only what is said alike is folded.
    """
    kinds: dict[tuple[str, ...], list[Numbers]] = {}
    for text in names:
        name, space, said = text.partition(" ")
        parts = _NUMBER.split(name)
        kinds.setdefault((*parts[::2], space + said), []).append(tuple(map(int, parts[1::2])))
    return [
        _entry(between, said, choices)
        for (*between, said), numbers in kinds.items()
        for choices in _products(sorted(set(numbers)))
    ]


def _products(numbers: Sequence[Numbers]) -> list[list[list[int]]]:
    """`numbers`, sorted, as products of sets: each a sorted list a place, every member of one product being there."""
    if not numbers[0]:
        return [[]]
    rests: dict[int, list[Numbers]] = {}
    for first, *rest in numbers:
        rests.setdefault(first, []).append(tuple(rest))
    alike: dict[tuple[Numbers, ...], list[int]] = {}
    for first, followers in rests.items():
        alike.setdefault(tuple(followers), []).append(first)
    return [[firsts, *others] for rest, firsts in alike.items() for others in _products(rest)]


def _entry(between: Sequence[str], said: str, choices: Sequence[Sequence[int]]) -> str:
    count = 1
    text = between[0]
    for numbers, after in zip(choices, between[1:], strict=True):
        count *= len(numbers)
        text += (str(numbers[0]) if len(numbers) == 1 else f"{{{_ranges(numbers)}}}") + after
    return text + said + (f" ({count} tensors)" if count > 1 else "")


def _ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers: "0-2,7"."""
    starts = [numbers[0], *(after for before, after in pairwise(numbers) if after != before + 1)]
    ends = [*(before for before, after in pairwise(numbers) if after != before + 1), numbers[-1]]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
