"""Does it fit? The bytes a model will take, from its shapes and its file's bytes, against the memory that is free.

Asked before anything is allocated. Knows no back end: a dtype is a name with a number of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby

from lingchat.architectures import states
from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.read import ModelConfig
from lingchat.architectures.resident import StoredBytes, StoredTypes, largest_tensor, weight_bytes
from lingchat.architectures.variants import Variant, estimated_bytes, published
from lingchat.architectures.workspace import native_workspace_bytes, workspace_bytes
from lingchat.errors import DoesNotFit

_CACHED = {"fp32": 4}  # bytes of a cached value that go with a dtype; 2 with all others
_HOST_CACHED = 4  # and those that a host keeps whatever the dtype
RESERVE = 384 << 20  # the process itself: the interpreter, torch's libraries, a tokenizer

# Snapshots of recurrent states: so many bytes at most, of so large a part of the free memory, and so many of them.
_SNAPSHOT_BYTES = 512 << 20
_SNAPSHOT_PART = 8
_FEWEST_SNAPSHOTS, _MOST_SNAPSHOTS = 2, 32
_WORTHWHILE = 256  # tokens of context below which a smaller context is no advice


@dataclass(frozen=True)
class Asked:
    """What a plan was made for, so that it can be made for another form of the model too."""

    config: ModelConfig
    dtype: str
    rows: int
    kv_bytes: int
    width: int
    places: int
    native: bool


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by purpose. `state` does not grow with the context and is none in dense models: recurrent states, the
    convolutions' windows, and what a round stages of both. `snapshots` is the room for copies of them."""

    weights: int
    kv: int
    state: int
    workspace: int
    context: int  # tokens that `kv` holds
    snapshots: int = 0
    asked: Asked | None = field(default=None, compare=False, repr=False)

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.state + self.snapshots + self.workspace


def plan(
    config: ModelConfig,
    dtype: str,
    context: int,
    *,
    rows: int = 256,
    kv_bytes: int | None = None,
    width: int = 8,
    places: int = 0,
    stored: StoredBytes | None = None,
    types: StoredTypes | None = None,
    mtp: bool = False,
    native: bool = False,
) -> MemoryPlan:
    """The plan for matrices in `dtype` (fp32, bf16, int8, fp8 or int4), `context` tokens, prefill in chunks of `rows`.

    `kv_bytes` is the width of a cached value where the back end does not take the one that goes with `dtype`, `width`
    the most rows of a round, `places` the snapshots there is to be room for. `stored` are the bytes of the file's
    tensors by canonical name; without them they are estimated from what the configuration says of its file. `mtp`: the
    drafting layer's weights are loaded too. `native`: native code computes, whose packing follows from the `types` of
    the file's tensors; torch otherwise.
    """
    cached = kv_bytes or _CACHED.get(dtype, 2)
    if isinstance(config, HybridConfig) and stored is None:
        config = replace(config, stacked_experts=True)  # counting needs no name an expert
        stored = estimated_bytes(config, config.quantization)
    layers = config.layer_states()
    on_host = native or cached == _HOST_CACHED
    kv = context * states.cache_bytes_per_token(layers, cached, native=native)
    one = states.state_bytes(layers, cached)
    state, snapshots = one + states.staging_bytes(layers, cached, width), places * one
    # While the last tensor is packed, neither cache nor state is there yet.
    packing = largest_tensor(config, stored) - kv - state - snapshots
    if native:
        workspace = native_workspace_bytes(config, rows, width, context)
    else:
        workspace = workspace_bytes(config, rows, context, on_host=on_host)
    return MemoryPlan(
        weights=weight_bytes(config, dtype, stored, on_host=on_host, mtp=mtp, native=native, types=types),
        kv=kv,
        state=state,
        snapshots=snapshots,
        workspace=max(workspace, packing),
        context=context,
        asked=Asked(config, dtype, rows, cached, width, places, native),
    )


def snapshot_places(config: ModelConfig, element_bytes: int, free: int) -> int:
    """How many snapshots of recurrent states to make room for; 0 where every length can be resumed without any.

    `element_bytes` of a cached value; `free` bytes of memory, before anything is loaded.
    """
    one = states.state_bytes(config.layer_states(), element_bytes)
    if not one:
        return 0
    room = min(free // _SNAPSHOT_PART, _SNAPSHOT_BYTES) // one
    return max(_FEWEST_SNAPSHOTS, min(room, _MOST_SNAPSHOTS))


def check_fits(needed: MemoryPlan, free_bytes: int, *, reserve: int = RESERVE) -> None:
    """Raises DoesNotFit, with needed and free bytes, when `needed` and the process's own `reserve` exceed them."""
    total = needed.total + reserve
    if total <= free_bytes:
        return
    state = f"state {_gb(needed.state + needed.snapshots)}, " if needed.state else ""
    message = (
        f"The model needs {_gb(total)} of memory (weights {_gb(needed.weights)}, {state}"
        f"{'latents' if state else 'context'} of {needed.context} tokens {_gb(needed.kv)}, "
        f"workspace {_gb(needed.workspace + reserve)}), {_gb(free_bytes)} are free."
    )
    left = free_bytes - (total - needed.kv)
    fitting = left * needed.context // needed.kv if needed.kv else 0
    if fitting >= _WORTHWHILE:
        advice = f"A context of at most {fitting} tokens would fit."
    elif (found := what_fits(needed, free_bytes, reserve=reserve)) is not None:
        advice = f"{found.name} would fit."
    else:
        advice = "Close other programs, or use a smaller model or a smaller quantisation."
    raise DoesNotFit(f"{message} {advice}")


def what_fits(needed: MemoryPlan, free_bytes: int, *, reserve: int = RESERVE) -> Variant | None:
    """The largest published form of the model that fits into `free_bytes`, or of the next smaller model; None: none.

    With the same context, and forms larger than the one that was asked for left out.
    """
    asked = needed.asked
    if asked is None or not isinstance(asked.config, HybridConfig):
        return None
    for _, forms in groupby(published(asked.config), lambda variant: variant.title):
        planned = [(plan_variant(variant, asked, needed.context).total, variant) for variant in forms]
        fitting = [(n, variant) for n, variant in planned if n < needed.total and n + reserve <= free_bytes]
        if fitting:
            return max(fitting, key=lambda pair: pair[0])[1]
    return None


def plan_variant(variant: Variant, asked: Asked, context: int) -> MemoryPlan:
    """The plan for another form, on the machine that `asked` was asked on."""
    # A host has a dtype for all of them; a device computes in what the file holds.
    dtype = asked.dtype
    if asked.kv_bytes != _HOST_CACHED and not asked.native:
        dtype = variant.form if variant.form in ("fp8", "int4") else "bf16"
    return plan(
        variant.config,
        dtype,
        min(context, variant.config.context),
        rows=asked.rows,
        kv_bytes=asked.kv_bytes,
        width=asked.width,
        places=asked.places,
        stored=estimated_bytes(variant.config, variant.form),
        native=asked.native,
    )


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB"
