"""A script played behind the pipe: the same events as in this process, cancels, counts, and failures that are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lingchat.engines import local
from lingchat.engines.api import ChatRequest, Message
from lingchat.engines.choose import choose_engine, launch
from lingchat.engines.local import LocalEngine
from lingchat.engines.script import Failure, Pause, Script, ScriptTurn
from lingchat.errors import ConfigError, EngineCrashed, ModelFileError
from lingchat.events import Decode, Engine, Text, TurnEnd

ASK = ChatRequest(messages=(Message("user", "one two three"),))
Play = Callable[[Script], LocalEngine]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    def make(script: Script) -> LocalEngine:
        file = tmp_path / "script.json"
        file.write_bytes(msgspec.json.encode(script))
        monkeypatch.setenv("LINGCHAT_ENGINE", f"played:{file}")
        assert launch() is None  # no worker of the runtime's beside it
        engine = choose_engine(None)
        assert isinstance(engine, LocalEngine)
        return engine

    return make


async def test_it_answers_counts_and_stops(play: Play) -> None:
    turns = (
        ScriptTurn(text="Water is wet.", round_ms=0.0, rounds_an_event=3),
        ScriptTurn(text="For ever", round_ms=0.0, pause=Pause(at=1)),
    )
    engine = play(Script(turns=turns))
    try:
        assert [event.phase async for event in engine.start() if isinstance(event, Engine)] == ["ready"]
        assert (await engine.info()).name == "scripted model"
        events = [event async for event in engine.chat(ASK)]
        assert "".join(event.delta for event in events if isinstance(event, Text)) == "Water is wet."
        assert [len(event.k) for event in events if isinstance(event, Decode)] == [1, 2]
        assert await engine.count("one two") == 2
        stopped = []
        async for event in engine.chat(ASK):
            stopped.append(event)
            if isinstance(event, Text):
                engine.cancel()
        assert isinstance(stopped[-1], TurnEnd) and stopped[-1].stop == "cancel"
    finally:
        await engine.close()


async def test_the_pipe_rests_between_two_reads(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first event comes at once; what comes while the pipe rests is read together."""
    engine = play(Script(turns=(ScriptTurn(text="Water is wet, and more of it is wetter.", round_ms=1.0),)))
    loop = asyncio.get_running_loop()
    try:
        async for _ in engine.start():
            pass
        monkeypatch.setattr(local, "_READ_S", 3600.0)
        events = engine.chat(ASK)
        seen = [await anext(events)]
        assert engine._resting is not None and not loop.remove_reader(engine._read_fd)
        while not isinstance(seen[-1], TurnEnd):
            if engine._resting is not None:
                engine._resting.cancel()
                engine._readable()
            seen.append(await anext(events))
        assert "".join(event.delta for event in seen if isinstance(event, Text)).startswith("Water is wet, and")
        assert await asyncio.wait_for(engine.count("one two"), 20) == 2  # afterwards it is read at once again
    finally:
        await engine.close()


async def test_a_load_that_fails_is_told(play: Play) -> None:
    engine = play(Script(load_failure=Failure(code=ModelFileError.code, message="it is torn")))
    try:
        with pytest.raises(ModelFileError, match="it is torn"):
            async for _ in engine.start():
                pass
    finally:
        await engine.close()


async def test_a_script_that_cannot_be_read_is_a_dead_engine(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINGCHAT_ENGINE", "played:nowhere.json")
    engine = choose_engine(None)
    try:
        with pytest.raises(EngineCrashed, match="its log is"):
            async for _ in engine.start():
                pass
    finally:
        await engine.close()


def test_it_needs_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINGCHAT_ENGINE", "played:")
    with pytest.raises(ConfigError, match="played:FILE"):
        choose_engine(None)
