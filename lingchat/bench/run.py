"""One measurement: a shape with random weights through the real plan, model, state, driver and rounds.

Nothing is measured that a chat would not run: `check_fits` before anything is allocated, the back end that would serve,
`registry.build`, prefill in chunks, rounds by its driver. Rounds have one row and no drafts: random text repeats
nothing. The weights are made by torch, whatever computes with them. Knows no output.
"""

from __future__ import annotations

import itertools
import platform
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from lingchat.architectures.plan import MemoryPlan, check_fits, plan
from lingchat.architectures.read import ModelConfig
from lingchat.architectures.usual import Place
from lingchat.bench import roof as roofs
from lingchat.bench.job import SCHEMA_VERSION, Job
from lingchat.bench.peak import PeakWatch
from lingchat.bench.random_model import RandomModel, shape_config
from lingchat.engines.api import Sampling
from lingchat.errors import DoesNotFit, EngineError, UsageError
from lingchat.events import AnyEvent, Engine, Warn, now_ns
from lingchat.kernels.cpu.native import Native
from lingchat.kernels.cpu.structs import PANEL
from lingchat.kernels.devices import choose_device
from lingchat.machine import processor_name
from lingchat.notes import Notes
from lingchat.runtime.backends import find_native, open_ops
from lingchat.runtime.drafts.lookup import LookupDrafter
from lingchat.runtime.drafts.width import Width
from lingchat.runtime.drivers.base import Driver
from lingchat.runtime.drivers.recorded import driver_for
from lingchat.runtime.loading import choose_dtype, free_bytes
from lingchat.runtime.models.base import Model
from lingchat.runtime.models.registry import build
from lingchat.runtime.ops.protocol import Ops
from lingchat.runtime.rounds import Rounds
from lingchat.runtime.state import State
from lingchat.runtime.threads import choose_threads

PROVENANCE = "random weights"
WARM_ROUNDS = 4
PLANNED = ("weights", "kv", "state", "snapshots", "workspace", "total", "context")
PACKAGES = ("lingchat", "torch", "triton", "fla-core")


@dataclass(frozen=True)
class _Bench:
    """What is loaded."""

    ops: Ops
    model: Model
    state: State
    driver: Driver
    rounds: Rounds


@torch.inference_mode()
def run(job: Job, notes: Notes) -> dict[str, Any]:
    """Measure `job`, telling `notes` how far it is. Raises a LingchatError when it cannot be run here."""
    device, dtype = _device(job)
    config = shape_config(job.shape, job.layers)
    native = find_native(config, device, dtype, lambda event: _tell(notes, event))
    place = Place(device, native=native is not None)
    weights = RandomModel(config, dtype, seed=job.seed, device=device, on_tensor=_progress(notes, job.shape))
    capacity = job.prompt + job.new + 1
    chunk = min(place.chunk, job.prompt)
    free = free_bytes(device)
    memory = _fitting_plan(job, weights, capacity, place, chunk, free)
    threads = choose_threads(job.threads)
    torch.set_num_threads(threads)
    notes.say("measuring how fast this memory can be read")
    roof = roofs.measure(device, free)
    if device == "cuda":
        torch.cuda.empty_cache()  # what was measured with must not look like a part of the model
    peak = PeakWatch(device)
    notes.say(f"making {weights.parameters / 1e9:.2f} billion random weights ({dtype}, seed {job.seed})")
    begin = time.perf_counter()
    bench = _load(weights, native, place, dtype, threads, memory.context, chunk)
    load_s = time.perf_counter() - begin
    notes.clear()
    load_peak = peak.bytes()
    peak.restart()
    ids = _prompt(job, config)
    notes.say("warming up")
    first_prefill_s = _prefill(bench, ids, WARM_ROUNDS, job.seed)
    for _ in bench.driver.decode(Width(0, adaptive=False)):
        pass
    bench.state.forget()
    warm_peak = peak.bytes()
    peak.restart()
    notes.say(f"measuring: {job.prompt} tokens of prefill, {job.new} decoded")
    prefill_s = _prefill(bench, ids, job.new + 1, job.seed)
    ends, tokens = _decode(bench)
    run_peak = peak.bytes()
    decode = _decode_facts(ends, tokens) | {"logits_std": _check_logits(bench)}
    a_token = weights.bytes_per_token(native=place.native)
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "bench",
        "provenance": PROVENANCE,
        "shape": job.shape,
        "architecture": config.architecture,
        "layers": config.layers,
        "layers_of_shape": shape_config(job.shape).layers,
        "dtype": dtype,
        "seed": job.seed,
        "parameters": weights.parameters,
        "backend": bench.ops.name,
        "device": _device_facts(device, threads),
        "versions": _versions(),
        "load_s": load_s,
        "prefill": {
            "tokens": job.prompt,
            "chunk": chunk,
            "seconds": prefill_s,
            "tokens_per_s": job.prompt / prefill_s,
            "first_seconds": first_prefill_s,  # with everything that is compiled or tuned at first use
        },
        "decode": decode,
        "roof": {"read_bytes_per_s": roof.read, "copy_bytes_per_s": roof.copy, "how": roof.how},
        "weight_bytes_per_token": a_token,
        "floor_ms": a_token / roof.read * 1e3,
        "share_of_roof": a_token * decode["tokens_per_s"] / roof.read,
        "memory": _memory(memory, bench, {"load": load_peak, "warm_up": warm_peak, "run": run_peak}, peak.how),
    }


def _device(job: Job) -> tuple[str, str]:
    """Where it runs, and in which precision: what is asked for, or the best there is."""
    device = choose_device(job.device)
    # Random weights are whatever is asked for.
    return device, choose_dtype(job.dtype, device, job.dtype if job.dtype in ("fp8", "int4") else "none")


def _tell(notes: Notes, event: AnyEvent) -> None:
    if isinstance(event, Warn):
        notes.say(event.message)


def _fitting_plan(job: Job, weights: RandomModel, capacity: int, place: Place, chunk: int, free: int) -> MemoryPlan:
    """What it will take. Raises UsageError or DoesNotFit where that is more than the model or the machine holds."""
    if capacity > weights.config.context:
        said = f"--prompt {job.prompt} and --new {job.new} are {capacity} tokens"
        raise UsageError(f"{said}; {job.shape} holds {weights.config.context}.")
    memory = plan(
        weights.config,
        weights.dtype,
        -(-capacity // PANEL) * PANEL if place.native else capacity,
        rows=chunk,
        kv_bytes=place.cache_bytes,
        width=1,
        stored={name: weights.stored_bytes(name) for name in weights.names()},
        types={name: weights.stored_type(name) for name in weights.names()},
        native=place.native,
    )
    try:
        check_fits(memory, free)
    except DoesNotFit as problem:
        raise DoesNotFit(f"{problem} --layers N measures the first N layers alone.") from None
    return memory


def _load(
    weights: RandomModel, native: Native | None, place: Place, dtype: str, threads: int, capacity: int, chunk: int
) -> _Bench:
    ops = open_ops(native, place.device, dtype, threads)
    model = build(weights, ops)
    drafter = LookupDrafter(ops)
    state = State(model.state_spec(capacity), drafter.state_spec(capacity), ops, place.cache_bytes, width=1)
    rounds = Rounds(ops, model, state, drafter, 1, chunk)
    return _Bench(ops, model, state, driver_for(ops, rounds), rounds)


def _prompt(job: Job, config: ModelConfig) -> list[int]:
    draw = random.Random(job.seed)
    return [draw.randrange(config.vocab) for _ in range(job.prompt)]


def _prefill(bench: _Bench, ids: Sequence[int], budget: int, seed: int) -> float:
    """Begin a reply of `budget` tokens, its first token included; seconds until that one is known."""
    begin = time.perf_counter()
    bench.rounds.begin(ids, budget, Sampling(temperature=0.0), seed, ())
    for _ in bench.driver.prefill(ids):
        pass
    bench.driver.first()
    return time.perf_counter() - begin


def _decode(bench: _Bench) -> tuple[list[int], list[int]]:
    """The rest of the reply: the end of each round in ns, the begin first; and the tokens."""
    tokens: list[int] = []
    ends = [now_ns()]
    for timed in bench.driver.decode(Width(0, adaptive=False)):
        ends.append(timed.end_ns)
        tokens += timed.record.ids
    return ends, tokens


def _decode_facts(ends: Sequence[int], tokens: Sequence[int]) -> dict[str, Any]:
    """Times of the rounds, which had one token each, from the end of each in ns."""
    gaps = [(after - before) * 1e-6 for before, after in itertools.pairwise(ends)]
    seconds = (ends[-1] - ends[0]) * 1e-9
    return {
        "tokens": len(gaps),
        "seconds": seconds,
        "tokens_per_s": len(gaps) / seconds,
        "tpot_mean_ms": statistics.mean(gaps),
        "tpot_p50_ms": _quantile(gaps, 0.50),
        "tpot_p95_ms": _quantile(gaps, 0.95),
        "tpot_max_ms": max(gaps),
        "distinct_tokens": len(set(tokens)),
    }


def _check_logits(bench: _Bench) -> float:
    """The spread of the last row's logits. Raises EngineError when one is no number: then nothing here counts."""
    raw = bench.ops.read(bench.rounds.try_rows(1))
    logits = torch.frombuffer(bytearray(raw), dtype=torch.float32)
    if not bool(torch.isfinite(logits).all()):
        raise EngineError("The logits are not finite, so the figures mean nothing: please report this as a bug.")
    return float(logits.std())


def _memory(memory: MemoryPlan, bench: _Bench, peaks: dict[str, int | None], how: str) -> dict[str, Any]:
    """The plan beside what was taken. `peaks`: the most while it loaded, ran for the first time, and ran."""
    peak = max((taken for taken in peaks.values() if taken is not None), default=None)
    return {
        "plan": {name: getattr(memory, name) for name in PLANNED},
        "weights": bench.ops.weight_bytes(),
        "state": bench.state.bytes(),
        "peaks": peaks,
        "peak": peak,
        "peak_over_plan": None if peak is None else peak / memory.total,
        "measured": how or "not on this system",
    }


def _device_facts(device: str, threads: int) -> dict[str, Any]:
    if device == "cuda":
        facts = torch.cuda.get_device_properties(0)
        return {"kind": device, "name": facts.name, "memory": facts.total_memory, "cuda": torch.version.cuda}
    return {"kind": device, "name": processor_name(), "threads": threads}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue  # an optional one, or lingchat run from its sources
    return found


def _quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _progress(notes: Notes, shape: str) -> Any:
    def on_tensor(name: str, done: int, total: int) -> None:
        model = f"{shape} ({PROVENANCE})"
        notes.engine(Engine(t_ns=now_ns(), phase="load", message=name, model=model, done_bytes=done, total_bytes=total))

    return on_tensor
