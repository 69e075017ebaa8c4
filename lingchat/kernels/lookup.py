"""Prompt lookup: draft what followed the last time the current suffix stood in the text. Knows tensors, no models.

Source of the idea: prompt lookup decoding (Saxena 2023); here as one tensor program without a host read.
"""

from __future__ import annotations

import torch


def lookup(history: torch.Tensor, length: torch.Tensor, longest: int, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Propose up to `limit` tokens after the suffix of `history[:length]`.

    history int32 [C], length int32 [1]. For every earlier end position the number of matching suffix tokens, up to
    `longest`, is counted; the longest match wins, the latest among equals. A match of one token is no evidence and
    proposes nothing. Returns ids int32 [limit] and n int32 [1] with 0 <= n <= limit.
    """
    capacity = history.shape[0]
    place = torch.arange(capacity, device=history.device)
    last = length.long() - 1
    run = torch.ones(capacity, dtype=torch.bool, device=history.device)
    matched = torch.zeros(capacity, dtype=torch.int32, device=history.device)
    for back in range(longest):
        wanted = history[(last - back).clamp_min(0)]
        here = history.roll(back)  # here[i] = history[i - back]
        run = run & (here == wanted) & (place >= back) & (last >= back)
        matched += run
    matched = torch.where(place < last, matched, 0)  # an earlier end, so that at least one token follows it
    best = (matched.long() * capacity + place).argmax()
    found = matched[best] >= 2
    follow = best + 1 + torch.arange(limit, device=history.device)
    n = torch.where(found, (length.long() - 1 - best).clamp(0, limit), 0)
    return history[follow.clamp_max(capacity - 1)], n.to(torch.int32).view(1)
