"""Matrices that stay in memory as their file has them: undecoded blocks, made to numbers as they are used.

On the CPU bytes are used where they lie, in the mapped file, without a copy; elsewhere they are moved as they are. The
decoding itself is `quant.py`. Knows tensors, no models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lingchat.kernels.blocks import FP8_BLOCK
from lingchat.kernels.quant import FLOATS, Raw, copy_bytes, decode, raw_bytes


def float_view(raw: Raw) -> torch.Tensor:
    """An unquantised tensor's numbers in place, in the type that they are stored in; not to be written to."""
    return _aligned(raw_bytes(raw.data)).view(FLOATS[raw.type]).view(tuple(raw.shape))


def _aligned(data: torch.Tensor) -> torch.Tensor:
    return data.clone() if data.data_ptr() % 8 else data  # odd places occur in unusual safetensors files only


@dataclass(frozen=True)
class Blocks:
    """E matrices [N, K] of one type: `data` uint8 [E, bytes], or one [bytes] a matrix where they lie apart in a file;
    `scales` of F8_E4M3 [E, ceil(N / 128), ceil(K / 128)] and of I4 [E, N, K / group], as stored.
    """

    type: str
    shape: tuple[int, int]
    data: torch.Tensor | tuple[torch.Tensor, ...]
    scales: torch.Tensor | None = None

    @classmethod
    def stack(cls, parts: Sequence[Raw], device: torch.device) -> Blocks:
        """One raw tensor [N, K] or [E, N, K], or several [N, K] of one type and shape."""
        first = parts[0]
        *front, rows, columns = first.shape
        count = math.prod(front) * len(parts)
        scales = None
        if first.scales is not None:
            views = [float_view(part.scales) for part in parts if part.scales is not None]
            scales = torch.stack(views).view(count, *views[0].shape[-2:]).to(device)
        data = raw_bytes(first.data)
        if len(parts) == 1 and data.device.type == device.type:
            return cls(first.type, (rows, columns), _aligned(data).view(count, -1), scales)
        if device.type == "cpu":
            return cls(first.type, (rows, columns), tuple(_aligned(raw_bytes(part.data)) for part in parts), scales)
        # Part after part: the host never holds more of the mapped files than one of them.
        whole = torch.empty(len(parts), data.numel(), dtype=torch.uint8, device=device)
        del data
        for place, part in zip(whole, parts, strict=True):
            copy_bytes(part.data, place)
        return cls(first.type, (rows, columns), whole.view(count, -1), scales)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.data) + (0 if self.scales is None else self.scales.nbytes)

    def one(self, index: int, dtype: torch.dtype) -> torch.Tensor:
        """A matrix as numbers [N, K]."""
        scales = None if self.scales is None else self.scales[index]
        return decode(self.data[index], self.type, self.shape, dtype, scales)

    def gather(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """ids int64 [k] on the blocks' device -> [k, N, K], without a host read."""
        data = self.data if isinstance(self.data, torch.Tensor) else torch.stack(self.data)
        scales = None if self.scales is None else self.scales.index_select(0, ids)
        return decode(data.index_select(0, ids).flatten(), self.type, (len(ids), *self.shape), dtype, scales)

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Rows `ids` [T] of the first matrix as numbers [T, K], without a host read."""
        rows, columns = self.shape
        scales = None
        if self.scales is not None:
            height = FP8_BLOCK if self.type == "F8_E4M3" else 1
            scales = self.scales[0].index_select(0, ids // height)[:, None]
        data = self.data[0].view(rows, -1).index_select(0, ids)
        # As T matrices of one row: each has scales of its own.
        return decode(data.flatten(), self.type, (len(ids), 1, columns), dtype, scales)[:, 0]
