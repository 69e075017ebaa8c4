"""The figures of a turn and of a run, against small examples worked out by hand, and the rules that bind any fold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_turns import MS, round_rows, turn_events

from lingchat import events
from lingchat.stats import RunStats, Tally, TurnStats, footer, per_round, per_token, reasoning_note, summary, timings

SECOND = 1000 * MS


def folded(found, **options):
    run = RunStats(**options)
    for event in found:
        run.add(event)
    return run


def turn_of(rounds, exact=True, **options):
    return folded(turn_events(rounds, **options), exact=exact).current


PLAIN = [(14_000, 1, 0, 0), (4_000, 1, 0, 0), (4_000, 1, 0, 0), (6_000, 1, 0, 0)]
# First round with 3 tokens, then one with a bonus only, one that stops with nothing, one cut at the limit.
DRAFTED = [(9_000, 3, 4, 2), (4_000, 1, 4, 0), (3_000, 0, 2, 0), (8_000, 2, 8, 5), (2_000, 1, 0, 0)]


def test_an_engine_that_cannot_load_is_none():
    loading = events.Engine(t_ns=1, phase="load", model="m", progress=0.3)
    failed = events.Error(t_ns=2, code="model_file_error", message="no GGUF")
    assert folded([loading]).engine == loading
    assert folded([loading, failed]).engine is None
    ready = events.Engine(t_ns=3, phase="ready", model="m")
    assert folded([loading, ready, failed]).engine == ready  # an error of another kind


def test_ttft_and_its_parts_add_up():
    turn = turn_of(PLAIN, queue_ms=7, tokenize_ms=2, prefill_ms=120)
    assert turn.ttft_ms == 143
    parts = (turn.queue_ms, turn.tokenize_ms, turn.prefill_ms, turn.first_round_ms)
    assert parts == (7, 2, 120, 14)
    assert sum(parts) == turn.ttft_ms
    assert (turn.prompt_tokens, turn.reused, turn.prefill_total, turn.prefill_done) == (50, 10, 40, 40)
    assert turn.prefill_tok_s == pytest.approx(40 / 0.120)


def test_tpot_leaves_the_first_token_out():
    turn = turn_of(PLAIN)
    assert turn.tokens == 4
    assert [turn.tpot(q) for q in (0.5, 0.95)] == [4.0, 6.0]  # not 14
    assert turn.mean_tpot_ms == pytest.approx(14 / 3)
    assert turn.tok_s == pytest.approx(3 / 0.014)
    assert turn.round(1.0) == 6.0


def test_a_first_round_of_three_tokens_gives_two_samples():
    turn = turn_of(DRAFTED)
    assert turn.tokens == 7
    # tokens after the first: 3, 3 (first round), 4, 4, 4, 2
    assert [turn.tpot(q) for q in (0.1, 0.3, 0.5, 1.0)] == [2.0, 3.0, 3.0, 4.0]
    assert turn.mean_tpot_ms == pytest.approx(17 / 6)  # 4 + 3 + 8 + 2 ms over n - 1
    assert [turn.round(q) for q in (0.0, 1.0)] == [2.0, 8.0]  # the first round is a part of TTFT


def test_acceptance():
    turn = turn_of(DRAFTED)
    assert (turn.rounds, turn.drafted_rounds) == (5, 4)
    assert turn.accept_len == 6 / 4
    assert turn.tokens_per_round == 7 / 5
    assert turn.accept_rate == 7 / 18
    assert turn.accept_hist == [2, 0, 1, 0, 0, 1, 0, 0, 0]
    # position 3: a >= 3 once, m >= 3 three times; position 5: only the round of 8 tried it
    assert turn.positions == [2 / 4, 2 / 4, 1 / 3, 1 / 3, 1.0, 0.0, 0.0, 0.0]
    assert turn.drafter == "lookup"


def test_without_drafting_acceptance_is_unknown_not_zero():
    turn = turn_of(PLAIN)
    assert turn.accept_len is None and turn.accept_rate is None and turn.drafter is None
    assert turn.positions == [] and turn.accept_hist == []
    assert turn.tokens_per_round == 1.0


def test_rounds_that_emit_nothing_never_divide_by_zero():
    turn = turn_of([(5_000, 0, 0, 0), (6_000, 0, 3, 0), (7_000, 1, 0, 0), (4_000, 1, 0, 0), (9_000, 0, 0, 0)])
    assert turn.tokens == 2 and turn.rounds == 5
    assert turn.tpot(0.5) == turn.tpot(1.0) == 4.0
    assert turn.mean_tpot_ms == 4.0  # the empty round at the end delays no token
    assert turn.round(1.0) == 9.0 and turn.round(0.0) == 4.0  # rounds up to the first token are a part of TTFT


def test_a_turn_without_tokens_knows_nothing():
    turn = turn_of([], stop="cancel")
    assert turn.phase == "done" and turn.stop == "cancel"
    assert [turn.ttft_ms, turn.tpot(0.5), turn.round(0.5), turn.mean_tpot_ms, turn.tok_s, turn.tokens_per_round] == [
        None
    ] * 6
    assert footer(turn) == "0 tok · TTFT – · p50 – p95 – · no draft · stopped"


def test_hiccups_are_measured_against_the_median_so_far():
    rows = [
        (90_000, 1, 0, 0),
        (4_000, 1, 0, 0),
        (12_000, 1, 0, 0),
        (12_100, 1, 0, 0),
        (4_000, 1, 0, 0),
        (36_200, 1, 0, 0),
    ]
    # medians before each round after the first: -, 4, 4 (rank 1 of 4, 12), 12 (of 4, 12, 12.1), 4 (of 4, 4, 12, 12.1)
    assert turn_of(rows).hiccups == 2  # 12.1 > 3 x 4, 36.2 > 3 x 4; 12 is exactly 3 x 4


def test_phases():
    run = RunStats()
    phases = []
    for event in turn_events(PLAIN, batches=[1]):
        run.add(event)
        phases.append(run.current.phase)
    assert phases == ["prefill", "decode", "decode", "decode", "done"]
    assert run.current.context_tokens == 54


def test_prefill_progress():
    turn = TurnStats(1)
    turn.add(events.TurnStart(t_ns=0, turn=1, prompt_tokens=300, reused=100))
    assert (turn.prefill_done, turn.prefill_total, turn.elapsed_ms(3 * MS)) == (0, 200, 3)
    turn.add(events.Prefill(t_ns=SECOND, turn=1, done=128, total=200))
    assert (turn.prefill_done, turn.prefill_total, turn.prefill_tok_s) == (128, 200, 128)


# -- the present ------------------------------------------------------------------------------------------------


def decoding(rounds):
    """A turn that has emitted these rounds and goes on, and the end of its last round."""
    turn = TurnStats(1)
    for event in turn_events(rounds)[:-1]:
        turn.add(event)
    return turn, turn._t_last


def test_tok_s_now_counts_tokens_of_the_last_second_only():
    turn, last = decoding([(10_000, 1, 0, 0)] + [(100_000, 1, 0, 0)] * 10 + [(50_000, 2, 4, 1)] * 20)
    assert turn.tok_s_now(last) == pytest.approx(40)
    assert turn.tok_s == pytest.approx(50 / 2)


def test_tok_s_now_begins_without_prefill_and_first_token():
    turn, last = decoding([(500_000, 1, 0, 0), (50_000, 1, 0, 0), (50_000, 1, 0, 0)])
    assert turn.tok_s_now(last) == pytest.approx(20)
    alone, at = decoding([(500_000, 1, 0, 0)])
    assert alone.tok_s_now(at + SECOND) is None


def test_tok_s_now_stays_through_the_delivery_of_a_batch_and_falls_in_a_silence():
    turn, last = decoding([(10_000, 1, 0, 0)] + [(10_000, 1, 0, 0)] * 200)
    assert turn.tok_s_now(last + 100 * MS) == pytest.approx(100)
    assert turn.tok_s_now(last + 750 * MS) == pytest.approx(50)
    assert turn.tok_s_now(last + 5 * SECOND) == 0.0
    turn.add(events.TurnEnd(t_ns=last, turn=1, stop="eos"))
    assert turn.tok_s_now(last) is None


def test_the_memory_of_tok_s_now_is_bounded():
    turn, _ = decoding([(1, 1, 0, 0)] * 50_000 + [(1_000, 1, 0, 0)] * 5_000)
    assert len(turn._recent) <= 1001


def test_a_stall_while_decoding_waits_two_seconds_or_twenty_rounds():
    quick, last = decoding([(10_000, 1, 0, 0)] + [(4_000, 1, 0, 0)] * 50)
    assert quick.stalled(last + 2 * SECOND) is None
    stall = quick.stalled(last + 2 * SECOND + MS)
    assert (stall.phase, stall.waited_ms, stall.turn) == ("decode", 2001, 1)
    slow, last = decoding([(10_000, 1, 0, 0)] + [(500_000, 1, 0, 0)] * 50)
    assert slow.stalled(last + 9 * SECOND) is None
    assert slow.stalled(last + 11 * SECOND) is not None
    slow.add(events.Text(t_ns=last + 11 * SECOND, turn=1, delta="x"))
    assert slow.stalled(last + 12 * SECOND) is None  # it clears itself


def test_a_stall_in_prefill_goes_by_earlier_prefills():
    run = folded(turn_events(PLAIN, prefill_ms=1000, prompt=1010, reused=10))  # 1,000 tok/s
    start = 100 * SECOND
    run.add(events.TurnStart(t_ns=start, turn=2, prompt_tokens=5000, reused=0))
    assert run.current.stalled(start + 14 * SECOND) is None
    assert run.current.stalled(start + 16 * SECOND).phase == "prefill"
    run.add(events.Prefill(t_ns=start + 2 * SECOND, turn=2, done=4000, total=5000))  # now its own 2,000 tok/s
    assert run.current.stalled(start + 2 * SECOND + 1900 * MS) is None
    assert run.current.stalled(start + 2 * SECOND + 2100 * MS) is not None
    first = TurnStats(1)
    first.add(events.TurnStart(t_ns=0, turn=1, prompt_tokens=5000, reused=0))
    assert first.stalled(9 * SECOND) is None and first.stalled(11 * SECOND) is not None


def test_no_stall_when_nothing_runs():
    assert TurnStats(1).stalled(99 * SECOND) is None
    assert turn_of(PLAIN).stalled(999 * SECOND) is None


def test_reports_of_one_silence_are_one_stall():
    turn, last = decoding(PLAIN)
    for second in (2, 3, 4):
        turn.add(events.Stall(t_ns=last + second * SECOND, phase="decode", waited_ms=second * 1000.0, turn=1))
    assert turn.stalls == 1
    assert turn.stalled(last + 5 * SECOND) is not None  # a report is no sign of life
    turn.add(events.Text(t_ns=last + 6 * SECOND, turn=1, delta="x"))
    turn.add(events.Stall(t_ns=last + 9 * SECOND, phase="decode", waited_ms=3000.0, turn=1))
    assert turn.stalls == 2


# -- batches and runs ---------------------------------------------------------------------------------------------


def test_rounds_and_tokens_of_a_batch():
    decode = turn_events(DRAFTED)[2]
    assert per_token(decode) == [3.0, 3.0, 3.0, 4.0, 4.0, 4.0, 2.0]
    assert [r.ms_per_token for r in per_round(decode)] == [3.0, 4.0, None, 4.0, 2.0]
    assert per_round(decode)[3] == (8.0, 2, 8, 5)


@given(round_rows(), st.lists(st.integers(0, 40)), st.booleans())
def test_any_batching_of_rounds_gives_the_same_figures(rounds, cuts, exact):
    whole, parts = turn_of(rounds, exact), turn_of(rounds, exact, batches=cuts)
    assert summary(whole) == summary(parts)
    assert whole._recent == parts._recent


@given(round_rows())
def test_rules_that_bind_every_turn(rounds):
    turn = turn_of(rounds, exact=False)
    figures = summary(turn)
    assert figures["tokens"] == sum(k for _, k, _, _ in rounds)
    assert sum(turn.accept_hist) == turn.drafted_rounds
    assert all(0 <= share <= 1 for share in turn.positions)
    assert turn.accept_len is None or turn.accept_len <= turn.width + 1
    assert all(value is not None for value in figures["accept_hist"])
    if turn.tpot(0.5) is not None:
        assert turn.tpot(0.5) <= turn.tpot(0.95) <= turn.tpot(0.99)
    assert set(timings(turn)) <= set(figures)


@given(st.lists(round_rows(max_size=12), max_size=4))
def test_the_total_is_the_turns_merged(turns):
    found = [e for n, rows in enumerate(turns, 1) for e in turn_events(rows, turn=n, at_ns=n * 100 * SECOND)]
    run = folded(found)
    merged = Tally()
    for turn in reversed(run.turns.values()):
        merged.merge(turn)
    assert summary(run.total) == summary(merged)
    assert run.total.tokens == sum(turn.tokens for turn in run.turns.values())


def test_the_total_includes_the_running_turn_and_a_turn_that_never_ended():
    run = folded(turn_events(PLAIN)[:-1])
    assert run.total.tokens == 4
    run.add(events.TurnStart(t_ns=0, turn=1, prompt_tokens=1, reused=0))  # the engine was restarted
    assert run.current.tokens == 0 and run.total.tokens == 4


def test_run_level_events():
    run = folded(
        [
            events.Engine(t_ns=1, phase="load", progress=0.5),
            events.Engine(t_ns=2, phase="ready", context=2048),
            events.Ui(t_ns=3, lag_p95_ms=9.0),
            events.Warn(t_ns=4, code="x", message="y"),
            events.Error(t_ns=5, code="x", message="y"),
        ]
    )
    assert run.engine.phase == "ready" and run.ui_lag_ms == 9.0
    assert (run.warnings, run.errors, run.current, run.turns) == (1, 1, None, {})


def test_lists_of_unequal_length_are_refused():
    turn = TurnStats(1)
    with pytest.raises(ValueError):
        turn.add(events.Decode(t_ns=1, turn=1, t0_ns=0, dt_us=(1, 2), k=(1,), m=(0,), a=(0,)))


def test_a_billion_drafts_are_not_a_billion_positions():
    turn = turn_of([(1_000, 1, 0, 0), (1_000, 1, 10**9, 10**9)])
    assert len(turn.positions) == 256


def test_reasoning_ends_at_the_first_call_or_word():
    """Tokens of a batch belong to what comes after it; a call ends reasoning as text does."""

    def rounds(at, tokens):
        zero = (0,) * tokens
        return events.Decode(t_ns=at, turn=1, t0_ns=at - SECOND, dt_us=(1,) * tokens, k=(1,) * tokens, m=zero, a=zero)

    turn = TurnStats(1)
    assert summary(turn)["reasoning_tokens"] == 0 and summary(turn)["reasoning_ms"] is None
    for event in (
        rounds(SECOND, 3),
        events.Reasoning(t_ns=SECOND, turn=1, delta="a"),
        rounds(2 * SECOND, 4),
        events.Reasoning(t_ns=2 * SECOND, turn=1, delta="b"),
        rounds(3 * SECOND, 5),
        events.ToolCall(t_ns=3 * SECOND, turn=1, index=0, name="look", arguments="{}"),
    ):
        turn.add(event)
    figures = summary(turn)
    assert (figures["reasoning_tokens"], figures["reasoning_ms"]) == (7, 2000.0)
    assert reasoning_note(figures["reasoning_ms"], figures["reasoning_tokens"]) == "2.0 s · 7 tokens · 3.50 tok/s"
    assert reasoning_note(None, 0) == ""
    assert reasoning_note(0.95, 1) == "0.0 s · 1 token"  # one token has no rate


def test_a_call_is_a_sign_of_life():
    turn = TurnStats(1)
    turn.add(events.Decode(t_ns=SECOND, turn=1, t0_ns=0, dt_us=(1,), k=(1,), m=(0,), a=(0,)))
    turn.add(events.ToolCall(t_ns=9 * SECOND, turn=1, index=0, name="look", arguments="{}"))
    assert turn.stalled(10 * SECOND) is None and turn.stalled(19 * SECOND) is not None
