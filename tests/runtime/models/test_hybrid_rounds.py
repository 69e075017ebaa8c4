"""Rounds over hybrid models: what is not committed leaves no trace, for every count; drafting never changes the text.

A KDA state is overwritten by a commit, so a round must stage the state after each of its rows and take one of them.
Every buffer that a round may only write to is filled with NaN before it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ling_cases import distance, ids_of
from ling_reference import KDALayer, MLALayer, Reference
from make_ling import Tiny, kimi_config, ling_config, looping_tensors, write_kimi_gguf, write_ling_gguf
from runtime.helpers import NATIVE, Bench

from lingchat.engines.api import Sampling
from lingchat.runtime.ops.protocol import KDACache, LatentCache

pytestmark = pytest.mark.usefixtures("one_thread")

W = 8
PROMPT = ids_of(21, 1)
ROWS = ids_of(W, 2)
NEXT = 30
# A prompt whose pieces come again, so that lookup finds something to propose.
REPEATING = [5, 6, 7, 8, 9, 10, 11, 5, 6, 7, 8, 9, 12, 13, 5, 6]

Places = list[tuple[torch.Tensor, ...]]


@pytest.fixture(scope="module", params=["ling", "kimi"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    if request.param == "ling":
        return write_ling_gguf(path, ling_config(period=4, layers=5, q_rank=32, limits=True), seed=21)
    return write_kimi_gguf(path, kimi_config(layers=5), seed=21)


@torch.inference_mode()
def poison(bench: Bench) -> None:
    """NaN wherever a pass may write but nothing may read what was there before."""
    committed = int(bench.state.length)
    for cache in bench.state.caches:
        if isinstance(cache, KDACache):
            cache.staged_states.fill_(float("nan"))
            cache.staged_inputs.fill_(float("nan"))
        elif isinstance(cache, LatentCache):
            cache.rows[committed:] = float("nan")


def kept(bench: Bench) -> Places:
    """Copies of what is permanent: state and window of a KDA layer, the committed latents of an MLA layer."""
    committed = int(bench.state.length)
    return [
        (cache.state.clone(), cache.window.clone())
        if isinstance(cache, KDACache)
        else (cache.rows[:committed].clone(),)
        for cache in bench.state.caches
    ]


@torch.inference_mode()
def prefilled(bench: Bench, ids: list[int], chunk: int) -> Places:
    bench.reset()
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        poison(bench)
        bench.prefill(part)
        bench.commit(len(part))
    return kept(bench)


@torch.inference_mode()
def verified(bench: Bench, rows: list[int], count: int) -> torch.Tensor:
    """`rows` over poisoned buffers, `count` of them committed; their logits."""
    poison(bench)
    logits = bench.verify(rows)
    bench.commit(count)
    return logits


def equal(got: Places, want: Places) -> bool:
    return all(torch.equal(a, b) for g, w in zip(got, want, strict=True) for a, b in zip(g, w, strict=True))


def close(got: Places, want: Places) -> None:
    for g, w in zip(got, want, strict=True):
        for a, b in zip(g, w, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("rows", [W, 5, 1])
def test_a_commit_of_any_count_equals_a_fresh_prefill(tiny: Tiny, rows: int) -> None:
    """State, convolution window and latents: the bits of single rows, and what a prefill in one pass computes."""
    bench, single, fresh = (Bench(tiny.path, width=W) for _ in range(3))
    prefilled(bench, PROMPT, 1)
    bench.state.snapshot(len(PROMPT))
    prefilled(single, PROMPT, 1)
    for count in range(rows + 1):
        bench.reset(len(PROMPT))
        verified(bench, ROWS[:rows], count)
        assert int(bench.state.length) == len(PROMPT) + count
        got = kept(bench)
        assert all(torch.isfinite(part).all() for place in got for part in place)
        assert equal(got, kept(single)), count
        close(got, prefilled(fresh, [*PROMPT, *ROWS[:count]], 64))
        assert torch.equal(verified(bench, [NEXT], 0), verified(single, [NEXT], 0)), count
        verified(single, ROWS[count : count + 1] or [NEXT], 1)


def test_a_commit_of_none_changes_nothing(tiny: Tiny) -> None:
    bench = Bench(tiny.path, width=W)
    before = prefilled(bench, PROMPT, 64)
    for rows in (1, 3, W):
        verified(bench, ROWS[:rows], 0)
        assert int(bench.state.length) == len(PROMPT)
        assert equal(kept(bench), before), rows
    # A pass of more than W rows can be taken back as a whole.
    poison(bench)
    bench.prefill(ids_of(33, 5))
    bench.commit(0)
    assert equal(kept(bench), before)


def test_a_pass_reads_the_committed_state_and_never_writes_it(tiny: Tiny) -> None:
    bench = Bench(tiny.path, width=W)
    before = prefilled(bench, PROMPT, 64)
    for rows in (1, W, 40):
        poison(bench)
        bench.verify(ids_of(rows, rows))
        assert equal(kept(bench), before), rows


@pytest.mark.parametrize("count", [1, 2, 3, 4, W, W + 1, 40, 63, 64, 65])
def test_states_are_those_of_the_reference(tiny: Tiny, count: int) -> None:
    """What is kept after a prefill is what the formulas say, not only what logits need of it."""
    ids = ids_of(count, 3)
    reference = Reference(tiny.config, tiny.tensors)
    reference.logits(ids)
    bench = Bench(tiny.path, width=W)
    for chunk in (64, 7) if count > 1 else (64,):
        for place, layer in zip(prefilled(bench, ids, chunk), reference.layers, strict=True):
            attention = layer.attention
            if isinstance(attention, KDALayer):
                state, window = (part.numpy() for part in place)
                np.testing.assert_allclose(state, attention.state, rtol=1e-4, atol=2e-5)
                np.testing.assert_allclose(window, np.hstack(list(attention.history)), rtol=1e-4, atol=2e-5)
            else:
                assert isinstance(attention, MLALayer)
                np.testing.assert_allclose(place[0].numpy(), np.array(attention.rows), rtol=1e-4, atol=2e-5)


@pytest.fixture(scope="module", params=["ling", "kimi"])
def looping(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose greedy text repeats, though not always."""
    path = tmp_path_factory.mktemp("looping") / "tiny.gguf"
    if request.param == "ling":
        config = ling_config(period=4, layers=5, q_rank=32, limits=True)
        return write_ling_gguf(path, config, tensors=looping_tensors(config, 21)).path
    return write_kimi_gguf(path, kimi_config(), tensors=looping_tensors(kimi_config(), 21)).path


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.0),
        Sampling(temperature=0.8, top_p=0.95),
        Sampling(temperature=0.3, top_k=4, min_p=0.05),
        Sampling(temperature=0.7, repetition_penalty=1.3),
    ],
)
@pytest.mark.parametrize("dtype", ["fp32", "int8", NATIVE])
def test_drafting_never_changes_the_text(looping: Path, dtype: str, sampling: Sampling) -> None:
    bench = Bench(looping, dtype, width=W)
    plain, rounds = bench.reply(REPEATING, 40, 0, sampling)
    assert all(timed.record.drafted == 0 for timed in rounds)
    for drafts in (1, 3, 7):
        text, rounds = bench.reply(REPEATING, 40, drafts, sampling)
        assert text == plain, drafts
        if sampling == Sampling(temperature=0.0):
            assert sum(timed.record.accepted for timed in rounds) > 2
            assert len(rounds) < len(plain)


def test_accepted_and_rejected_drafts_leave_the_text_alone_between_poisoned_rounds(looping: Path) -> None:
    bench = Bench(looping, width=W)
    want, _ = bench.reply(REPEATING, 80, 0)
    accepted = rejected = 0
    with torch.inference_mode():
        bench.reset()
        bench.rounds.begin(REPEATING, 80, Sampling(temperature=0.0), 1, ())
        for _ in bench.driver.prefill(REPEATING):
            pass
        out = [*bench.driver.first().record.ids]
        while len(out) < 80:
            committed = int(bench.state.length)
            poison(bench)
            bench.rounds.verify(bench.rounds.draft(7))
            (record,) = bench.ops.take(bench.rounds.ring)
            assert 1 <= len(record.ids) <= record.accepted + 1 <= record.drafted + 1
            assert int(bench.state.length) == committed + len(record.ids)
            accepted += record.accepted
            rejected += record.drafted - record.accepted
            out += record.ids
    assert out == want
    assert accepted > 10 and rejected > 0


def test_the_place_after_a_reply_is_that_of_its_tokens(tiny: Tiny) -> None:
    """After drafted rounds, state and window are those of the text, as if it had been a prompt."""
    bench, fresh = Bench(tiny.path, width=W), Bench(tiny.path, width=W)
    text, _ = bench.reply(REPEATING, 30, 7)
    length = int(bench.state.length)
    so_far = [*REPEATING, *text][:length]
    assert length >= len(REPEATING) + 29
    close(kept(bench), prefilled(fresh, so_far, 64))


def test_logits_of_a_prompt_do_not_depend_on_how_it_was_cut(tiny: Tiny) -> None:
    bench = Bench(tiny.path, width=W)
    ids = ids_of(70, 4)
    whole = bench.prefill_logits(ids, 512)
    for chunk in (1, 3, 4, 9, 16, 63, 64, 65):
        assert distance(bench.prefill_logits(ids, chunk), whole) < 2e-5, chunk
