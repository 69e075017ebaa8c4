"""How fast this memory can be read, measured now: what a decoded token's time is held against.

A token at batch 1 reads every active weight once, so no decoder is faster than these bytes at this rate. Of the ways to
read that are tried, the fastest counts. Knows tensors, no models.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lingchat.kernels.random_weights import evenly

_BYTES = {"cpu": 1 << 30, "cuda": 4 << 30}  # far beyond any cache
_REPEATS = 5
_CALLS = {"cpu": 1, "cuda": 8}  # between two looks at the clock


@dataclass(frozen=True)
class Roof:
    """Bytes a second: `read` by the fastest way to read, which is `how`; `copy` with bytes read and written."""

    read: float
    copy: float
    how: str


def measure(device: str, free_bytes: int) -> Roof:
    """Takes at most a quarter of `free_bytes`, and gives it back."""
    nbytes = min(_BYTES[device], free_bytes // 8)
    columns = 4096
    rows = max(1, nbytes // 2 // columns)
    table = evenly("roof", "BF16", (rows, columns), -1.0, 1.0, seed=0, device=device).data.view(torch.bfloat16)
    source = table.view(torch.float32)  # two values as one: finite numbers as well
    table = table.view(rows, columns)
    target = torch.empty_like(source)
    vector = torch.ones(columns, dtype=torch.bfloat16, device=device)
    ways: dict[str, Callable[[], object]] = {"sum": source.sum}
    if device == "cuda":
        ways["matrix times vector"] = lambda: torch.mv(table, vector)
    rates = {name: _rate(device, way, source.nbytes) for name, way in ways.items()}
    how = max(rates, key=lambda name: rates[name])
    copy = _rate(device, lambda: target.copy_(source), 2 * source.nbytes)
    return Roof(rates[how], copy, how)


def _rate(device: str, call: Callable[[], object], nbytes: int) -> float:
    """Bytes a second, the median of some repeats after one that warms up. On a CPU the best, as others share it."""
    calls = _CALLS[device]
    seconds = [_seconds(device, call, calls) / calls for _ in range(_REPEATS + 1)][1:]
    return nbytes / (min(seconds) if device == "cpu" else statistics.median(seconds))


def _seconds(device: str, call: Callable[[], object], calls: int) -> float:
    if device == "cpu":
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - begin
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(calls):
        call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) * 1e-3
