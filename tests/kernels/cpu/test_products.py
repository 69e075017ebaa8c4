"""Native products of packed weights and quantised rows, for every kind: against the exact product of what both stand
for, against plain fp32, and bit for bit over row counts, places, threads and instruction sets."""

from __future__ import annotations

import functools

import pytest
import torch
from kernels.cpu import native, packing
from kernels.cpu.packing import KINDS, random_raw

from lingchat.kernels.cpu import structs

TYPES = {
    structs.W8: "Q8_0",
    structs.W4Z: "Q4_0",
    structs.W4M: "Q4_1",
    structs.W5Z: "Q5_0",
    structs.W5M: "Q5_1",
    structs.W6: "Q6_K",
}
NAMES = dict(zip(TYPES, ("W8", "W4Z", "W4M", "W5Z", "W5M", "W6"), strict=True))
ROWS = (*range(1, 17), 40)
MOST = max(ROWS)
SIZES = ((1, 256), (16, 256), (37, 512), (100, 768), (64, 2816))

kinds = pytest.mark.parametrize("kind", TYPES, ids=NAMES.get)


@functools.cache
def weight(kind: int, n: int, k: int) -> tuple[structs.Matrix, torch.Tensor]:
    """A matrix of one part with a bias, and the numbers that its panels stand for."""
    raw = random_raw(TYPES[kind], n, k, seed=n + k)
    panels = packing.pack(raw, kind)
    return native.matrix((kind, n, panels), columns=k, bias=bias(n)), packing.described(kind, panels, n, k)


def bias(n: int) -> torch.Tensor:
    return torch.linspace(-1, 1, n)


def inputs(t: int, k: int, seed: int = 0) -> torch.Tensor:
    """Rows of very different sizes, some blocks of them zero, and halves of blocks; values that stand out."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(t, k, generator=generator) * torch.logspace(-3, 3, t)[:, None]
    x[::2] *= 2.0 ** torch.randint(0, 9, (k,), generator=generator)
    if k > 64:
        x[::3, 32:64] = 0
        x[1::3, 16:32] = 0
        x[2::3, :16] = 0
    return x


def project(x: torch.Tensor, matrix: structs.Matrix, *, isa: str = "", threads: int = 1) -> torch.Tensor:
    t, k = x.shape
    out = torch.full((t, matrix.rows), float("nan"))
    native.run("project", x.contiguous(), matrix, out, native.act(k, t), rows=t, isa=isa, threads=threads)
    return out


def assert_near(got: torch.Tensor, x: torch.Tensor, w: torch.Tensor, offset: torch.Tensor | None = None) -> None:
    """`got` is the product of w and the quantised x but for roundings in fp32, and that of x itself but for 8 bits."""
    exact = native.rounded(x) @ w.double().T
    size = native.rounded(x).abs() @ w.double().abs().T + 1e-30
    if offset is not None:
        exact = exact + offset.double()
        size = size + offset.double().abs()
    assert ((got.double() - exact).abs() / size).max() < 2e-6
    # The norms of exact and of plain product differ by 8 bits' rounding of rows alone.
    plain = x.double() @ w.double().T + (0 if offset is None else offset.double())
    assert ((got.double() - plain).norm(dim=1) <= 0.02 * (x.double().norm(dim=1) * w.double().norm() + 1)).all()


@pytest.mark.parametrize(("n", "k"), SIZES)
@kinds
def test_products_are_those_of_the_numbers_that_weights_and_rows_stand_for(kind: int, n: int, k: int, isa: str) -> None:
    matrix, w = weight(kind, n, k)
    x = inputs(9, k)
    assert_near(project(x, matrix, isa=isa), x, w, bias(n))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 31), (17, 33), (40, 100), (33, 1061)])
@pytest.mark.parametrize("type", ["F32", "BF16", "F8_E4M3"])
def test_columns_need_not_be_whole_blocks(type: str, n: int, k: int, isa: str) -> None:
    panels = packing.pack(random_raw(type, n, k), structs.W8)
    x = inputs(6, k)
    got = project(x, native.matrix((structs.W8, n, panels), columns=k), isa=isa)
    assert_near(got, x, packing.described(structs.W8, panels, n, k))


@pytest.mark.parametrize("type", ["Q4_K", "Q5_K", "I4"])
def test_types_that_share_a_kind_are_multiplied_alike(type: str, isa: str) -> None:
    panels = packing.pack(random_raw(type, 35, 512), KINDS[type])
    x = inputs(5, 512)
    got = project(x, native.matrix((KINDS[type], 35, panels), columns=512), isa=isa)
    assert_near(got, x, packing.described(KINDS[type], panels, 35, 512))


@pytest.mark.parametrize("t", ROWS)
@kinds
def test_a_row_has_the_same_bits_beside_any_other_rows(kind: int, t: int, isa: str) -> None:
    matrix, _ = weight(kind, 37, 512)
    x = inputs(MOST, 512)
    alone = torch.cat([project(row[None], matrix, isa=isa) for row in x])
    assert torch.equal(project(x[:t], matrix, isa=isa), alone[:t])
    assert torch.equal(project(x[MOST - t :], matrix, isa=isa), alone[MOST - t :]), "at another place"


@pytest.mark.parametrize(("n", "k"), [(1, 256), (37, 512), (100, 768)])
@kinds
def test_threads_and_instruction_sets_give_the_same_bits(kind: int, n: int, k: int) -> None:
    matrix, _ = weight(kind, n, k)
    for t in (1, 2, 5, 16, MOST):
        x = inputs(t, k, seed=t)
        want = project(x, matrix, isa="plain")
        assert want.isfinite().all()
        for isa in native.isas():
            for threads in (1, 2, 3, 8):
                for _ in range(2):
                    assert torch.equal(project(x, matrix, isa=isa, threads=threads), want), (t, isa, threads)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_parts_of_different_kinds_lie_one_below_the_other(threads: int, isa: str) -> None:
    k, parts, numbers = 512, [], []
    for rows, kind in zip((5, 16, 1, 33, 20, 7), TYPES, strict=True):
        panels = packing.pack(random_raw(TYPES[kind], rows, k, seed=rows), kind)
        parts.append((kind, rows, panels))
        numbers.append(packing.described(kind, panels, rows, k))
    x = inputs(4, k)
    got = project(x, native.matrix(*parts, columns=k), isa=isa, threads=threads)
    assert_near(got, x, torch.cat(numbers))
    alone = [project(x, native.matrix(part, columns=k), isa=isa) for part in parts]
    assert torch.equal(got, torch.cat(alone, dim=1))


def extreme(kind: int, n: int, k: int) -> torch.Tensor:
    """Panels all of whose quants have every bit set, or for W8 are the most negative; scales 1, offsets 0."""
    panels = torch.full((packing.panels_bytes(kind, n, k),), 0x80 if kind == structs.W8 else 0xFF, dtype=torch.uint8)
    blocks = panels.view(-1, structs.BLOCK_BYTES[kind])
    affine, two = kind in (structs.W4M, structs.W5M), kind in (structs.W4M, structs.W5M, structs.W6)
    scales = torch.ones(32 if two else 16, dtype=torch.float16)
    if affine:
        scales[16:] = 0
    blocks[:, structs.BLOCK_BYTES[kind] - 2 * len(scales) :] = scales.view(torch.uint8)
    return panels


@pytest.mark.parametrize("sign", [1, -1])
@kinds
def test_the_largest_quants_do_not_overflow(kind: int, sign: int, isa: str) -> None:
    n, k = 16, 512
    panels = extreme(kind, n, k)
    value = {structs.W8: -128, structs.W4Z: 7, structs.W4M: 15, structs.W5Z: 15, structs.W5M: 31, structs.W6: 31}[kind]
    assert (packing.described(kind, panels, n, k) == value).all()
    x = torch.full((5, k), 127.0 * sign)
    matrix = native.matrix((kind, n, panels), columns=k)
    assert (project(x, matrix, isa=isa) == float(value * 127 * sign * k)).all()
    x.view(5, -1, 2, 16)[:, :, 0] *= 64  # as far apart as halves can be
    want = torch.full((5, n), float(value * 127 * sign * k // 2 * 65))
    torch.testing.assert_close(project(x, matrix, isa=isa), want, rtol=1e-6, atol=0)
    assert torch.equal(project(x, matrix, isa=isa), project(x, matrix, isa="plain"))


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-42, 1e-38, 2e-37, 1e-30, 1e30])
@kinds
def test_rows_of_extreme_size_have_products_of_their_size(kind: int, size: float) -> None:
    panels = packing.pack(random_raw(TYPES[kind], 16, 256), kind)
    matrix, w = native.matrix((kind, 16, panels), columns=256), packing.described(kind, panels, 16, 256)
    x = (torch.linspace(-1, 1, 256)[None] * size).repeat(3, 1)
    x[:, ::5] = 0
    want = x.double() @ w.double().T
    got = project(x, matrix, isa="plain")
    # Blocks so small that 127 over their largest value is no fp32 number may count as zeros.
    assert ((got.double() - want).abs() <= 0.02 * x.double().norm() * w.double().norm() + 1e-33).all()
    for isa in native.isas():
        assert torch.equal(project(x, matrix, isa=isa), got)


def test_what_unused_rows_hold_does_not_matter(isa: str) -> None:
    matrix, _ = weight(structs.W4M, 37, 512)
    x = inputs(3, 512)
    room = torch.full((8, 512), float("nan"))
    room[:3] = x
    out = torch.full((8, 37), 5.0)
    native.run("project", room, matrix, out, native.act(512, 8), rows=3, isa=isa)
    assert torch.equal(out[:3], project(x, matrix, isa=isa))
    assert (out[3:] == 5).all(), "rows beyond T were written"


@pytest.mark.parametrize("kind", [*TYPES, structs.F32, structs.F16], ids=[*NAMES.values(), "F32", "F16"])
def test_embedding_rows_are_the_numbers_of_the_table(kind: int, isa: str) -> None:
    n, k = 100, 512
    raw = random_raw(TYPES.get(kind, "F32"), n, k)
    panels = packing.pack(raw, kind)
    want = packing.described(kind, panels, n, k)
    ids = torch.tensor([0, 99, 15, 16, 17, 31, 64, 5, 5], dtype=torch.int32)
    for threads in (1, 2, 3):
        out = torch.full((len(ids), k), float("nan"))
        native.run(
            "embed", native.matrix((kind, n, panels), columns=k), ids, out, 0, rows=len(ids), isa=isa, threads=threads
        )
        assert packing.same_bits(out, want[ids.long()])


def test_embedding_rows_are_found_in_their_part(isa: str) -> None:
    k, parts, numbers = 256, [], []
    for rows, kind in ((20, structs.W8), (16, structs.W6), (7, structs.F16)):
        panels = packing.pack(random_raw(TYPES.get(kind, "F32"), rows, k, seed=rows), kind)
        parts.append((kind, rows, panels))
        numbers.append(packing.described(kind, panels, rows, k))
    ids = torch.tensor([0, 19, 20, 35, 36, 42, 1], dtype=torch.int32)
    out = torch.full((5, k), float("nan"))
    native.run("embed", native.matrix(*parts, columns=k), ids[2:], out, 5, rows=1, isa=isa)
    assert packing.same_bits(out, torch.cat(numbers)[ids[2:].long()])
