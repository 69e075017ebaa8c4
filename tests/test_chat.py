"""The glue: what a front end sees is already in the trace, in the session and in the figures."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lingchat.chat import Chat
from lingchat.config import load_settings
from lingchat.engines.api import Message, ModelInfo, ToolCall
from lingchat.engines.clocks import VirtualClock
from lingchat.engines.scripted import Failure, LoadPhase, Pause, Script, ScriptCall, ScriptedEngine, ScriptTurn
from lingchat.errors import DiskError, FetchError, SessionError
from lingchat.events import AnyEvent, Error, RunStart, Stall, Text, TurnEnd, Warn, now_ns
from lingchat.events import ToolCall as Called
from lingchat.session import Session, SessionStore
from lingchat.stats import footer
from lingchat.trace import TraceWriter, read_trace


class Made:
    """A chat over scripted turns, with its store and trace on disk."""

    def __init__(self, folder: Path, *turns: ScriptTurn | str, keep: bool = True, **flags: object) -> None:
        self.store = SessionStore(folder / "sessions")
        session = self.store.create() if keep else None
        trace = TraceWriter.create(folder / "runs", RunStart(t_ns=now_ns(), id="", wall="")) if keep else None
        self.engine = ScriptedEngine(Script.of(*turns), clock=VirtualClock())
        self.chat = Chat(self.engine, session, trace, load_settings(flags, env={}, file=folder / "none.toml"))

    async def ready(self) -> Made:
        async for _ in self.chat.start():
            pass
        return self

    @property
    def session(self) -> Session:
        assert self.chat.session is not None
        return self.chat.session

    async def say(self, text: str) -> list[AnyEvent]:
        return [event async for event in self.chat.send(text)]


def text(events: list[AnyEvent]) -> str:
    return "".join(event.delta for event in events if isinstance(event, Text))


async def test_a_turn_is_kept_traced_and_folded(tmp_path: Path) -> None:
    made = await Made(tmp_path, "Paris.", "Berlin.").ready()
    assert made.chat.info is not None
    assert text(await made.say("France?")) == "Paris."
    await made.say("Germany?")
    path = made.session.path()
    assert [(node.role, node.content) for node in path] == [
        ("user", "France?"), ("assistant", "Paris."), ("user", "Germany?"), ("assistant", "Berlin."),
    ]  # fmt: skip
    reply = path[3]
    assert made.chat.trace is not None
    assert (reply.stop, reply.run, reply.turn) == ("eos", made.chat.trace.id, 2)
    assert reply.footer == footer(made.chat.stats.turns[2])
    await made.chat.close(0)
    folded = read_trace(made.chat.trace.path).fold()
    assert [footer(folded.turns[n]) for n in (1, 2)] == [path[1].footer, path[3].footer]
    assert folded.end is not None and folded.end.status == "ok"
    await made.chat.close(0)  # a second time is no error


async def test_the_request_carries_the_branch_and_the_system_prompt(tmp_path: Path) -> None:
    made = await Made(tmp_path, ScriptTurn(echo=True), system="Be brief.").ready()
    await made.say("one")
    await made.say("two")
    first = made.session.path()[0]
    seen = [event async for event in made.chat.edit(first, "uno")]
    assert text(seen) == "uno"
    assert [node.content for node in made.session.path()] == ["uno", "uno"]
    assert len(made.session.siblings(made.session.path()[0])) == 2
    assert made.session.messages()[0].content == "Be brief."
    assert await made.chat.count("x") > await made.chat.count("")


async def test_regenerate_makes_a_sibling_and_nothing_is_lost(tmp_path: Path) -> None:
    made = await Made(tmp_path, "first", "second").ready()
    await made.say("go")
    reply = made.session.path()[1]
    events = [event async for event in made.chat.regenerate(reply)]
    assert text(events) == "second"
    assert [node.content for node in made.session.siblings(made.session.path()[1])] == ["first", "second"]
    with pytest.raises(SessionError):
        made.chat.regenerate(made.session.path()[0])
    with pytest.raises(SessionError):
        made.chat.edit(reply, "no")


async def test_what_is_refused_was_never_said(tmp_path: Path) -> None:
    refusal = ScriptTurn(failure=Failure(code="context_overflow", message="too long", at=-1))
    made = await Made(tmp_path, refusal, "fine").ready()
    events = await made.say("x" * 100)
    assert any(isinstance(event, Error) for event in events)
    assert made.session.path() == []
    await made.say("short")
    assert [node.content for node in made.session.path()] == ["short", "fine"]


async def test_a_crash_keeps_the_partial_reply(tmp_path: Path) -> None:
    crash = ScriptTurn(text="one two three four", failure=Failure(code="engine_crashed", message="gone", at=2))
    made = await Made(tmp_path, crash, "back").ready()
    events = await made.say("go")
    assert isinstance(events[-1], TurnEnd) and events[-1].stop == "error"
    reply = made.session.path()[1]
    assert reply.stop == "error" and 0 < len(reply.content) < len("one two three four")
    async for _ in made.chat.restart():
        pass
    assert text(await made.say("again")) == "back"


async def test_leaving_early_cancels_and_keeps_what_came(tmp_path: Path) -> None:
    made = await Made(tmp_path, ScriptTurn(text="a long reply " * 50), "next").ready()
    stream = made.chat.send("go")
    async for event in stream:
        if isinstance(event, Text):
            break
    await stream.aclose()  # type: ignore[attr-defined]
    reply = made.session.path()[1]
    assert reply.stop == "cancel" and reply.content
    assert text(await made.say("on")) == "next"


async def test_without_a_session_the_conversation_lives_in_memory(tmp_path: Path) -> None:
    made = await Made(tmp_path, ScriptTurn(echo=True), keep=False, system="Be brief.").ready()
    await made.say("one")
    before = await made.chat.count("x")
    await made.say("two and more")
    assert await made.chat.count("x") > before
    assert not (tmp_path / "sessions").exists() and not (tmp_path / "runs").exists()


async def test_a_full_disk_costs_the_record_not_the_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await Made(tmp_path, "a reply of some length", "after").ready()
    full = True

    def sync(self: object) -> None:
        if full:
            raise DiskError("no space left on the disk")
        original(self)

    from lingchat.journal import Journal

    original = Journal.sync
    monkeypatch.setattr(Journal, "sync", sync)
    events = await made.say("go")
    assert text(events) == "a reply of some length"
    warnings = [event for event in events if isinstance(event, Warn)]
    assert len(warnings) == 1 and "disk" in warnings[0].message
    full = False
    await made.say("and now")
    await made.chat.close(0)
    again = made.store.open(made.session.id)
    assert [node.content for node in again.path()] == ["go", "a reply of some length", "and now", "after"]


async def test_a_silence_is_noted_once(tmp_path: Path) -> None:
    made = await Made(tmp_path, ScriptTurn(text="one two three", pause=Pause(at=1))).ready()
    stream = made.chat.send("go")
    async for event in stream:
        if isinstance(event, Text):
            break
    later = event.t_ns
    for seconds in (1, 30, 31, 32):
        made.chat.tick(later + seconds * 10**9)
    await stream.aclose()  # type: ignore[attr-defined]
    await made.chat.close(130)
    assert made.chat.trace is not None
    stalls = [event for event in read_trace(made.chat.trace.path) if isinstance(event, Stall)]
    assert len(stalls) == 1 and stalls[0].phase == "decode"


# ---------------------------------------------------------------- reasoning, calls, thinking

LOOK = ScriptTurn(
    reasoning="Let me look.", text="One moment.", calls=(ScriptCall(name="look", arguments='{"where":"Paris"}'),)
)


def sent(made: Made) -> list[Message]:
    """The messages of the last request."""
    messages = made.engine.requests[-1].messages
    assert messages is not None
    return list(messages)


@pytest.mark.parametrize("keep", [True, False])
async def test_a_reply_goes_back_whole_with_the_next_question(tmp_path: Path, keep: bool) -> None:
    """What the engine's state holds of a reply is its reasoning too: without it the next prompt would not begin so."""
    made = await Made(tmp_path, LOOK, ScriptTurn(reasoning="So.", text="Sunny."), "Bye.", keep=keep).ready()
    seen = await made.say("weather?")
    (called,) = [event for event in seen if isinstance(event, Called)]
    assert (called.index, called.name, called.arguments) == (0, "look", '{"where":"Paris"}')
    await made.say("well?")
    reply = sent(made)[1]
    assert (reply.content, reply.reasoning) == ("One moment.", "Let me look.")
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("look", '{"where":"Paris"}')]
    assert reply.tool_calls[0].id
    await made.say("thanks")
    assert [message.reasoning for message in sent(made)] == ["", "Let me look.", "", "So.", ""]


async def test_a_session_that_goes_on_sends_the_same_history(tmp_path: Path) -> None:
    """After `-r`, and beside an edited or regenerated message too."""
    made = await Made(tmp_path, LOOK, ScriptTurn(reasoning="So.", text="Sunny.")).ready()
    await made.say("weather?")
    await made.say("well?")
    await made.chat.close(0)
    session = made.store.open(made.session.id)
    engine = ScriptedEngine(Script.of("Yes."), clock=VirtualClock())
    chat = Chat(engine, session, None, load_settings({}, env={}, file=tmp_path / "none.toml"))
    async for _ in chat.start():
        pass
    well, sunny = session.path()[2:]
    wanted = [
        Message("user", "weather?"),
        Message("assistant", "One moment.", "Let me look.", (ToolCall("look", '{"where":"Paris"}', "call_2_0"),)),
    ]
    for ask, rest in (
        (lambda: chat.send("really?"), [Message("user", "well?"), Message("assistant", "Sunny.", "So."), "really?"]),
        (lambda: chat.edit(well, "and now?"), ["and now?"]),
        (lambda: chat.regenerate(sunny), ["well?"]),
    ):
        async for _ in ask():
            pass
        messages = engine.requests[-1].messages
        assert messages is not None
        assert list(messages) == wanted + [Message("user", part) if isinstance(part, str) else part for part in rest]
    await chat.close(0)


async def test_a_call_is_in_the_trace_and_replays(tmp_path: Path) -> None:
    made = await Made(tmp_path, LOOK).ready()
    await made.say("weather?")
    trace = made.chat.trace
    assert trace is not None
    await made.chat.close(0)
    recorded = read_trace(trace.path)
    assert not recorded.unknown and not recorded.damaged
    turn = recorded.fold().turns[1]
    assert turn.reasoning.tokens > 0 and turn.reasoning.ms is not None
    again = ScriptedEngine.from_trace(recorded, clock=VirtualClock())
    chat = Chat(again, None, None, load_settings({}, env={}, file=tmp_path / "none.toml"))
    async for _ in chat.start():
        pass
    seen = [event async for event in chat.send("weather?")]
    assert [(event.name, event.arguments) for event in seen if isinstance(event, Called)] == [
        ("look", '{"where":"Paris"}')
    ]


async def test_a_model_is_sampled_as_its_publisher_suggests_unless_someone_asked(tmp_path: Path) -> None:
    made = Made(tmp_path, "x", top_p=0.5)
    advice = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    made.engine.script = Script.of("x", info=ModelInfo(name="m", suggested_sampling=advice))
    await made.ready()
    sampling = made.chat.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.5, 20)
    made.chat.sampling = msgspec.structs.replace(sampling, top_k=3)
    made.engine.script = Script.of("x", info=ModelInfo(name="other", suggested_sampling={"min_p": 0.1}))
    async for _ in made.chat.restart():
        pass
    sampling = made.chat.sampling  # what was set by hand stays, what the first model suggested goes
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.7, 0.5, 3, 0.1)
    await made.say("x")
    assert made.engine.requests[-1].sampling == sampling


@pytest.mark.parametrize(("setting", "sent_as"), [("auto", None), ("on", True), ("off", False)])
async def test_the_wish_for_thinking_travels_with_every_request(tmp_path: Path, setting: str, sent_as: object) -> None:
    made = await Made(tmp_path, "x", thinking=setting).ready()
    await made.say("one")
    assert made.engine.requests[-1].thinking is sent_as
    made.chat.thinking = True
    await made.say("two")
    assert made.engine.requests[-1].thinking is True


@pytest.mark.parametrize(
    ("setting", "switch", "told"),
    [("on", False, True), ("off", False, True), ("auto", False, False), ("on", True, False), ("on", None, False)],
)
async def test_a_model_without_a_switch_for_thinking_is_named(
    tmp_path: Path, setting: str, switch: bool | None, told: bool
) -> None:
    made = Made(tmp_path, "x", thinking=setting)
    made.engine.script = Script.of("x", info=ModelInfo(name="plain model", thinking_switch=switch))
    warned = [event.message async for event in made.chat.start() if isinstance(event, Warn)]
    assert warned == ([f"plain model has no switch for thinking in its template: {setting} changes nothing"] * told)


async def test_an_engine_that_cannot_load_is_told_in_trace_and_figures(tmp_path: Path) -> None:
    made = Made(tmp_path, "x")
    failure = Failure(code="fetch", message="no network", at=1)
    made.engine.script = msgspec.structs.replace(made.engine.script, load=(LoadPhase(),), load_failure=failure)
    with pytest.raises(FetchError):
        await made.ready()
    assert made.chat.stats.engine is None and made.chat.stats.errors == 1
    assert made.chat.trace is not None
    path = made.chat.trace.path
    await made.chat.close(4)
    assert [event.message for event in read_trace(path) if isinstance(event, Error)] == ["no network"]
