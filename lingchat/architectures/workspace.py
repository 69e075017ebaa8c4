"""Bytes of activations: the most that one pass holds at once beside weights and state. Knows no machine.

Estimates from the shapes of the torch back end's operations, the largest block counting; fp32 unless said. The native
back end keeps one place for each operation's results, so there all of them count.
"""

from __future__ import annotations

from lingchat.architectures.dense import DenseConfig
from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.states import FP32
from lingchat.kernels.cpu import structs

_LOGIT_ROWS = 32  # verified rows whose logits, and as many of their probabilities, exist at once
_SCORES = 64 << 20  # bytes of scores that latent attention holds at a time (kernels/mla.py)


def workspace_bytes(config: DenseConfig | HybridConfig, rows: int, context: int, *, on_host: bool) -> int:
    """`rows` of a prefill pass, a cache of `context` rows."""
    if isinstance(config, DenseConfig):
        values = rows * _dense(config) + 2 * min(rows, _LOGIT_ROWS) * config.vocab
        if not on_host:  # a mask takes attention to the form that holds all scores, their probabilities and wide keys
            values += 2 * rows * config.heads * context + 4 * config.heads * context * config.head_dim
        return FP32 * values
    values = rows * (3 * config.hidden + max(_kda(config), _mla(config), _feed_forward(config)))
    seen = context * (config.mla.kv_rank + config.mla.rope)  # the cache's rows of one layer, widened
    scores = min(_SCORES, FP32 * rows * config.mla.heads * context)
    # Scores and their probabilities, and logits and theirs.
    return FP32 * (values + seen + 2 * min(rows, _LOGIT_ROWS) * config.vocab) + 2 * scores


def native_workspace_bytes(config: DenseConfig | HybridConfig, rows: int, width: int, context: int) -> int:
    """What `runtime.ops.native_ops` allocates for passes of `rows` rows of a prompt and `width` of a round."""
    if isinstance(config, DenseConfig):
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        values = q + 2 * kv + q + config.ffn  # results: in-projections, attention, feed-forward
        columns = {config.hidden, q, config.ffn}
        parts = config.heads * (config.head_dim + 2)
        routed = 0
    else:
        kda, mla, moe = config.kda, config.mla, config.moe
        p = kda.heads * kda.head_dim
        projected = max(
            (5 if kda.rank is None else 3) * p + (0 if kda.rank is None else 2 * kda.rank) + kda.heads,
            (mla.q_rank or mla.heads * (mla.nope + mla.rope))
            + mla.kv_rank
            + mla.rope
            + (mla.heads if mla.gated else 0),
        )
        mixed = p + 5 * p + mla.heads * (mla.value + mla.nope + mla.rope + mla.kv_rank + mla.rope)
        values = projected + mixed + (config.ffn if config.dense_layers else 0)
        columns = {config.hidden, p, mla.heads * mla.value, config.ffn, kda.rank or 0, mla.q_rank or 0}
        parts = mla.heads * (mla.kv_rank + 2)
        k = moe.chosen
        hidden = k * _quantised(moe.width) + _quantised(moe.shared_width) + _quantised(config.hidden)
        routed = (
            FP32 * (config.hidden + 3 * k + moe.experts + k * (moe.width + config.hidden) + moe.shared_width) + hidden
        )
    acts = (rows + structs.PANEL) * sum(map(_quantised, columns))
    segments = -(-context // structs.SEGMENT)
    partial = structs.PARTIAL_ROWS * segments * parts
    results = rows * (config.hidden + values) + width * (config.hidden + config.vocab) + 2 * config.vocab
    return FP32 * (results + partial) + acts + rows * routed


def _quantised(columns: int) -> int:
    """Bytes of a quantised row."""
    return -(-columns // structs.BLOCK) * structs.ROW_BLOCK_BYTES


def _dense(config: DenseConfig) -> int:
    """Values a row of one block: residual, normed, out-projection; q, k, v, attention's output; gate, up, product."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return 3 * config.hidden + 2 * q + 2 * kv + 3 * config.ffn


def _kda(config: HybridConfig) -> int:
    """In-projections and their rounded form, inputs and results of the convolutions, q, k, v, decays, outputs."""
    kda = config.kda
    width = kda.heads * kda.head_dim
    projected = (5 if kda.rank is None else 3) * width + (0 if kda.rank is None else 2 * kda.rank) + kda.heads
    return projected * 3 // 2 + 12 * width


def _mla(config: HybridConfig) -> int:
    """In-projections, queries before and after they are taken to the latent's side, mixed latents, outputs."""
    mla = config.mla
    heads, wide, latent = mla.heads, mla.nope + mla.rope, mla.kv_rank + mla.rope
    return heads * (2 * wide + 2 * latent + 2 * mla.kv_rank + 2 * mla.value) + latent


def _feed_forward(config: HybridConfig) -> int:
    """The dense block's gate, up and product; or the chosen experts', and their outputs before they are summed."""
    moe = config.moe
    routed = moe.chosen * (3 * moe.width + 2 * config.hidden) + 3 * moe.shared_width + 3 * moe.experts
    return max(3 * config.ffn if config.dense_layers else 0, routed)
