"""A Triton kernel that only reads: how fast this GPU's memory can be read at all. Imported by `ling_gpu.py`.

Bytes read: the buffer, once; written: one sum a program. Grid: programs that each read one contiguous part.
"""

from __future__ import annotations

import statistics

import torch
import triton
import triton.language as tl


@triton.jit
def _read(source, sums, steps, block: tl.constexpr):
    program = tl.program_id(0)
    place = program.to(tl.int64) * steps * block + tl.arange(0, block)
    total = tl.zeros((block,), dtype=tl.float32)
    for step in range(steps):
        total += tl.load(source + place + step * block)
    tl.store(sums + program, tl.sum(total, axis=0))


def read_rate(nbytes: int) -> float:
    """Bytes a second, the best of some grids; each the median of five timings of eight calls."""
    source = torch.randn(nbytes // 4, device="cuda")
    rates = []
    for block, programs, warps in ((4096, 132 * 8, 8), (8192, 132 * 16, 8), (4096, 132 * 32, 4)):
        steps = source.numel() // programs // block
        sums = torch.full((programs,), float("nan"), device="cuda")
        _read[(programs,)](source, sums, steps, block, num_warps=warps)
        if not bool(torch.isfinite(sums).all()):
            raise RuntimeError("the reading kernel did not write all of its sums")
        seconds = []
        for _ in range(5):
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            for _ in range(8):
                _read[(programs,)](source, sums, steps, block, num_warps=warps)
            last.record()
            last.synchronize()
            seconds.append(first.elapsed_time(last) / 8e3)
        rates.append(programs * steps * block * 4 / statistics.median(seconds))
    return max(rates)
