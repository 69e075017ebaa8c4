"""RMSNorm and the gated activation, rows by themselves. Knows tensors, no models."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., d] fp32 -> x / sqrt(mean(x^2) + eps) * weight, statistics in fp32 (Zhang and Sennrich 2019)."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """[T, 2 F] with gate first -> SiLU(gate) * up [T, F] (Shazeer 2020)."""
    width = gate_up.shape[-1] // 2
    return F.silu(gate_up[:, :width]) * gate_up[:, width:]
