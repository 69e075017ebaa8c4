"""Latent attention: the absorbed forms against the expanded one, rotated or not, and rows by themselves."""

from __future__ import annotations

import pytest
import torch

from lingchat.kernels import attention as attn
from lingchat.kernels import mla
from lingchat.kernels.rows import MAX_WIDTH

H, NOPE, ROPE, VALUE, RANK, CAPACITY = 3, 16, 8, 12, 32, 96
SCALE = (NOPE + ROPE) ** -0.5


@pytest.fixture(autouse=True)
def no_grad():
    with torch.inference_mode():
        yield


def made(rows: int, start: int, rotated: bool, dtype: torch.dtype = torch.float32):
    """q [T, H, nope + rope], cache rows of which those beyond the text are stale, uk, uv."""
    torch.manual_seed(rows + start)
    end = start + rows
    q, cache = torch.randn(rows, H, NOPE + ROPE), torch.randn(CAPACITY, RANK + ROPE)
    if rotated:
        table = attn.rotation_table(torch.arange(end), ROPE, 1e4, None)
        q = torch.cat((q[..., :NOPE], attn.rotate(q[..., NOPE:], table[start:], adjacent=True)), dim=-1)
        cache[:end, RANK:] = attn.rotate(cache[:end, None, RANK:], table, adjacent=True)[:, 0]
    cache[end:] = 1e3
    uk, uv = mla.split_up(torch.randn(H * (NOPE + VALUE), RANK) * RANK**-0.5, H, NOPE, VALUE)
    return q, cache.to(dtype), uk, uv


def absorbed(q: torch.Tensor, uk: torch.Tensor) -> torch.Tensor:
    return torch.cat((mla.absorb(q[..., :NOPE], uk), q[..., NOPE:]), dim=-1)


@pytest.mark.parametrize("rotated", [True, False])
@pytest.mark.parametrize(("rows", "start"), [(1, 0), (1, 40), (5, 37), (16, 3), (40, 0), (40, 21)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_absorbed_form_is_the_expanded_one(rows: int, start: int, rotated: bool, dtype: torch.dtype) -> None:
    q, cache, uk, uv = made(rows, start, rotated, dtype)
    want = mla.expanded(q.double(), cache.double(), start, SCALE, uk.double(), uv.double())
    queries = absorbed(q, uk)
    positions = torch.arange(start, start + rows)
    for z in (
        mla.attend_rows(queries, cache, start, SCALE, RANK),
        mla.attend_chunk(queries, cache, start, SCALE, RANK),
        mla.attend_masked(queries, cache, positions, SCALE, RANK),
    ):
        assert z.shape == (rows, H, RANK) and z.dtype == torch.float32
        torch.testing.assert_close(mla.expand(z, uv).double(), want, rtol=1e-4, atol=1e-5)


def test_the_expanded_form_is_ordinary_attention() -> None:
    rows, start = 4, 9
    q, cache, uk, uv = made(rows, start, rotated=False)
    out = mla.expanded(q, cache, start, SCALE, uk, uv)
    for t in range(rows):
        seen = cache[: start + t + 1]
        for h in range(H):
            keys = torch.cat((seen[:, :RANK] @ uk[h].T, seen[:, RANK:]), dim=1)
            p = (keys @ q[t, h] * SCALE).softmax(0)
            torch.testing.assert_close(out[t, h], p @ (seen[:, :RANK] @ uv[h].T), rtol=1e-4, atol=1e-5)


def test_a_head_has_its_keys_before_its_values() -> None:
    kv_b = torch.arange(H * (NOPE + VALUE) * RANK, dtype=torch.float32).view(-1, RANK)
    uk, uv = mla.split_up(kv_b, H, NOPE, VALUE)
    assert torch.equal(uk[1], kv_b[NOPE + VALUE : NOPE + VALUE + NOPE])
    assert torch.equal(uv[1], kv_b[2 * NOPE + VALUE : 2 * (NOPE + VALUE)])


@pytest.mark.parametrize(("heads", "nope", "rank", "rope"), [(3, 16, 32, 8), (16, 128, 512, 64), (1, 7, 33, 3)])
def test_rows_are_the_same_bits_for_every_width(heads: int, nope: int, rank: int, rope: int) -> None:
    torch.manual_seed(1)
    start = 21
    q, cache = torch.randn(MAX_WIDTH, heads, nope + rope), torch.randn(64, rank + rope)
    uk, uv = torch.randn(heads, nope, rank), torch.randn(heads, nope, rank)

    def attend(rows: slice) -> tuple[torch.Tensor, ...]:
        a = mla.absorb(q[rows, :, :nope], uk)
        z = mla.attend_rows(torch.cat((a, q[rows, :, nope:]), dim=-1), cache, start + rows.start, 0.1, rank)
        return a, z, mla.expand(z, uv)

    singles = [attend(slice(r, r + 1)) for r in range(MAX_WIDTH)]
    for rows in (2, 3, 5, 8, 9, MAX_WIDTH):
        for one, whole in zip(zip(*singles, strict=True), attend(slice(0, rows)), strict=True):
            assert torch.equal(torch.cat(one[:rows]), whole), rows


def test_scores_of_many_rows_are_held_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    q, cache, uk, _ = made(40, 21, rotated=True)
    queries = absorbed(q, uk)
    whole = mla.attend_chunk(queries, cache, 21, SCALE, RANK)
    monkeypatch.setattr(mla, "_SCORES", 7 * H * 61)
    torch.testing.assert_close(mla.attend_chunk(queries, cache, 21, SCALE, RANK), whole, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(mla, "_SCORES", 1)  # never less than a row
    torch.testing.assert_close(mla.attend_chunk(queries, cache, 21, SCALE, RANK), whole, rtol=1e-5, atol=1e-6)


def test_bf16_projections_of_the_latent_give_fp32() -> None:
    q, _, uk, uv = made(3, 0, rotated=False)
    for rows in (3, MAX_WIDTH + 4):
        x = q[:1, :, :NOPE].expand(rows, -1, -1)
        z = mla.absorb(x, uk.bfloat16())
        assert z.dtype == torch.float32 and mla.expand(z, uv.bfloat16()).dtype == torch.float32
        torch.testing.assert_close(z, mla.absorb(x, uk), rtol=5e-2, atol=5e-2)
