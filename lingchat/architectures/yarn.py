"""YaRN's rope scaling, as DeepSeek's and Ling's configurations write it. Knows the numbers, no model. No torch."""

from __future__ import annotations

import math

from lingchat.architectures.keys import Keys


def yarn_factors(
    base: float, dim: int, *, factor: float, original_context: float, fast: float, slow: float
) -> tuple[float, ...]:
    """The divisors of the frequencies, one a pair (`dim // 2`).

    Pairs that turn more than `fast` times within the original context keep their frequency, those that turn less than
    `slow` times are stretched by `factor`, between them the frequencies are mixed linearly by index ("YaRN: Efficient
    Context Window Extension", section 3.2, with the whole-numbered bounds that its published code uses).
    """

    def index(turns: float) -> float:
        return dim * math.log(original_context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(index(fast)), 0), min(math.ceil(index(slow)), dim - 1)
    factors = []
    for i in range(dim // 2):
        stretched = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
        factors.append(1 / (stretched / factor + 1 - stretched))
    return tuple(factors)


def read_yarn(table: Keys, base: float, dim: int) -> tuple[tuple[float, ...], float]:
    """The divisors, and what the scores' scale is multiplied by: m squared, m = 0.1 mscale_all_dim ln(factor) + 1.

    YaRN may also lengthen the rotated dimensions alone, by `attention_factor` or m of `mscale` over m of
    `mscale_all_dim`. Only a length of 1 is supported: the other cannot be told by the scores' scale.
    """
    factor = table.number("factor")
    if factor <= 1:
        table.wrong("factor", factor, "a number above 1")
    mscale, all_dim = table.get("mscale"), table.get("mscale_all_dim")
    if table.get("attention_factor") is None:
        if mscale is None and all_dim is None:
            table.refuse("attention_factor", None, "YaRN that lengthens the rotated dimensions alone is not supported")
        if mscale != all_dim:
            table.refuse("mscale", mscale, f"only the value of mscale_all_dim, {all_dim!r}, is supported")
    table.only("attention_factor", 1, 1.0)
    length = 0.1 * table.number("mscale_all_dim") * math.log(factor) + 1 if all_dim is not None else 1.0
    table.only("truncate", True)
    factors = yarn_factors(
        base,
        dim,
        factor=factor,
        original_context=table.number("original_max_position_embeddings"),
        fast=table.number("beta_fast", 32.0),
        slow=table.number("beta_slow", 1.0),
    )
    return factors, length * length
