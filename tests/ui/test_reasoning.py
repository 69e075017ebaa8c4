"""Reasoning and tool calls on the chat screen: while they come, after a stop, and when a session is opened again."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_app import Bench, running, script

from lingchat.engines.scripted import Pause, ScriptCall, ScriptTurn
from lingchat.ui.screens.notice import TextScreen


def on_screen(bench: Bench) -> str:
    conversation = bench.screen.conversation
    return "\n".join(conversation.render_line(y).text.rstrip() for y in range(conversation.size.height))


THOUGHTFUL = ScriptTurn(
    reasoning="let me see what this is",
    text="So it is.",
    calls=(ScriptCall(name="look", arguments='{"where": "Paris"}'),),
    round_ms=10,
)


@pytest.mark.parametrize("size", [(200, 60), (80, 24), (40, 20)])
async def test_reasoning_and_calls_look_the_same_when_the_session_is_opened_again(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    """Time and tokens of the reasoning stay with the session, as the calls do."""
    async with running(script(THOUGHTFUL), home=tmp_path, size=size) as bench:
        await bench.say("hi")
        await bench.idle()
        bench.screen.conversation.flush()
        view = bench.screen.conversation.messages[1].view
        assert view.reasoning_note and "▸ thought" in on_screen(bench)
        assert '→ look {"where":"Paris"}  not run' in on_screen(bench)
        await bench.screen.reload()
        await bench.pilot.pause()
        again = bench.screen.conversation.messages[1].view
        assert (again.reasoning_note, again.reasoning) == (view.reasoning_note, view.reasoning)
        assert [(call.name, call.arguments) for call in again.calls] == [("look", '{"where": "Paris"}')]
        assert "▸ thought" in on_screen(bench) and '→ look {"where":"Paris"}  not run' in on_screen(bench)
        await bench.pilot.press("alt+up", "o")
        await bench.until(lambda: isinstance(bench.app.screen, TextScreen))
        assert bench.app.screen.text == 'So it is.\n\n→ look {"where":"Paris"}'  # type: ignore[attr-defined]


async def test_stopping_inside_the_reasoning_says_that_there_is_no_answer(tmp_path: Path) -> None:
    hangs = ScriptTurn(reasoning="one two three four five six", text="42", pause=Pause(at=3))
    async with running(script(hangs, "fine"), home=tmp_path, size=(80, 24)) as bench:
        await bench.say("go")
        await bench.until(lambda: "▸ thinking" in on_screen(bench))
        await bench.pilot.press("escape")
        await bench.idle()
        bench.screen.conversation.flush()
        await bench.pilot.pause()
        assert "no answer: it was stopped inside the reasoning" in on_screen(bench)
        await bench.screen.reload()
        await bench.pilot.pause()
        assert "no answer: it was stopped inside the reasoning" in on_screen(bench)
        await bench.say("again")
        await bench.idle()
        assert [message.reasoning for message in bench.engine.requests[-1].messages or ()][1].startswith("one two")
