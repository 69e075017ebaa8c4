"""The multi-token prediction layer of Ling-3.0-flash: an MLA and expert layer that predicts the token after next.

At position t it reads the embedding of token t + 1 and the model's final normed hidden state at t; the head is the
model's own. Its hidden rows can take the place of the model's for the position after, so that a chain of tokens is
drafted. Its latents are its own cache, the drafter's part of the state. Knows operations, no tensors.
"""

from __future__ import annotations

from lingchat.runtime.models.blocks import ExpertsBlock, LatentBlock
from lingchat.runtime.models.decoder import Weights, layer_tensors
from lingchat.runtime.models.hybrid import HybridModel
from lingchat.runtime.ops.protocol import Buffer
from lingchat.runtime.state import State, StateSpec


class MTPLayer:
    """`weights` must be of a configuration with `mtp_layers`; `target` lends embedding, head and operations."""

    def __init__(self, weights: Weights, target: HybridModel) -> None:
        config = weights.config
        if config.mtp_layers != 1:
            raise ValueError(f"{config.architecture} with {config.mtp_layers} MTP layers has none to load")
        ops = target.ops
        raw = layer_tensors(weights, config.layers)
        self._target = target
        self._token_norm = ops.vector(raw("enorm.weight"))
        self._hidden_norm = ops.vector(raw("hnorm.weight"))
        self._join = ops.matrix([raw("eh_proj.weight")])
        self._mixer = LatentBlock.load(raw, ops, config)
        self._experts = ExpertsBlock.load(raw, ops, config)
        self._norm = ops.vector(raw("final_layernorm.weight"))

    def state_spec(self, capacity: int) -> StateSpec:
        return StateSpec((self._target.config.latent_state(),), capacity)

    def forward(self, ids: Buffer, hidden: Buffer, count: int, state: State) -> tuple[Buffer, Buffer]:
        """`ids` int32, the tokens after those of `hidden` [count, d]; positions go on from the committed length.

        Returns logits [count, V] for the token after `ids`, and the layer's own hidden rows [count, d].
        """
        ops, eps = self._target.ops, self._target.config.norm_eps
        rows = ops.rows(ids, count, state.length, self._target.rotation)
        tokens = ops.lookup_rows(self._target.embedding, ids, count)
        x = ops.concat_project(tokens, self._token_norm, hidden, self._hidden_norm, eps, self._join)
        self._mixer.run(ops, x, state.draft_caches[0], rows)
        self._experts.run(ops, x)
        out = ops.final_norm(x, self._norm, eps)
        return ops.vocabulary(out, self._target.head), out
