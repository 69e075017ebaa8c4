"""Keys that the user binds anew: they act, the old ones do not, the help tells them, and what clashes is said."""

from __future__ import annotations

import msgspec
import pytest
from chat_app import running, script

from lingchat.chat import Chat
from lingchat.config import Settings, load_settings
from lingchat.engines.scripted import ScriptedEngine
from lingchat.errors import ConfigError
from lingchat.ui.app import LingchatApp
from lingchat.ui.screens.help import HelpScreen


def bound(**keys: str) -> Settings:
    names = {name.replace("__", "."): value for name, value in keys.items()}
    return msgspec.structs.replace(load_settings({}, env={}), keys=names)


async def test_a_rebound_key_acts_and_the_old_one_does_not() -> None:
    async with running(script("x"), size=(120, 40), settings=bound(chat__latency="f9,ctrl+k")) as bench:
        assert bench.screen.frame.shape.latency == "panel"
        await bench.pilot.press("f2")
        assert bench.screen.frame.shape.latency == "panel"
        await bench.pilot.press("f9")
        assert bench.screen.frame.shape.latency == "strip"


async def test_a_rebound_key_of_the_prompt_sends() -> None:
    async with running(script("answer"), settings=bound(prompt__send="f9", prompt__newline="enter")) as bench:
        await bench.pilot.press("a", "enter", "b")
        assert bench.screen.prompt.text == "a\nb"
        await bench.pilot.press("f9")
        await bench.idle()
        assert bench.texts == [("user", "a\nb"), ("assistant", "answer")]
        assert not bench.notice


async def test_the_help_shows_the_keys_as_they_are() -> None:
    async with running(script("x"), size=(120, 40), settings=bound(chat__latency="f9")) as bench:
        await bench.pilot.press("f1")
        assert isinstance(bench.app.screen, HelpScreen)
        line = next(
            line for line in bench.app.screen.text(90).plain.splitlines() if "latency: panel, strip, off" in line
        )
        assert "F9" in line and "F2" not in line


async def test_a_key_for_two_actions_is_told_at_the_start() -> None:
    async with running(script("x"), settings=bound(chat__latency="ctrl+r")) as bench:
        await bench.until(lambda: "ctrl+r is bound to prompt.search and chat.latency" in bench.notice)


def test_an_action_nobody_knows_is_an_error() -> None:
    settings = bound(chat__latancy="f9")
    with pytest.raises(ConfigError, match=r"keys\.chat\.latancy.*did you mean chat\.latency"):
        LingchatApp(Chat(ScriptedEngine(), None, None, settings), settings)
