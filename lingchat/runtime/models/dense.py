"""Llama, Qwen2 and Qwen3: one dense decoder, written once against the operation set.

Block: x' = x + Attention(norm(x)), x'' = x' + Down(SiLU(Gate n) * (Up n)). Qwen2 adds q/k/v biases, Qwen3 a norm of
each query and key head before the rotation. Knows operations, no tensors.
"""

from __future__ import annotations

from functools import partial

import msgspec

from lingchat.architectures.dense import DenseConfig
from lingchat.runtime.models.decoder import Decoder, Tensors, Weights
from lingchat.runtime.ops.protocol import AttentionShape, KVCache, Matrix, Ops, Residual, Rotation, Rows, Vector


class _Layer(msgspec.Struct, frozen=True):
    eps: float
    shape: AttentionShape
    attention_norm: Vector
    qkv: Matrix  # [(heads + 2 kv_heads) * head_dim, d]
    q_norm: Vector | None
    k_norm: Vector | None
    out: Matrix
    ffn_norm: Vector
    gate_up: Matrix  # [2 ffn, d], gate first
    down: Matrix

    def run(self, ops: Ops, x: Residual, cache: KVCache, rows: Rows) -> None:
        qkv = ops.norm_project(x, self.attention_norm, self.eps, self.qkv)
        ops.project_out(x, ops.attention(qkv, self.q_norm, self.k_norm, self.shape, cache, rows), self.out)
        ops.ffn_down(x, ops.ffn_up(x, self.ffn_norm, self.eps, self.gate_up), self.down)


class DenseModel(Decoder):
    def __init__(self, weights: Weights, ops: Ops, tap_layers: tuple[int, ...] = ()) -> None:
        config: DenseConfig = weights.config
        rotation = Rotation(config.rope_dim, config.rope_base, config.rope_adjacent, config.rope_factors)
        shape = AttentionShape(config.heads, config.kv_heads, config.head_dim, rotation, config.norm_eps)
        super().__init__(weights, ops, rotation, partial(_layer, ops, config, shape), tap_layers)


def _layer(ops: Ops, config: DenseConfig, shape: AttentionShape, index: int, raw: Tensors) -> _Layer:
    qkv = [raw(f"self_attn.{part}_proj.weight") for part in "qkv"]
    bias = [raw(f"self_attn.{part}_proj.bias") for part in "qkv"] if config.qkv_bias else None
    return _Layer(
        eps=config.norm_eps,
        shape=shape,
        attention_norm=ops.vector(raw("input_layernorm.weight")),
        qkv=ops.matrix(qkv, bias),
        q_norm=ops.vector(raw("self_attn.q_norm.weight")) if config.qk_norm else None,
        k_norm=ops.vector(raw("self_attn.k_norm.weight")) if config.qk_norm else None,
        out=ops.matrix([raw("self_attn.o_proj.weight")]),
        ffn_norm=ops.vector(raw("post_attention_layernorm.weight")),
        gate_up=ops.matrix([raw("mlp.gate_proj.weight"), raw("mlp.up_proj.weight")]),
        down=ops.matrix([raw("mlp.down_proj.weight")]),
    )
