"""What each slash command does on the screen."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from chat_app import INFO, Bench, running, script

from lingchat.chat import Chat
from lingchat.config import load_settings
from lingchat.engines.api import ModelInfo, Sampling
from lingchat.engines.clocks import VirtualClock
from lingchat.engines.scripted import Pause, ScriptedEngine, ScriptTurn
from lingchat.errors import ConfigError, UsageError
from lingchat.ui import slash
from lingchat.ui.app import LingchatApp
from lingchat.ui.commands import COMMANDS
from lingchat.ui.sampling_words import read_sampling, sampling_text
from lingchat.ui.screens.models import ModelsScreen
from lingchat.ui.screens.notice import TextScreen
from lingchat.ui.screens.sessions import SessionsScreen
from lingchat.ui.slash import Slash

REPLY = "First:\n\n```py\nx = 1\n```\n\nSecond:\n\n```sh\nls -l\n```\n"


def test_every_command_of_the_table_is_carried_out_by_the_screen() -> None:
    assert all(callable(getattr(Slash, f"do_{command.name}", None)) for command in COMMANDS)


def test_commands_know_no_chat_screen_and_line_mode_loads_none() -> None:
    """Also not for their types: what they need of it stands in `slash.Host`."""
    assert "screens.chat" not in Path(slash.__file__).read_text()
    program = "import sys, lingchat.ui.plain, lingchat.ui.sampling_words; print('textual' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "False"


async def talk(bench: Bench, *texts: str) -> None:
    for text in texts:
        await bench.say(text)
        await bench.idle()


# ---------------------------------------------------------------------- sessions and branches


async def test_new_and_resume(tmp_path: Path) -> None:
    async with running(script("a", "b"), home=tmp_path) as bench:
        await talk(bench, "first session")
        first = bench.app.chat.session
        await bench.say("/new")
        await bench.until(lambda: bench.app.chat.session is not first)
        await bench.pilot.pause()
        assert not bench.texts and bench.screen.query_one("#welcome").display
        await talk(bench, "second session")
        await bench.say("/resume")
        await bench.until(lambda: ("user", "first session") in bench.texts)
        assert bench.app.chat.session is not None and first is not None
        assert bench.app.chat.session.id == first.id
        assert "first session" in bench.header


async def test_resume_of_an_unknown_session_says_so(tmp_path: Path) -> None:
    async with running(script("a"), home=tmp_path) as bench:
        await bench.say("/resume nosuch")
        await bench.until(lambda: bench.notice)
        assert "nosuch" in bench.notice


async def test_rename_shows_in_the_header(tmp_path: Path) -> None:
    async with running(script("a"), home=tmp_path) as bench:
        await talk(bench, "hello", "/rename The  kv cache")
        await bench.until(lambda: "The kv cache" in bench.header)


async def test_edit_asks_again_beside_the_old_one(tmp_path: Path) -> None:
    async with running(script("one", "two", "three"), home=tmp_path) as bench:
        await talk(bench, "question A", "question B")
        await bench.say("/edit 1")
        await bench.until(lambda: bench.screen.prompt.text == "question A")
        assert "editing" in bench.status
        bench.screen.prompt.put_text("question C")
        await bench.pilot.press("enter")
        await bench.idle()
        await bench.until(lambda: bench.texts == [("user", "question C"), ("assistant", "three")])
        view = bench.screen.conversation.messages[0].view
        assert (view.sibling, view.siblings) == (2, 2)
        await bench.screen.slash.step_sibling(view.node_id, -1)
        assert [text for _, text in bench.texts] == ["question A", "one", "question B", "two"]


async def test_escape_leaves_editing(tmp_path: Path) -> None:
    async with running(script("one"), home=tmp_path) as bench:
        await talk(bench, "question")
        await bench.say("/edit")
        await bench.until(lambda: bench.screen.editing is not None)
        await bench.pilot.press("escape")
        assert bench.screen.editing is None and bench.screen.prompt.text == ""


async def test_regen_answers_again(tmp_path: Path) -> None:
    async with running(script("one", "two"), home=tmp_path) as bench:
        await talk(bench, "question", "/regen")
        await bench.until(lambda: bench.texts == [("user", "question"), ("assistant", "two")])
        await bench.idle()
        view = bench.screen.conversation.messages[1].view
        assert (view.sibling, view.siblings) == (2, 2)


async def test_block_keys_branch_edit_and_copy(tmp_path: Path) -> None:
    async with running(script("one", "two", "three"), home=tmp_path) as bench:
        await talk(bench, "A", "B")
        await bench.pilot.press("alt+up", "alt+up", "alt+up", "c")
        await bench.until(lambda: bench.copied == ["one"])
        await bench.pilot.press("b")
        await bench.until(lambda: len(bench.texts) == 2)
        await talk(bench, "C")
        assert [text for _, text in bench.texts] == ["A", "one", "C", "three"]


async def test_commands_about_messages_say_when_there_are_none(tmp_path: Path) -> None:
    async with running(script("a"), home=tmp_path) as bench:
        for command in ("/edit", "/edit 0", "/regen", "/copy", "/copy 3", "/resume", "/rename"):
            await bench.say(command)
            await bench.until(lambda: bench.notice)
            bench.screen.note("")


async def test_sessions_page_searches_renames_deletes_and_brings_back(tmp_path: Path) -> None:
    async with running(script("a", "b", "c"), home=tmp_path, size=(100, 30)) as bench:
        await talk(bench, "about turtles")
        await bench.say("/new")
        await bench.until(lambda: not bench.texts)
        await talk(bench, "about whales")
        await bench.say("/sessions")
        await bench.until(lambda: isinstance(bench.app.screen, SessionsScreen))
        page = bench.app.screen
        assert isinstance(page, SessionsScreen)
        await bench.until(lambda: len(page._shown) == 2)
        await bench.pilot.press(*"turtles")
        await bench.until(lambda: len(page._shown) == 1)
        await bench.until(lambda: "about turtles" in str(page.query_one("#sessions-preview").content))  # type: ignore[attr-defined]
        await bench.pilot.press("ctrl+e", "ctrl+u", *"shells", "enter")
        await bench.until(lambda: page._shown and page._shown[0].title == "shells")
        await bench.pilot.press("ctrl+x")
        await bench.until(lambda: not page._shown)
        await bench.pilot.press("ctrl+z")
        await bench.until(lambda: page._shown)
        await bench.pilot.press("enter")
        await bench.until(lambda: ("user", "about turtles") in bench.texts)


# ---------------------------------------------------------------------- text


async def test_copy_takes_exact_bytes() -> None:
    async with running(script(REPLY)) as bench:
        await talk(bench, "code", "/copy")
        await bench.until(lambda: bench.copied == [REPLY])
        await talk(bench, "/copy 2")
        await bench.until(lambda: bench.copied[-1] == "ls -l\n")


async def test_editor_gets_the_prompt_and_gives_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "%s, and more" "$(cat "$1")" > "$1"\n')
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("VISUAL", str(editor))
    async with running(script("a")) as bench:
        bench.app._driver.__class__.can_suspend = True  # type: ignore[union-attr]
        monkeypatch.setattr(bench.app._driver, "suspend_application_mode", lambda: None, raising=False)
        monkeypatch.setattr(bench.app._driver, "resume_application_mode", lambda: None, raising=False)
        bench.screen.prompt.put_text("some words")
        await bench.pilot.press("ctrl+g")
        await bench.until(lambda: bench.screen.prompt.text == "some words, and more")


async def test_a_missing_editor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "no-such-editor --wait")
    async with running(script("a")) as bench:
        await bench.pilot.press("ctrl+g")
        await bench.until(lambda: "no-such-editor" in bench.notice)


async def test_private_stops_the_history(tmp_path: Path) -> None:
    async with running(script("a", "b"), home=tmp_path) as bench:
        await talk(bench, "seen")
        await bench.say("/private")
        await bench.until(lambda: bench.screen.history.private)
        await talk(bench, "unseen")
        text = (tmp_path / "history.jsonl").read_text()
        assert '"seen"' in text and "unseen" not in text


async def test_history_and_draft_survive_the_app(tmp_path: Path) -> None:
    async with running(script("a"), home=tmp_path) as bench:
        await talk(bench, "said before")
        await bench.pilot.press(*"half a tho")
    async with running(script("a"), home=tmp_path) as bench:
        assert bench.screen.prompt.text == "half a tho"
        await bench.pilot.press("ctrl+u", "up")
        assert bench.screen.prompt.text == "said before"


# ---------------------------------------------------------------------- model


async def test_model_by_name_restarts_the_engine_with_it() -> None:
    async with running(script("a")) as bench:
        await bench.say("/model other-model")
        await bench.until(lambda: "other-model" in bench.header)
        await bench.ready()


async def test_model_page_picks_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(script("a")) as bench:
        await bench.say("/model")
        await bench.until(lambda: isinstance(bench.app.screen, ModelsScreen))
        await bench.pilot.press(*"/some/where.gguf", "enter")
        await bench.until(lambda: "/some/where.gguf" in bench.header)


async def test_system_message_is_shown_set_and_sent(tmp_path: Path) -> None:
    async with running(script("a", "b"), home=tmp_path) as bench:
        await bench.say("/system")
        await bench.until(lambda: "no system message" in bench.notice)
        await bench.say("/system Be brief.")
        await bench.until(lambda: "Be brief." in bench.notice)
        await talk(bench, "hi")
        messages = bench.engine.requests[-1].messages
        assert messages is not None and messages[0].content == "Be brief."


async def test_sampling_is_shown_set_and_sent() -> None:
    async with running(script("a")) as bench:
        await bench.say("/sampling temperature=0 seed=7")
        await bench.until(lambda: "temperature=0" in bench.notice)
        await talk(bench, "hi")
        assert bench.engine.requests[-1].sampling.seed == 7
        assert bench.engine.requests[-1].sampling.temperature == 0
        await bench.say("/sampling top_p=7")
        await bench.until(lambda: "top_p=7" in bench.notice)
        assert bench.app.chat.sampling.top_p == bench.engine.requests[-1].sampling.top_p


def test_sampling_words() -> None:
    start = Sampling(temperature=0.5)
    assert read_sampling(start, "top_k=40 max_tokens=5") == Sampling(temperature=0.5, top_k=40, max_tokens=5)
    assert read_sampling(start, "reset") == Sampling()
    assert read_sampling(Sampling(seed=3), "seed=none").seed is None
    assert "temperature=0.5" in sampling_text(start)
    for bad in ("temperature", "heat=1", "top_k=x", "repetition_penalty=0", "temperature=nan"):
        with pytest.raises(UsageError, match=bad.partition("=")[0]):
            read_sampling(start, bad)


async def test_spec_changes_the_next_request() -> None:
    async with running(script("a", "b")) as bench:
        await bench.say("/spec 4")
        await bench.until(lambda: "drafting 4" in bench.notice)
        await talk(bench, "hi")
        assert bench.engine.requests[-1].spec == 4
        await bench.say("/spec off")
        await bench.until(lambda: "no draft" in bench.notice)
        await talk(bench, "hi")
        assert bench.engine.requests[-1].spec == "off"
        await bench.say("/spec many")
        await bench.until(lambda: "many" in bench.notice)


async def test_think_show_opens_reasoning_now_and_in_replies_to_come() -> None:
    async with running(script(ScriptTurn(text="answer", reasoning="let me see"))) as bench:
        await talk(bench, "hi")
        reply = bench.screen.conversation.messages[1]
        await bench.say("/think show")
        await bench.until(lambda: reply.reasoning_open)
        await talk(bench, "again")
        assert bench.screen.conversation.messages[3].reasoning_open
        await bench.say("/think hide")
        await bench.until(lambda: not reply.reasoning_open)
        assert not bench.screen.conversation.messages[3].reasoning_open
        await bench.pilot.press("f3")  # the newest alone
        await bench.until(lambda: bench.screen.conversation.messages[3].reasoning_open)
        assert not reply.reasoning_open and bench.engine.requests[-1].thinking is None


async def test_think_on_and_off_tell_the_model() -> None:
    async with running(script("a")) as bench:
        await bench.say("/think off")
        await bench.until(lambda: "told to answer at once" in bench.notice)
        await talk(bench, "hi")
        assert bench.engine.requests[-1].thinking is False
        await bench.say("/think on")
        await bench.until(lambda: "told to reason" in bench.notice)
        await talk(bench, "hi")
        assert bench.engine.requests[-1].thinking is True
        await bench.say("/think")
        await bench.until(lambda: "told to reason" in bench.notice and "folded" in bench.notice)
        await bench.say("/think auto")
        await bench.until(lambda: "by itself" in bench.notice)
        await talk(bench, "hi")
        assert bench.engine.requests[-1].thinking is None
        await bench.say("/think hard")
        await bench.until(lambda: "/think [on|off|auto|show|hide]" in bench.notice)


async def test_think_on_a_model_without_a_switch_says_so() -> None:
    plain = ModelInfo(name="plain model", context=2048, thinking_switch=False)
    async with running(script("a", info=plain)) as bench:
        await bench.say("/think on")
        await bench.until(lambda: "plain model has no switch for thinking" in bench.notice)
    settings = load_settings({"thinking": "off"}, env={})
    async with running(script("a", info=plain), settings=settings) as bench:
        await bench.until(lambda: "plain model has no switch for thinking" in bench.notice)


async def test_restart_brings_the_engine_back() -> None:
    async with running(script("a")) as bench:
        await bench.say("/restart")
        await bench.until(lambda: bench.screen.turns.ready and bench.app.chat.info is not None)
        await talk(bench, "hi")
        assert bench.texts[-1] == ("assistant", "a")


# ---------------------------------------------------------------------- figures and app


async def test_stats_page_compares_turns_and_reset_counts_from_here() -> None:
    fast, slow = ScriptTurn(text="a b c d", round_ms=4), ScriptTurn(text="a b c d", round_ms=8)
    async with running(script(fast, slow), size=(120, 40)) as bench:
        await talk(bench, "one", "two", "/stats")
        await bench.until(lambda: isinstance(bench.app.screen, TextScreen))
        text = bench.app.screen.text  # type: ignore[attr-defined]
        assert "turn 2" in text and "turn 1" in text and "session (2 turns)" in text
        assert "(+100 %)" in text
        await bench.pilot.press("escape")
        await talk(bench, "/stats reset", "/stats session")
        await bench.until(lambda: isinstance(bench.app.screen, TextScreen))
        assert "session (0 turns)" in bench.app.screen.text  # type: ignore[attr-defined]


async def test_theme_changes_and_names_what_is_unknown() -> None:
    async with running(script("a")) as bench:
        await bench.say("/theme light")
        await bench.until(lambda: bench.app.theme == "lingchat-light")
        await bench.say("/theme ansi")
        await bench.until(lambda: bench.app.theme == "lingchat-ansi")
        await bench.say("/theme neon")
        await bench.until(lambda: "neon" in bench.notice)


def test_a_theme_of_the_settings_that_is_not_there_is_an_error() -> None:
    settings = load_settings({"theme": "neon"}, env={})
    chat = Chat(ScriptedEngine(), None, None, settings)
    with pytest.raises(ConfigError, match=r"neon.*flag --theme"):
        LingchatApp(chat, settings)


async def test_quit() -> None:
    async with running(script("a")) as bench:
        await bench.say("/quit")
        await bench.until(lambda: bench.app._exit)


async def test_what_would_disturb_a_reply_waits_for_it() -> None:
    slow = ScriptTurn(text="a b c", pause=Pause(at=1, ms=60_000))
    async with running(script(slow), clock=VirtualClock(auto=False)) as bench:
        await bench.say("hi")
        await bench.until(lambda: bench.screen.turns.busy)
        await bench.say("/new")
        assert "waits for the reply" in bench.notice
        assert bench.screen.prompt.text == "/new"
        await bench.pilot.press("ctrl+u")
        await bench.say("/theme light")
        await bench.until(lambda: bench.app.theme == "lingchat-light")


async def test_markup_in_any_text_is_only_text() -> None:
    name = "[red]model[/red] \x1b[31m"
    async with running(script("[bold]x[/bold] [/nothing]", info=INFO.__class__(name=name, context=500))) as bench:
        await talk(bench, "[link=x]y[/link]", "/[b]", "/system [/]")
        assert "[red]model[/red]" in bench.header and "\x1b" not in bench.header
        assert bench.texts[1] == ("assistant", "[bold]x[/bold] [/nothing]")
