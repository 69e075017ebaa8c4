"""The end of a round: which drafts hold, what is emitted, where the reply stops. Knows tensors, no models.

Nothing here is read by the host: counts and flags stay in tensors of the cursor.
"""

from __future__ import annotations

import torch

from lingchat.kernels.sample import Filters, choose


def accept(
    logits: torch.Tensor,
    ids: torch.Tensor,
    drafted: torch.Tensor,
    f: Filters,
    history: torch.Tensor,
    length: torch.Tensor,
    left: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compare drafts with the tokens the model chooses, clip at an end token and at `left`.

    logits fp32 [T, V] of the rows ids [T] (anchor, then drafts, of which `drafted` int32 [1] are real).
    Returns emitted int32 [T], count, accepted and done, each int32 [1]: `count` of `emitted` are valid, and as many
    rows (anchor and count - 1 drafts) become permanent. done: 0 running, 1 end token, 2 `left` used up.
    """
    target = choose(logits, ids, history, length, f)
    rows = target.shape[0]
    place = torch.arange(rows, device=target.device)
    hit = (target[:-1] == ids[1:]) & (place[:-1] < drafted)
    accepted = hit.int().cumprod(0).sum().view(1)
    emitted = target.int()
    is_end = (target[:, None] == f.end_ids[None]).any(-1) & (place <= accepted)
    first_end = torch.where(is_end, place, rows).amin().view(1)
    count = torch.minimum(torch.minimum(accepted + 1, first_end + 1), left.long())
    done = torch.where(first_end < count, 1, torch.where(count == left, 2, 0))
    return emitted, count.int(), accepted.int(), done.int()
