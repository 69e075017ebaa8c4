"""What `/stats` says besides the table of figures, on the screen and in line mode."""

from __future__ import annotations

from ui.latency_events import engine, turn_events

from lingchat.events import Engine, Reasoning, Text, TurnEnd
from lingchat.stats import RunStats
from lingchat.ui.stats_table import table


def folded(*events: object) -> RunStats:
    run = RunStats()
    for event in events:
        run.add(event)  # type: ignore[arg-type]
    return run


def test_memory_stands_under_the_figures() -> None:
    run = folded(*turn_events(end=True))
    assert "memory   weights 98 MB · kv 47 MB · free 3.1 GB" in table(run).splitlines()
    run.add(Engine(t_ns=0, phase="ready", weights=10**9, kv=1000, state=77_000_000, snapshots=300_000_000))
    assert "memory   weights 1.0 GB · kv 1.0 kB · state 77 MB · snapshots 300 MB · free –" in table(run).splitlines()


def test_reasoning_of_the_last_turn_is_told() -> None:
    events = list(turn_events(rounds=10))
    run = folded(*events)
    assert "reasoning" not in table(run)
    last = events[-1].t_ns
    for event in (
        Reasoning(t_ns=last, turn=1, delta="hm"),
        Text(t_ns=last, turn=1, delta="yes"),
        TurnEnd(t_ns=last, turn=1, stop="eos"),
    ):
        run.add(event)
    assert run.current is not None
    assert f"reasoning of turn 1   0.1 s · {run.current.tokens} tokens" in table(run)
    assert "reasoning" not in table(run, "session")


def test_no_turn_is_no_table() -> None:
    assert table(folded(engine())) == "No turn yet."
