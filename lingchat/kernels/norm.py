"""RMSNorm and the gated activation, rows by themselves. Knows tensors, no models."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lingchat.kernels.rows import by_rows


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., d] fp32 -> x / sqrt(mean(x^2) + eps) * weight, statistics in fp32 (Zhang and Sennrich 2019)."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """[T, 2 F] with gate first -> SiLU(gate) * up [T, F] (Shazeer 2020)."""
    width = gate_up.shape[-1] // 2
    return swiglu_limited(gate_up[:, :width], gate_up[:, width:], 0.0)


def swiglu_limited(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    """gate and up [T, ...] -> min(SiLU(gate), limit) * clamp(up, -limit, limit); SiLU(gate) * up where `limit` is 0.

    The gate is bounded after its SiLU and from above only: SiLU has a floor of its own (Ling-3.0, late layers).
    """
    active = by_rows(F.silu, gate)
    if limit > 0:
        active, up = active.clamp(max=limit), up.clamp(-limit, limit)
    return active * up
