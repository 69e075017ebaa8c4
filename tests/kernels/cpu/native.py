"""Runs single operations of the native CPU library on buffers of torch, for tests.

    from kernels.cpu import native
    native.run("norm_project", x, norm, 1e-5, matrix, out, act, rows=3, isa="avx2", threads=2)

Tensors, ctypes structs and arrays are passed by address, None is null, ints and floats are themselves. A tensor must be
contiguous; fp16 goes as the bits that it is.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import platformdirs
import pytest
import torch

from lingchat.kernels.cpu import structs
from lingchat.kernels.cpu.build import BuildError, find_compiler
from lingchat.kernels.cpu.library import build as build_library
from lingchat.kernels.cpu.native import Native

CACHE = Path(os.environ.get("LINGCHAT_TEST_CACHE") or platformdirs.user_cache_path("lingchat") / "tests") / "native"
SCRATCH = 4 << 20
MOST_THREADS = 8


@functools.cache
def library() -> Native:
    """The library of the sources as they are, built unless it was before. Without a compiler: fails in CI, skips."""
    try:
        return build_library(CACHE)
    except BuildError as error:
        if find_compiler() is None and os.environ.get("CI") != "true":
            pytest.skip(str(error))
        raise


@functools.cache
def pool() -> int:
    """One pool for all tests, of MOST_THREADS threads."""
    made: int = library().lib.lc_pool_new(MOST_THREADS, SCRATCH)
    return made


def isas() -> list[str]:
    return list(library().isas)


def address(value: Any) -> Any:
    """What an instruction holds for a value: an address, an int or a float."""
    if value is None:
        return 0
    if isinstance(value, torch.Tensor):
        assert value.is_contiguous() and value.device.type == "cpu"
        return value.data_ptr()
    if isinstance(value, (ctypes.Structure, ctypes.Array)):
        return ctypes.addressof(value)
    return value


def instruction(op: str, *arguments: Any) -> structs.Instruction:
    made = structs.Instruction()
    number = library().operation(op)
    words = library().lib.lc_words(number)
    assert len(arguments) == words, f"{op} takes {words} arguments, not {len(arguments)}"
    structs.fill(made, number, tuple(map(address, arguments)))
    return made


def run(op: str, *arguments: Any, rows: int, isa: str = "", threads: int = 1) -> structs.Run:
    """Carry out one operation. `isa` is the best that runs here unless named."""
    return run_all([instruction(op, *arguments)], rows=rows, isa=isa, threads=threads)


def run_all(
    instructions: Sequence[structs.Instruction],
    *,
    rows: int,
    isa: str = "",
    threads: int = 1,
    told: structs.Run | None = None,
) -> structs.Run:
    """Carry out several, in order, in one call."""
    native = library()
    told = told or structs.Run()
    told.rows = rows
    program = (structs.Instruction * len(instructions))(*instructions)
    native.lib.lc_pool_threads(pool(), threads)
    status = native.lib.lc_run(
        pool(), native.isas[isa or native.isa], ctypes.addressof(program), len(program), ctypes.addressof(told)
    )
    assert status == 0
    return told


# Structs. Each keeps what it points to alive in its attribute `kept`.


def act(columns: int, capacity: int) -> structs.Act:
    """Room for `capacity` quantised rows of up to `columns` columns, filled with what must not matter."""
    blocks = -(-columns // structs.BLOCK)
    rows = aligned(torch.full((capacity * blocks * structs.ROW_BLOCK_BYTES,), 0x7F, dtype=torch.uint8))
    return keep(structs.Act(capacity, columns, address(rows)), rows)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Rows as their quantisation stands for them, fp64: 32 columns have the scale of the largest magnitude / 127, which
    each 16 of them halve as often as all of them allow, 6 times at most."""
    k = x.shape[-1]
    blocks = torch.nn.functional.pad(x, (0, -k % 32)).view(*x.shape[:-1], -1, 2, 16)
    own = blocks.abs().amax(-1, keepdim=True)
    largest = own.amax(-2, keepdim=True)
    times = torch.ones_like(own)
    for _ in range(6):
        times = torch.where(2 * times * own <= largest, 2 * times, times)
    q = torch.where(largest > 0, blocks * (127 / largest * times), 0).round()
    assert q.abs().max() <= 127
    return (q.double() * (largest / 127 / times).double()).flatten(-3)[..., :k]


def keep(struct: Any, *what: Any) -> Any:
    struct.kept = what
    return struct


def float_panels(weight: torch.Tensor) -> torch.Tensor:
    """`weight` [N, K], fp32 or fp16, as panels: [panels, K, PANEL], rows beyond N being 0."""
    n, k = weight.shape
    panels = -(-n // structs.PANEL)
    padded = torch.zeros(panels * structs.PANEL, k, dtype=weight.dtype)
    padded[:n] = weight
    return padded.view(panels, structs.PANEL, k).transpose(1, 2).contiguous()


def w8_panels(q: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """int8 weights q [N, K] with scales d [N, K / 32] fp16 as W8 panels: bytes [panels, blocks * 544]. K in whole blocks."""
    n, k = q.shape
    panels, blocks = -(-n // structs.PANEL), k // structs.BLOCK
    rows = panels * structs.PANEL
    whole = torch.zeros(rows, k, dtype=torch.int8)
    whole[:n] = q
    scales = torch.zeros(rows, blocks, dtype=torch.float16)
    scales[:n] = d
    # [panel, row, block, vector, column] -> [panel, block, vector, row, column]
    vectors = whole.view(panels, structs.PANEL, blocks, 8, 4).permute(0, 2, 3, 1, 4).reshape(panels, blocks, 512)
    halves = scales.view(panels, structs.PANEL, blocks).transpose(1, 2).contiguous().view(torch.uint8)
    return torch.cat([vectors.view(torch.uint8), halves.view(panels, blocks, 32)], dim=2).contiguous()


def aligned(bytes_: torch.Tensor) -> torch.Tensor:
    """The same bytes at an address that 64 divides."""
    flat = bytes_.contiguous().view(torch.uint8).reshape(-1)
    room = torch.empty(flat.numel() + 64, dtype=torch.uint8)
    begin = -room.data_ptr() % 64
    room[begin : begin + flat.numel()] = flat
    return room[begin : begin + flat.numel()]


def matrix(*parts: tuple[int, int, torch.Tensor], columns: int, bias: torch.Tensor | None = None) -> structs.Matrix:
    """A matrix of parts (kind, rows, packed panels), one below the other."""
    made = structs.Matrix(columns=columns, parts=len(parts), bias=address(bias) or None)
    kept: list[Any] = [bias]
    for part, (kind, rows, packed) in zip(made.part, parts, strict=False):
        data = aligned(packed)
        kept.append(data)
        part.kind, part.rows, part.first, part.data = kind, rows, made.rows, data.data_ptr()
        made.rows += rows
    return keep(made, kept)


def float_matrix(*weights: torch.Tensor, bias: torch.Tensor | None = None) -> structs.Matrix:
    """A matrix of fp32 or fp16 parts [N, K]."""
    parts = [(structs.F32 if w.dtype == torch.float32 else structs.F16, w.shape[0], float_panels(w)) for w in weights]
    return matrix(*parts, columns=weights[0].shape[1], bias=bias)


def w8_matrix(*weights: torch.Tensor, bias: torch.Tensor | None = None) -> tuple[structs.Matrix, list[torch.Tensor]]:
    """Float weights [N, K], K in whole blocks, quantised to W8 here; and the values that the quantised ones stand for."""
    parts, values = [], []
    for weight in weights:
        n, k = weight.shape
        blocks = weight.float().view(n, k // structs.BLOCK, structs.BLOCK)
        d = (blocks.abs().amax(-1) / 127).half()
        q = torch.where(d[..., None] > 0, blocks / d[..., None].float(), 0).round().clamp(-127, 127)
        parts.append((structs.W8, n, w8_panels(q.to(torch.int8).view(n, k), d)))
        values.append((q * d[..., None].float()).view(n, k))
    return matrix(*parts, columns=weights[0].shape[1], bias=bias), values


def float_stack(weights: torch.Tensor) -> structs.Stack:
    """[E, N, K] fp32 or fp16 as a stack of experts, or of heads."""
    experts, n, k = weights.shape
    packed = aligned(torch.stack([float_panels(w) for w in weights]))
    kind = structs.F32 if weights.dtype == torch.float32 else structs.F16
    return keep(structs.Stack(experts, n, k, kind, packed.numel() // experts, packed.data_ptr()), packed)


def w8_stack(weights: torch.Tensor) -> tuple[structs.Stack, torch.Tensor]:
    """Float weights [E, N, K], K in whole blocks, quantised to W8; and the values that the quantised ones stand for."""
    made = [w8_matrix(w) for w in weights]
    experts, n, k = weights.shape
    size = -(-n // structs.PANEL) * structs.panel_bytes(structs.W8, k)
    packed = aligned(
        torch.stack(
            [torch.frombuffer(bytearray(ctypes.string_at(m.part[0].data, size)), dtype=torch.uint8) for m, _ in made]
        )
    )
    stack = structs.Stack(experts, n, k, structs.W8, size, packed.data_ptr())
    return keep(stack, packed), torch.stack([values[0] for _, values in made])
