"""The plan of a model as the engine loads it when nothing else is asked: context, precision and chunks by device.

The engine's own numbers, told without importing it (it needs torch); a test holds them together.
"""

from __future__ import annotations

from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.plan import MemoryPlan, plan, snapshot_places
from lingchat.architectures.read import ModelConfig
from lingchat.architectures.resident import StoredBytes

CONTEXT = 8192  # tokens; a model's own limit may be lower
PREFILL_CHUNK = {"cpu": 256, "cuda": 1024}  # tokens
CACHE_BYTES = {"cpu": 4, "cuda": 2}  # of a cached value
WIDTH = 8  # rows of a round


def usual_dtype(config: ModelConfig, device: str) -> str:
    """int8 on a CPU; on a GPU bf16, or what a quantised checkpoint holds."""
    if device == "cpu":
        return "int8"
    stored = config.quantization if isinstance(config, HybridConfig) else "none"
    return "bf16" if stored == "none" else stored


def usual_plan(config: ModelConfig, device: str, free: int, stored: StoredBytes | None = None) -> MemoryPlan:
    """The plan on `device` ("cpu" or "cuda") with `free` bytes; `stored` as in `plan`."""
    cached = CACHE_BYTES[device]
    return plan(
        config,
        usual_dtype(config, device),
        min(config.context, CONTEXT) + WIDTH,
        rows=PREFILL_CHUNK[device],
        kv_bytes=cached,
        width=WIDTH,
        places=snapshot_places(config, cached, free),
        stored=stored,
    )
