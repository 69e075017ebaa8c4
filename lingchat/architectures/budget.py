"""What a model is made of in numbers: parameters, bytes a token reads, bytes a conversation keeps. From shapes alone.

Knows no machine and no file: what fits where is `plan.py`'s matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from lingchat.architectures import dense_names, hybrid_names, states
from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.read import ModelConfig
from lingchat.architectures.states import Recurrent

BF16 = 2  # bytes
EMBEDDING = "embed_tokens.weight"


def shapes(config: ModelConfig, *, mtp: bool = False) -> dict[str, tuple[int, ...]]:
    """Every tensor's shape, the experts of a layer as one tensor. `mtp`: with the drafting layer."""
    if isinstance(config, HybridConfig):
        # Counting needs no name an expert; a large model has fifty thousand of them.
        return hybrid_names.expected_shapes(replace(config, stacked_experts=True), mtp=mtp)
    return dense_names.expected_shapes(config)


def parameters(config: ModelConfig) -> int:
    """Of the main model, embedding and head included."""
    return _count(shapes(config).values())


def parameters_with_mtp(config: ModelConfig) -> int:
    """And of the drafting layer, where there is one."""
    return _count(shapes(config, mtp=True).values())


def active_parameters(config: ModelConfig) -> int:
    """Those that one token's forward pass reads: the chosen experts alone, the head, one row of the embedding (0)."""
    return round(sum(math.prod(shape) * share(config, name) for name, shape in shapes(config).items()))


def share(config: ModelConfig, name: str) -> float:
    """The part of a tensor (by canonical name, stacked or one a expert) that one token's forward pass reads."""
    if name == EMBEDDING:
        return 1.0 if config.tied else 0.0
    if isinstance(config, HybridConfig) and hybrid_names.is_routed_expert(name):
        return config.moe.chosen / config.moe.experts
    return 1.0


def weight_bytes_per_token(config: ModelConfig, stored: Mapping[str, int] | None = None) -> int:
    """Bytes of weights that one decoded token reads: in bf16, or as `stored`, the bytes of a file's tensors by
    canonical name (those of a drafting layer are not read)."""
    if stored is None:
        return active_parameters(config) * BF16
    drafting = f"layers.{config.layers}."
    read = (n * share(config, name) for name, n in stored.items() if not name.startswith(drafting))
    return round(sum(read))


def state_bytes(config: ModelConfig) -> int:
    """Bytes of the recurrent states, which do not grow with the context; fp32."""
    return sum(layer.state_values * states.FP32 for layer in config.layer_states() if isinstance(layer, Recurrent))


def window_bytes(config: ModelConfig, element_bytes: int = BF16) -> int:
    """Bytes of the last inputs of the convolutions, which belong to the states."""
    return states.state_bytes(config.layer_states(), element_bytes) - state_bytes(config)


def cache_bytes_per_token(config: ModelConfig, element_bytes: int = BF16) -> int:
    """What every token of context takes in the main model."""
    return states.cache_bytes_per_token(config.layer_states(), element_bytes)


def expert_parameters(config: HybridConfig) -> int:
    """Of one routed expert: gate, up and down."""
    return 3 * config.moe.width * config.hidden


def _count(all_shapes: Iterable[tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in all_shapes)
