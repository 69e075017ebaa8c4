"""`lingchat replay`: the real chat screen, fed by a trace."""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pexpect
import pytest
from ui.helpers import wait_until

from lingchat import events as ev
from lingchat.cli import main
from lingchat.config import load_settings, paths
from lingchat.engines.api import ChatRequest, Message
from lingchat.engines.clocks import SpeedClock, VirtualClock
from lingchat.engines.scripted import Pause, Script, ScriptCall, ScriptedEngine, ScriptTurn
from lingchat.stats import footer, format_ms, reasoning_note
from lingchat.trace import Trace, TraceWriter, read_trace
from lingchat.ui.replay import ReplayApp, make_app

TURNS = (
    ScriptTurn(text="The cache keeps one entry per layer.", m=(3,), a=(2, 0, 1), round_ms=(40.0, 70.0)),
    ScriptTurn(text="Then it grows.", round_ms=30.0, stop="length"),
    ScriptTurn(text="And more.", round_ms=30.0),
)
QUESTIONS = ("Why does it grow?", "And then?", "And more?")


async def record(folder: Path, *turns: ScriptTurn, questions: tuple[str, ...] = QUESTIONS) -> Path:
    """A trace as a chat writes it."""
    engine = ScriptedEngine(Script(turns=turns or TURNS), clock=VirtualClock())
    start = ev.RunStart(
        t_ns=engine.clock.now_ns(), id="recorded", wall="2025-03-01T09:41:00+01:00", machine="a test machine"
    )
    writer = TraceWriter.create(folder, start)
    async for event in engine.start():
        writer.write(event)
    for number, question in enumerate(questions, 1):
        request = ChatRequest(messages=(Message("user", question),), turn=number)
        async for event in engine.chat(request):
            writer.write(event)
    writer.write(ev.RunEnd(t_ns=engine.clock.now_ns(), status="ok", exit=0))
    writer.close()
    return writer.path


@asynccontextmanager
async def replaying(trace: Trace, **how):
    app = make_app(trace, load_settings(), **how)
    async with app.run_test(size=(120, 40)) as pilot:
        yield app, pilot


def texts(app: ReplayApp) -> list[tuple[str, str]]:
    return [(message.view.role, message.text) for message in app._chat_screen.conversation.messages]


async def test_reasoning_and_calls_are_replayed_as_they_were(tmp_path: Path) -> None:
    call = ScriptCall(name="look", arguments='{"where":"Paris"}')
    turns = (
        ScriptTurn(reasoning="let me see what this is", text="So it is.", calls=(call,), round_ms=30.0),
        ScriptTurn(reasoning="and so on and so on", stop="length", round_ms=30.0),
    )
    trace = read_trace(await record(tmp_path, *turns, questions=QUESTIONS[:2]))
    recorded = trace.fold().turns[1].reasoning
    async with replaying(trace, speed=20) as (app, pilot):
        await wait_until(pilot, lambda: app.over)
        first, second = (message.view for message in app._chat_screen.conversation.messages[1::2])
        assert first.reasoning == "let me see what this is"
        assert first.reasoning_note == reasoning_note(recorded.ms, recorded.tokens) != ""
        assert [(made.name, made.arguments) for made in first.calls] == [("look", '{"where":"Paris"}')]
        assert (second.text, second.stop) == ("", "length")
        conversation = app._chat_screen.conversation
        conversation.flush()
        shown = [conversation.render_line(y).text for y in range(conversation.size.height)]
        assert any("✗ no answer: the length limit was reached inside the reasoning" in line for line in shown)
        assert any('→ look {"where":"Paris"}  not run' in line for line in shown)


async def test_questions_and_answers_appear_with_the_recorded_figures(tmp_path: Path) -> None:
    trace = read_trace(await record(tmp_path))
    async with replaying(trace, speed=20) as (app, pilot):
        await wait_until(pilot, lambda: app.over)
        assert texts(app) == [
            part
            for question, turn in zip(QUESTIONS, TURNS, strict=True)
            for part in (("user", question), ("assistant", turn.text))
        ]
        replies = app._chat_screen.conversation.messages[1::2]
        recorded = trace.fold()
        assert [reply.view.footer for reply in replies] == [footer(recorded.turns[n]) for n in (1, 2, 3)]
        assert app.chat.stats.turns[1].tpot(0.95) == recorded.turns[1].tpot(0.95)
        seen = app.export_screenshot()
        assert "replay" in seen and format_ms(recorded.turns[3].ttft_ms) in seen
        assert not app._chat_screen.query_one("#entry").display


async def test_rounds_take_their_recorded_time_on_a_clock_that_runs_at_the_speed(tmp_path: Path) -> None:
    turn = ScriptTurn(text="one two three", round_ms=400.0, prefill_ms=100.0)
    trace = read_trace(await record(tmp_path, turn, questions=("go",)))
    own = make_app(trace, load_settings(), speed=4)._engine.clock
    assert isinstance(own, SpeedClock) and own.speed == 4
    clock = VirtualClock(auto=False)
    async with replaying(trace, speed=4, clock=clock) as (app, pilot):
        await wait_until(pilot, lambda: texts(app))
        await wait_until(pilot, lambda: clock._timers)
        seen = []
        for ms in (499, 1, 399, 1, 399, 1):
            await clock.advance(ms)
            await pilot.pause()
            seen.append(app.chat.stats.turns[1].rounds)
        assert seen == [0, 1, 1, 2, 2, 3]
        assert app.chat.stats.turns[1].round(0.5) == pytest.approx(400, rel=0.01)


async def test_each_key_lets_one_round_go(tmp_path: Path) -> None:
    trace = read_trace(
        await record(tmp_path, ScriptTurn(tokens=tuple("abcdefgh"), rounds_an_event=4), questions=("go",))
    )
    async with replaying(trace, step=True) as (app, pilot):
        await wait_until(pilot, lambda: app._steps is not None and app._steps._held is not None)
        for rounds, key in enumerate(("space", "right", "enter"), 1):
            await pilot.press(key)
            await wait_until(pilot, lambda n=rounds: app.chat.stats.turns[1].rounds == n)
            for _ in range(5):
                await pilot.pause()
            assert app.chat.stats.turns[1].rounds == rounds  # and no further one by itself
        await pilot.press("c")
        await wait_until(pilot, lambda: app.over)
        assert texts(app)[-1] == ("assistant", "abcdefgh")


async def test_a_stalled_clock_is_no_stall(tmp_path: Path) -> None:
    """While a person looks at a round, time stands still: nothing may call that a stall of the model."""
    trace = read_trace(await record(tmp_path, ScriptTurn(text="one two three four"), questions=("go",)))
    async with replaying(trace, step=True) as (app, pilot):
        await wait_until(pilot, lambda: app._steps is not None and app._steps._held is not None)
        await pilot.press("space")
        await wait_until(pilot, lambda: 1 in app.chat.stats.turns and app.chat.stats.turns[1].rounds)
        before = app._engine.clock.now_ns()
        app._chat_screen.turns.tick()
        await pilot.pause()
        assert app._engine.clock.now_ns() == before and app._chat_screen.turns.stall is None


async def test_a_recorded_failure_and_a_cut_trace_are_shown(tmp_path: Path) -> None:
    path = await record(tmp_path, ScriptTurn(text="abc def ghi", crash=2), questions=("go", "again"))
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(b"\n".join(path.read_bytes().splitlines()[:7]))
    async with replaying(read_trace(path), speed=50) as (app, pilot):
        await wait_until(pilot, lambda: len(texts(app)) == 2 and not app._chat_screen.turns.busy)
        assert app._chat_screen.conversation.messages[1].view.stop == "error"
    async with replaying(read_trace(cut), speed=50) as (app, pilot):
        await wait_until(pilot, lambda: app.over)
        assert texts(app)[0] == ("user", "go")


async def test_a_recorded_stop_does_not_end_the_replay(tmp_path: Path) -> None:
    path = await record(
        tmp_path, ScriptTurn(text="abc def", stop="cancel"), ScriptTurn(text="fine"), questions=("a", "b")
    )
    async with replaying(read_trace(path), speed=50) as (app, pilot):
        await wait_until(pilot, lambda: app.over)
        assert [text for _, text in texts(app)] == ["a", "abc def", "b", "fine"]


async def test_q_leaves(tmp_path: Path) -> None:
    trace = read_trace(
        await record(tmp_path, ScriptTurn(text="a b", pause=Pause(at=0, ms=3_600_000)), questions=("go",))
    )
    async with replaying(trace) as (app, pilot):
        await wait_until(pilot, lambda: texts(app))
        await pilot.press("q")
        await wait_until(pilot, lambda: not app.is_running)


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["nothing-like-it"], 3, "nothing-like-it"),
        ([__file__], 3, "is no trace"),
        (["x", "--speed", "0"], 2, "speed"),
        (["x", "--speed", "2", "--step"], 2, "not allowed with"),
    ],
)
def test_what_cannot_be_replayed_says_why(capsys, argv: list[str], code: int, said: str) -> None:
    assert main(["replay", *argv]) == code
    assert said in capsys.readouterr().err


async def test_without_a_terminal_it_names_stats(capsys, tmp_path: Path) -> None:
    path = await record(tmp_path)
    assert main(["replay", str(path)]) == 2
    assert "lingchat stats" in capsys.readouterr().err


async def test_the_installed_command(tmp_path: Path) -> None:
    await record(paths().runs)
    environ = {**os.environ, "TERM": "xterm-256color"}
    command = ["-m", "lingchat", "replay", "last", "--speed", "50"]
    child = pexpect.spawn(sys.executable, command, env=environ, timeout=20, encoding="utf-8", dimensions=(40, 120))
    child.expect("Why does it grow")
    child.expect("the run ends here")
    child.send("q")
    child.expect_exact("\x1b[?1049l")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0
