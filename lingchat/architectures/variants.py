"""The ways a model is published in, and about how many bytes each of its tensors takes in them.

For telling what would fit where a model does not, and for planning from a config.json alone. Knows no machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from lingchat.architectures import hybrid_names
from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.known import KNOWN
from lingchat.architectures.read import hf_config_alone

Form = Literal["none", "fp8", "int4", "gguf"]

_BF16, _FP32 = 2.0, 4.0  # bytes a value
_FP8 = 1 + 4 / 128**2  # a byte, and a scale a block
_INT4 = 0.5 + 2 / 32  # a nibble, and a bf16 scale a group
_GGUF_4_BITS = 4.85 / 8  # llama.cpp's Q4_K_M on average

# The published name of a size, by what is kept of it in any of its files; and its forms.
_TITLES = {"ling-3.0-flash": "Ling-3.0-flash", "ling-3.0-tiny": "Ling-3.0-tiny", "kimi-linear": "Kimi-Linear"}
_FORMS: dict[str, tuple[Form, ...]] = {
    "ling-3.0-flash": ("none", "fp8", "int4", "gguf"),
    "ling-3.0-tiny": ("none", "fp8", "int4", "gguf"),
    "kimi-linear": ("none", "gguf"),
}
_SMALLER = {"ling-3.0-flash": "ling-3.0-tiny", "kimi-linear": "ling-3.0-tiny"}
_SPELT: dict[Form, str] = {"none": "in bf16", "fp8": "in fp8", "int4": "in int4", "gguf": "as a GGUF file at 4 bits"}


@dataclass(frozen=True)
class Variant:
    """One published form of a model. `config` is what that form's own files state."""

    title: str  # "Ling-3.0-tiny"
    form: Form
    config: HybridConfig

    @property
    def name(self) -> str:
        """ "Ling-3.0-tiny as a GGUF file at 4 bits"."""
        return f"{self.title} {_SPELT[self.form]}"


def published(config: HybridConfig) -> Iterator[Variant]:
    """The forms of this model, then those of the next smaller model; none of an unknown size."""
    name = next((name for name in _TITLES if _size(_known(name)) == _size(config)), None)
    while name is not None:
        known = _known(name)
        for form in _FORMS[name]:
            stated = replace(known, quantization="none" if form == "gguf" else form)
            yield Variant(_TITLES[name], form, stated)
        name = _SMALLER.get(name)


def estimated_bytes(config: HybridConfig, form: Form) -> dict[str, int]:
    """Bytes by canonical name, the drafting layer included, as `form` stores them: for want of a file to ask."""
    shapes = hybrid_names.expected_shapes(config)
    return {name: round(math.prod(shape) * _rate(name, shape, form)) for name, shape in shapes.items()}


def _rate(name: str, shape: tuple[int, ...], form: Form) -> float:
    """Bytes a value."""
    if hybrid_names.is_routed_expert(name):
        return {"none": _BF16, "fp8": _FP8, "int4": _INT4, "gguf": _GGUF_4_BITS}[form]
    if form == "gguf":
        return _FP32 if len(shape) == 1 or "conv" in name or "router" in name else _GGUF_4_BITS
    small = len(shape) == 1 or "conv" in name or "router" in name
    outer = not name.startswith("layers.")  # embedding and head stay as they are
    return _FP8 if form == "fp8" and not small and not outer else _BF16


@cache
def _known(name: str) -> HybridConfig:
    config = hf_config_alone(name, KNOWN[name])
    assert isinstance(config, HybridConfig)
    # Counting needs no name an expert.
    return replace(config, stacked_experts=True)


def _size(config: HybridConfig) -> tuple[object, ...]:
    return config.architecture, config.hidden, config.layers, config.moe.experts, config.moe.width
