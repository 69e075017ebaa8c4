"""How a model is loaded when nothing else is asked: context, precision and chunks by place, and the plan of that.

The engine takes its numbers from here; who only tells what it would do needs no torch for that.
"""

from __future__ import annotations

import msgspec

from lingchat.architectures.dense import DenseConfig
from lingchat.architectures.hybrid import Quantization
from lingchat.architectures.plan import MemoryPlan, plan, snapshot_places
from lingchat.architectures.read import ModelConfig
from lingchat.architectures.resident import StoredBytes, StoredTypes
from lingchat.kernels.cpu import library
from lingchat.kernels.cpu.structs import PANEL

CONTEXT = 8192  # tokens of cache; a model's own limit may be lower
PREFILL_CHUNK = {"cpu": 256, "cuda": 1024}  # tokens; a cancel waits for one chunk, or for an operation of native code
CACHE_BYTES = {"cpu": 4, "cuda": 2}  # of a cached value in torch
NATIVE_CACHE_BYTES = 2
NATIVE_DTYPE = "int8"  # the one that native code serves
_NATIVE_HEAD = 256  # dimensions of an attention head at most, and whole vectors of 8 (kernels/cpu/ops_attention.h)
WIDTH = 8  # rows of a round at most, which cost about two single ones on a CPU


class Place(msgspec.Struct, frozen=True):
    """Where a model is computed: "cpu" or "cuda", and whether by native code or by torch."""

    device: str
    native: bool

    @property
    def cache_bytes(self) -> int:
        """Of a cached value."""
        return NATIVE_CACHE_BYTES if self.native else CACHE_BYTES[self.device]

    @property
    def chunk(self) -> int:
        """Tokens of a prefill pass."""
        return PREFILL_CHUNK[self.device]

    def capacity(self, context: int) -> int:
        """Rows of cache for a context of so many tokens: native code keeps whole panels of them."""
        rows = context + WIDTH
        return -(-rows // PANEL) * PANEL if self.native else rows


def usual_dtype(device: str, stored: Quantization) -> str:
    """int8 on a CPU; on a GPU bf16, or what a quantised checkpoint holds."""
    if device == "cpu":
        return "int8"
    return "bf16" if stored == "none" else stored


def not_native(config: ModelConfig) -> str:
    """What of a model native code has no operation for; empty where it has all."""
    if isinstance(config, DenseConfig) and (config.head_dim % 8 or config.head_dim > _NATIVE_HEAD):
        return f"attention heads of {config.head_dim} dimensions"
    return ""


def usual_place(config: ModelConfig, device: str) -> Place:
    """Native code where it serves the model and its library is there."""
    return Place(device, native=device == "cpu" and not not_native(config) and library.find() is not None)


def usual_plan(
    config: ModelConfig,
    device: str,
    free: int,
    stored: StoredBytes | None = None,
    types: StoredTypes | None = None,
    place: Place | None = None,
) -> MemoryPlan:
    """The plan on `device` ("cpu" or "cuda") with `free` bytes; `stored` and `types` as in `plan`."""
    place = place or usual_place(config, device)
    return plan(
        config,
        usual_dtype(device, config.quantization),
        place.capacity(min(config.context, CONTEXT)),
        rows=place.chunk,
        kv_bytes=place.cache_bytes,
        width=WIDTH,
        places=snapshot_places(config, place.cache_bytes, free),
        stored=stored,
        types=types,
        native=place.native,
    )
