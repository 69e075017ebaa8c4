"""A model of true shapes and random weights: what `runtime.weights.load.Weights` is to a file, without the file.

Each tensor is made when it is asked for and forgotten at once, so memory holds what the back end packed and one tensor
more. Spreads are those of trained models' starts: a projection has 1 / sqrt(inputs), so activations keep their size
through all layers; decays cover the whole range of their gate. Knows names and ranges, no operations.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch

from lingchat.architectures.budget import share
from lingchat.architectures.dense import DenseConfig
from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.hybrid_names import is_routed_expert
from lingchat.architectures.known import KNOWN
from lingchat.architectures.read import ModelConfig, expected_shapes, hf_config_alone
from lingchat.architectures.resident import native_tensor_bytes
from lingchat.bench.job import DTYPES
from lingchat.errors import UsageError
from lingchat.kernels import random_weights
from lingchat.kernels.random_weights import RandomRaw

# The type of a matrix as a file of that precision has it; int8 is made from bf16 when the back end packs it.
_STORED = {"bf16": "BF16", "int8": "BF16", "fp32": "F32", "fp8": "F8_E4M3", "int4": "BF16"}
_NEVER_QUANTISED = ("embed_tokens.weight", "lm_head.weight", ".moe.router.weight")
# Names' ends -> the even range of their values. A is exp(A_log); with dt_bias and inputs of spread 1 a sigmoid of
# A (f + dt_bias) reaches from nearly 0 to nearly 1, and a softplus from 0.01 to 10.
_RANGES = {
    "norm.weight": (0.9, 1.1),
    ".kda.A": (0.5, 4.0),
    ".kda.dt_bias": (-3.0, 1.0),
    ".moe.router_bias": (-0.1, 0.1),
    "_proj.bias": (-0.1, 0.1),
}


def shape_config(shape: str, layers: int | None = None) -> ModelConfig:
    """The configuration of a published model, its first `layers` layers only where that is given.

    The plain forward pass has no MTP layer, so there is none here, and experts lie as one tensor a layer. Raises
    UsageError for a shape that is not known or a number of layers it does not have.
    """
    if shape not in KNOWN:
        raise UsageError(f"--shape {shape} is not known; choose one of {', '.join(KNOWN)}.")
    config = hf_config_alone(shape, KNOWN[shape])
    if isinstance(config, HybridConfig):
        config = dataclasses.replace(config, mtp_layers=0, stacked_experts=True)
    return config if layers is None else _shortened(shape, config, layers)


def _shortened(shape: str, config: ModelConfig, layers: int) -> ModelConfig:
    if not 1 <= layers <= config.layers:
        raise UsageError(f"--layers {layers}: {shape} has {config.layers} layers; give 1 to {config.layers}.")
    if isinstance(config, DenseConfig):
        return dataclasses.replace(config, layers=layers)
    return dataclasses.replace(
        config,
        kinds=config.kinds[:layers],
        dense_layers=min(config.dense_layers, layers),
        routed_limits=config.routed_limits[:layers],
        shared_limits=config.shared_limits[:layers],
    )


class RandomModel:
    """`dtype` is one of DTYPES, `device` where the bytes are made, `seed` what they follow from.

    fp8: every matrix but embedding, head and router, as the official fp8 variants. int4: routed experts alone, as the
    official int4 variants, or every matrix of a dense model's layers. `on_tensor` is told each name, the bytes made so
    far, and all there will be.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: str,
        *,
        seed: int = 0,
        device: str = "cpu",
        on_tensor: Callable[[str, int, int], None] = lambda name, done, total: None,
    ) -> None:
        if dtype not in DTYPES:
            raise UsageError(f"--dtype {dtype} is not known; choose one of {', '.join(DTYPES)}.")
        self.config = config
        self.dtype = dtype
        self._shapes = expected_shapes(config)
        self._tied = config.tied
        self._seed, self._device = seed, device
        self._on_tensor = on_tensor
        self._made, self._total = 0, self.nbytes

    def names(self) -> tuple[str, ...]:
        """The canonical names, in the order of the computation."""
        return tuple(self._shapes)

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self._shapes.values())

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors, as a file would have them."""
        return sum(self.stored_bytes(name) for name in self._shapes)

    def stored_bytes(self, name: str) -> int:
        return random_weights.stored_bytes(self.stored_type(name), self._shapes[name])

    def bytes_per_token(self, *, native: bool = False) -> int:
        """Bytes that a decoded token must read: all but the embedding's table, and of the experts the chosen alone.

        As they are stored, or for int8 as they are packed: by torch a byte a value and a scale of two a row, by
        `native` code in its panels.
        """
        total = 0.0
        for name, shape in self._shapes.items():
            nbytes = self.stored_bytes(name)
            if native:
                nbytes = native_tensor_bytes(self.config, name, shape, self.stored_type(name))
            elif self.dtype == "int8" and self.stored_type(name) == "BF16" and not name.endswith(".router.weight"):
                nbytes = nbytes // 2 + 2 * nbytes // (2 * shape[-1])
            total += nbytes * share(self.config, name)
        return round(total)

    def stored_type(self, name: str) -> str:
        """The raw type of a tensor."""
        if self._range(name) is not None or name.endswith("_conv.weight"):
            return "F32"
        if name.endswith(_NEVER_QUANTISED):
            return "F32" if self.dtype == "fp32" else "BF16"
        in_four_bits = is_routed_expert(name) or isinstance(self.config, DenseConfig)
        return "I4" if self.dtype == "int4" and in_four_bits else _STORED[self.dtype]

    @torch.inference_mode()
    def tensor(self, name: str) -> RandomRaw:
        """A fresh tensor's bytes, uint8 on the device; KeyError for a name that the architecture does not have."""
        shape, kind = self._shapes[name], self.stored_type(name)
        ends = self._range(name)
        if ends is not None:
            raw = random_weights.evenly(name, kind, shape, *ends, seed=self._seed, device=self._device)
        else:
            raw = random_weights.matrix(name, kind, shape, self._std(name, shape), seed=self._seed, device=self._device)
        self._made += raw.nbytes
        self._on_tensor(name, self._made, self._total)
        return raw

    def _range(self, name: str) -> tuple[float, float] | None:
        return next((ends for end, ends in _RANGES.items() if name.endswith(end)), None)

    def _std(self, name: str, shape: tuple[int, ...]) -> float:
        # A table that is the head as well has a head's spread: logits of spread 1.
        return 1.0 if name == "embed_tokens.weight" and not self._tied else shape[-1] ** -0.5
