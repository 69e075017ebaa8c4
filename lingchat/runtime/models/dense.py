"""Llama, Qwen2 and Qwen3: one dense decoder, written once against the operation set.

Block: x' = x + Attention(norm(x)), x'' = x' + Down(SiLU(Gate n) * (Up n)). Qwen2 adds q/k/v biases, Qwen3 a norm of
each query and key head before the rotation. Knows operations, no tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lingchat.architectures.dense import DenseConfig
from lingchat.runtime.models.base import Taps
from lingchat.runtime.ops.protocol import AttentionShape, Buffer, Matrix, Ops, RawTensor, Rotation, Vector
from lingchat.runtime.state import State, StateSpec


class Weights(Protocol):
    @property
    def config(self) -> DenseConfig: ...
    def tensor(self, name: str) -> RawTensor: ...


@dataclass(frozen=True)
class _Layer:
    attention_norm: Vector
    qkv: Matrix  # [(heads + 2 kv_heads) * head_dim, d]
    q_norm: Vector | None
    k_norm: Vector | None
    out: Matrix
    ffn_norm: Vector
    gate_up: Matrix  # [2 ffn, d], gate first
    down: Matrix


class DenseModel:
    def __init__(self, weights: Weights, ops: Ops, tap_layers: tuple[int, ...] = ()) -> None:
        config = weights.config
        self.config = config
        self._ops = ops
        self._tap_layers = tap_layers
        self.rotation = Rotation(config.rope_dim, config.rope_base, config.rope_adjacent, config.rope_factors)
        self._shape = AttentionShape(config.heads, config.kv_heads, config.head_dim, self.rotation, config.norm_eps)
        self._embed = ops.matrix([weights.tensor("embed_tokens.weight")])
        self._layers = [self._layer(weights, i) for i in range(config.layers)]
        self._norm = ops.vector(weights.tensor("norm.weight"))
        self._head = self._embed if config.tied else ops.matrix([weights.tensor("lm_head.weight")])

    def _layer(self, weights: Weights, index: int) -> _Layer:
        ops, config = self._ops, self.config

        def raw(name: str) -> RawTensor:
            return weights.tensor(f"layers.{index}.{name}")

        qkv = [raw(f"self_attn.{part}_proj.weight") for part in "qkv"]
        bias = [raw(f"self_attn.{part}_proj.bias") for part in "qkv"] if config.qkv_bias else None
        return _Layer(
            attention_norm=ops.vector(raw("input_layernorm.weight")),
            qkv=ops.matrix(qkv, bias),
            q_norm=ops.vector(raw("self_attn.q_norm.weight")) if config.qk_norm else None,
            k_norm=ops.vector(raw("self_attn.k_norm.weight")) if config.qk_norm else None,
            out=ops.matrix([raw("self_attn.o_proj.weight")]),
            ffn_norm=ops.vector(raw("post_attention_layernorm.weight")),
            gate_up=ops.matrix([raw("mlp.gate_proj.weight"), raw("mlp.up_proj.weight")]),
            down=ops.matrix([raw("mlp.down_proj.weight")]),
        )

    def state_spec(self, capacity: int) -> StateSpec:
        return StateSpec(self.config.layer_states(), capacity)

    def prefill(self, ids: Buffer, count: int, state: State) -> tuple[Buffer, Taps]:
        return self._forward(ids, count, state, last_only=True)

    def verify(self, ids: Buffer, n_rows: int, state: State) -> tuple[Buffer, Taps]:
        return self._forward(ids, n_rows, state, last_only=False)

    def _forward(self, ids: Buffer, count: int, state: State, last_only: bool) -> tuple[Buffer, Taps]:
        ops, eps = self._ops, self.config.norm_eps
        rows = ops.rows(ids, count, state.length, self.rotation)
        x = ops.embed(self._embed, rows)
        residuals = []
        for index, (layer, cache) in enumerate(zip(self._layers, state.caches, strict=True)):
            qkv = ops.norm_project(x, layer.attention_norm, eps, layer.qkv)
            mixed = ops.attention(qkv, layer.q_norm, layer.k_norm, self._shape, cache, rows)
            ops.project_out(x, mixed, layer.out)
            hidden = ops.ffn_up(x, layer.ffn_norm, eps, layer.gate_up)
            ops.ffn_down(x, hidden, layer.down)
            if index in self._tap_layers:
                residuals.append(ops.tap(x))
        logits, final = ops.head(x, self._norm, eps, self._head, rows, last_only)
        return logits, Taps(tuple(residuals), final)
