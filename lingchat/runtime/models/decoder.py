"""What all decoders share: embedding, layers one after the other, final norm, head. Knows operations, no tensors.

A layer reads the residual, adds what it has to say, and keeps its cache; what it is made of is its own matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from lingchat.runtime.models.base import Taps
from lingchat.runtime.ops.protocol import Buffer, Ops, RawTensor, Residual, Rotation, Rows
from lingchat.runtime.state import State, StateSpec

Tensors = Callable[[str], RawTensor]  # a layer's tensors by canonical name, without `layers.N.`


class Layer(Protocol):
    def run(self, ops: Ops, x: Residual, cache: Any, rows: Rows) -> None:
        """Mixer and feed-forward block of one layer; `cache` is that layer's part of the state."""


class Weights(Protocol):
    @property
    def config(self) -> Any: ...
    def tensor(self, name: str) -> RawTensor: ...


class Decoder:
    """`load_layer` makes layer N of its tensors. `tap_layers`: after which of them the residual is handed out."""

    def __init__(
        self,
        weights: Weights,
        ops: Ops,
        rotation: Rotation | None,
        load_layer: Callable[[int, Tensors], Layer],
        tap_layers: tuple[int, ...] = (),
    ) -> None:
        config = weights.config
        self.config = config
        self.ops = ops
        self.rotation = rotation
        self._tap_layers = tap_layers
        self.embedding = ops.matrix([weights.tensor("embed_tokens.weight")])
        self._layers = [load_layer(index, layer_tensors(weights, index)) for index in range(config.layers)]
        self._norm = ops.vector(weights.tensor("norm.weight"))
        self.head = self.embedding if config.tied else ops.matrix([weights.tensor("lm_head.weight")])

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
            layer.run(ops, x, cache, rows)
            if index in self._tap_layers:
                residuals.append(ops.tap(x))
        logits, final = ops.head(x, self._norm, self.config.norm_eps, self.head, rows, last_only)
        return logits, Taps(tuple(residuals), final)


def layer_tensors(weights: Weights, index: int) -> Tensors:
    """One layer's tensors by their canonical names without `layers.N.`."""
    return lambda name: weights.tensor(f"layers.{index}.{name}")
