"""Rotary embedding, cache rows and causal grouped-query attention. Knows tensors, no models."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lingchat.kernels.rows import by_rows


def rotation_table(positions: torch.Tensor, dim: int, base: float, factors: tuple[float, ...] | None) -> torch.Tensor:
    """exp(i * position * frequency) as complex64 [T, 1, dim / 2]; frequency i = base^(-2i/dim) / factors[i] (Su et al. 2021)."""
    frequencies = base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device) / dim)
    if factors is not None:
        frequencies = frequencies / torch.tensor(factors, dtype=torch.float64, device=positions.device)
    angles = positions.double()[:, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)[:, None]


def rotate(x: torch.Tensor, table: torch.Tensor, adjacent: bool) -> torch.Tensor:
    """Rotate the first 2 * table.shape[-1] dimensions of x fp32 [T, H, D]; pairs (2i, 2i+1) or (i, i + dim/2).

    A row's bits do not depend on T: a complex product is rounded otherwise where the row is the end of a run.
    """
    half = table.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    shape = turned.shape
    if adjacent:
        pairs = torch.view_as_complex(turned.reshape(*shape[:-1], half, 2).contiguous())
        turned = torch.view_as_real(by_rows(torch.mul, pairs, table)).reshape(shape)
    else:
        pairs = torch.view_as_complex(turned.reshape(*shape[:-1], 2, half).transpose(-1, -2).contiguous())
        turned = torch.view_as_real(by_rows(torch.mul, pairs, table)).transpose(-1, -2).reshape(shape)
    return turned if rest.shape[-1] == 0 else torch.cat((turned, rest), dim=-1)


def attend_rows(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int) -> torch.Tensor:
    """Row by row: q fp32 [T, H, D] at positions start.. over the cache [G, S, D] up to each row's own position.

    Each row is computed exactly as it would be alone, so its bits do not depend on T. -> [T, H * D].
    """
    groups, _, width = keys.shape
    rows, heads, _ = q.shape
    scale = width**-0.5
    out = torch.empty(rows, heads * width, dtype=q.dtype, device=q.device)
    for r in range(rows):
        end = start + r + 1
        k, v = keys[:, :end].to(q.dtype), values[:, :end].to(q.dtype)
        scores = torch.bmm(q[r].view(groups, heads // groups, width), k.transpose(1, 2)).mul_(scale)
        out[r] = torch.bmm(scores.softmax(-1), v).view(-1)
    return out


def attend_chunk(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int) -> torch.Tensor:
    """A prefill chunk: all T rows at once, causal within the chunk, everything before it visible. -> [T, H * D]."""
    rows, heads, width = q.shape
    end = start + rows
    k, v = keys[:, :end].to(q.dtype), values[:, :end].to(q.dtype)
    mask = None
    if start:
        mask = torch.ones(rows, end, dtype=torch.bool, device=q.device).tril(start)
    mixed = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k[None], v[None], attn_mask=mask, is_causal=start == 0, enable_gqa=True
    )
    return mixed[0].transpose(0, 1).reshape(rows, heads * width)


def attend_masked(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The same over the whole cache with a mask made from device positions: nothing is read by the host."""
    rows, heads, width = q.shape
    columns = torch.arange(keys.shape[1], device=q.device)
    mask = columns[None] <= positions[:, None]
    mixed = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None].to(q.dtype), values[None].to(q.dtype), attn_mask=mask, enable_gqa=True
    )
    return mixed[0].transpose(0, 1).reshape(rows, heads * width)
