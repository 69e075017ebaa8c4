"""The chat screen from the keyboard: sending, the queue, stopping, engine states, commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_app import INFO, Bench, running, script
from textual.events import Paste
from textual.widgets import Static

from lingchat.engines.clocks import VirtualClock
from lingchat.engines.scripted import Failure, LoadPhase, Pause, ScriptTurn
from lingchat.ui.first_prompts import FIRST_PROMPTS
from lingchat.ui.screens.help import HelpScreen
from lingchat.ui.screens.models import ModelsScreen
from lingchat.ui.screens.notice import TextScreen
from lingchat.ui.screens.sessions import SessionsScreen
from lingchat.ui.widgets.latency import FigureLines

HANGS = ScriptTurn(text="one two three four five six", pause=Pause(at=3))


async def begin_hanging(bench: Bench, text: str = "go") -> None:
    """Send, and wait until the reply has begun and stands still."""
    await bench.say(text)
    await bench.until(lambda: bench.screen.turns.busy and len(bench.texts) == 2 and bench.texts[1][1])


# ---------------------------------------------------------------------- talking


async def test_a_prompt_is_answered_and_the_footer_keeps_the_figures() -> None:
    async with running(script(ScriptTurn(text="Hello **you**.", m=(2,), a=(1,)))) as bench:
        await bench.say("hi")
        await bench.idle()
        assert bench.texts == [("user", "hi"), ("assistant", "Hello **you**.")]
        view = bench.screen.conversation.messages[1].view
        assert "TTFT" in view.footer and "L 1.50" in view.footer
        assert view.stop == "eos"
        assert bench.screen.prompt.text == ""
        assert "ready" in bench.status


async def test_while_a_reply_runs_it_is_seen_and_the_status_says_so() -> None:
    async with running(script(HANGS)) as bench:
        assert bench.screen.query_one("#welcome").display
        await begin_hanging(bench)
        await bench.pilot.pause()
        assert bench.screen.conversation.display and not bench.screen.query_one("#welcome").display
        assert "decoding" in bench.status and "esc stop" in bench.status


async def test_first_reply_of_the_demo_model_says_what_it_is_and_the_second_does_not() -> None:
    async with running(script("a", "b")) as bench:
        await bench.say("one")
        await bench.idle()
        await bench.say("two")
        await bench.idle()
        first, second = (message.view.footer for message in bench.screen.conversation.messages[1::2])
        assert "small demonstration model" in first and "lingchat -m PATH" in first
        assert "demonstration" not in second


async def test_the_header_tells_ms_per_token_and_where_figures_come_from() -> None:
    info = INFO.__class__(name="m", context=2048, provenance="random weights")
    async with running(script(ScriptTurn(text="a b c d", round_ms=4), info=info), size=(120, 40)) as bench:
        await bench.say("hi")
        await bench.idle()
        assert bench.screen.conversation.messages[1].view.header == "#1  4.00 ms/tok"
        assert "random weights" in bench.header


async def test_reasoning_is_folded_with_time_and_tokens() -> None:
    async with running(script(ScriptTurn(text="so it is", reasoning="let me see what this is", round_ms=10))) as bench:
        await bench.say("hi")
        await bench.idle()
        view = bench.screen.conversation.messages[1].view
        assert view.reasoning == "let me see what this is" and view.text == "so it is"
        assert "tokens" in view.reasoning_note and "tok/s" in view.reasoning_note


async def test_what_is_typed_while_busy_waits_and_goes_out_in_order() -> None:
    async with running(script(ScriptTurn(text="one two three four", pause=Pause(at=2, ms=50)), "x", "y")) as bench:
        await bench.say("first")
        await bench.say("second")
        await bench.say("third")
        await bench.idle()
        await bench.until(lambda: len(bench.texts) == 6)
        assert [text for role, text in bench.texts if role == "user"] == ["first", "second", "third"]


async def test_the_queue_survives_an_interrupt_is_editable_and_goes_on_with_enter() -> None:
    async with running(script(HANGS, "done", "done too")) as bench:
        await begin_hanging(bench)
        await bench.say("later")
        await bench.say("much later")
        assert [one.typed.shown for one in bench.screen.turns.waiting] == ["later", "much later"]
        assert bench.screen.query_one("#queue").display
        await bench.pilot.press("escape")
        await bench.idle()
        assert bench.screen.turns.held
        assert bench.screen.conversation.messages[1].view.stop == "cancel"
        assert bench.texts[1][1].startswith("one")
        await bench.pilot.press("up")
        assert bench.screen.prompt.text == "much later"
        await bench.pilot.press("ctrl+c")
        assert bench.screen.prompt.text == ""
        await bench.pilot.press("enter")
        await bench.idle()
        assert ("user", "later") in bench.texts and not bench.screen.turns.waiting


async def test_first_prompts_by_one_key() -> None:
    async with running(script("answer")) as bench:
        await bench.pilot.press("2")
        await bench.idle()
        assert bench.texts[0] == ("user", FIRST_PROMPTS[1][1])
        await bench.pilot.press("3")
        assert bench.screen.prompt.text == "3"


async def test_a_digit_is_a_digit_once_something_is_typed() -> None:
    async with running(script("answer")) as bench:
        await bench.pilot.press("a", "1")
        assert bench.screen.prompt.text == "a1"
        assert not bench.texts


async def test_a_long_paste_is_sent_whole() -> None:
    text = "\n".join(f"line {i}" for i in range(400))
    async with running(script("ok", info=INFO.__class__(name="big", context=100_000))) as bench:
        bench.screen.prompt.post_message(Paste(text))
        await bench.until(lambda: bench.screen.prompt.text)
        assert bench.screen.prompt.text == "[pasted 400 lines]"
        assert not bench.texts
        await bench.pilot.press("enter")
        await bench.idle()
        assert bench.texts[0] == ("user", text)


async def test_the_counter_tells_tokens_and_what_is_left() -> None:
    async with running(script("x")) as bench:
        await bench.pilot.press(*"hello there")
        await bench.until(lambda: "left" in bench.status)
        await bench.pilot.press("ctrl+u")
        await bench.until(lambda: "left" not in bench.status)


# ---------------------------------------------------------------------- stopping and leaving


async def test_escape_closes_the_list_then_the_cursor_then_stops() -> None:
    async with running(script(HANGS)) as bench:
        await begin_hanging(bench)
        await bench.pilot.press("alt+up")
        assert bench.screen.conversation.cursor is not None
        bench.screen.prompt.focus()
        await bench.pilot.press(*"/th")
        popup = bench.screen.query_one("#popup")
        assert popup.display
        await bench.pilot.press("escape")
        assert not popup.display and bench.screen.conversation.cursor is not None
        await bench.pilot.press("escape")
        await bench.pilot.pause()
        assert bench.screen.conversation.cursor is None and bench.screen.turns.busy
        assert not bench.screen.turns.stopping
        await bench.pilot.press("escape")
        await bench.idle()
        assert bench.screen.conversation.messages[1].view.stop == "cancel"


async def test_ctrl_c_copies_then_stops_then_clears_then_quits() -> None:
    async with running(script(HANGS)) as bench:
        await begin_hanging(bench)
        await bench.pilot.press(*"draft", "shift+home")
        await bench.pilot.press("ctrl+c")
        assert bench.copied == ["draft"]
        assert bench.screen.turns.busy and not bench.screen.turns.stopping
        await bench.pilot.press("ctrl+c")
        await bench.idle()
        assert bench.screen.prompt.text == "draft"
        await bench.pilot.press("ctrl+c")
        assert bench.screen.prompt.text == ""
        await bench.pilot.press("ctrl+c")
        assert "again quits" in bench.status
        assert not bench.app._exit
        await bench.pilot.press("ctrl+c")
        assert bench.app._exit


async def test_ctrl_d_quits_only_when_empty() -> None:
    async with running(script("x")) as bench:
        await bench.pilot.press("a", "b", "left", "ctrl+d")
        assert bench.screen.prompt.text == "a"
        assert not bench.app._exit
        await bench.pilot.press("ctrl+u", "ctrl+d")
        assert bench.app._exit


# ---------------------------------------------------------------------- engine


async def test_the_prompt_works_while_the_model_loads_and_progress_is_told() -> None:
    clock = VirtualClock(auto=False)
    load = (LoadPhase(phase="download", ms=1000, reports=4, total_bytes=98_000_000), LoadPhase(phase="load", ms=200))
    async with running(script("answer", load=load), clock=clock, wait=False, size=(120, 40)) as bench:
        await bench.until(lambda: bench.screen.turns.engine is not None)
        await clock.advance(500)
        await bench.until(lambda: "50%" in bench.header)
        assert "49 MB of 98 MB" in str(bench.screen.query_one("#welcome", Static).content)
        await bench.say("early")
        assert [one.typed.shown for one in bench.screen.turns.waiting] == ["early"]
        await clock.advance(1000)
        await bench.ready()
        for _ in range(200):
            await clock.advance(20)
            if not bench.screen.turns.busy and not bench.screen.turns.waiting:
                break
        await bench.idle()
        assert bench.texts == [("user", "early"), ("assistant", "answer")]


async def test_a_model_that_cannot_load_says_why_and_restart_tries_again() -> None:
    failure = Failure(code="does_not_fit", message="The model needs 9 GB, 3 GB are free.")
    async with running(script("x", load=(LoadPhase(),), load_failure=failure), wait=False) as bench:
        await bench.until(lambda: bench.screen.turns.failure)
        await bench.pilot.pause()
        assert "stopped" in bench.header
        await bench.say("kept")
        assert not bench.texts
        bench.engine.script = script("works now")
        await bench.say("/restart")
        await bench.ready()
        await bench.until(lambda: bench.texts[1:] == [("assistant", "works now")])
        assert bench.texts[0] == ("user", "kept")


async def test_after_a_failed_load_no_figure_says_that_it_loads() -> None:
    clock = VirtualClock(auto=False)
    failure = Failure(code="does_not_fit", message="The model needs 9 GB, 3 GB are free.", at=1)
    failing = script("x", load=(LoadPhase(phase="load", ms=1000, reports=4),), load_failure=failure)
    async with running(failing, clock=clock, wait=False, size=(120, 40)) as bench:

        def shown() -> str:
            return " ".join(lines.text for lines in bench.screen.query(FigureLines))

        await clock.advance(500)
        await bench.until(lambda: "loading" in shown())
        await clock.advance(1000)
        await bench.until(lambda: bench.screen.turns.failure)
        await bench.until(lambda: "loading" not in shown())
        assert "no engine" in shown()


async def test_in_a_conversation_a_model_that_cannot_load_says_why_above_the_prompt() -> None:
    async with running(script("answer")) as bench:
        await bench.say("go")
        await bench.idle()
        failure = Failure(code="does_not_fit", message="The model needs 9 GB, 3 GB are free.")
        bench.engine.script = script("x", load_failure=failure)
        await bench.say("/restart")
        await bench.until(lambda: bench.screen.turns.failure)
        await bench.pilot.pause()
        assert "needs 9 GB" in bench.notice and "/restart" in bench.status
        assert bench.screen.query_one("#notice").has_class("-error")


async def test_a_dead_engine_keeps_the_partial_reply_and_restart_brings_it_back() -> None:
    dies = ScriptTurn(text="one two three four five six", crash=4)
    async with running(script(dies, "alive again")) as bench:
        await bench.say("go")
        await bench.until(lambda: bench.screen.turns.failure)
        await bench.idle()
        assert bench.texts[1][1].startswith("one two")
        assert bench.screen.conversation.messages[1].view.stop == "error"
        assert "/restart" in bench.status
        await bench.say("waits")
        assert len(bench.engine.requests) == 1
        await bench.say("/restart")
        await bench.until(lambda: len(bench.texts) == 4)
        await bench.idle()
        assert bench.texts[2:] == [("user", "waits"), ("assistant", "alive again")]


async def test_a_failed_request_leaves_the_engine_usable() -> None:
    async with running(
        script(ScriptTurn(text="a b", failure=Failure(code="template", message="bad")), "fine")
    ) as bench:
        await bench.say("one")
        await bench.idle()
        assert bench.screen.conversation.messages[1].view.stop == "error"
        assert bench.screen.turns.ready
        await bench.say("two")
        await bench.idle()
        assert bench.texts[-1] == ("assistant", "fine")


async def test_a_silent_engine_is_called_a_stall_and_the_line_goes_away() -> None:
    clock = VirtualClock(auto=False)
    slow = ScriptTurn(text="one two three four five six", pause=Pause(at=4, ms=60_000))
    async with running(script(slow), clock=clock) as bench:
        await bench.say("go")
        await bench.until(lambda: bench.engine.requests)
        await clock.advance(100)
        await clock.advance(9000)
        await bench.until(lambda: bench.screen.turns.stall is not None)
        assert not bench.screen.query_one("#stall").display  # panel and strip say it
        await bench.pilot.press("f2")
        await bench.until(lambda: bench.screen.query_one("#stall").display)
        await clock.advance(60_000)
        await bench.idle()
        assert not bench.screen.query_one("#stall").display


async def test_nothing_ticks_while_idle() -> None:
    async with running(script("x")) as bench:
        await bench.say("hi")
        await bench.idle()
        assert bench.screen._tick is None
        assert not bench.screen.turns.lag.running
        assert not bench.screen.prompt.cursor_blink


# ---------------------------------------------------------------------- sizes


@pytest.mark.parametrize("size", [(200, 60), (120, 40), (80, 24), (60, 15), (59, 14), (40, 12), (30, 8), (20, 5)])
async def test_every_size_shows_the_prompt_and_survives_a_reply(size: tuple[int, int]) -> None:
    async with running(script("Some **words**.\n\n```py\nx = 1\n```\n"), size=size) as bench:
        await bench.say("hello there, this line is longer than twenty cells")
        await bench.idle()
        await bench.pilot.press("/")
        await bench.pilot.pause()
        prompt = bench.screen.prompt.region
        assert prompt.height >= 1 and prompt.bottom <= size[1]
        assert bench.screen.query_one("#dock").display is (size[0] >= 120 and size[1] >= 20)
        assert bench.screen.query_one("#strip").display is (size in ((80, 24), (60, 15)))
        assert bench.screen.query_one("#header").display is (size[0] >= 60 and size[1] >= 15)


async def test_resizing_through_all_sizes_while_streaming() -> None:
    async with running(script(HANGS)) as bench:
        await begin_hanging(bench)
        for size in [(20, 5), (200, 60), (40, 12), (120, 40), (21, 6), (80, 24)]:
            await bench.pilot.resize_terminal(*size)
            await bench.pilot.pause()
        await bench.pilot.press("escape")
        await bench.idle()
        assert bench.texts[1][1].startswith("one")


# ---------------------------------------------------------------------- screens and typos


async def test_help_lists_live_bindings_and_commands() -> None:
    async with running(script("x"), size=(120, 40)) as bench:
        await bench.pilot.press("question_mark")
        assert isinstance(bench.app.screen, HelpScreen)
        text = bench.app.screen.text(90).plain
        for words in ("F2 ctrl+t", "/sampling [k=v ...]", "search all prompts", "suspend"):
            assert words in text
        await bench.pilot.press("escape")
        assert bench.app.screen is bench.screen
        await bench.pilot.press("a", "question_mark")
        assert bench.screen.prompt.text == "a?"


@pytest.mark.parametrize(("typed", "suggestion"), [("/modle x", "/model"), ("/statz", "/stats"), ("/xyzzy", "//xyzzy")])
async def test_typos_suggest_and_are_not_sent(typed: str, suggestion: str) -> None:
    async with running(script("x")) as bench:
        await bench.say(typed)
        assert suggestion in bench.notice
        assert not bench.engine.requests and not bench.texts
        assert bench.screen.prompt.text == typed


async def test_double_slash_sends_a_slash() -> None:
    async with running(script("x")) as bench:
        await bench.say("//etc/hosts")
        await bench.idle()
        assert bench.texts[0] == ("user", "/etc/hosts")


async def test_every_f_key_has_a_second_key() -> None:
    async with running(script("x")) as bench:
        for node in (bench.screen, bench.app):
            by_action: dict[str, list[str]] = {}
            for key, binding in node._bindings:
                by_action.setdefault(binding.action, []).append(key)
            for action, keys in by_action.items():
                if any(key[0] == "f" and key[1:].isdigit() for key in keys):
                    assert len(keys) > 1, f"{action} has only {keys}"


async def test_palette_finds_commands_and_keys(tmp_path: Path) -> None:
    async with running(script("x"), home=tmp_path, size=(100, 30)) as bench:
        await bench.pilot.press("ctrl+p")
        await bench.until(lambda: type(bench.app.screen).__name__ == "CommandPalette")
        await bench.pilot.press(*"keys and comm")
        await bench.pilot.press("escape")
        await bench.until(lambda: bench.app.screen is bench.screen)


async def test_pages_open_and_close(tmp_path: Path) -> None:
    async with running(script("x"), home=tmp_path) as bench:
        for command, kind in (("/stats", TextScreen), ("/sessions", SessionsScreen), ("/model", ModelsScreen)):
            await bench.say(command)
            await bench.until(lambda kind=kind: isinstance(bench.app.screen, kind))
            await bench.pilot.press("escape")
            await bench.until(lambda: bench.app.screen is bench.screen)
