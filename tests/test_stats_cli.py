"""`lingchat stats`: one run or several, the digits of the screen, and clear errors."""

from __future__ import annotations

import json

import pytest
from make_turns import turn_events

from lingchat import events
from lingchat.config import paths
from lingchat.errors import TraceError, UsageError
from lingchat.stats import footer, reasoning_note
from lingchat.stats_cli import main
from lingchat.trace import TraceWriter, read_trace

SLOW = [(14_000, 1, 4, 0), *[(10_000, 3, 4, 2)] * 20]
FAST = [(7_000, 1, 4, 0), *[(5_000, 3, 4, 2)] * 20]


def recorded(name, *turns, model="m"):
    start = events.RunStart(t_ns=0, id=name, wall=f"2025-03-01T09:41:0{len(turns)}+01:00", model=model, machine="box")
    writer = TraceWriter.create(paths().runs, start)
    for number, rounds in enumerate(turns, 1):
        for event in turn_events(rounds, turn=number):
            writer.write(event)
    writer.close()
    return writer


def rows(text):
    """The table as {label: cells}; labels of sub-rows carry no indent."""
    return {line[:19].strip(): line[19:].split() for line in text.splitlines() if len(line) > 19}


def test_one_turn(capsys):
    writer = recorded("alpha", SLOW)
    assert main(["alpha"]) == 0
    out = capsys.readouterr().out
    turn = writer.stats.current
    assert "run alpha · 2025-03-01T09:41:01+01:00 · m" in out and "box" in out
    assert rows(out)["TTFT ms"] == ["143"] and rows(out)["prefill"] == ["128"]
    assert rows(out)["TPOT p50 ms"][0] in footer(turn) and rows(out)["acceptance length"][0] in footer(turn)
    assert "within 1 %" in out


def test_reasoning_of_a_turn_is_told_as_on_the_screen(capsys):
    start = events.RunStart(t_ns=0, id="alpha", wall="2025-03-01T09:41:01+01:00", model="m", machine="box")
    writer = TraceWriter.create(paths().runs, start)
    for event in turn_events(SLOW):
        if isinstance(event, events.TurnEnd):
            writer.write(events.Reasoning(t_ns=event.t_ns, turn=1, delta="hm"))
        writer.write(event)
    writer.close()
    main(["alpha"])
    thought = writer.stats.current.reasoning
    assert thought.tokens > 1
    told = f"reasoning          {reasoning_note(thought.ms, thought.tokens)}"
    assert told in capsys.readouterr().out.splitlines()


def test_many_turns_show_their_footers_and_one_can_be_chosen(capsys):
    writer = recorded("alpha", SLOW, FAST)
    main(["alpha"])
    out = capsys.readouterr().out
    for number, turn in writer.stats.turns.items():
        assert f"turn {number}   {footer(turn)}" in out
    assert rows(out)["tokens"] == ["122"]
    main(["alpha", "--turn", "2"])
    assert rows(capsys.readouterr().out)["tokens"] == ["61"]
    with pytest.raises(UsageError, match="no turn 3; its turns are: 1, 2"):
        main(["alpha", "--turn", "3"])


def test_several_runs_side_by_side(capsys):
    recorded("alpha", SLOW)
    recorded("beta", FAST)
    main(["alpha", "beta", "--exact"])
    table = rows(capsys.readouterr().out)
    assert table["TPOT p50 ms"] == ["3.33", "1.67", "(×0.50)"]
    assert table["tok/s"] == ["300", "600", "(×2.00)"]
    assert table["hiccups"] == ["0", "0"]  # no ratio to nothing


def test_exact_quantiles(capsys):
    recorded("alpha", [(ms * 1000, 1, 0, 0) for ms in (9, 4, 5, 6)])
    main(["alpha", "--exact"])
    out = capsys.readouterr().out
    assert rows(out)["TPOT p50 ms"] == ["5.00"] and "Quantiles are exact" in out
    main(["alpha"])
    shown = float(rows(capsys.readouterr().out)["TPOT p50 ms"][0])
    assert shown != 5.0 and shown == pytest.approx(5.0, rel=0.01)


def test_every_line_fits_a_terminal_of_80_columns(capsys):
    recorded("alpha", SLOW)
    for arguments in (["alpha"], ["alpha", "--exact"]):
        main(arguments)
        assert max(map(len, capsys.readouterr().out.splitlines()[2:])) < 80


def test_json(capsys):
    writer = recorded("alpha", SLOW)
    recorded("beta", FAST)
    main(["alpha", "beta", "--output", "json"])
    found = json.loads(capsys.readouterr().out)
    assert found["schema_version"] == 1
    alpha, beta = found["runs"]
    assert alpha["run"] == "alpha" and "ratios" not in alpha
    end = next(event for event in read_trace(writer.path) if isinstance(event, events.TurnEnd))
    assert alpha["figures"] == end.stats == {k: v for k, v in alpha["turns"][0].items() if k != "turn"}
    assert beta["ratios"]["tpot_p50_ms"] == pytest.approx(0.5, rel=0.02)


def test_the_newest_run_is_the_default(capsys):
    recorded("alpha", SLOW)
    recorded("beta", FAST, FAST)
    main([])
    assert "run beta" in capsys.readouterr().out


def test_what_was_passed_over_is_said_on_stderr(capsys):
    writer = recorded("alpha", SLOW)
    with writer.path.open("ab") as file:
        file.write(b'nonsense\n{"v":1,"seq":9,"type":"tool.start","t_ns":1}\n{"v":1,"se')
    main(["alpha"])
    error = capsys.readouterr().err
    assert all(part in error for part in ("last line is torn", "1 damaged lines", "1 events of a newer version"))


def test_a_run_without_turns_shows_unknown_values(capsys):
    recorded("alpha")
    main(["alpha"])
    table = rows(capsys.readouterr().out)
    assert table["TTFT ms"] == table["TPOT p50 ms"] == table["tok/s"] == ["–"]


def test_names_from_a_trace_reach_no_terminal_as_controls(capsys):
    recorded("alpha", SLOW, model="evil\x1b]0;x\x07")
    main(["alpha"])
    assert "\x1b" not in capsys.readouterr().out


def test_errors(tmp_path):
    with pytest.raises(TraceError, match="nor is there any yet"):
        main(["nowhere"])
    with pytest.raises(UsageError):
        main(["--nonsense"])
