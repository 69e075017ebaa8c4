"""The plain kernels on a CUDA device: the numbers of the CPU, no wait for the host, and fla-core's chunked delta rule.

Needs a GPU; skipped without one. The many-row form of fla-core needs that package and Triton.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from lingchat.kernels import kda, mla, moe
from lingchat.kernels.gemv import PackedWeight, project
from lingchat.kernels.quant import to_torch
from lingchat.kernels.random_weights import RandomRaw, matrix
from lingchat.kernels.rows import sigmoid

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

EXPERTS, CHOSEN, D, INNER = 16, 4, 256, 384
SHAPE = SimpleNamespace(chosen=CHOSEN, groups=4, chosen_groups=2, scale=2.5, renormalize=True)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.inference_mode():
        yield


@contextmanager
def no_wait() -> Iterator[None]:
    """An operation for which the host waits is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def raws(type: str, rows: int, columns: int) -> list[RandomRaw]:
    return [matrix(f"e{e}", type, (rows, columns), columns**-0.5, seed=rows, device="cpu") for e in range(EXPERTS)]


@pytest.mark.parametrize(("type", "dtype"), [("BF16", "bf16"), ("BF16", "int8"), ("F8_E4M3", "fp8"), ("I4", "int4")])
def test_experts_give_the_numbers_of_the_cpu_without_a_wait(type: str, dtype: str) -> None:
    parts = raws(type, INNER, D), raws(type, INNER, D)[::-1], raws(type, D, INNER)
    here, there = moe.Experts.pack(*parts, "fp32"), moe.Experts.pack(*parts, dtype, "cuda")
    torch.manual_seed(1)
    x, logits, bias = torch.randn(40, D), torch.randn(40, EXPERTS), torch.randn(EXPERTS) * 0.1
    ids, weights = moe.route(logits, bias, SHAPE)
    want = moe.experts_down(moe.experts_up(x, ids, here, 2.0), ids, weights, here)
    x, logits, bias = x.cuda(), logits.cuda(), bias.cuda()

    def run(rows: int) -> torch.Tensor:
        ids, weights = moe.route(logits[:rows], bias, SHAPE)
        return moe.experts_down(moe.experts_up(x[:rows], ids, there, 2.0), ids, weights, there)

    run(1)  # what a library sets up at its first call may wait
    for rows in (1, 5, 16):
        with no_wait():
            got = run(rows)
        assert (got.cpu() - want[:rows]).norm() < 0.02 * want[:rows].norm()
        assert torch.equal(got[:1], run(1))
    assert (run(40).cpu() - want).norm() < 0.02 * want.norm()


def test_undecoded_matrices_give_the_numbers_of_the_cpu_without_a_wait() -> None:
    raw = matrix("w", "F8_E4M3", (300, 384), 0.05, seed=1, device="cpu")
    w, x = PackedWeight.pack([raw], torch.bfloat16, "cuda"), torch.randn(3, 384)
    ids = torch.tensor([299, 0, 128], dtype=torch.int32, device="cuda")
    project(x.cuda(), w)
    with no_wait():
        y, table = project(x.cuda(non_blocking=True), w), w.table(ids)
    torch.testing.assert_close(y.cpu(), x @ to_torch(raw).T, rtol=2e-2, atol=2e-2)
    assert torch.equal(table.cpu(), to_torch(raw)[[299, 0, 128]])


def delta(rows: int, decay: str, heads: int = 4, width: int = 128) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(rows)
    q = kda.l2_normalize(torch.randn(rows, heads, width)) * width**-0.5
    k = kda.l2_normalize(torch.randn(rows, heads, width))
    g = -5 * torch.rand(rows, heads, width)
    if decay == "lowest":
        g = torch.full_like(g, -5.0)
    elif decay == "gentle":
        g *= 1e-3
    elif decay == "far":
        g *= 80
    return q, k, torch.randn(rows, heads, width), g, torch.rand(rows, heads), torch.randn(heads, width, width)


DECAYS = pytest.mark.parametrize("decay", ["bounded", "lowest", "gentle", "far"])


@DECAYS
@pytest.mark.parametrize("rows", [17, 64, 65, 300])
def test_chunks_taken_together_are_the_recurrence(rows: int, decay: str) -> None:
    inputs = delta(rows, decay)
    want, states = kda.recurrent(*inputs)
    out, final = kda.chunked(*(x.cuda() for x in inputs))
    torch.testing.assert_close(out.cpu(), want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(final.cpu(), states[-1], rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not kda.fla_available(), reason="needs fla-core and Triton")
@DECAYS
@pytest.mark.parametrize("rows", [17, 64, 65, 300])
def test_chunks_of_fla_are_the_recurrence(rows: int, decay: str) -> None:
    """A minute or two the first time: its kernels are compiled and tuned for the machine."""
    inputs = delta(rows, decay)
    want, states = kda.recurrent(*inputs)
    there = [x.cuda() for x in inputs]
    out, final = kda.chunked_fla(*there)
    assert torch.equal(there[-1].cpu(), inputs[-1])  # the committed state is only read
    # Its products are TF32's, of 10 bits after the point.
    assert torch.isfinite(out).all() and torch.isfinite(final).all()
    assert (out.cpu() - want).norm() < 2e-3 * want.norm()
    assert (final.cpu() - states[-1]).norm() < 2e-3 * states[-1].norm()


def test_a_round_of_kda_waits_for_nothing_and_commits_what_the_cpu_does() -> None:
    heads, width, taps, w, rows = 4, 128, 4, 6, 5
    torch.manual_seed(2)
    channels = 3 * heads * width
    state, window = torch.randn(heads, width, width), torch.randn(taps - 1, channels).bfloat16()
    projected, weights = torch.randn(rows, channels).bfloat16(), torch.randn(channels, taps)
    f, b, rate = torch.randn(rows, heads * width), torch.randn(rows, heads), torch.rand(heads)
    bias = torch.randn(heads * width)

    def verify(state, window, projected, weights, f, b, rate, bias, count):  # type: ignore[no-untyped-def]
        staged_states = torch.full((w, *state.shape), float("nan"), device=state.device)
        staged_inputs = torch.full((w + taps - 1, channels), float("nan"), device=state.device, dtype=window.dtype)
        inputs = torch.cat((window, projected))
        q, k, v = kda.conv_silu(inputs, weights).view(rows, 3, heads, width).unbind(1)
        g = kda.log_decay(f, rate, bias, "bounded", -5.0)
        out, states = kda.recurrent(kda.l2_normalize(q), kda.l2_normalize(k), v, g, sigmoid(b), state)
        kda.stage(staged_states, staged_inputs, states, inputs)
        kda.commit(state, window, staged_states, staged_inputs, count)
        return out

    given = (state, window, projected, weights, f, b, rate, bias)
    verify(*(x.cuda() for x in given), torch.zeros(1, dtype=torch.int32, device="cuda"))
    for count in (0, 1, 3, rows):
        here, there = [x.clone() for x in given], [x.cuda() for x in given]
        counted = torch.tensor([count], dtype=torch.int32, device="cuda")
        with no_wait():
            out = verify(*there, counted)
        torch.testing.assert_close(out.cpu(), verify(*here, count), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(there[0].cpu(), here[0], rtol=1e-4, atol=1e-5)
        assert torch.equal(there[1].cpu(), here[1])


def test_latent_attention_gives_the_numbers_of_the_cpu_without_a_wait() -> None:
    torch.manual_seed(3)
    rows, heads, rank, rope, start = 5, 4, 512, 64, 90
    q, cache = torch.randn(rows, heads, rank + rope), torch.randn(256, rank + rope).bfloat16()
    want = mla.attend_rows(q, cache, start, 0.07, rank)
    there, kept, positions = q.cuda(), cache.cuda(), torch.arange(start, start + rows, device="cuda")
    mla.attend_masked(there, kept, positions, 0.07, rank)
    with no_wait():
        z = mla.attend_masked(there, kept, positions, 0.07, rank)
    torch.testing.assert_close(z.cpu(), want, rtol=1e-4, atol=1e-5)
