"""A row's bits do not depend on how many rows are computed beside it."""

from __future__ import annotations

import pytest
import torch

from lingchat.kernels import attention as attn
from lingchat.kernels import norm
from lingchat.kernels.gemv import MAX_WIDTH, DenseWeight, Int8Weight, PackedWeight, project, project_vocabulary
from lingchat.kernels.quant import to_torch
from lingchat.kernels.random_weights import RandomRaw, matrix


@pytest.mark.parametrize("shape", [(960, 576), (576, 1536), (3072, 576), (49, 33), (1024, 1024), (6144, 1024)])
@pytest.mark.parametrize("kind", ["int8", "fp32", "bf16"])
def test_rows_are_the_same_bits_for_every_width(shape: tuple[int, int], kind: str) -> None:
    torch.manual_seed(1)
    weight = torch.randn(shape)
    w = Int8Weight.quantize(weight) if kind == "int8" else DenseWeight(weight.bfloat16() if kind == "bf16" else weight)
    x = torch.randn(MAX_WIDTH, shape[1])
    single = torch.cat([project(x[r : r + 1], w) for r in range(MAX_WIDTH)])
    for rows in range(1, MAX_WIDTH + 1):
        assert torch.equal(project(x[:rows], w), single[:rows]), rows


@pytest.mark.parametrize("width", [576, 1024, 33, 4096])
def test_norm_and_activation_rows_are_the_same_bits(width: int) -> None:
    torch.manual_seed(2)
    x, weight = torch.randn(MAX_WIDTH, width), torch.randn(width)
    up = torch.randn(MAX_WIDTH, 2 * width)
    for rows in range(1, MAX_WIDTH + 1):
        assert torch.equal(norm.rms_norm(x[:rows], weight, 1e-5)[:1], norm.rms_norm(x[:1], weight, 1e-5)), rows
        for r in range(rows):
            assert torch.equal(norm.swiglu(up[:rows])[r : r + 1], norm.swiglu(up[r : r + 1])), (rows, r)


@pytest.mark.parametrize("adjacent", [True, False])
def test_attention_rows_are_the_same_bits_and_equal_the_other_forms(adjacent: bool) -> None:
    torch.manual_seed(3)
    start, rows, heads, groups, width = 37, 5, 6, 2, 16
    keys, values = torch.randn(groups, 64, width), torch.randn(groups, 64, width)
    q = torch.randn(rows, heads, width)
    table = attn.rotation_table(torch.arange(start, start + rows), width, 10000.0, None)
    q = attn.rotate(q, table, adjacent)
    whole = attn.attend_rows(q, keys, values, start)
    for r in range(rows):
        assert torch.equal(attn.attend_rows(q[r : r + 1], keys, values, start + r), whole[r : r + 1])
    torch.testing.assert_close(attn.attend_chunk(q, keys, values, start), whole)
    torch.testing.assert_close(attn.attend_masked(q, keys, values, torch.arange(start, start + rows)), whole)


@pytest.mark.parametrize("adjacent", [True, False])
@pytest.mark.parametrize(("heads", "width"), [(1, 2), (1, 8), (1, 64), (3, 8), (9, 64)])
def test_rotated_rows_are_the_same_bits_for_every_width(heads: int, width: int, adjacent: bool) -> None:
    torch.manual_seed(6)
    x = torch.randn(MAX_WIDTH, heads, width)
    table = attn.rotation_table(torch.arange(1000, 1000 + MAX_WIDTH), width, 6e6, None)
    singles = torch.cat([attn.rotate(x[r : r + 1], table[r : r + 1], adjacent) for r in range(MAX_WIDTH)])
    for rows in range(2, MAX_WIDTH + 1):
        assert torch.equal(attn.rotate(x[:rows], table[:rows], adjacent), singles[:rows]), rows


def test_rotation_is_partial_and_scaled() -> None:
    x = torch.randn(1, 1, 8)
    table = attn.rotation_table(torch.tensor([3]), 4, 100.0, (1.0, 2.0))
    turned = attn.rotate(x, table, adjacent=False)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    angle = 3 * 100.0 ** (-2 / 4) / 2.0
    want = x[0, 0, 1] * torch.cos(torch.tensor(angle)) - x[0, 0, 3] * torch.sin(torch.tensor(angle))
    torch.testing.assert_close(turned[0, 0, 1], want)


def test_int8_error_is_that_of_rounding_and_the_best_logits_are_refined() -> None:
    torch.manual_seed(4)
    weight, x = torch.randn(2000, 256), torch.randn(3, 256)
    w = Int8Weight.quantize(weight)
    error = (w.dequantize() - weight).abs().amax(1) / weight.abs().amax(1)
    assert error.max() <= 0.5 / 127 * (1 + 2**-7)  # the scale is rounded up to bf16
    exact = x @ w.dequantize().T
    logits = project_vocabulary(x, w, refine=64)
    best = exact.topk(32).indices
    torch.testing.assert_close(logits.gather(1, best), exact.gather(1, best), rtol=1e-5, atol=1e-5)
    assert (project(x, w).gather(1, best) - exact.gather(1, best)).abs().max() > 1e-3  # what refining removes


def test_project_of_many_rows_agrees_with_few() -> None:
    torch.manual_seed(5)
    weight, bias, x = torch.randn(96, 64), torch.randn(96), torch.randn(40, 64)
    for w in (DenseWeight(weight, bias), Int8Weight.quantize(weight, bias)):
        few = torch.cat([project(x[r : r + 1], w) for r in range(40)])
        torch.testing.assert_close(project(x, w), few, rtol=2e-2, atol=0.15)


def drawn(type: str, *shape: int) -> RandomRaw:
    return matrix(f"{type} {shape}", type, shape, shape[1] ** -0.5, seed=1, device="cpu")


# As fp8 checkpoints stack them: most of the rows in fp8, a few in bf16. Neither 200 nor 160 is whole blocks of 128.
STACKS = {
    "fp8": [drawn("F8_E4M3", 200, 160)],
    "fp8 and bf16": [drawn("F8_E4M3", 200, 160), drawn("BF16", 5, 160), drawn("F8_E4M3", 128, 160)],
    "int4": [drawn("I4", 96, 160)],
}


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("stack", STACKS)
def test_undecoded_rows_are_the_product_of_their_numbers(stack: str, rows: int) -> None:
    parts = STACKS[stack]
    torch.manual_seed(7)
    whole = torch.cat([to_torch(part) for part in parts])
    x, bias = torch.randn(rows, 160), torch.randn(len(whole))
    w = PackedWeight.pack(parts, torch.float32, "cpu", bias)
    fp32 = sum(4 * part.shape[0] * 160 if part.type == "BF16" else part.nbytes for part in parts)
    assert w.nbytes == fp32 + bias.nbytes
    want = x.double() @ whole.double().T + bias.double()
    torch.testing.assert_close(project(x, w).double(), want, rtol=1e-5, atol=1e-5)
    assert torch.equal(project_vocabulary(x, w), project(x, w))
    half = PackedWeight.pack(parts, torch.bfloat16)
    assert 0 < (project(x, half).double() + bias - want).abs().max() < 0.1
    assert half.nbytes < w.nbytes


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_undecoded_rows_are_the_same_bits_for_every_width(stack: str, compute: torch.dtype) -> None:
    torch.manual_seed(8)
    w, x = PackedWeight.pack(STACKS[stack], compute), torch.randn(MAX_WIDTH, 160)
    singles = torch.cat([project(x[r : r + 1], w) for r in range(MAX_WIDTH)])
    for rows in (2, 5, MAX_WIDTH):
        assert torch.equal(project(x[:rows], w), singles[:rows]), rows


@pytest.mark.parametrize("type", ["F8_E4M3", "I4", "BF16"])
def test_rows_of_an_undecoded_table_are_decoded_alone(type: str) -> None:
    raw = drawn(type, 300, 160)
    ids = torch.tensor([299, 0, 127, 128, 256, 128], dtype=torch.int32)
    table = PackedWeight.pack([raw], torch.float32).table(ids)
    assert table.dtype == torch.float32 and torch.equal(table, to_torch(raw)[ids])


def test_on_a_device_undecoded_rows_are_read_by_the_device() -> None:
    """The device without memory: nothing that the host could read."""
    for parts in STACKS.values():
        w = PackedWeight.pack(parts, torch.bfloat16, "meta")
        assert project(torch.empty(3, 160, device="meta"), w).shape == (3, sum(part.shape[0] for part in parts))
    ids = torch.empty(4, dtype=torch.int32, device="meta")
    assert PackedWeight.pack(STACKS["fp8"], torch.bfloat16, "meta").table(ids).shape == (4, 160)
