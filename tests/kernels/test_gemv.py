"""A row's bits do not depend on how many rows are computed beside it."""

from __future__ import annotations

import pytest
import torch

from lingchat.kernels import attention as attn
from lingchat.kernels import norm
from lingchat.kernels.gemv import MAX_WIDTH, DenseWeight, Int8Weight, project, project_vocabulary


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
