"""The way of a file's bytes to a device: through one buffer of host memory, piece after piece, undecoded.

However large the model, its way takes no more host memory than the buffer and the mapped tensor that is being copied.
The buffer is pinned where the device is a CUDA one, so that a copy runs at the bus's speed. Knows bytes, no formats.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch

BUFFER = 16 << 20  # bytes: a copy of this size hides its start, and what is decoded of it at a time stays small


class Staging:
    """The buffer for one device."""

    def __init__(self, device: torch.device, nbytes: int = BUFFER) -> None:
        self.device = device
        self._buffer = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    def pieces(self, data: torch.Tensor, unit: int) -> Iterator[tuple[int, torch.Tensor]]:
        """`data` (uint8 [bytes], on the host) as tensors of whole units on the device, each with the place of its
        first byte.

        A unit is what cannot be decoded in parts (a block, a row), in bytes. Each copy is finished before the buffer
        is filled again. ValueError when the buffer cannot hold one unit.
        """
        if unit > self.nbytes:
            raise ValueError(f"a unit of {unit} bytes does not fit into a staging buffer of {self.nbytes}")
        step = self.nbytes // unit * unit
        for start in range(0, len(data), step):
            part = data[start : start + step]
            held = self._buffer[: len(part)]
            held.copy_(part)
            yield start, held.to(self.device, copy=True)


@functools.cache
def staging(device: torch.device) -> Staging:
    """The process's one buffer for `device`. It stays: pinning costs more than the memory is worth."""
    return Staging(device)
