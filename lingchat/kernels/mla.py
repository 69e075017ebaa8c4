"""Multi-head latent attention (DeepSeek-V2, 2024): absorbed forms over latent rows, and the expanded form as oracle.

A cache row holds the normed latent c [rank] and the shared, rotated key [rope]; all heads read the same rows. With the
latent's up-projections UK_h [nope, rank] and UV_h [value, rank] taken to the query's side and the output's,

    score = (UK_h^T q_h . c + q_rope . k_rope) * scale,   o_h = UV_h (sum p c)

Sums and softmax in fp32. Knows tensors, no models. Shapes: T rows, H heads, S cache rows.
"""

from __future__ import annotations

import torch

from lingchat.kernels.rows import MAX_WIDTH

_SCORES = 1 << 24  # scores held at a time, 64 MB


def split_up(kv_b: torch.Tensor, heads: int, nope: int, value: int) -> tuple[torch.Tensor, torch.Tensor]:
    """kv_b [H * (nope + value), rank], a head's keys before its values -> uk [H, nope, rank], uv [H, value, rank]."""
    uk, uv = kv_b.view(heads, nope + value, -1).split((nope, value), dim=1)
    return uk.contiguous(), uv.contiguous()


def absorb(q_nope: torch.Tensor, uk: torch.Tensor) -> torch.Tensor:
    """Queries taken to the latent's side: q_nope fp32 [T, H, nope], uk [H, nope, rank] -> fp32 [T, H, rank]."""
    return _by_heads(q_nope, uk)


def expand(z: torch.Tensor, uv: torch.Tensor) -> torch.Tensor:
    """Mixed latents to values: z fp32 [T, H, rank], uv [H, value, rank] -> fp32 [T, H, value]."""
    return _by_heads(z, uv.transpose(1, 2))


def _by_heads(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [T, H, A] times weight [H, A, B], a head by itself -> fp32 [T, H, B]; bits of few rows as in `gemv.project`."""
    x = x.to(weight.dtype)
    if x.device.type == "cpu" and x.shape[0] <= MAX_WIDTH:
        return torch.stack([torch.bmm(row[:, None].clone(), weight)[:, 0] for row in x]).float()
    return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1).float()


def attend_rows(q: torch.Tensor, rows: torch.Tensor, start: int, scale: float, rank: int) -> torch.Tensor:
    """Row by row: q fp32 [T, H, rank + rope] at positions start.. over rows [S, rank + rope] up to its own position.

    Each row is computed exactly as it would be alone, so its bits do not depend on T. -> z fp32 [T, H, rank]
    """
    keys = rows[: start + q.shape[0]].to(q.dtype)
    out = torch.empty(*q.shape[:2], rank, dtype=q.dtype, device=q.device)
    for r in range(q.shape[0]):
        seen = keys[: start + r + 1]
        out[r] = (q[r].clone() @ seen.t()).mul_(scale).softmax(-1) @ seen[:, :rank]
    return out


def attend_chunk(q: torch.Tensor, rows: torch.Tensor, start: int, scale: float, rank: int) -> torch.Tensor:
    """A prefill chunk: many rows at once, causal within the chunk, everything before it visible. -> [T, H, rank]"""
    end = start + q.shape[0]
    return attend_masked(q, rows[:end], torch.arange(start, end, device=q.device), scale, rank)


def attend_masked(
    q: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, scale: float, rank: int
) -> torch.Tensor:
    """The same over all of `rows` with a mask made from device positions [T]: nothing is read by the host."""
    count, heads, _ = q.shape
    keys = rows.to(q.dtype)
    columns = torch.arange(rows.shape[0], device=q.device)
    out = torch.empty(count, heads, rank, dtype=q.dtype, device=q.device)
    step = max(1, _SCORES // (heads * rows.shape[0]))
    for r in range(0, count, step):
        here = slice(r, r + step)
        scores = (q[here].flatten(0, 1) @ keys.t()).mul_(scale).view(-1, heads, rows.shape[0])
        hidden = columns > positions[here, None]
        probabilities = scores.masked_fill_(hidden[:, None], float("-inf")).softmax(-1)
        out[here] = (probabilities.flatten(0, 1) @ keys[:, :rank]).view(-1, heads, rank)
    return out


def expanded(
    q: torch.Tensor, rows: torch.Tensor, start: int, scale: float, uk: torch.Tensor, uv: torch.Tensor
) -> torch.Tensor:
    """The plain form with every head's keys and values written out: the oracle of the absorbed ones.

    q [T, H, nope + rope] at positions start.., rows [S, rank + rope], uk and uv from `split_up` -> [T, H, value].
    """
    count, heads, _ = q.shape
    rank = uk.shape[2]
    end = start + count
    latents, shared = rows[:end, :rank].to(q.dtype), rows[:end, rank:].to(q.dtype)
    keys = torch.cat((torch.einsum("sr,hnr->shn", latents, uk), shared[:, None].expand(-1, heads, -1)), dim=-1)
    values = torch.einsum("sr,hvr->shv", latents, uv)
    scores = torch.einsum("thd,shd->hts", q, keys) * scale
    later = torch.ones(count, end, dtype=torch.bool, device=q.device).triu(start + 1)
    return torch.einsum("hts,shv->thv", scores.masked_fill(later, float("-inf")).softmax(-1), values)
