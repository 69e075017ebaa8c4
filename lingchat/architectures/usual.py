"""How a model is loaded when nothing else is asked: context, precision and chunks by device, and the plan of that.

The engine takes its numbers from here; who only tells what it would do needs no torch for that.
"""

from __future__ import annotations

from lingchat.architectures.hybrid import Quantization
from lingchat.architectures.plan import MemoryPlan, plan, snapshot_places
from lingchat.architectures.read import ModelConfig
from lingchat.architectures.resident import StoredBytes

CONTEXT = 8192  # tokens of cache; a model's own limit may be lower
PREFILL_CHUNK = {"cpu": 256, "cuda": 1024}  # tokens; a cancel waits for one chunk
CACHE_BYTES = {"cpu": 4, "cuda": 2}  # of a cached value
WIDTH = 8  # rows of a round at most, which cost about two single ones on a CPU


def usual_dtype(device: str, stored: Quantization) -> str:
    """int8 on a CPU; on a GPU bf16, or what a quantised checkpoint holds."""
    if device == "cpu":
        return "int8"
    return "bf16" if stored == "none" else stored


def usual_plan(config: ModelConfig, device: str, free: int, stored: StoredBytes | None = None) -> MemoryPlan:
    """The plan on `device` ("cpu" or "cuda") with `free` bytes; `stored` as in `plan`."""
    cached = CACHE_BYTES[device]
    return plan(
        config,
        usual_dtype(device, config.quantization),
        min(config.context, CONTEXT) + WIDTH,
        rows=PREFILL_CHUNK[device],
        kv_bytes=cached,
        width=WIDTH,
        places=snapshot_places(config, cached, free),
        stored=stored,
    )
