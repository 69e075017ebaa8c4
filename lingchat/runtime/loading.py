"""From a path to a model in memory: precision, does it fit, formats, weights packed for the back end, an empty state.

Says what is wrong before anything large is allocated. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from lingchat import events
from lingchat.architectures.hybrid import Quantization
from lingchat.architectures.plan import MemoryPlan, check_fits, plan, snapshot_places
from lingchat.architectures.usual import CONTEXT, WIDTH, Place, usual_dtype
from lingchat.catalog.memory import free_memory, give_back_freed
from lingchat.errors import UsageError
from lingchat.events import AnyEvent, now_ns
from lingchat.runtime.backends import find_native, open_ops
from lingchat.runtime.drafts.base import Drafter
from lingchat.runtime.drafts.lookup import LookupDrafter
from lingchat.runtime.formats.load import Formats, load_formats
from lingchat.runtime.models.base import Model
from lingchat.runtime.models.registry import build
from lingchat.runtime.ops.protocol import Ops
from lingchat.runtime.state import State
from lingchat.runtime.threads import choose_threads
from lingchat.runtime.weights.load import Weights, open_weights

DTYPES = ("int8", "fp32", "bf16", "fp8", "int4")

Emit = Callable[[AnyEvent], None]


class Loading(msgspec.Struct, frozen=True):
    """How to load: `dtype` None lets the device decide (int8 on a CPU, bf16 on a GPU, or what a quantised file holds).

    `fp32_gate`: routers keep fp32 weights; without it they are bf16 with fp32 sums, as fast implementations have them.
    `native`: native code serves where it can; without it torch does, for comparisons.
    """

    dtype: str | None = None
    threads: int | None = None
    context: int | None = None
    device: str = "cpu"
    name: str = ""
    demo: bool = False
    fp32_gate: bool = True
    native: bool = True


class Loaded(msgspec.Struct, frozen=True):
    weights: Weights
    formats: Formats
    ops: Ops
    model: Model
    drafter: Drafter
    state: State
    memory: MemoryPlan
    dtype: str
    context: int  # tokens, prompt and reply together
    width: int  # rows of a round at most
    chunk: int  # tokens of a prefill pass at most
    threads: int


def load(path: Path, loading: Loading, emit: Emit) -> Loaded:
    """Load the model at `path`. Raises a `LingchatError` that says what is wrong with it or what it needs."""
    emit(events.Engine(t_ns=now_ns(), phase="load", message="reading the file", model=loading.name))
    device = loading.device
    weights = open_weights(path)
    config = weights.config
    dtype = choose_dtype(loading.dtype, device, config.quantization)
    native = find_native(config, device, dtype, emit) if loading.native else None
    place = Place(device, native=native is not None)
    context = min(config.context, loading.context or CONTEXT)
    capacity = place.capacity(context)
    free = free_bytes(device)
    places = snapshot_places(config, place.cache_bytes, free)
    memory = plan(
        config,
        dtype,
        capacity,
        rows=place.chunk,
        kv_bytes=place.cache_bytes,
        width=WIDTH,
        places=places,
        stored=weights.stored_bytes,
        types=weights.stored_types,
        native=place.native,
    )
    check_fits(memory, free)
    threads = choose_threads(loading.threads)
    ops = open_ops(native, device, dtype, threads, fp32_gate=loading.fp32_gate)
    formats = load_formats(weights)
    weights.forget_vocabulary()
    give_back_freed()
    if formats.template.fallback:
        text = f"{loading.name or path.name} has no chat template; {formats.template.source} is used instead."
        emit(events.Warn(t_ns=now_ns(), code="template", message=text))
    emit(events.Engine(t_ns=now_ns(), phase="load", message="packing weights", model=loading.name, progress=0.3))
    ops.set_vocabulary(formats.vocab_size)
    with ops.session():
        model = build(weights, ops)
        drafter = LookupDrafter(ops)
        specs = model.state_spec(capacity), drafter.state_spec(capacity)
        state = State(*specs, ops, place.cache_bytes, width=WIDTH, places=places)
    return Loaded(weights, formats, ops, model, drafter, state, memory, dtype, context, WIDTH, place.chunk, threads)


def choose_dtype(asked: str | None, device: str, stored: Quantization) -> str:
    """The precision to compute in. `stored`: how the file's matrices are quantised.

    fp8 and int4 are not made here: a file has them, and then they stay so in memory.
    """
    if asked is None:
        return usual_dtype(device, stored)
    if asked not in DTYPES:
        raise UsageError(f"--dtype {asked} is not known; choose one of {', '.join(DTYPES)}.")
    if asked == "int8" and device != "cpu":
        raise UsageError("--dtype int8 runs on the CPU only; use bf16 on a GPU.")
    if asked in ("fp8", "int4") and asked != stored:
        held = "is not quantised" if stored == "none" else f"holds {stored}"
        raise UsageError(
            f"--dtype {asked} needs a model file with {asked} weights; this one {held}. Leave --dtype out."
        )
    return asked


def free_bytes(device: str) -> int:
    """Memory that weights and state may take: of the machine, or of the GPU."""
    if device == "cpu":
        return free_memory()
    import torch

    return int(torch.cuda.mem_get_info()[0])
