"""The structs of types.h and arguments.h, as ctypes lays them out. `library.py` compares their sizes with the library's.

Every member is 8 bytes wide, or an array of structs of such members. Pointers are plain addresses: whoever fills a
struct keeps the memory behind them alive.
"""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_void_p
from typing import Any

BLOCK = 32  # columns that share a scale of the activations
PANEL = 16  # rows of a matrix that are computed side by side
MAX_WIDTH = 16  # rows of a round at most
SEGMENT = 64  # positions whose attention is one partial sum
PARTIAL_ROWS = 4  # rows up to which attention is split over segments, too
MAX_PARTS = 8
WORDS = 30

# Kinds of packed weights
W8, W4Z, W4M, W5Z, W5M, W6, F32, F16 = range(8)
BLOCK_BYTES = {W8: 544, W4Z: 288, W4M: 320, W5Z: 352, W5M: 384, W6: 448}


def panel_bytes(kind: int, columns: int) -> int:
    """Bytes of one panel, PANEL rows; the distance between panels."""
    if kind in (F32, F16):
        return columns * PANEL * (4 if kind == F32 else 2)
    return -(-columns // BLOCK) * BLOCK_BYTES[kind]


class Part(ctypes.Structure):
    _fields_ = [("kind", c_int64), ("rows", c_int64), ("first", c_int64), ("data", c_void_p)]


class Matrix(ctypes.Structure):
    _fields_ = [
        *[("rows", c_int64), ("columns", c_int64), ("parts", c_int64), ("bias", c_void_p)],
        ("part", Part * MAX_PARTS),
    ]


class Stack(ctypes.Structure):
    _fields_ = [
        *[("experts", c_int64), ("rows", c_int64), ("columns", c_int64), ("kind", c_int64), ("stride", c_int64)],
        ("data", c_void_p),
    ]


class Act(ctypes.Structure):
    _fields_ = [
        *[("capacity", c_int64), ("columns", c_int64)],
        *[("q", c_void_p), ("d", c_void_p), ("s", c_void_p), ("half", c_void_p)],
    ]


class Rows(ctypes.Structure):
    _fields_ = [
        *[("ids", c_void_p), ("length", c_void_p), ("rotations", c_void_p), ("dim", c_int64), ("adjacent", c_int64)],
    ]


class Routes(ctypes.Structure):
    _fields_ = [
        *[("normed", c_void_p), ("ids", c_void_p), ("weights", c_void_p), ("scores", c_void_p), ("act", Act)],
        *[("order", c_void_p), ("starts", c_void_p), ("hidden", Act), ("shared_hidden", Act)],
        *[("up", c_void_p), ("shared_up", c_void_p), ("parts", c_void_p)],
    ]


class CursorArgs(ctypes.Structure):
    _fields_ = [
        (name, c_void_p) for name in ("history", "length", "left", "done", "count", "accepted", "drafted", "emitted")
    ]


class Sampler(ctypes.Structure):
    _fields_ = [
        *[("temperature", c_double), ("top_p", c_double), ("min_p", c_double), ("repetition_penalty", c_double)],
        *[("top_k", c_int64), ("seed", c_int64), ("end_count", c_int64), ("end_ids", c_void_p)],
    ]


class Ring(ctypes.Structure):
    _fields_ = [("written", c_int64), ("capacity", c_int64), ("width", c_int64), ("records", c_void_p)]


class Word(ctypes.Union):
    _fields_ = [("i", c_int64), ("f", c_double), ("p", c_void_p)]


class Instruction(ctypes.Structure):
    _fields_ = [("op", c_int64), ("reserved", c_int64), ("word", Word * WORDS)]


class Run(ctypes.Structure):
    _fields_ = [("rows", c_int64), ("drafted_ns", c_int64), ("stop", c_int64)]


STRUCTS: dict[str, type[ctypes.Structure]] = {
    kind.__name__: kind
    for kind in (Part, Matrix, Stack, Act, Rows, Routes, CursorArgs, Sampler, Ring, Instruction, Run)
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
