"""Random weights as the raw bytes of a file, made on the device: true shapes and types without a checkpoint.

Values are drawn evenly from a range, so their spread is half the range's width over sqrt(3). None is zero and none is
NaN: zeros hide a read of the wrong place and run faster than real data. Every byte is a function of the tensor's key
and its place in the tensor (splitmix64, Steele, Lea and Flood 2014), so it does not depend on the device, on the order
in which tensors are made, or on how many there are.

Bytes written: the tensor, once; beside it a chunk of some megabytes. Knows tensors, no models.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from lingchat.kernels.blocks import FP8_BLOCK, INT4_GROUP

TYPES = ("F32", "BF16", "F8_E4M3", "I4")

_CHUNK_WORDS = {"cpu": 1 << 16, "cuda": 1 << 21}  # words of 8 bytes at a time: a core's cache, or a few launches
_FP8_SPREAD = math.sqrt((128**2 - 1) / 3)  # of the odd numbers from -127 to 127
_INT4_SPREAD = math.sqrt((8**2 - 1) / 3)  # of the odd numbers from -7 to 7
_FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class RandomRaw:
    """A tensor's undecoded bytes: `data` uint8 [bytes] on its device; `scales` beside the two quantised types."""

    name: str
    type: str
    shape: tuple[int, ...]
    data: torch.Tensor
    scales: RandomRaw | None = None

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)


def stored_bytes(type: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor of one of TYPES with its scales."""
    count = math.prod(shape)
    if type in _FLOATS:
        return count * _FLOATS[type].itemsize
    *front, rows, columns = shape
    if type == "F8_E4M3":
        return count + 4 * math.prod(front) * -(-rows // FP8_BLOCK) * -(-columns // FP8_BLOCK)
    return count // 2 + 2 * count // INT4_GROUP


def key(seed: int, name: str) -> int:
    """A tensor's own start of the sequence, 64 bits."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "little")


def evenly(
    name: str, type: str, shape: Sequence[int], low: float, high: float, *, seed: int, device: str | torch.device
) -> RandomRaw:
    """F32 or BF16 between `low` and `high`, in steps of the 32,768th part of their distance."""
    dtype = _FLOATS[type]
    count = math.prod(shape)
    middle, half = (high + low) / 2, (high - low) / 2
    values = torch.empty(count, dtype=dtype, device=device)
    at = 0
    for words in _words(key(seed, name), -(-count // 4), values.device):
        # An odd number is never zero, and as many lie below zero as above.
        drawn = words.view(torch.int16).bitwise_or_(1)[: count - at]
        values[at : at + len(drawn)] = drawn.float().mul_(half / 32768).add_(middle)
        at += len(drawn)
    return RandomRaw(name, type, tuple(shape), values.view(torch.uint8))


def matrix(
    name: str, type: str, shape: Sequence[int], std: float, *, seed: int, device: str | torch.device
) -> RandomRaw:
    """A weight [.., N, K] of any of TYPES whose values have mean 0 and the spread `std`.

    F8_E4M3 has a scale (F32) for each block of 128 x 128, I4 one (BF16) for each 32 values of a row; scales differ by
    up to a half of their mean. ValueError for a row of I4 that is no whole number of groups.
    """
    if type in _FLOATS:
        reach = std * math.sqrt(3)
        return evenly(name, type, shape, -reach, reach, seed=seed, device=device)
    *front, rows, columns = shape
    if type == "F8_E4M3":
        data = _fp8(key(seed, name), math.prod(shape), device)
        scale_type, scale_shape = "F32", (*front, -(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
        mean = std / _FP8_SPREAD
    elif type == "I4":
        if columns % INT4_GROUP:
            raise ValueError(f"{name}: rows of {columns} values are no whole groups of {INT4_GROUP}")
        data = _int4(key(seed, name), math.prod(shape) // 2, device)
        scale_type, scale_shape = "BF16", (*front, rows, columns // INT4_GROUP)
        mean = std / _INT4_SPREAD
    else:
        raise ValueError(f"no random weights of the type {type}; there are {', '.join(TYPES)}")
    # Spread of q * s with s even in 0.5 .. 1.5 of its mean: sqrt(1 + 1 / 12) times what the mean alone would give.
    mean /= math.sqrt(1 + 1 / 12)
    scales = evenly(f"{name}.scales", scale_type, scale_shape, mean / 2, 1.5 * mean, seed=seed, device=device)
    return RandomRaw(name, type, tuple(shape), data, scales)


def _fp8(start: int, count: int, device: str | torch.device) -> torch.Tensor:
    """The odd numbers from -127 to 127, each rounded to the nearest that the format has: never 0, never NaN."""
    data = torch.empty(count, dtype=torch.uint8, device=device)
    at = 0
    for words in _words(start, -(-count // 8), data.device):
        drawn = words.view(torch.int8).bitwise_or_(1)[: count - at]
        data[at : at + len(drawn)] = drawn.float().to(torch.float8_e4m3fn).view(torch.uint8)
        at += len(drawn)
    return data


def _int4(start: int, count: int, device: str | torch.device) -> torch.Tensor:
    """Pairs of nibbles q + 8 with q odd, -7 to 7: as many below zero as above, and never zero."""
    data = torch.empty(count, dtype=torch.uint8, device=device)
    at = 0
    for words in _words(start, -(-count // 8), data.device):
        drawn = words.view(torch.uint8).bitwise_or_(0x11)[: count - at]
        data[at : at + len(drawn)] = drawn
        at += len(drawn)
    return data


def _words(start: int, count: int, device: torch.device) -> Iterator[torch.Tensor]:
    """Words number 0 to `count` of the sequence from `start`: int64 chunks that are overwritten by the next."""
    step = _CHUNK_WORDS["cpu" if device.type == "cpu" else "cuda"]
    golden = 0x9E3779B97F4A7C15
    places = torch.arange(1, min(step, count) + 1, device=device).mul_(_signed(golden))
    z, shifted = torch.empty_like(places), torch.empty_like(places)
    for at in range(0, count, step):
        size = min(step, count - at)
        z, shifted = z[:size], shifted[:size]
        torch.add(places[:size], _signed(start + at * golden), out=z)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            torch.bitwise_right_shift(z, shift, out=shifted)
            shifted.bitwise_and_((1 << (64 - shift)) - 1)  # torch shifts the sign in
            z.bitwise_xor_(shifted)
            if factor != 1:
                z.mul_(_signed(factor))
        yield z


def _signed(value: int) -> int:
    """The 64 lowest bits of an integer as a signed one."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
