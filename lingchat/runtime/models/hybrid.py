"""Ling-3.0 and Kimi-Linear: KDA and MLA layers over dense and routed feed-forward blocks.

x' = x + Mixer(norm(x)), x'' = x' + FeedForward(norm(x')). One model text serves both architectures, because what tells
them apart is data (`architectures.hybrid.HybridConfig`): the layer schedule, the gate of the decay, full or paired
projections, the rotation, groups, limits. Knows operations, no tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lingchat.architectures.hybrid import HybridConfig
from lingchat.runtime.models.base import Taps
from lingchat.runtime.models.blocks import DenseBlock, ExpertsBlock, KDABlock, LatentBlock, Tensors, rotation
from lingchat.runtime.ops.protocol import Buffer, Ops, RawTensor
from lingchat.runtime.state import State, StateSpec


class Weights(Protocol):
    @property
    def config(self) -> HybridConfig: ...
    def tensor(self, name: str) -> RawTensor: ...


@dataclass(frozen=True)
class _Layer:
    mixer: KDABlock | LatentBlock
    feed_forward: DenseBlock | ExpertsBlock


class HybridModel:
    def __init__(self, weights: Weights, ops: Ops, tap_layers: tuple[int, ...] = ()) -> None:
        config = weights.config
        self.config = config
        self.ops = ops
        self._tap_layers = tap_layers
        self.rotation = rotation(config)
        self.embedding = ops.matrix([weights.tensor("embed_tokens.weight")])
        self._layers = [self._layer(weights, index) for index in range(config.layers)]
        self._norm = ops.vector(weights.tensor("norm.weight"))
        self.head = self.embedding if config.tied else ops.matrix([weights.tensor("lm_head.weight")])

    def _layer(self, weights: Weights, index: int) -> _Layer:
        ops, config = self.ops, self.config
        raw = layer_tensors(weights, index)
        mixer = KDABlock if config.kinds[index] == "kda" else LatentBlock
        if not config.is_moe(index):
            return _Layer(mixer.load(raw, ops, config), DenseBlock.load(raw, ops, config))
        limits = config.routed_limits[index], config.shared_limits[index]
        return _Layer(mixer.load(raw, ops, config), ExpertsBlock.load(raw, ops, config, *limits))

    def state_spec(self, capacity: int) -> StateSpec:
        return StateSpec(self.config.layer_states(), capacity)

    def prefill(self, ids: Buffer, count: int, state: State) -> tuple[Buffer, Taps]:
        return self._forward(ids, count, state, last_only=True)

    def verify(self, ids: Buffer, n_rows: int, state: State) -> tuple[Buffer, Taps]:
        return self._forward(ids, n_rows, state, last_only=False)

    def _forward(self, ids: Buffer, count: int, state: State, last_only: bool) -> tuple[Buffer, Taps]:
        ops = self.ops
        rows = ops.rows(ids, count, state.length, self.rotation)
        x = ops.embed(self.embedding, rows)
        residuals = []
        for index, (layer, cache) in enumerate(zip(self._layers, state.caches, strict=True)):
            layer.mixer.run(ops, x, cache, rows)
            layer.feed_forward.run(ops, x)
            if index in self._tap_layers:
                residuals.append(ops.tap(x))
        logits, final = ops.head(x, self._norm, self.config.norm_eps, self.head, rows, last_only)
        return logits, Taps(tuple(residuals), final)


def layer_tensors(weights: Weights, index: int) -> Tensors:
    """One layer's tensors by their canonical names without `layers.N.`."""
    return lambda name: weights.tensor(f"layers.{index}.{name}")
