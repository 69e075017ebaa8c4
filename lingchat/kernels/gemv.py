"""Matrix times a few rows: y [T, N] = x [T, K] W[N, K]^T + b, with W in fp32 or bf16, in int8 with a scale a row, or
in the blocks that its file has.

For T up to `MAX_WIDTH` a row's bits do not depend on T: drafting verifies T rows and must find the very numbers that
one row alone would have given. Beyond that (prefill) plain matrix products are used, which are faster and differ in
the last bits.

Knows tensors, no models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lingchat.kernels.packed import Blocks
from lingchat.kernels.quant import FLOATS, Raw, int8_rows, quantize_rows_int8, to_torch
from lingchat.kernels.rows import MAX_WIDTH

_INT8_ROWS = 32  # beyond this many rows an fp32 product on converted weights overtakes the row-wise int8 kernel
_COLUMNS = 32  # torch's int8 kernel reads whole vectors: with an odd K it runs past the row and crashes


@dataclass(frozen=True)
class DenseWeight:
    """W as it is: [N, K], fp32 or bf16."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def table(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of W: fp32 [T, K]."""
        return self.weight[ids].float()


@dataclass(frozen=True)
class Int8Weight:
    """W ~ q * scale: q int8 [N, K] with K padded by zeros to a multiple of 32, scale bf16 [N], one a row."""

    q: torch.Tensor
    scale: torch.Tensor
    columns: int  # K without the padding
    bias: torch.Tensor | None = None

    @classmethod
    def quantize(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Int8Weight:
        q, scale = quantize_rows_int8(_padded(weight))
        return cls(q, scale, weight.shape[1], bias)

    @classmethod
    def pack(cls, parts: Sequence[Raw], bias: torch.Tensor | None = None) -> Int8Weight:
        """Stack undecoded row blocks [N_i, K]; they are never whole in fp32 where K is a whole number of columns."""
        columns = parts[0].shape[1]
        if columns % _COLUMNS:
            return cls.quantize(torch.cat([to_torch(part) for part in parts]), bias)
        rows = [int8_rows(part) for part in parts]
        if len(rows) == 1:  # joining one would copy it, and a head is the largest matrix there is
            return cls(*rows[0], columns, bias)
        return cls(torch.cat([q for q, _ in rows]), torch.cat([scale for _, scale in rows]), columns, bias)

    @property
    def nbytes(self) -> int:
        return self.q.nbytes + self.scale.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def dequantize(self) -> torch.Tensor:
        """W as the int8 product sees it: fp32 [N, K]."""
        return (self.q.float() * self.scale.float()[:, None])[:, : self.columns]

    def table(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of W: fp32 [T, K]."""
        return (self.q[ids].float() * self.scale[ids].float()[:, None])[:, : self.columns]


@dataclass(frozen=True)
class PackedWeight:
    """Row blocks of W one below the other, quantised ones undecoded: numbers of the type `compute` as they are used."""

    parts: tuple[Blocks | DenseWeight, ...]
    compute: torch.dtype
    bias: torch.Tensor | None = None

    @classmethod
    def pack(
        cls,
        parts: Sequence[Raw],
        compute: torch.dtype,
        device: torch.device | str = "cpu",
        bias: torch.Tensor | None = None,
    ) -> PackedWeight:
        """Stack row blocks [N_i, K]. Those that the file does not quantise become `compute` at once."""
        device = torch.device(device)
        packed = tuple(
            DenseWeight(to_torch(part, compute, device)) if part.type in FLOATS else Blocks.stack([part], device)
            for part in parts
        )
        return cls(packed, compute, bias)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts) + (0 if self.bias is None else self.bias.nbytes)

    def decoded(self) -> Iterator[DenseWeight]:
        """W's row blocks as numbers, one after the other."""
        for part in self.parts:
            yield part if isinstance(part, DenseWeight) else DenseWeight(part.one(0, self.compute))

    def table(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of W: fp32 [T, K]. Only of a weight that is a single row block, as an embedding is."""
        (part,) = self.parts
        return part.table(ids) if isinstance(part, DenseWeight) else part.rows(ids, torch.float32)


Weight = DenseWeight | Int8Weight | PackedWeight


def _padded(x: torch.Tensor) -> torch.Tensor:
    """x [.., K] with zeros up to a whole number of the kernel's columns; x itself where K is one."""
    missing = -x.shape[-1] % _COLUMNS
    return F.pad(x, (0, missing)) if missing else x


def project(x: torch.Tensor, w: Weight) -> torch.Tensor:
    """x fp32 [T, K] -> fp32 [T, N]."""
    rows = x.shape[0]
    if isinstance(w, PackedWeight):
        y = torch.cat([project(x, part) for part in w.decoded()], dim=1)
    elif isinstance(w, Int8Weight):
        # Activations are rounded to bf16; the product accumulates each row by itself in fp32 and rounds once to bf16.
        # In the form for many rows the scale, which is of the row of W, waits for the result.
        if rows <= _INT8_ROWS:
            y = torch._weight_int8pack_mm(_padded(x).bfloat16(), w.q, w.scale).float()
        else:
            y = F.linear(_padded(x), w.q.float()) * w.scale.float()
    elif x.device.type == "cpu" and rows <= MAX_WIDTH:
        # The library picks other kernels for other T, with other sums; one call a row is the price of equal bits.
        # Block by block, the weight is read from memory once and from the cache after that.
        y = torch.cat(
            [
                torch.cat([_linear(x[r : r + 1], block) for r in range(rows)])
                for block in w.weight.split(_cached_rows(w.weight))
            ],
            dim=1,
        )
    else:
        y = _linear(x, w.weight)
    return y if w.bias is None else y + w.bias


def _cached_rows(weight: torch.Tensor) -> int:
    """Rows of W in a block of at most 8 MB, which stays in a core's share of the cache while T rows pass over it."""
    return max(1, (8 << 20) // (weight.shape[1] * weight.element_size()))


def _linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(x.to(weight.dtype), weight).float()


def project_vocabulary(x: torch.Tensor, w: Weight, refine: int = 64) -> torch.Tensor:
    """Logits fp32 [T, N]. With int8 weights the `refine` largest of each row are computed again in fp32.

    The int8 product rounds its result to bf16, about 0.4 % of a logit: enough to make ties among the best tokens.
    The refined logits are exact products with the int8 weight; the rest of the row keeps the rounded value.
    """
    y = project(x, w)
    if not isinstance(w, Int8Weight) or refine <= 0:
        return y
    best = y.topk(min(refine, y.shape[1])).indices
    for r in range(x.shape[0]):
        ids = best[r]
        exact = torch.mv(w.q[ids].float(), _padded(x[r])) * w.scale[ids].float()
        y[r, ids] = exact if w.bias is None else exact + w.bias[ids]
    return y
