"""Native latent attention against its torch twin, bit for bit over row counts, threads and instruction sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from kernels.cpu import native

from lingchat.kernels import attention as attn
from lingchat.kernels.cpu import structs
from lingchat.kernels.gemv import DenseWeight
from lingchat.runtime.ops import torch_mixers
from lingchat.runtime.ops.protocol import LatentCache, LatentShape, LatentWeights, Rotation

NAN = float("nan")


@pytest.fixture(autouse=True)
def no_grad():
    with torch.inference_mode():
        yield


@dataclass
class Layer:
    shape: LatentShape
    weights: LatentWeights
    keys: Any = None  # native stacks
    values: Any = None
    q_up: Any = None
    row: int = field(init=False)  # of the cache
    width: int = field(init=False)  # of a projected row

    def __post_init__(self) -> None:
        shape = self.shape
        self.row = shape.rank + shape.rope
        queries = shape.q_rank or shape.heads * (shape.nope + shape.rope)
        self.width = queries + self.row + (shape.heads if shape.gated else 0)

    def table(self, positions: int) -> torch.Tensor | None:
        rotation = self.shape.rotation
        if rotation is None:
            return None
        return attn.rotation_table(torch.arange(positions), rotation.dim, rotation.base, rotation.factors)


def layer(
    heads: int,
    nope: int,
    rope: int,
    value: int,
    rank: int,
    q_rank: int | None = None,
    adjacent: bool | None = True,
    gated: bool = False,
    dtype: torch.dtype = torch.float16,
) -> Layer:
    torch.manual_seed(heads * 1000 + rank)
    rotation = None if adjacent is None else Rotation(rope, 1e4, adjacent)
    shape = LatentShape(heads, nope, rope, value, rank, q_rank, rotation, 1e-5, (nope + rope) ** -0.5, gated)
    keys, values = torch.randn(heads, nope, rank) * rank**-0.5, torch.randn(heads, value, rank) * rank**-0.5
    keys, values = keys.to(dtype), values.to(dtype)
    q_norm = q_up = packed = None
    if q_rank is not None:
        q_norm = torch.rand(q_rank) + 0.5
        weight = torch.randn(heads * (nope + rope), q_rank) * q_rank**-0.5
        bias = torch.randn(len(weight))
        packed, (weight,) = native.w8_matrix(weight, bias=bias)
        q_up = DenseWeight(weight, bias)
    weights = LatentWeights(torch.rand(rank) + 0.5, (keys.float(), values.float()), q_norm, q_up)
    stacks = native.float_stack(keys.transpose(1, 2).contiguous()), native.float_stack(values)
    return Layer(shape, weights, *stacks, packed)


class Cache:
    """fp16 rows of `start` positions; beyond them NaN."""

    def __init__(self, of: Layer, start: int, capacity: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.start, self.capacity = start, capacity
        self.rows = torch.randn(capacity, of.row).half()
        self.rows[start:] = NAN

    def clone(self) -> Cache:
        made = object.__new__(Cache)
        made.__dict__ = {**self.__dict__, "rows": self.rows.clone()}
        return made


def passed(of: Layer, cache: Cache, projected: torch.Tensor, isa: str = "", threads: int = 1) -> torch.Tensor:
    """One pass at the cache's start: [T, heads * value]. Its buffers hold what must not matter."""
    rows, shape, weights = len(projected), of.shape, of.weights
    out = torch.full((rows, shape.heads * shape.value), NAN)
    queries = torch.full((rows, shape.heads * (shape.nope + shape.rope)), NAN) if shape.q_rank else None
    absorbed = torch.full((rows, shape.heads * of.row), NAN)
    partial = torch.full((structs.PARTIAL_ROWS, shape.heads, -(-cache.capacity // 64), shape.rank + 2), NAN)
    length = torch.tensor([cache.start], dtype=torch.int32)
    table = of.table(cache.start + rows)
    turns = None if table is None else torch.view_as_real(table).contiguous()
    adjacent = shape.rotation is not None and shape.rotation.adjacent
    placed = structs.Rows(0, native.address(length), native.address(turns), shape.rope, adjacent)
    native.run(
        "latent_attention",
        *(projected.clone(), of.width, weights.kv_norm, weights.q_norm, of.q_up, of.keys, of.values),
        *(shape.heads, shape.nope, shape.rope, shape.value, shape.rank, shape.q_rank or 0, int(shape.gated)),
        *(shape.eps, shape.scale, cache.rows, cache.capacity, placed, out, queries, absorbed, partial),
        native.act(shape.q_rank or 32, rows),
        rows=rows,
        isa=isa,
        threads=threads,
    )
    return out


def twin(of: Layer, rows: torch.Tensor, start: int, projected: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(start, start + len(projected))
    table = of.table(start + len(projected))
    turned = None if table is None else table[start:]
    adjacent = of.shape.rotation is not None and of.shape.rotation.adjacent
    placed = torch_mixers.Rows(positions.int(), positions, start, turned, adjacent)
    return torch_mixers.latent_attention(projected, of.weights, of.shape, LatentCache(rows), placed)


def rows_of(of: Layer, count: int, seed: int = 1) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(count, of.width)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, NaN and signs of zero too."""
    bits = torch.int16 if a.dtype == torch.float16 else torch.int32
    return torch.equal(a.contiguous().view(bits), b.contiguous().view(bits))


LAYERS = [
    dict(heads=16, nope=128, rope=64, value=128, rank=512, gated=True),
    dict(heads=5, nope=24, rope=8, value=24, rank=40, q_rank=64, gated=True, dtype=torch.float32),
    dict(heads=3, nope=16, rope=6, value=13, rank=21, adjacent=False),
    dict(heads=1, nope=16, rope=16, value=16, rank=32, adjacent=None),
    dict(heads=2, nope=9, rope=2, value=40, rank=23, q_rank=32, adjacent=None),
    dict(heads=34, nope=8, rope=8, value=8, rank=24, adjacent=None, gated=True),
]
PLACES = [(1, 0), (1, 63), (1, 64), (2, 62), (3, 127), (4, 61), (5, 60), (16, 50), (16, 0), (40, 0), (40, 111)]


def bound(of: Layer) -> dict[str, float]:
    """Queries out of a product of quantised rows are near their twins only."""
    return dict(rtol=1e-4, atol=2e-5) if of.shape.q_rank is None else dict(rtol=0.05, atol=0.05)


@pytest.mark.parametrize("sizes", LAYERS, ids=str)
@pytest.mark.parametrize(("rows", "start"), PLACES)
def test_a_pass_is_its_twin(sizes: dict, rows: int, start: int, isa: str) -> None:
    of = layer(**sizes)
    cache = Cache(of, start, (start + rows + 15) // 16 * 16)
    other, projected = cache.rows.clone(), rows_of(of, rows)
    want = twin(of, other, start, projected)
    torch.testing.assert_close(passed(of, cache, projected, isa, threads=2), want, **bound(of))
    assert same(cache.rows[:start], other[:start])
    torch.testing.assert_close(cache.rows, other, rtol=2e-3, atol=1e-6, equal_nan=True)  # an angle's last bit


def test_queries_are_the_rows_through_their_second_projection() -> None:
    """A matrix that hands the compressed queries on, so that quantising them is all that is left of the difference."""
    of = layer(2, 32, 16, 16, 64, q_rank=96)
    eye = torch.eye(96) * 127
    of.q_up, (weight,) = native.w8_matrix(eye)
    of.weights = LatentWeights(of.weights.kv_norm, of.weights.up, of.weights.q_norm, DenseWeight(weight))
    for rows in (1, 7):
        cache, projected = Cache(of, 70, 96), rows_of(of, rows)
        projected[:, :96] = torch.randint(-127, 128, (rows, 96))
        projected[:, 0:96:32] = 127.0
        of.weights.q_norm[:] = projected[:1, :96].square().mean().sqrt() / 127
        scale = projected[:, :96].square().mean(1).sqrt()
        projected[:, :96] *= (scale[0] / scale)[:, None]  # every row in steps of its largest value / 127
        torch.testing.assert_close(
            passed(of, cache, projected), twin(of, cache.rows.clone(), 70, projected), rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize(("rows", "start"), [(1, 5000), (4, 4990), (7, 5000), (40, 4900)])
def test_far_positions_are_their_twins(rows: int, start: int) -> None:
    of = layer(**LAYERS[0])
    cache = Cache(of, start, 5120)
    projected = rows_of(of, rows) * 2
    want = twin(of, cache.rows.clone(), start, projected)
    torch.testing.assert_close(passed(of, cache, projected, threads=2), want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("sizes", LAYERS, ids=str)
@pytest.mark.parametrize("start", [0, 55, 190])
def test_bits_do_not_depend_on_rows_threads_or_instruction_set(sizes: dict, start: int) -> None:
    of = layer(**sizes)
    first = Cache(of, start, 256)
    projected = rows_of(of, 16)
    full = first.clone()
    want = passed(of, full, projected, "plain")
    for isa in native.isas():
        for rows in range(1, 17) if isa != "plain" else (1, 4, 6, 16):
            for threads in (1, 2, 3, 7) if rows in (1, 4, 6, 16) else (1,):
                cache = first.clone()
                assert same(passed(of, cache, projected[:rows], isa, threads), want[:rows])
                assert same(cache.rows[: start + rows], full.rows[: start + rows])


@pytest.mark.parametrize("sizes", LAYERS, ids=str)
def test_a_long_pass_is_its_rows_one_by_one(sizes: dict) -> None:
    of = layer(**sizes)
    cache = Cache(of, 30, 144)
    projected = rows_of(of, 100)
    single, parts = cache.clone(), []
    for r in range(100):
        parts.append(passed(of, single, projected[r : r + 1]))
        single.start += 1
    want = torch.cat(parts)
    for isa in native.isas():
        for threads in (1, 2, 3, 7) if isa != "plain" else (2,):
            whole = cache.clone()
            assert same(passed(of, whole, projected, isa, threads), want)
            assert same(whole.rows, single.rows)
    for rows in (17, 33):
        assert same(passed(of, cache.clone(), projected[:rows], threads=2), want[:rows])


@pytest.mark.parametrize("bad", [NAN, float("inf"), 1e30])
@pytest.mark.parametrize("rows", [2, 4, 5, 16, 40])
def test_a_row_knows_nothing_of_the_rows_after_it(bad: float, rows: int, isa: str) -> None:
    of = layer(3, 16, 8, 16, 21)
    projected = rows_of(of, rows)
    for start in (0, 50):
        cache = Cache(of, start, 96)
        want = passed(of, cache.clone(), projected, isa)
        for r in range(1, rows, 3):
            broken = projected.clone()
            broken[r:] = bad
            assert same(passed(of, cache.clone(), broken, isa)[:r], want[:r])
