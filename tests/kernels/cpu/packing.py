"""Raw tensors of every type that files use, packed by the native library, and panels read back by their description."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import torch
from kernels.cpu import native
from make_models import random_blocks

from lingchat.kernels import quant
from lingchat.kernels.blocks import BLOCKS, DECODABLE, SCALED
from lingchat.kernels.cpu import structs

TYPES = (*DECODABLE, *SCALED)
KINDS = {
    **dict.fromkeys(("F32", "F16", "BF16", "F8_E4M3", "Q8_0"), structs.W8),
    **dict.fromkeys(("Q4_0", "I4"), structs.W4Z),
    **dict.fromkeys(("Q4_1", "Q4_K"), structs.W4M),
    **{"Q5_0": structs.W5Z, "Q5_1": structs.W5M, "Q5_K": structs.W5M, "Q6_K": structs.W6},
}
ZERO = {structs.W8: 0, structs.W4Z: 8, structs.W4M: 0, structs.W5Z: 16, structs.W5M: 0, structs.W6: 32}
GUARD = 64  # bytes before and behind panels that must stay as they are


@dataclass(frozen=True)
class Raw:
    """An undecoded matrix; `data` uint8 [bytes]."""

    type: str
    shape: tuple[int, ...]
    data: torch.Tensor
    scales: Raw | None = None
    name: str = "weight"


def as_raw(type: str, values: torch.Tensor) -> Raw:
    """Values of a float type as the tensor that holds them."""
    stored = values.to(quant.FLOATS[type]).contiguous()
    return Raw(type, tuple(values.shape), stored.flatten().view(torch.uint8))


def random_raw(type: str, rows: int, columns: int, *, seed: int = 0, group: int = 32, scales: str = "BF16") -> Raw:
    """A random matrix of any of TYPES, of scales that are normal in fp16 and exact in it where they are BF16."""
    rng = np.random.default_rng(seed)
    if type not in SCALED:
        blocks = random_blocks(type, (rows, columns), rng)
        return Raw(type, (rows, columns), torch.from_numpy(np.ascontiguousarray(blocks)).flatten())
    if type == "I4":
        data = rng.integers(0, 256, rows * columns // 2, dtype=np.uint8)
        shape = (rows, columns // group)
    else:
        data = rng.integers(0, 256, rows * columns, dtype=np.uint8)
        data[(data & 127) == 127] = 0  # NaN
        shape = (-(-rows // 128), -(-columns // 128))
    values = torch.from_numpy(rng.uniform(1e-3, 1e-2, shape).astype(np.float32))
    return Raw(type, (rows, columns), torch.from_numpy(data), as_raw(scales, values))


def smallest(type: str) -> int:
    """Columns of the least row of a type."""
    return 32 if type == "I4" else BLOCKS[type].values


def numbers(raw: Raw) -> torch.Tensor:
    """The values that a raw tensor stands for, fp32, by the torch decoders."""
    return quant.to_torch(raw)


def kind_of(type: str, wish: str = "int8") -> int:
    found: int = native.library().lib.lc_kind(type.encode(), wish.encode())
    return found


def source(raw: Raw, *, transposed: bool = False) -> structs.PackSource:
    rows, columns = raw.shape[::-1] if transposed else raw.shape
    made = structs.PackSource(raw.type.encode(), raw.data.data_ptr())
    if raw.scales is not None:
        made.scale_type, made.scales = raw.scales.type.encode(), raw.scales.data.data_ptr()
        made.group = raw.shape[1] // raw.scales.shape[1]
    made.rows, made.columns, made.transposed = rows, columns, transposed
    made.kept = raw
    return made


def pack_status(raw: Raw, kind: int, *, transposed: bool = False) -> int:
    """What packing returns; the panels are thrown away."""
    told = source(raw, transposed=transposed)
    room = torch.empty(panels_bytes(kind, told.rows, told.columns), dtype=torch.uint8)
    status: int = native.library().lib.lc_pack(None, ctypes.addressof(told), kind, room.data_ptr())
    return status


def pack(raw: Raw, kind: int, *, threads: int = 0, transposed: bool = False, before: int = 0xA5) -> torch.Tensor:
    """Panels, uint8, 64-byte aligned. `threads` 0: without a pool. `before` is what the memory holds before."""
    told = source(raw, transposed=transposed)
    size = panels_bytes(kind, told.rows, told.columns)
    room: torch.Tensor = native.aligned(torch.full((size + 2 * GUARD,), before, dtype=torch.uint8))
    library = native.library().lib
    pool = native.pool() if threads else None
    if threads:
        library.lc_pool_threads(pool, threads)
    status = library.lc_pack(pool, ctypes.addressof(told), kind, room.data_ptr() + GUARD)
    assert status == 0, f"{raw.type} {raw.shape} to kind {kind}: {status}"
    assert (room[:GUARD] == before).all(), "bytes before the panels were written"
    assert (room[GUARD + size :] == before).all(), "bytes behind the panels were written"
    return room[GUARD : GUARD + size]


def panels_bytes(kind: int, rows: int, columns: int) -> int:
    return -(-rows // structs.PANEL) * structs.panel_bytes(kind, columns)


def decode(kind: int, panels: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """A packed matrix back to fp32, by the library."""
    out = torch.full((rows, columns), float("nan"))
    assert native.library().lib.lc_decode(kind, panels.data_ptr(), rows, columns, out.data_ptr()) == 0
    return out


def fields(kind: int, panels: torch.Tensor, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Panels of a W kind by the description in types.h: u or q int [R, B, 32], d [R, B, 2] for the two halves of each
    block, m [R, B] or None; R rows with the padding, B blocks."""
    blocks = -(-columns // structs.BLOCK)
    p = panels.view(-1, blocks, structs.BLOCK_BYTES[kind])
    affine, two = kind in (structs.W4M, structs.W5M), kind in (structs.W4M, structs.W5M, structs.W6)
    end = p.shape[2] - (64 if two else 32)
    halves = p[:, :, end:].contiguous().view(torch.float16).float().view(len(p), blocks, -1, 16)
    halves = halves.permute(2, 0, 3, 1).flatten(1, 2)  # [1 or 2, R, B]
    d = torch.stack((halves[0], halves[1] if kind == structs.W6 else halves[0]), dim=-1)
    m = halves[1] if affine else None
    vectors = p[:, :, :end].reshape(len(p), blocks, -1, 16, 4)  # vector, row, column
    if kind == structs.W8:
        u = vectors.view(torch.int8).int()
    else:
        u = torch.stack((vectors[:, :, :4] & 15, vectors[:, :, :4] >> 4), dim=3).flatten(2, 3).int()
        for i in range(8):
            if kind in (structs.W5Z, structs.W5M):
                u[:, :, i] |= ((vectors[:, :, 4] >> i & 1) << 4).int()
            elif kind == structs.W6:
                u[:, :, i] |= ((vectors[:, :, 4 + i // 4] >> 2 * (i % 4) & 3) << 4).int()
    return u.permute(0, 3, 1, 2, 4).reshape(-1, blocks, 32), d, m


def described(kind: int, panels: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The numbers that panels stand for by the description in types.h, fp32 [rows, columns]."""
    if kind in (structs.F32, structs.F16):
        dtype = torch.float32 if kind == structs.F32 else torch.float16
        values = panels.view(dtype).view(-1, columns, structs.PANEL).transpose(1, 2).reshape(-1, columns)
        return values[:rows].float()
    u, d, m = fields(kind, panels, columns)
    w = (u - ZERO[kind]).float() * d.repeat_interleave(16, dim=-1)
    if m is not None:
        w = w + m[..., None]
    return w.flatten(1)[:rows, :columns].contiguous()


def quantized(w: torch.Tensor) -> torch.Tensor:
    """fp32 [N, K] as W8 stands for it: d = the largest magnitude of 32 columns / 127 as fp16, q = w / d rounded."""
    n, k = w.shape
    blocks = torch.nn.functional.pad(w, (0, -k % 32)).view(n, -1, 32)
    d = (blocks.abs().amax(-1, keepdim=True) / 127).half().float()
    q = torch.where(d > 0, blocks / d, 0).round().clamp(-127, 127)
    return (d * q).flatten(1)[:, :k].contiguous()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in every bit, but for the sign of zeros."""
    return torch.equal((a + 0.0).view(torch.int32), (b + 0.0).view(torch.int32))
