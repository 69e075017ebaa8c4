"""Weight formats to numbers: every format that files use, decoded in torch; and int8 rows for the CPU product.

This is the plain twin: kernels that work on packed blocks directly are judged against it. It is bit-equal to ggml's
reference (`dequantize_row_*` in ggml-quants.c, and the gguf package): the same products and sums, each rounded to fp32.
Block layouts, little endian, fields in order; `d`, `m` and `dmin` are fp16:

    Q4_0  d, 16 bytes of nibbles                           d * (q - 8)
    Q4_1  d, m, 16 bytes of nibbles                        d * q + m
    Q5_0  d, 4 bytes of fifth bits, 16 bytes of nibbles    d * (q - 16)
    Q5_1  d, m, 4 bytes of fifth bits, 16 bytes of nibbles d * q + m
    Q8_0  d, 32 int8                                       d * q
    Q4_K  d, dmin, 12 bytes of scales, 128 of nibbles                     (d * scale) * q - dmin * min
    Q5_K  d, dmin, 12 bytes of scales, 32 of fifth bits, 128 of nibbles   (d * scale) * q - dmin * min
    Q6_K  128 bytes of nibbles, 64 of upper bit pairs, 16 int8 scales, d  (d * scale) * (q - 32)

A byte's low nibble belongs to the first half of its group (a block of 32, or 64 values of a K block), the high nibble
to the second. Two formats have their scales in a tensor beside them; [.., N, K] may have experts in front:

    F8_E4M3  a byte a value        q * scale, scales [.., ceil(N / 128), ceil(K / 128)], one a block of 128 x 128
    I4       two values a byte,    (q - 8) * scale, scales [.., N, G], one for each K / G values of a row
             the low nibble first

Bytes read: the weights once; written: 4 a value. Knows no files and no models.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch

from lingchat.errors import ModelFileError
from lingchat.kernels.blocks import BLOCKS, DECODABLE, FP8_BLOCK, SCALED, Block
from lingchat.kernels.staging import staging

# Values decoded at a time, so that the intermediates stay in cache and small; on a device, so that launches are few.
_CHUNK = 1 << 20
_DEVICE_CHUNK = 1 << 23
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Raw(Protocol):
    """An undecoded tensor, as `runtime.weights.raw` has it. `scales` are read of the types in SCALED only."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def data(self) -> memoryview | torch.Tensor: ...
    @property
    def scales(self) -> Raw | None: ...


def raw_bytes(data: memoryview | torch.Tensor) -> torch.Tensor:
    """A uint8 tensor over `data`, without a copy. Of a read-only map it must never be written to."""
    if isinstance(data, torch.Tensor):
        return data
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
        return torch.frombuffer(data, dtype=torch.uint8)


def copy_bytes(data: memoryview | torch.Tensor, out: torch.Tensor) -> None:
    """Undecoded bytes into `out`, uint8 [bytes]: from the host to another device through the staging buffer."""
    source = raw_bytes(data)
    if source.device.type == out.device.type:
        out.copy_(source)
        return
    for start, piece in staging(out.device).pieces(source, 1):
        out[start : start + len(piece)] = piece


def to_torch(raw: Raw, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None) -> torch.Tensor:
    """A raw tensor as numbers, in memory of its own: on `device`, or where its bytes are.

    Bytes of the host reach another device undecoded, through one staging buffer, and are decoded there.
    """
    data = raw_bytes(raw.data)
    target = data.device if device is None else torch.device(device)
    scales = None if raw.type not in SCALED or raw.scales is None else to_torch(raw.scales, device=target)
    if data.device == target:
        return decode(data, raw.type, raw.shape, dtype, scales)
    if data.device.type != "cpu":
        return decode(data.to(target), raw.type, raw.shape, dtype, scales)
    return _decode_staged(data, raw.type, raw.shape, dtype, scales, target)


def decode(
    data: torch.Tensor,
    type: str,
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """`data` (uint8, [bytes]) of a weight format as a new tensor of `shape`, decoded in fp32, rounded once to `dtype`.

    `scales` are numbers, of the types in SCALED. Raises ValueError for a type that is neither in DECODABLE nor in
    SCALED, and when the number of bytes or of scales does not belong to `shape`.
    """
    _check(data, type, shape, scales)
    chunks = _decoded(data, type, shape, scales, _chunk(data.device))
    if 0 < math.prod(shape) <= _chunk(data.device):  # an expert, say: a copy into new memory would cost as much again
        return next(chunks).to(dtype).view(tuple(shape))
    out = torch.empty(math.prod(shape), dtype=dtype, device=data.device)
    at = 0
    for values in chunks:
        out[at : at + values.numel()] = values.flatten()
        at += values.numel()
    return out.view(tuple(shape))


def _decode_staged(
    data: torch.Tensor,
    type: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    scales: torch.Tensor | None,
    device: torch.device,
) -> torch.Tensor:
    """`decode` of host bytes on `device`: what is there at once is the result, a piece of bytes and a chunk of values."""
    _check(data, type, shape, scales)
    out = torch.empty(math.prod(shape), dtype=dtype, device=device)
    unit = _unit(type, shape)
    for start, piece in staging(device).pieces(data, unit.nbytes):
        at = start // unit.nbytes * unit.values
        if FLOATS.get(type) == dtype:
            same = piece.view(dtype)
            out[at : at + len(same)] = same
            continue
        for values in _decoded(piece, type, shape, scales, _chunk(device), at // unit.values):
            out[at : at + values.numel()] = values.flatten()
            at += values.numel()
    return out.view(tuple(shape))


def quantize_rows_int8(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 [N, K] as int8 [N, K] and one bf16 scale a row [N], for `torch._weight_int8pack_mm` with bf16 activations.

    The scale is the row's largest magnitude / 127, rounded *up* to bf16 before the row is divided by it: the product
    multiplies by exactly the number that the row was divided by, and no value exceeds 127. A row of zeros has the
    smallest normal scale. Raises ModelFileError for a weight that is not finite.
    """
    scale = _row_scales(w)
    return (w / scale.float()[:, None]).round_().to(torch.int8), scale


def int8_rows(raw: Raw) -> tuple[torch.Tensor, torch.Tensor]:
    """`quantize_rows_int8` of a raw matrix, a few rows at a time: never the whole matrix in fp32."""
    n, k = raw.shape
    data = raw_bytes(raw.data)
    scales = None if raw.type not in SCALED or raw.scales is None else to_torch(raw.scales)
    _check(data, raw.type, raw.shape, scales)
    q, scale = torch.empty(n, k, dtype=torch.int8), torch.empty(n, dtype=torch.bfloat16)
    if k % BLOCKS[raw.type].values:
        raise ValueError(f"rows of {k} values are no whole blocks of {raw.type}")
    at = 0
    for values in _decoded(data, raw.type, raw.shape, scales, max(1, _CHUNK // k) * k):
        some = values.view(-1, k)
        end = at + len(some)
        scale[at:end] = _row_scales(some)
        q[at:end] = some.div_(scale[at:end].float()[:, None]).round_()
        at = end
    return q, scale


def _row_scales(w: torch.Tensor) -> torch.Tensor:
    # amax and amin: torch's aminmax takes fifteen times as long (2.13, CPU), and abs() would copy the rows.
    largest = torch.maximum(w.amax(dim=1), -w.amin(dim=1))
    if not torch.isfinite(largest).all():
        raise ModelFileError("A weight is not a finite number: the weight file is damaged. Fetch it again.")
    return _round_up_bf16((largest / 127).clamp(min=torch.finfo(torch.bfloat16).tiny))


def _round_up_bf16(x: torch.Tensor) -> torch.Tensor:
    """Positive finite fp32 to the smallest bf16 that is not below it."""
    return ((x.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32).to(torch.bfloat16)


def _chunk(device: torch.device) -> int:
    return _CHUNK if device.type == "cpu" else _DEVICE_CHUNK


def _unit(type: str, shape: Sequence[int]) -> Block:
    """The least that can be decoded by itself: a block, or a row where the scales lie elsewhere."""
    if type not in SCALED:
        return BLOCKS[type]
    return Block(shape[-1], shape[-1] // BLOCKS[type].values * BLOCKS[type].nbytes)


def _check(data: torch.Tensor, type: str, shape: Sequence[int], scales: torch.Tensor | None) -> None:
    if type not in DECODABLE and type not in SCALED:
        raise ValueError(f"no decoder for the weight type {type}")
    block = BLOCKS[type]
    count, rest = divmod(math.prod(shape), block.values)
    if rest or data.numel() != count * block.nbytes:
        raise ValueError(f"{data.numel()} bytes are no {type} of shape {tuple(shape)}")
    if type not in SCALED:
        return
    *front, n, k = shape
    got = None if scales is None else tuple(scales.shape)
    if type == "F8_E4M3":
        fits = got == (*front, -(-n // FP8_BLOCK), -(-k // FP8_BLOCK))
    else:
        fits = got is not None and got[:-1] == (*front, n) and k % got[-1] == 0 and k % block.values == 0
    if not fits:
        raise ValueError(f"scales of shape {got} do not belong to {type} of shape {tuple(shape)}")


def _decoded(
    data: torch.Tensor, type: str, shape: Sequence[int], scales: torch.Tensor | None, step: int, first: int = 0
) -> Iterator[torch.Tensor]:
    """About `step` values after the other, fp32, whole units each, in memory of its own.

    `data` may be a part of the tensor of `shape`, beginning with its unit number `first`.
    """
    unit = _unit(type, shape)
    count = data.numel() // unit.nbytes
    units = max(1, step // unit.values)
    odd = data.data_ptr() % 8 != 0  # occurs in safetensors, and in GGUF files of an unusual alignment
    for start in range(0, count, units):
        part = data[start * unit.nbytes : (start + units) * unit.nbytes]
        blocks = (part.clone() if odd else part).view(-1, unit.nbytes)
        if scales is None:
            yield _DECODERS[type](blocks)
        else:
            yield _SCALED_DECODERS[type](blocks, shape, scales, first + start)


def _f8_e4m3(b: torch.Tensor, shape: Sequence[int], scales: torch.Tensor, first: int) -> torch.Tensor:
    """Rows `first` and on of [.., N, K] with the experts' rows counted through: fp32 [rows, K]."""
    n = shape[-2]
    rows = torch.arange(first, first + len(b), device=b.device)
    blocks = (rows // n) * scales.shape[-2] + rows % n // FP8_BLOCK  # each row's row of scales
    return _times(_fp8(b), scales.reshape(-1, scales.shape[-1]).index_select(0, blocks), FP8_BLOCK)


def _i4(b: torch.Tensor, shape: Sequence[int], scales: torch.Tensor, first: int) -> torch.Tensor:
    groups = scales.shape[-1]
    of_rows = scales.reshape(-1, groups)[first : first + len(b)]
    q = torch.stack((b & 15, b >> 4), dim=-1).flatten(1).float().sub_(8)
    return _times(q, of_rows, shape[-1] // groups)


def _times(values: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """values [R, K] *= scales [R, ceil(K / group)], each for `group` columns, the last perhaps for fewer."""
    scales = scales.float()
    whole = values.shape[1] // group
    values[:, : whole * group].view(len(values), whole, group).mul_(scales[:, :whole, None])
    values[:, whole * group :].mul_(scales[:, whole:])
    return values


def _fp8(b: torch.Tensor) -> torch.Tensor:
    """Bytes as the numbers they are in E4M3 (FN: no infinities, 0x7F and 0xFF are NaN), fp32."""
    if b.device.type != "cpu":
        return b.view(torch.float8_e4m3fn).float()
    # A table of all 256 takes a sixth of the time that torch's conversion takes (2.13, CPU).
    return _fp8_table().index_select(0, b.flatten().int()).view(b.shape)


@functools.cache
def _fp8_table() -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()


def field(b: torch.Tensor, start: int, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
    """Bytes of each block as numbers of `dtype`, in new fp32 memory. `start` and a block are multiples of its size."""
    size = torch.empty(0, dtype=dtype).element_size()
    values = b.view(dtype)[:, start // size : (start + nbytes) // size]
    return values.to(torch.float32, copy=True, memory_format=torch.contiguous_format)


def _nibbles(b: torch.Tensor, start: int, group: int) -> torch.Tensor:
    """Bytes of each block from `start` on, in groups: [n, groups, 2 * group], all low nibbles, then all high ones.

    Split before they are selected: torch masks whole blocks at memory speed, but slices of them row by row.
    """
    count = (b.shape[1] - start) // group
    end, shape = start + count * group, (len(b), count, group)
    low, high = (b & 15)[:, start:end].view(shape), (b >> 4)[:, start:end].view(shape)
    return torch.cat((low, high), dim=-1)


def _bits(b: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """[n, m] bytes to [n, count, m]: field i of each byte, `width` bits from bit `i * width` on."""
    shift = torch.arange(0, count * width, width, dtype=torch.uint8, device=b.device)
    return (b[:, None, :] >> shift[None, :, None]) & ((1 << width) - 1)


def _fifth_bits(b: torch.Tensor) -> torch.Tensor:
    """[n, 4] bytes to [n, 32]: bit i of the 32-bit word as 0 or 16."""
    return (_bits(b, 8, 1) << 4).transpose(1, 2).reshape(-1, 32)


def _affine(q: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`d * q + m` of blocks that begin with d and m. Two roundings: a fused multiply-add would not be bit-equal."""
    return q.float().mul_(field(b, 0, 2, torch.float16)).add_(field(b, 2, 2, torch.float16))


def _float(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda b: field(b, 0, b.shape[1], dtype)


def _q4_0(b: torch.Tensor) -> torch.Tensor:
    return _nibbles(b, 2, 16).flatten(1).float().sub_(8).mul_(field(b, 0, 2, torch.float16))


def _q4_1(b: torch.Tensor) -> torch.Tensor:
    return _affine(_nibbles(b, 4, 16).flatten(1), b)


def _q5_0(b: torch.Tensor) -> torch.Tensor:
    q = _nibbles(b, 6, 16).flatten(1) | _fifth_bits(b[:, 2:6])
    return q.float().sub_(16).mul_(field(b, 0, 2, torch.float16))


def _q5_1(b: torch.Tensor) -> torch.Tensor:
    q = _nibbles(b, 8, 16).flatten(1) | _fifth_bits(b[:, 4:8])
    return _affine(q, b)


def _q8_0(b: torch.Tensor) -> torch.Tensor:
    return field(b, 2, 32, torch.int8).mul_(field(b, 0, 2, torch.float16))


def k_scales(b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """12 bytes to eight 6-bit scales and eight 6-bit minima, each fp32 [n, 8, 1].

    Bytes 0-3 hold scales 0-3 and bytes 4-7 minima 0-3 in their low six bits. Their upper two bits are the upper two of
    scales and minima 4-7, whose low four are the nibbles of bytes 8-11 (scales low, minima high).
    """
    first, second, third = b[:, 0:4], b[:, 4:8], b[:, 8:12]
    scale = torch.cat((first & 63, (third & 15) | (first >> 6 << 4)), dim=1)
    minimum = torch.cat((second & 63, (third >> 4) | (second >> 6 << 4)), dim=1)
    return scale.float()[:, :, None], minimum.float()[:, :, None]


def _k_blocks(b: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Q4_K and Q5_K alike: `q` uint8 [n, 8, 32], eight groups of 32 with a scale and a minimum each."""
    scale, minimum = k_scales(b[:, 4:16])
    d, dmin = field(b, 0, 2, torch.float16)[:, :, None], field(b, 2, 2, torch.float16)[:, :, None]
    return q.float().mul_(d * scale).sub_(dmin * minimum).flatten(1)


def _q4_k(b: torch.Tensor) -> torch.Tensor:
    return _k_blocks(b, _nibbles(b, 16, 32).view(-1, 8, 32))


def _q5_k(b: torch.Tensor) -> torch.Tensor:
    low = _nibbles(b, 48, 32).view(-1, 8, 32)
    return _k_blocks(b, low | (_bits(b[:, 16:48], 8, 1) << 4))


def _q6_k(b: torch.Tensor) -> torch.Tensor:
    # Two halves of 128 values: 64 bytes of nibbles and 32 bytes of bit pairs each.
    low = _nibbles(b[:, :128], 0, 64)
    high = _bits(b[:, 128:192].reshape(-1, 32), 4, 2).view(-1, 2, 128)
    q = (low | (high << 4)).float().sub_(32)
    scale = field(b, 192, 16, torch.int8).mul_(field(b, 208, 2, torch.float16))
    return q.view(-1, 16, 16).mul_(scale[:, :, None]).flatten(1)


_DECODERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: _float(dtype) for name, dtype in FLOATS.items()},
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
_SCALED_DECODERS: dict[str, Callable[[torch.Tensor, Sequence[int], torch.Tensor, int], torch.Tensor]] = {
    "F8_E4M3": _f8_e4m3,
    "I4": _i4,
}
