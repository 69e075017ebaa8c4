"""Native grouped-query attention against its torch twin, bit for bit over row counts, threads and instruction sets."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from kernels.cpu import native

from lingchat.kernels import attention as attn
from lingchat.kernels import norm
from lingchat.kernels.cpu import structs
from lingchat.runtime.ops.protocol import AttentionShape, Rotation

NAN = float("nan")


@pytest.fixture(autouse=True)
def no_grad():
    with torch.inference_mode():
        yield


@dataclass
class Layer:
    shape: AttentionShape
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None

    @property
    def width(self) -> int:
        return (self.shape.heads + 2 * self.shape.kv_heads) * self.shape.head_dim

    def table(self, positions: int) -> torch.Tensor | None:
        rotation = self.shape.rotation
        if rotation.dim == 0:
            return None
        return attn.rotation_table(torch.arange(positions), rotation.dim, rotation.base, rotation.factors)


def layer(heads: int, groups: int, dim: int, turned: int = -1, adjacent: bool = False, normed: bool = False) -> Layer:
    torch.manual_seed(heads * 1000 + dim)
    shape = AttentionShape(heads, groups, dim, Rotation(dim if turned < 0 else turned, 1e4, adjacent), 1e-5)
    norms = [torch.rand(dim) + 0.5 for _ in range(2)] if normed else [None, None]
    return Layer(shape, *norms)


class Cache:
    """Keys of up to 2047 and values of up to 127 with scales, as ops_attention.h has them, of `start` positions; beyond
    them what must not matter."""

    def __init__(self, of: Layer, start: int, capacity: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        groups, size = of.shape.kv_heads, of.shape.head_dim
        self.start, self.capacity, self.size = start, capacity, size
        self.scales = torch.cat((torch.rand(1, groups, capacity) / 700, torch.rand(1, groups, capacity) / 40))
        self.whole_keys = torch.randint(-2047, 2048, (groups, capacity, size), dtype=torch.int16)
        values = torch.zeros(groups, capacity, structs.whole_panels(size), dtype=torch.int8)
        values[:, :, :size] = torch.randint(-127, 128, (groups, capacity, size))
        self.whole_values = values
        self.scales[:, :, start:] = NAN
        self.packed_keys, self.packed_values = self._keys(), self._values()

    def _keys(self) -> torch.Tensor:
        groups = self.whole_keys.shape[0]
        panels = self.whole_keys.view(groups, self.capacity // 16, 16, self.size // 2, 2)
        return panels.transpose(2, 3).contiguous()

    def _values(self) -> torch.Tensor:
        groups, _, wide = self.whole_values.shape
        return self.whole_values.view(groups, self.capacity // 2, 2, wide).transpose(2, 3).contiguous()

    @property
    def keys(self) -> torch.Tensor:
        """fp32 [groups, capacity, D]: what the cache stands for."""
        whole = self.packed_keys.transpose(2, 3).reshape(self.whole_keys.shape)
        return whole * self.scales[0][:, :, None]

    @property
    def values(self) -> torch.Tensor:
        whole = self.packed_values.transpose(2, 3).reshape(self.whole_values.shape)[:, :, : self.size]
        return whole * self.scales[1][:, :, None]

    def clone(self) -> Cache:
        made = object.__new__(Cache)
        copied = {name: value.clone() for name, value in self.__dict__.items() if isinstance(value, torch.Tensor)}
        made.__dict__ = {**self.__dict__, **copied}
        return made


def passed(of: Layer, cache: Cache, qkv: torch.Tensor, isa: str = "", threads: int = 1) -> torch.Tensor:
    """One pass at the cache's start: [T, heads * D]. Its buffers hold what must not matter."""
    rows, shape = len(qkv), of.shape
    out = torch.full((rows, shape.heads * shape.head_dim), NAN)
    partial = torch.full((structs.PARTIAL_ROWS, shape.heads, -(-cache.capacity // 64), shape.head_dim + 2), NAN)
    length = torch.tensor([cache.start], dtype=torch.int32)
    table = of.table(cache.start + rows)
    turns = None if table is None else torch.view_as_real(table).contiguous()
    placed = structs.Rows(0, native.address(length), native.address(turns), shape.rotation.dim, shape.rotation.adjacent)
    native.run(
        "attention",
        *(qkv.clone(), of.q_norm, of.k_norm, shape.eps, shape.heads, shape.kv_heads, shape.head_dim),
        *(cache.packed_keys, cache.packed_values, cache.scales, cache.capacity, placed, out, partial),
        rows=rows,
        isa=isa,
        threads=threads,
    )
    return out


def twin(of: Layer, cache: Cache, start: int, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What attention of rounded queries gives over the cache as it stands after the pass; and the keys and values of the
    rows, exactly."""
    count, end, shape = len(qkv), start + len(qkv), of.shape
    q, k, v = qkv.view(count, -1, shape.head_dim).split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
    if of.q_norm is not None:
        q, k = norm.rms_norm(q, of.q_norm, shape.eps), norm.rms_norm(k, of.k_norm, shape.eps)
    table = of.table(end)
    if table is not None:
        q, k = (attn.rotate(x, table[start:], shape.rotation.adjacent) for x in (q, k))
    step = q.abs().amax(-1, keepdim=True) / 4095
    q = torch.where(step > 0, (q / step).round() * step, 0)
    attend = attn.attend_rows if count <= structs.MAX_WIDTH else attn.attend_chunk
    return attend(q, cache.keys, cache.values, start), k.transpose(0, 1), v.transpose(0, 1)


def assert_twin(of: Layer, cache: Cache, qkv: torch.Tensor, isa: str = "", near: float = 3e-4) -> None:
    """A pass gives what the twin does but for 15 bits of weights, and rows to half a step."""
    before, start, end = cache.clone(), cache.start, cache.start + len(qkv)
    got = passed(of, cache, qkv, isa, threads=2)
    want, keys, values = twin(of, cache, start, qkv)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=near)  # values are up to 3.2
    for made, exact, most in ((cache.keys, keys, 2047), (cache.values, values, 127)):
        step = exact.abs().amax(-1, keepdim=True) / most
        assert ((made[:, start:end] - exact).abs() <= step * 0.501 + 1e-6).all()
    # Nothing but the rows is touched.
    for name in ("keys", "values"):
        assert same(getattr(cache, name)[:, :start], getattr(before, name)[:, :start])
        assert same(getattr(cache, name)[:, end:], getattr(before, name)[:, end:])


def rows_of(of: Layer, count: int, seed: int = 1) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(count, of.width)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, NaN and signs of zero too."""
    bits = torch.int16 if a.dtype == torch.float16 else torch.int32
    return torch.equal(a.contiguous().view(bits), b.contiguous().view(bits))


LAYERS = [
    dict(heads=9, groups=3, dim=64),
    dict(heads=4, groups=4, dim=8, normed=True),
    dict(heads=5, groups=1, dim=24, turned=16, adjacent=True),
    dict(heads=2, groups=1, dim=256, turned=64),
    dict(heads=4, groups=2, dim=40, turned=0, normed=True),
    dict(heads=71, groups=1, dim=16, adjacent=True),
    dict(heads=7, groups=7, dim=80, turned=6),
]
PLACES = [(1, 0), (1, 63), (1, 64), (2, 62), (3, 127), (4, 61), (5, 60), (16, 50), (16, 0), (40, 0), (40, 111)]


@pytest.mark.parametrize("sizes", LAYERS, ids=str)
@pytest.mark.parametrize(("rows", "start"), PLACES)
def test_a_pass_is_its_twin(sizes: dict, rows: int, start: int, isa: str) -> None:
    of = layer(**sizes)
    assert_twin(of, Cache(of, start, (start + rows + 15) // 16 * 16), rows_of(of, rows), isa)


@pytest.mark.parametrize(("rows", "start"), [(1, 5000), (4, 4990), (7, 5000), (256, 4800)])
def test_far_positions_are_their_twins(rows: int, start: int) -> None:
    of = layer(9, 3, 64)
    # Where rounding a query met a tie, it may have gone the other way.
    assert_twin(of, Cache(of, start, 5120), rows_of(of, rows) * 2, near=2e-3)


@pytest.mark.parametrize("sizes", LAYERS, ids=str)
@pytest.mark.parametrize("start", [0, 55, 190])
def test_bits_do_not_depend_on_rows_threads_or_instruction_set(sizes: dict, start: int) -> None:
    of = layer(**sizes)
    first = Cache(of, start, 256)
    qkv = rows_of(of, 16)
    full = first.clone()
    want = passed(of, full, qkv, "plain")
    for isa in native.isas():
        for rows in range(1, 17):
            for threads in (1, 2, 3, 7) if rows in (1, 4, 6, 16) else (1,):
                cache = first.clone()
                assert same(passed(of, cache, qkv[:rows], isa, threads), want[:rows])
                end = start + rows
                assert same(cache.keys[:, :end], full.keys[:, :end])
                assert same(cache.values[:, :end], full.values[:, :end])


@pytest.mark.parametrize("sizes", LAYERS, ids=str)
def test_a_long_pass_is_its_rows_one_by_one(sizes: dict) -> None:
    of = layer(**sizes)
    cache = Cache(of, 30, 144)
    qkv = rows_of(of, 100)
    want = passed(of, single := cache.clone(), qkv[:1])
    for r in range(1, 100):
        single.start += 1
        want = torch.cat((want, passed(of, single, qkv[r : r + 1])))
    for isa in native.isas():
        for threads in (1, 2, 3, 7):
            whole = cache.clone()
            assert same(passed(of, whole, qkv, isa, threads), want)
            assert same(whole.keys, single.keys) and same(whole.values, single.values)
    for rows in (17, 33):
        assert same(passed(of, cache.clone(), qkv[:rows], threads=2), want[:rows])


@pytest.mark.parametrize("bad", [NAN, float("inf"), 1e30])
@pytest.mark.parametrize("rows", [2, 4, 5, 16, 40])
def test_a_row_knows_nothing_of_the_rows_after_it(bad: float, rows: int, isa: str) -> None:
    of = layer(6, 3, 16)
    qkv = rows_of(of, rows)
    for start in (0, 50):
        cache = Cache(of, start, 96)
        want = passed(of, cache.clone(), qkv, isa)
        for r in range(1, rows, 3):
            broken = qkv.clone()
            broken[r:] = bad
            assert same(passed(of, cache.clone(), broken, isa)[:r], want[:r])


@pytest.mark.parametrize("sharp", [0.0, 1e-20, 30.0, 3000.0])
def test_flat_and_sharp_scores_are_the_twins(sharp: float, isa: str) -> None:
    """From equal weights to one position that takes all, which may stand in any segment."""
    of = layer(4, 2, 32, turned=0)
    for rows in (2, 9):
        cache = Cache(of, 300, 320)
        qkv = rows_of(of, rows)
        qkv[:, : of.shape.heads * of.shape.head_dim] *= sharp
        got = passed(of, cache, qkv, isa)
        # A query of 3000 times the size has scores whose last bit is worth a whole power of e.
        close = 2e-3 if sharp <= 30 else 0.2
        torch.testing.assert_close(got, twin(of, cache, 300, qkv)[0], rtol=close, atol=close)


def test_a_segment_that_weighs_nothing_beside_another_adds_nothing(isa: str) -> None:
    of = layer(1, 1, 8, turned=0)
    for rows in (1, 5):
        cache = Cache(of, 128, 144)
        cache.packed_keys[:] = 0
        cache.packed_keys[:, 5, 0, 3] = 2000  # position 83
        cache.scales[0] = 0.05
        qkv = torch.zeros(rows, of.width)
        qkv[:, 0] = 1000
        out = passed(of, cache, qkv, isa)
        # One weight of 1 in its segment, as a whole number and back.
        torch.testing.assert_close(out, cache.values[0, 83].expand(rows, -1), rtol=1e-6, atol=0)
