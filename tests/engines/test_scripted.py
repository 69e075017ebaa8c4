"""The scripted engine sends what a real engine sends, on a clock that can be virtual."""

from __future__ import annotations

import asyncio
import itertools
import math

import pytest

from lingchat import events as ev
from lingchat.engines.api import ChatRequest, Engine, Message, Sampling
from lingchat.engines.clocks import SpeedClock, VirtualClock
from lingchat.engines.scripted import Failure, LoadPhase, Pause, Script, ScriptCall, ScriptedEngine, ScriptTurn, pieces
from lingchat.errors import ConfigError, FetchError, TraceError


def ask(text: str = "Hello?", **rest) -> ChatRequest:
    return ChatRequest(messages=(Message("user", text),), **rest)


async def ready(engine: ScriptedEngine) -> ScriptedEngine:
    async for _ in engine.start():
        pass
    return engine


async def play(script: Script | ScriptTurn | str, request: ChatRequest | None = None) -> list[ev.AnyEvent]:
    if not isinstance(script, Script):
        script = Script.of(script)
    engine = await ready(ScriptedEngine(script, clock=VirtualClock()))
    return [event async for event in engine.chat(request or ask())]


def text_of(events: list[ev.AnyEvent]) -> str:
    return "".join(event.delta for event in events if isinstance(event, ev.Text))


def of(events, kind):
    return [event for event in events if isinstance(event, kind)]


def test_it_is_an_engine():
    assert isinstance(ScriptedEngine(), Engine)


@pytest.mark.parametrize("text", ["", " ", "one", "a  b\n\n```py\nx = 1\n```\n", "naïve 漢字 👩‍👩‍👧 end "])
def test_pieces_lose_nothing(text):
    assert "".join(pieces(text)) == text


async def test_order_and_figures_of_a_turn():
    turn = ScriptTurn(tokens=tuple("abcdef"), m=(3,), a=(2, 0), round_ms=(4.0, 6.0), prefill_ms=20, prefill_chunks=2)
    events = await play(turn)
    kinds = [type(event).__name__ for event in events]
    assert kinds[:5] == ["TurnStart", "Prefill", "Prefill", "TurnFirst", "Decode"]
    assert kinds[-1] == "TurnEnd"
    assert kinds.count("TurnStart") == kinds.count("TurnFirst") == kinds.count("TurnEnd") == 1
    decodes = of(events, ev.Decode)
    assert [decode.k for decode in decodes] == [(3,), (1,), (2,)]
    assert [decode.m for decode in decodes] == [(3,), (3,), (3,)]
    assert [decode.a for decode in decodes] == [(2,), (0,), (2,)]  # ends inside the drafts: no bonus token
    assert [decode.dt_us for decode in decodes] == [(4000,), (6000,), (4000,)]
    first = of(events, ev.TurnFirst)[0]
    assert first.first_token - first.accepted == 24_000_000
    assert decodes[0].t0_ns == first.prefill_end
    for before, after in itertools.pairwise(decodes):
        assert after.t0_ns == before.t0_ns + 1000 * sum(before.dt_us)
    assert text_of(events) == "abcdef"
    assert [event.t_ns for event in events] == sorted(event.t_ns for event in events)


async def test_rounds_can_come_in_batches_and_the_clock_adds_up():
    events = await play(ScriptTurn(tokens=tuple("x" * 10), round_ms=1.0003, rounds_an_event=4))
    decodes = of(events, ev.Decode)
    assert [len(decode.k) for decode in decodes] == [1, 4, 4, 1]
    first = of(events, ev.TurnFirst)[0]
    total = sum(sum(decode.dt_us) for decode in decodes)
    assert abs(first.prefill_end + 1000 * total - decodes[-1].t_ns) < 1000  # no rounding piles up


async def test_drafting_obeys_the_request():
    turn = ScriptTurn(text="word " * 20, m=(4,), a=(4, 3))
    off = of(await play(turn, ask(spec="off")), ev.Decode)
    assert {decode.m for decode in off} == {(0,)} and {decode.k for decode in off} == {(1,)}
    two = of(await play(turn, ask(spec=2)), ev.Decode)
    assert {decode.m for decode in two} == {(2,)} and max(decode.a for decode in two) == (2,)


async def test_limit_seed_reasoning_echo_and_ids():
    events = await play("one two three four", ask(sampling=Sampling(max_tokens=2, seed=7), keep_ids=True))
    assert events[-1].stop == "length"
    assert sum(sum(decode.k) for decode in of(events, ev.Decode)) == 2
    assert of(events, ev.TurnStart)[0].sampling["seed"] == 7
    assert [decode.ids for decode in of(events, ev.Decode)] == [(0,), (1,)]
    thinking = await play(ScriptTurn(reasoning="hm, ", text="yes"))
    assert "".join(event.delta for event in of(thinking, ev.Reasoning)) == "hm, "
    assert text_of(thinking) == "yes"
    assert text_of(await play(ScriptTurn(echo=True), ask("say\nthis"))) == "say\nthis"


async def test_calls_come_whole_after_the_text_and_count_as_tokens():
    calls = (ScriptCall(name="look", arguments='{"where":"Paris"}'), ScriptCall(name="go", id="functions.go:1"))
    events = await play(ScriptTurn(reasoning="hm", text="yes", calls=calls, m=(3,), a=(3,)))
    said = [event for event in events if isinstance(event, (ev.Reasoning, ev.Text, ev.ToolCall))]
    assert [type(event) for event in said] == [ev.Reasoning, ev.Text, ev.ToolCall, ev.ToolCall]
    assert [(call.index, call.name, call.arguments, call.id) for call in said[2:]] == [
        (0, "look", '{"where":"Paris"}', ""),
        (1, "go", "{}", "functions.go:1"),
    ]
    assert sum(sum(decode.k) for decode in of(events, ev.Decode)) == 4


async def test_failure_before_and_inside_a_turn_leaves_the_engine_usable():
    script = Script.of(
        ScriptTurn(failure=Failure(code="context_overflow", message="too long", at=-1)),
        ScriptTurn(text="abcdefghij klm", failure=Failure(code="template", message="broken", at=1)),
        "fine",
    )
    engine = await ready(ScriptedEngine(script, clock=VirtualClock()))
    refused = [event async for event in engine.chat(ask())]
    assert [type(event) for event in refused] == [ev.Error, ev.TurnEnd] and refused[0].code == "context_overflow"
    broken = [event async for event in engine.chat(ask())]
    assert text_of(broken) and broken[-2].code == "template" and broken[-1].stop == "error"
    assert text_of([event async for event in engine.chat(ask())]) == "fine"


async def test_a_prompt_over_the_context_is_refused():
    script = Script.of("never")
    script = Script(turns=script.turns, info=type(script.info)(name="small", context=16))
    events = await play(script, ask("word " * 40))
    assert [type(event) for event in events] == [ev.Error, ev.TurnEnd] and events[0].code == "context_overflow"


async def test_a_crash_needs_a_restart():
    engine = await ready(
        ScriptedEngine(Script.of(ScriptTurn(text="abc def ghi", crash=1), "back"), clock=VirtualClock())
    )
    crashed = [event async for event in engine.chat(ask())]
    assert crashed[-2].code == "engine_crashed" and crashed[-1].stop == "error" and text_of(crashed)
    still = [event async for event in engine.chat(ask())]
    assert [type(event) for event in still] == [ev.Error, ev.TurnEnd]
    await ready(engine)
    assert text_of([event async for event in engine.chat(ask())]) == "back"


async def test_cancel_ends_the_turn_within_a_round():
    engine = await ready(ScriptedEngine(Script.steady(tokens=100), clock=VirtualClock()))
    events = []
    async for event in engine.chat(ask()):
        events.append(event)
        if len(of(events, ev.Decode)) == 3:
            engine.cancel()
    assert events[-1].stop == "cancel"
    assert len(of(events, ev.Decode)) == 3


@pytest.mark.parametrize("pause", [None, 3_600_000.0])
async def test_cancel_ends_a_wait_at_once(pause):
    turn = ScriptTurn(text="abc def ghi", pause=Pause(at=1, ms=pause))
    engine = await ready(ScriptedEngine(Script.of(turn), clock=SpeedClock()))
    events: list[ev.AnyEvent] = []

    async def consume() -> None:
        async for event in engine.chat(ask()):
            events.append(event)
            if isinstance(event, ev.Text):
                asyncio.get_running_loop().call_soon(engine.cancel)

    await asyncio.wait_for(consume(), 5)
    assert events[-1].stop == "cancel" and text_of(events) == "abc"


async def test_cancel_without_a_request_does_nothing():
    engine = await ready(ScriptedEngine(Script.of("whole"), clock=VirtualClock()))
    engine.cancel()
    assert text_of([event async for event in engine.chat(ask())]) == "whole"


async def test_requests_queue_and_the_queue_shows_in_the_figures():
    clock = VirtualClock(auto=False)
    engine = ScriptedEngine(Script.of(ScriptTurn(text="a", prefill_ms=50, round_ms=10), "b"), clock=clock)
    async for _ in engine.start():
        pass

    async def run(turn: int) -> list[ev.AnyEvent]:
        return [event async for event in engine.chat(ask(turn=turn))]

    tasks = [asyncio.create_task(run(1)), asyncio.create_task(run(2))]
    for _ in range(100):
        if all(task.done() for task in tasks):
            break
        await clock.advance(10)
    one, two = await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert of(one, ev.TurnFirst)[0].started == of(one, ev.TurnFirst)[0].accepted
    waited = of(two, ev.TurnFirst)[0].started - of(two, ev.TurnFirst)[0].accepted
    assert waited >= 50_000_000
    assert {event.turn for event in two} == {2}


async def test_loading_reports_progress_and_can_fail():
    phases = (LoadPhase(phase="download", ms=100, reports=4, total_bytes=98_000_000), LoadPhase(phase="load", ms=50))
    engine = ScriptedEngine(Script(load=phases), clock=VirtualClock())
    events = [event async for event in engine.start()]
    assert [event.phase for event in events] == ["download"] * 5 + ["load"] * 2 + ["ready"]
    assert [event.done_bytes for event in events[:5]] == [0, 24_500_000, 49_000_000, 73_500_000, 98_000_000]
    bad = ScriptedEngine(Script(load=phases, load_failure=Failure(code="fetch", message="no network", at=1)))
    seen = []
    with pytest.raises(FetchError, match="no network"):
        async for event in bad.start():
            seen.append(event)
    assert {event.phase for event in seen} == {"download"}


async def test_steady_load_has_the_asked_rate():
    events = await play(Script.steady(tok_s=500, tokens=1000, drafts=3, accepted=(3, 1)))
    decodes = of(events, ev.Decode)
    assert sum(sum(decode.k) for decode in decodes) == 1000
    seconds = sum(sum(decode.dt_us) for decode in decodes) / 1e6
    assert math.isclose(1000 / seconds, 500, rel_tol=0.02)


async def test_a_trace_replays_with_its_own_figures():
    original = await play(Script.of(ScriptTurn(text="over and over", m=(2,), a=(1, 2))), ask("again?"))
    trace = [ev.RunStart(t_ns=0, id="r1", wall="", model="tiny"), *original]
    engine = await ready(ScriptedEngine.from_trace(trace, speed=4, clock=VirtualClock(77)))
    assert engine.prompts() == ("again?",)
    assert (await engine.info()).provenance == "replay" and (await engine.info()).name == "tiny"
    again = [event async for event in engine.chat(ask("again?", turn=5))]
    assert {event.turn for event in again} == {5}
    base, start = original[0].t_ns, again[0].t_ns
    for old, new in zip(original, again, strict=True):
        assert type(old) is type(new) and old.t_ns - base == new.t_ns - start
    assert [d.dt_us for d in of(again, ev.Decode)] == [d.dt_us for d in of(original, ev.Decode)]
    ended = [event async for event in engine.chat(ask())]
    assert ended[0].code == "trace"


async def test_stepping_moves_by_rounds_and_cancel_frees_it():
    original = await play(ScriptTurn(tokens=tuple("abcdefgh"), rounds_an_event=4))
    held: list[asyncio.Future[None]] = []

    def step() -> asyncio.Future[None]:
        held.append(asyncio.get_running_loop().create_future())
        return held[-1]

    engine = await ready(ScriptedEngine.from_trace(original, step=step))
    events: list[ev.AnyEvent] = []

    async def consume() -> None:
        async for event in engine.chat(ask()):
            events.append(event)

    async def until(condition) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0)

    task = asyncio.create_task(consume())
    for rounds in range(1, 4):
        await until(lambda n=rounds: len(held) == n)
        assert len(of(events, ev.Decode)) == rounds - 1
        held[-1].set_result(None)
    await until(lambda: len(held) == 4)
    assert [decode.k for decode in of(events, ev.Decode)] == [(1,)] * 3
    engine.cancel()
    await asyncio.wait_for(task, 5)
    assert events[-1].stop == "cancel"


async def test_a_cut_trace_says_so_and_an_empty_one_is_refused():
    original = await play("some words here")
    engine = await ready(ScriptedEngine.from_trace(original[:-2], clock=VirtualClock()))
    events = [event async for event in engine.chat(ask())]
    assert events[-2].code == "trace_cut" and events[-1].stop == "error"
    with pytest.raises(TraceError):
        ScriptedEngine.from_trace([])


async def test_counting_and_closing():
    engine = await ready(ScriptedEngine())
    assert await engine.count("") == 0
    assert await engine.count("four word text here") > 3
    assert await engine.count(ask("x")) > 1
    await engine.close()
    await engine.close()
    assert (await anext(engine.chat(ask()))).code == "engine_crashed"
    await ready(engine)  # as /restart does
    assert text_of([event async for event in engine.chat(ask())]) == "Hello."


def test_scripts_are_read_from_json_and_checked(tmp_path):
    path = tmp_path / "script.json"
    path.write_text(
        '{"turns": [{"text": "hi", "m": [2], "a": [1], "failure": {"code": "template", "message": "x", "at": 3}}]}'
    )
    assert Script.read(path).turns[0].failure.at == 3
    path.write_text('{"turns": [{"txt": "hi"}]}')
    with pytest.raises(ConfigError, match="txt"):
        Script.read(path)
    with pytest.raises(ConfigError, match="nowhere"):
        Script.read(tmp_path / "nowhere.json")


def test_a_clock_runs_at_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5_000
    monkeypatch.setattr("lingchat.engines.clocks.now_ns", lambda: now)
    clock = SpeedClock(4)
    before = clock.now_ns()
    now += 1_000
    assert clock.now_ns() - before == 4_000
