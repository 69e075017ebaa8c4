"""`DenseConfig`: what a dense decoder is, in one vocabulary for GGUF and Hugging Face files.

Knows no files. No torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lingchat.architectures.states import KeyValueRows, LayerState
from lingchat.errors import ModelFileError


@dataclass(frozen=True)
class DenseConfig:
    """Sizes and switches of a dense decoder (Llama, Qwen2, Qwen3).

    Rope: frequency i of `rope_dim // 2` is `rope_base ** (-2 i / rope_dim) / rope_factors[i]`; the pair it rotates is
    (2i, 2i + 1) when `rope_adjacent`, else (i, i + rope_dim // 2). Head dimensions from `rope_dim` on are not rotated.
    """

    architecture: str  # Hugging Face's class name: "LlamaForCausalLM"
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int  # rows of the embedding; the tokenizer may know fewer
    context: int  # longest position range the model was made for
    rope_base: float
    rope_dim: int
    rope_adjacent: bool
    rope_factors: tuple[float, ...] | None
    norm_eps: float
    qkv_bias: bool
    qk_norm: bool
    tied: bool  # the head is the embedding

    def __post_init__(self) -> None:
        wrong = [
            (self.heads % self.kv_heads != 0, f"{self.heads} heads do not divide into {self.kv_heads} KV heads"),
            (self.rope_dim % 2 != 0, f"the rotated width {self.rope_dim} is odd"),
            (self.rope_dim > self.head_dim, f"the rotated width {self.rope_dim} exceeds the head's {self.head_dim}"),
            (
                self.rope_factors is not None and len(self.rope_factors) != self.rope_dim // 2,
                f"{len(self.rope_factors or ())} rope factors for {self.rope_dim // 2} frequencies",
            ),
            (
                self.rope_factors is not None and not all(0 < f < math.inf for f in self.rope_factors),
                "a rope factor is not a positive number",
            ),
        ]
        for is_wrong, text in wrong:
            if is_wrong:
                raise ModelFileError(f"The model's configuration contradicts itself: {text}. Fetch the model again.")

    @property
    def quantization(self) -> Literal["none"]:
        """Of a safetensors checkpoint: there is no dense one that is quantised."""
        return "none"

    def layer_states(self) -> tuple[LayerState, ...]:
        """What each layer keeps of a conversation."""
        return (KeyValueRows(self.kv_heads, self.head_dim),) * self.layers


def llama3_factors(
    base: float, dim: int, *, factor: float, low: float, high: float, original_context: float
) -> tuple[float, ...]:
    """The divisors of Llama 3's rope scaling, one a frequency (`dim // 2`).

    Wavelengths below `original_context / high` stay, those above `original_context / low` are stretched by `factor`,
    between them the frequency is interpolated. As `_compute_llama3_parameters` in transformers and llama.cpp's
    converter.
    """
    factors = []
    for i in range(dim // 2):
        wavelength = 2 * math.pi * base ** (2 * i / dim)
        if wavelength < original_context / high:
            factors.append(1.0)
        elif wavelength > original_context / low:
            factors.append(factor)
        else:
            smooth = (original_context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return tuple(factors)
