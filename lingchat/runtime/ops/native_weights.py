"""A model's weights in the packing of the native back end: matrices, vectors, and stacks of experts or heads.

Blocks of a file are reordered and nothing else where a kind of `kernels/cpu/types.h` has their form; floats and fp8
become blocks of 8 bits. A tensor's bytes are asked for once and let go when they are packed, so that memory holds the
packed model and one tensor of the file.
"""

from __future__ import annotations

import ctypes
import math
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_ssize_t, c_void_p
from typing import Any

from lingchat.errors import ModelFileError
from lingchat.kernels.blocks import BLOCKS, FP8_BLOCK, SCALED
from lingchat.kernels.cpu import structs
from lingchat.kernels.cpu.native import Native
from lingchat.runtime.ops.native_memory import Arena, Memory
from lingchat.runtime.ops.protocol import LatentShape, RawTensor

DAMAGED = 2  # lc_pack: a weight is not finite


class Packed:
    """A struct of `kernels/cpu/structs.py` over packed weights, of `nbytes` bytes."""

    def __init__(self, struct: Any, nbytes: int, *keep: Any) -> None:
        self.struct, self.nbytes = struct, nbytes
        self.address = ctypes.addressof(struct)
        self._keep = keep


class Vector:
    """fp32 values of a weight."""

    def __init__(self, address: int, size: int, keep: Any) -> None:
        self.address, self.size = address, size
        self._keep = keep


class Experts:
    """Gate, up and down of a layer's experts, each a stack."""

    def __init__(self, gate: Packed, up: Packed, down: Packed) -> None:
        self.gate, self.up, self.down = gate, up, down


class Packer:
    """Packs on all threads of `pool`; counts what it has packed."""

    def __init__(self, native: Native, pool: int) -> None:
        self._native, self._pool = native, pool
        self._arena = Arena(native)
        self.nbytes = 0

    def matrix(self, parts: Sequence[RawTensor], bias: Sequence[RawTensor] | None = None, wish: str = "int8") -> Packed:
        """Row blocks [N_i, K], one below the other. `wish`: "int8" for the file's own precision, or "f32"."""
        if len(parts) > structs.MAX_PARTS:
            raise ValueError(f"a matrix has at most {structs.MAX_PARTS} row blocks, not {len(parts)}")
        columns = parts[0].shape[1]
        made = structs.Matrix(columns=columns, parts=len(parts))
        total = 0
        for part, raw in zip(made.part, parts, strict=False):
            kind, rows = self._kind(raw, wish), raw.shape[0]
            nbytes = _panels(rows) * structs.panel_bytes(kind, columns)
            part.kind, part.rows, part.first, part.data = kind, rows, made.rows, self._arena.take(nbytes)
            with _bytes_of(raw) as (data, scales):
                self._pack(raw, kind, part.data, data, scales, rows, columns)
            made.rows += rows
            total += nbytes
        self.nbytes += total
        kept = None
        if bias is not None:
            kept = self._vector(b"".join(map(_floats, bias)))
            made.bias = kept.address
        return Packed(made, total, self._arena, kept)

    def vector(self, parts: Sequence[RawTensor]) -> Vector:
        """The values of `parts`, of a float type, one after the other."""
        return self._vector(b"".join(map(_floats, parts)))

    def experts(self, gate: Sequence[RawTensor], up: Sequence[RawTensor], down: Sequence[RawTensor]) -> Experts:
        return Experts(self._experts(gate), self._experts(up), self._experts(down))

    def latent_up(self, parts: Sequence[RawTensor], shape: LatentShape) -> tuple[Packed, Packed]:
        """Per head, the matrix that takes a query to the latent's side [rank, nope], and the one that takes a latent
        to a value [value, rank]; fp16. `parts`: one [heads * (nope + value), rank], or these two, stacked."""
        nope, value, rank, heads = shape.nope, shape.value, shape.rank, shape.heads
        if len(parts) == 2:
            key, val = parts
            return self._heads(key, heads, 0, rank, nope), self._heads(val, heads, 0, value, rank)
        (whole,) = parts
        keys = self._heads(whole, heads, 0, rank, nope, each=nope + value, transposed=True)
        return keys, self._heads(whole, heads, nope, value, rank, each=nope + value)

    # stacks

    def _experts(self, parts: Sequence[RawTensor]) -> Packed:
        if len({(part.type, tuple(part.shape)) for part in parts}) > 1:
            what = ", ".join(sorted({part.type for part in parts}))
            raise ModelFileError(
                f"{parts[0].name}: the experts of a layer differ in type or shape ({what}). Fetch the model again."
            )
        kind = self._kind(parts[0], "int8")
        *front, rows, columns = parts[0].shape
        count = front[0] if front else len(parts)
        stride = _panels(rows) * structs.panel_bytes(kind, columns)
        address = self._arena.take(count * stride)
        if front and rows % structs.PANEL == 0 and parts[0].type not in SCALED:
            # Whole panels each: all of them are one matrix to the packer.
            with _bytes_of(parts[0]) as (data, scales):
                self._pack(parts[0], kind, address, data, scales, count * rows, columns)
        elif front:
            step, scale_step = _row_bytes(parts[0]) * rows, _scale_bytes(parts[0]) // count
            with _bytes_of(parts[0]) as (data, scales):
                for e in range(count):
                    place = address + e * stride
                    self._pack(
                        parts[0], kind, place, data + e * step, scales + e * scale_step if scales else 0, rows, columns
                    )
        else:
            for e, part in enumerate(parts):
                with _bytes_of(part) as (data, scales):
                    self._pack(part, kind, address + e * stride, data, scales, rows, columns)
        self.nbytes += count * stride
        return Packed(structs.Stack(count, rows, columns, kind, stride, address), count * stride, self._arena)

    def _heads(
        self,
        part: RawTensor,
        heads: int,
        skip: int,
        rows: int,
        columns: int,
        each: int = 0,
        transposed: bool = False,
    ) -> Packed:
        """For each head a matrix [rows, columns] fp16; it begins `skip` rows of the file after the head's own begin,
        of which there are `each`, or what the matrix has. `transposed`: the file has [columns, rows]."""
        own = (columns, rows) if transposed else (rows, columns)
        each = each or own[0]
        stride = _panels(rows) * structs.panel_bytes(structs.F16, columns)
        address = self._arena.take(heads * stride)
        with self._numbers(part, heads * each, own[1]) as (type_, data, row_bytes):
            for head in range(heads):
                source = structs.PackSource(
                    type=type_,
                    data=data + (head * each + skip) * row_bytes,
                    rows=rows,
                    columns=columns,
                    transposed=transposed,
                )
                self._packed(part, source, structs.F16, address + head * stride)
        self.nbytes += heads * stride
        return Packed(structs.Stack(heads, rows, columns, structs.F16, stride, address), heads * stride, self._arena)

    @contextmanager
    def _numbers(self, part: RawTensor, rows: int, columns: int) -> Iterator[tuple[bytes, int, int]]:
        """The type, the address and the bytes of a row of `part` [rows, columns], any row of which stands for itself."""
        if part.type not in SCALED:
            with _bytes_of(part) as (data, _):
                yield part.type.encode(), data, columns // BLOCKS[part.type].values * BLOCKS[part.type].nbytes
            return
        # Rows that share scales with others are decoded first, all of them: such tensors are small.
        panels = Memory(self._native, _panels(rows) * structs.panel_bytes(structs.F32, columns))
        floats = Memory(self._native, rows * columns * 4)
        with _bytes_of(part) as (data, scales):
            self._pack(part, structs.F32, panels.address, data, scales, rows, columns)
        self._native.lib.lc_decode(structs.F32, panels.address, rows, columns, floats.address)
        yield b"F32", floats.address, columns * 4

    # packing

    def _kind(self, raw: RawTensor, wish: str) -> int:
        kind = int(self._native.lib.lc_kind(raw.type.encode(), wish.encode()))
        if kind < 0:
            raise ModelFileError(f"{raw.name}: weights of the type {raw.type} cannot be read.")
        return kind

    def _pack(self, raw: RawTensor, kind: int, out: int, data: int, scales: int, rows: int, columns: int) -> None:
        source = structs.PackSource(type=raw.type.encode(), data=data, rows=rows, columns=columns)
        if raw.type in SCALED:
            assert raw.scales is not None, raw.name
            source.scale_type, source.scales = raw.scales.type.encode(), scales
            source.group = columns // raw.scales.shape[-1] if raw.type == "I4" else FP8_BLOCK
        self._packed(raw, source, kind, out)

    def _packed(self, raw: RawTensor, source: structs.PackSource, kind: int, out: int) -> None:
        status = self._native.lib.lc_pack(self._pool, ctypes.addressof(source), kind, out)
        if status == DAMAGED:
            raise ModelFileError(
                f"{raw.name}: a weight is not a finite number: the weight file is damaged. Fetch it again."
            )
        if status:
            raise ModelFileError(f"{raw.name}: {raw.type} of shape {tuple(raw.shape)} cannot be packed.")

    def _vector(self, values: bytes) -> Vector:
        address = self._arena.take(len(values))
        ctypes.memmove(address, values, len(values))
        self.nbytes += len(values)
        return Vector(address, len(values) // 4, self._arena)


def _panels(rows: int) -> int:
    return -(-rows // structs.PANEL)


def _row_bytes(raw: RawTensor) -> int:
    block = BLOCKS[raw.type]
    return int(raw.shape[-1] // block.values * block.nbytes)


def _scale_bytes(raw: RawTensor) -> int:
    if raw.type not in SCALED or raw.scales is None:
        return 0
    return math.prod(raw.scales.shape) * BLOCKS[raw.scales.type].nbytes


class _PyBuffer(ctypes.Structure):
    """CPython's Py_buffer."""

    _fields_ = [
        *[("buf", c_void_p), ("obj", c_void_p), ("len", c_ssize_t), ("itemsize", c_ssize_t), ("readonly", c_int)],
        *[("ndim", c_int), ("format", c_char_p), ("shape", c_void_p), ("strides", c_void_p)],
        *[("suboffsets", c_void_p), ("internal", c_void_p)],
    ]


@contextmanager
def _address(data: Any) -> Iterator[int]:
    """Where the bytes of a memoryview lie, read-only or not; or those of a tensor on the host."""
    if hasattr(data, "data_ptr"):
        yield data.data_ptr()
        return
    view = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(data), ctypes.byref(view), 0)
    try:
        yield view.buf or 0
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))


@contextmanager
def _bytes_of(raw: RawTensor) -> Iterator[tuple[int, int]]:
    """The addresses of a tensor's bytes and of its scales' (0 without), while they are looked at."""
    with _address(raw.data) as data:
        if raw.type not in SCALED or raw.scales is None:
            yield data, 0
            return
        with _address(raw.scales.data) as scales:
            yield data, scales


def _floats(raw: RawTensor) -> bytes:
    """The fp32 values of a float tensor. Raises ModelFileError for a quantised one: vectors and convolutions are not."""
    data = raw.data
    if hasattr(data, "data_ptr"):
        data = memoryview(ctypes.string_at(data.data_ptr(), data.nbytes))
    if raw.type == "F32":
        return bytes(data)
    if raw.type == "F16":
        return array("f", struct.unpack(f"<{len(data) // 2}e", data)).tobytes()
    if raw.type == "BF16":  # the upper half of an fp32
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        return bytes(wide)
    raise ModelFileError(f"{raw.name} is of the type {raw.type}, which vectors do not have. Fetch the model again.")
