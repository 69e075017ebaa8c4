"""The structs of types.h and arguments.h, as ctypes lays them out. `library.py` compares their sizes with the library's.

Every member is 8 bytes wide, or an array of structs of such members. Pointers are plain addresses: whoever fills a
struct keeps the memory behind them alive.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_double, c_int64, c_void_p
from typing import Any

BLOCK = 32  # columns that share a scale of the activations
PANEL = 16  # rows of a matrix that are computed side by side
MAX_WIDTH = 16  # rows of a round at most
SEGMENT = 64  # positions whose attention is one partial sum
PARTIAL_ROWS = 4  # rows up to which attention is split over segments, too
MAX_PARTS = 8
WORDS = 30
ROW_BLOCK_BYTES = 64  # of BLOCK quantised activations with all that belongs to them

# Kinds of packed weights
W8, W4Z, W4M, W5Z, W5M, W6, F32, F16 = range(8)
BLOCK_BYTES = {W8: 544, W4Z: 288, W4M: 320, W5Z: 352, W5M: 384, W6: 448}


def panel_bytes(kind: int, columns: int) -> int:
    """Bytes of one panel, PANEL rows; the distance between panels."""
    if kind in (F32, F16):
        return columns * PANEL * (4 if kind == F32 else 2)
    return -(-columns // BLOCK) * BLOCK_BYTES[kind]


def whole_panels(count: int) -> int:
    return -(-count // PANEL) * PANEL


def _all(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Part(ctypes.Structure):
    _fields_ = [*_all(c_int64, "kind rows first"), *_all(c_void_p, "data")]


class Matrix(ctypes.Structure):
    _fields_ = [*_all(c_int64, "rows columns parts"), *_all(c_void_p, "bias"), ("part", Part * MAX_PARTS)]


class Stack(ctypes.Structure):
    _fields_ = [*_all(c_int64, "experts rows columns kind stride"), *_all(c_void_p, "data")]


class Act(ctypes.Structure):
    _fields_ = [*_all(c_int64, "capacity columns"), *_all(c_void_p, "blocks")]


class Rows(ctypes.Structure):
    _fields_ = [*_all(c_void_p, "ids length rotations"), *_all(c_int64, "dim adjacent")]


class Routes(ctypes.Structure):
    _fields_ = [
        *_all(c_void_p, "normed ids weights scores"),
        *_all(Act, "act"),
        *_all(c_void_p, "order starts"),
        *_all(Act, "hidden shared_hidden"),
        *_all(c_void_p, "up shared_up parts"),
    ]


class CursorArgs(ctypes.Structure):
    _fields_ = _all(c_void_p, "history length left done count accepted drafted emitted")


class Sampler(ctypes.Structure):
    _fields_ = [
        *_all(c_double, "temperature top_p min_p repetition_penalty"),
        *_all(c_int64, "top_k seed end_count"),
        *_all(c_void_p, "end_ids"),
    ]


class Ring(ctypes.Structure):
    _fields_ = [*_all(c_int64, "written capacity width"), *_all(c_void_p, "records")]


class Word(ctypes.Union):
    _fields_ = [("i", c_int64), ("f", c_double), ("p", c_void_p)]


class Instruction(ctypes.Structure):
    _fields_ = [("op", c_int64), ("reserved", c_int64), ("word", Word * WORDS)]


class PackSource(ctypes.Structure):
    _fields_ = [
        *_all(c_char_p, "type"),
        *_all(c_void_p, "data"),
        *_all(c_char_p, "scale_type"),
        *_all(c_void_p, "scales"),
        *_all(c_int64, "rows columns group transposed"),
    ]


class Run(ctypes.Structure):
    _fields_ = _all(c_int64, "rows drafted_ns stop")


STRUCTS: dict[str, type[ctypes.Structure]] = {
    kind.__name__: kind
    for kind in (Part, Matrix, Stack, Act, Rows, Routes, CursorArgs, Sampler, Ring, Instruction, Run, PackSource)
}


def fill(instruction: Instruction, op: int, arguments: tuple[Any, ...]) -> None:
    """Write an operation and its arguments: ints and addresses as they are, None as null, floats as doubles,
    structs and ctypes arrays by their address."""
    instruction.op = op
    for word, value in zip(instruction.word, arguments, strict=False):
        if isinstance(value, float):
            word.f = value
        elif isinstance(value, (ctypes.Structure, ctypes.Array)):
            word.i = ctypes.addressof(value)
        else:
            word.i = 0 if value is None else int(value)
