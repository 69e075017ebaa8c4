"""Ling-3.0 and Kimi-Linear: KDA and MLA layers over dense and routed feed-forward blocks.

x' = x + Mixer(norm(x)), x'' = x' + FeedForward(norm(x')). One model text serves both architectures, because what tells
them apart is data (`architectures.hybrid.HybridConfig`): the layer schedule, the gate of the decay, full or paired
projections, the rotation, groups, limits. Knows operations, no tensors.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from lingchat.architectures.hybrid import HybridConfig
from lingchat.runtime.models.blocks import DenseBlock, ExpertsBlock, KDABlock, LatentBlock, rotation
from lingchat.runtime.models.decoder import Decoder, Tensors, Weights
from lingchat.runtime.ops.protocol import Ops, Residual, Rows


class _Layer(msgspec.Struct, frozen=True):
    mixer: KDABlock | LatentBlock
    feed_forward: DenseBlock | ExpertsBlock

    def run(self, ops: Ops, x: Residual, cache: Any, rows: Rows) -> None:
        self.mixer.run(ops, x, cache, rows)
        self.feed_forward.run(ops, x)


class HybridModel(Decoder):
    def __init__(self, weights: Weights, ops: Ops, tap_layers: tuple[int, ...] = ()) -> None:
        config: HybridConfig = weights.config
        super().__init__(weights, ops, rotation(config), partial(_layer, ops, config), tap_layers)


def _layer(ops: Ops, config: HybridConfig, index: int, raw: Tensors) -> _Layer:
    mixer = KDABlock if config.kinds[index] == "kda" else LatentBlock
    if not config.is_moe(index):
        return _Layer(mixer.load(raw, ops, config), DenseBlock.load(raw, ops, config))
    limits = config.routed_limits[index], config.shared_limits[index]
    return _Layer(mixer.load(raw, ops, config), ExpertsBlock.load(raw, ops, config, *limits))
