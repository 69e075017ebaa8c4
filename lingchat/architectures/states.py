"""What a layer keeps of a conversation, as shapes: the one place that states, plans and reports count bytes from.

Knows no tensors and no back end: an element of the cache has a number of bytes that the caller gives.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lingchat.kernels.cpu import structs

FP32 = 4  # bytes


class KeyValueRows(msgspec.Struct, frozen=True):
    """Attention: a key and a value row a token and KV head."""

    kv_heads: int
    head_dim: int


class LatentRows(msgspec.Struct, frozen=True):
    """MLA: one row a token, the normed latent and the rotated shared key side by side."""

    width: int


class Recurrent(msgspec.Struct, frozen=True):
    """KDA: a state [heads, key_dim, value_dim] in fp32, and the last `taps - 1` inputs of its convolutions."""

    heads: int
    key_dim: int
    value_dim: int
    taps: int

    @property
    def channels(self) -> int:
        """Inputs of the convolutions: q, k and v side by side."""
        return self.heads * (2 * self.key_dim + self.value_dim)

    @property
    def state_values(self) -> int:
        return self.heads * self.key_dim * self.value_dim


LayerState = KeyValueRows | LatentRows | Recurrent


def cache_bytes_per_token(layers: Iterable[LayerState], element_bytes: int, *, native: bool = False) -> int:
    """What every further token of context takes. `native` code keeps keys and values as whole numbers with scales."""
    total = 0
    for layer in layers:
        if isinstance(layer, KeyValueRows):
            each = 2 * layer.head_dim * element_bytes
            if native:  # 16 bits a key, 8 a value, whose columns come in whole panels, and two fp32 scales
                each = 2 * layer.head_dim + structs.whole_panels(layer.head_dim) + 2 * FP32
            total += layer.kv_heads * each
        elif isinstance(layer, LatentRows):
            total += layer.width * element_bytes
    return total


def state_bytes(layers: Iterable[LayerState], element_bytes: int) -> int:
    """What one state takes that does not grow with the context; a snapshot is a copy of it."""
    return sum(
        layer.state_values * FP32 + (layer.taps - 1) * layer.channels * element_bytes
        for layer in layers
        if isinstance(layer, Recurrent)
    )


def staging_bytes(layers: Iterable[LayerState], element_bytes: int, width: int) -> int:
    """What a round of up to `width` rows keeps until it is known how many of them are committed."""
    return sum(
        width * layer.state_values * FP32 + (width + layer.taps - 1) * layer.channels * element_bytes
        for layer in layers
        if isinstance(layer, Recurrent)
    )
