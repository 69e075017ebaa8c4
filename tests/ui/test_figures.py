"""What the panel says: the digits of the statistics, dashes for the unknown, and a line for every state."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from ui.latency_events import MS, engine, turn_events

from lingchat import stats
from lingchat.events import AnyEvent, Engine, Prefill, Stall, TurnEnd, TurnStart
from lingchat.stats import RunStats
from lingchat.ui.widgets import figures

WIDTH = 36


def folded(*events: AnyEvent) -> RunStats:
    run = RunStats()
    for event in events:
        run.add(event)
    return run


def said(run: RunStats, now_ns: int, height: int = 30, width: int = WIDTH) -> str:
    lines = figures.head_lines(run, now_ns, width) + figures.tail_lines(run, width, height)
    assert max(line.cell_length for line in lines) <= width
    return "\n".join(line.plain for line in lines)


def words(text: str) -> list[str]:
    return text.split()


def test_the_digits_are_those_of_the_statistics() -> None:
    run = folded(*turn_events(end=True))
    turn = run.current
    assert turn is not None
    text = said(run, 10**10)
    report = stats.summary(turn)
    for name in (
        "ttft_ms",
        "queue_ms",
        "tokenize_ms",
        "prompt_ms",
        "first_round_ms",
        "tpot_p50_ms",
        "tpot_p95_ms",
        "tpot_p99_ms",
        "round_p50_ms",
        "round_p95_ms",
    ):
        metric = next(metric for metric in stats.METRICS if metric.name == name)
        assert metric.text(turn) in words(text), name
        assert float(metric.text(turn)) == report[name]
    assert stats.format_ratio(turn.accept_len) in words(text)
    assert stats.format_percent(turn.accept_rate) in words(text)
    assert stats.format_rate(turn.tok_s) in words(text)
    assert stats.format_count(turn.tokens) in words(text)
    for share in turn.positions:
        assert stats.format_share(share) in words(text)
    for number, count in enumerate(turn.accept_hist):
        row = next(line for line in text.splitlines() if line.startswith(f" {number} "))
        assert row.endswith(stats.format_percent(count / sum(turn.accept_hist)))
    assert f"hiccups {turn.hiccups}" in text
    assert f"{stats.format_count(180 + turn.tokens)} / 8,192" in text


def test_nothing_known_is_dashes_and_never_zero() -> None:
    text = said(RunStats(), 0)
    assert "no engine" in text
    assert "0" not in text.replace("p50", "")
    assert text.count("–") >= 12


def test_without_drafting_there_is_no_acceptance() -> None:
    text = said(folded(*turn_events(drafts=0)), 10**10)
    assert "no draft" in text
    assert "accept" not in text and "pos" not in text


def test_memory_gauges_show_what_is_known() -> None:
    text = said(folded(engine()), 0)
    assert "weights 98 MB" in text.replace("  ", " ") and "kv 47 MB" in text and "free 3.1 GB" in text
    assert "state –" in text


def test_the_state_of_a_hybrid_model_and_its_snapshots_are_gauges_too() -> None:
    hybrid = Engine(
        t_ns=0,
        phase="ready",
        weights=255 * 10**9,
        kv=12_600_000,
        state=77_000_000,
        snapshots=999_600_000,
        free=8 * 10**9,
    )
    lines = said(folded(hybrid), 0).splitlines()
    squeezed = [" ".join(line.split()) for line in lines]
    assert "weights 255 GB kv 13 MB" in squeezed and "state 77 MB snapshots 1.0 GB" in squeezed
    assert "free 8.0 GB" in lines
    assert all(len(line) <= WIDTH for line in lines)
    assert "snapshots" not in said(folded(engine()), 0)  # a dense model keeps the lines it had


def test_prefill_shows_progress_and_speed() -> None:
    start = TurnStart(t_ns=0, turn=1, prompt_tokens=1000, reused=200)
    run = folded(engine(), start, Prefill(t_ns=400 * MS, turn=1, done=400, total=800))
    text = said(run, 500 * MS)
    assert text.startswith("prefill")
    assert "400 / 800 tok" in text and "reuse 20%" in text
    assert stats.format_rate(1000.0) in words(text)
    bar = text.splitlines()[2]
    assert bar.count("█") == WIDTH // 2


def test_a_stall_names_its_phase_and_clears_itself() -> None:
    events = list(turn_events(rounds=50))
    run = folded(*events)
    quiet = events[-1].t_ns + 5_000 * MS
    assert "stalled in decode" in said(run, quiet) and "esc stops" in said(run, quiet)
    assert "stalled" in figures.one_line(run, quiet, 80)[0][0][0]
    run.add(Stall(t_ns=quiet, phase="decode", waited_ms=5000.0, turn=1))
    assert "stalls 1" in said(run, quiet)
    late = list(turn_events(rounds=51))[-1]
    run.add(late)
    assert "stalled" not in said(run, late.t_ns)


def test_every_end_has_its_word() -> None:
    for stop, word in (("eos", "done"), ("cancel", "stopped"), ("error", "failed"), ("length", "length limit")):
        run = folded(*turn_events(rounds=3), TurnEnd(t_ns=10**9, turn=1, stop=stop))
        assert said(run, 10**10).startswith(word)


def test_loading_shows_progress_or_says_that_it_is_unknown() -> None:
    loading = Engine(
        t_ns=0, phase="download", progress=0.5, done_bytes=49_000_000, total_bytes=98_000_000, message="m\x1b[2J"
    )
    lines = [line.plain for line in figures.loading_lines(loading, WIDTH)]
    assert lines[0].count("█") == WIDTH // 2
    assert "49 MB / 98 MB" in lines[1] and "50%" in lines[1]
    assert "\x1b" not in "".join(lines)
    assert "–" in figures.loading_lines(Engine(t_ns=0, phase="load"), WIDTH)[1].plain
    pieces, _ = figures.one_line(folded(loading), 0, 80)
    assert "downloading model" in pieces[0][0] and "50%" in pieces[-1][0]


@pytest.mark.parametrize("width", [1, 5, 12, 20, 40, 80, 200])
def test_one_line_drops_what_does_not_fit(width: int) -> None:
    events = list(turn_events())
    run = folded(*events)
    pieces, room = figures.one_line(run, events[-1].t_ns, width)
    used = sum(cell_len(text) for text, _ in pieces)
    assert used + room <= width
    text = "".join(text for text, _ in pieces)
    if width >= 80:
        turn = run.current
        assert turn is not None
        tpot = "/".join(stats.format_ms(turn.tpot(q)) for q in (0.5, 0.95, 0.99))
        assert f"TPOT {tpot}" in text and f"TTFT {stats.format_ms(turn.ttft_ms)}" in text and "ctx 8%" in text


@pytest.mark.parametrize("height", range(0, 30, 3))
def test_the_lower_lines_keep_to_their_height(height: int) -> None:
    assert len(figures.tail_lines(folded(*turn_events(drafts=12)), WIDTH, height)) <= height
