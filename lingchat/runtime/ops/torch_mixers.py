"""The torch back end's token mixers: grouped-query attention, latent attention, Kimi Delta Attention.

Each takes the rows of one in-projection, reads and writes its layer's cache, and gives the rows that the out-projection
takes. The arithmetic is the kernels'; what stands here is its order. Knows tensors, no models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lingchat.kernels import attention as attn
from lingchat.kernels import gemv, kda, mla, norm
from lingchat.kernels.rows import sigmoid
from lingchat.runtime.ops.protocol import (
    AttentionShape,
    KDACache,
    KDAShape,
    KDAWeights,
    KVCache,
    LatentCache,
    LatentShape,
    LatentWeights,
)

Chunked = Callable[..., tuple[torch.Tensor, torch.Tensor]]  # as `kernels.kda.chunked`


@dataclass(frozen=True)
class Rows:
    ids: torch.Tensor  # int32 [T]
    positions: torch.Tensor  # int64 [T]
    start: int  # first position; -1 where the host does not know it
    table: torch.Tensor | None  # rotations, complex64 [T, 1, dim / 2]; None where nothing is rotated
    adjacent: bool


def attention(
    qkv: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    shape: AttentionShape,
    cache: KVCache,
    rows: Rows,
) -> torch.Tensor:
    """`Ops.attention`."""
    count = qkv.shape[0]
    heads, groups, width = shape.heads, shape.kv_heads, shape.head_dim
    q, k, v = qkv.view(count, heads + 2 * groups, width).split((heads, groups, groups), dim=1)
    if q_norm is not None and k_norm is not None:
        q, k = norm.rms_norm(q, q_norm, shape.eps), norm.rms_norm(k, k_norm, shape.eps)
    q, k = _rotated(q, rows), _rotated(k, rows)
    if rows.start < 0:
        cache.keys.index_copy_(1, rows.positions, k.transpose(0, 1).to(cache.keys.dtype))
        cache.values.index_copy_(1, rows.positions, v.transpose(0, 1).to(cache.values.dtype))
        return attn.attend_masked(q, cache.keys, cache.values, rows.positions)
    end = rows.start + count
    cache.keys[:, rows.start : end] = k.transpose(0, 1)
    cache.values[:, rows.start : end] = v.transpose(0, 1)
    attend = attn.attend_rows if count <= gemv.MAX_WIDTH else attn.attend_chunk
    return attend(q, cache.keys, cache.values, rows.start)


def latent_attention(
    projected: torch.Tensor, weights: LatentWeights, shape: LatentShape, cache: LatentCache, rows: Rows
) -> torch.Tensor:
    """`Ops.latent_attention`."""
    count, heads = projected.shape[0], shape.heads
    wide = shape.nope + shape.rope
    parts = [shape.q_rank or heads * wide, shape.rank, shape.rope, heads if shape.gated else 0]
    q, latent, key, gate = projected.split(parts, dim=1)
    if weights.q_up is not None:
        q = gemv.project(norm.rms_norm(q, weights.q_norm, shape.eps), weights.q_up)
    plain, turned = q.view(count, heads, wide).split((shape.nope, shape.rope), dim=2)
    keys, values = weights.up
    queries = torch.cat((mla.absorb(plain, keys), _rotated(turned, rows)), dim=2)
    key = _rotated(key[:, None], rows)[:, 0]
    row = torch.cat((norm.rms_norm(latent, weights.kv_norm, shape.eps), key), dim=1).to(cache.rows.dtype)
    if rows.start < 0:
        cache.rows.index_copy_(0, rows.positions, row)
        mixed = mla.attend_masked(queries, cache.rows, rows.positions, shape.scale, shape.rank)
    else:
        cache.rows[rows.start : rows.start + count] = row
        attend = mla.attend_rows if count <= gemv.MAX_WIDTH else mla.attend_chunk
        mixed = attend(queries, cache.rows, rows.start, shape.scale, shape.rank)
    out = mla.expand(mixed, values)
    if shape.gated:
        out = out * sigmoid(gate)[:, :, None]
    return out.reshape(count, -1)


def delta_attention(
    projected: torch.Tensor, weights: KDAWeights, shape: KDAShape, cache: KDACache, chunked: Chunked
) -> torch.Tensor:
    """`Ops.kda`. `chunked` is the many-row form of the delta rule."""
    heads, width = shape.heads, shape.heads * shape.head_dim
    side = shape.rank or width
    qkv, f, u, b = projected.split((3 * width, side, side, heads), dim=1)
    if weights.f_up is not None and weights.g_up is not None:
        f, u = gemv.project(f, weights.f_up), gemv.project(u, weights.g_up)
    # Rounded as the window keeps them, so that a row sees the same inputs whichever pass they came in.
    inputs = torch.cat((cache.window, qkv.to(cache.window.dtype)))
    mixed = kda.conv_silu(inputs, weights.conv).view(-1, 3, heads, shape.head_dim)
    q = kda.l2_normalize(mixed[:, 0]) * shape.head_dim**-0.5
    k, v = kda.l2_normalize(mixed[:, 1]), mixed[:, 2]
    decay = kda.log_decay(f, weights.rate, weights.dt_bias, shape.gate, shape.lower_bound)
    beta = sigmoid(b)
    if len(projected) <= cache.staged_states.shape[0]:
        out, states = kda.recurrent(q, k, v, decay, beta, cache.state)
    else:
        out, final = chunked(q, k, v, decay, beta, cache.state)
        states = final[None]
    kda.stage(cache.staged_states, cache.staged_inputs, states, inputs)
    return kda.gated_norm(out, weights.norm, shape.eps, u)


def _rotated(x: torch.Tensor, rows: Rows) -> torch.Tensor:
    return x if rows.table is None else attn.rotate(x, rows.table, rows.adjacent)
