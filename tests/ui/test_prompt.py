"""The prompt: typing, sending, lines, pastes, chips, history, completion."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from textual.app import App, ComposeResult
from textual.events import Key, Paste
from textual.pilot import Pilot

from lingchat.ui.history import History
from lingchat.ui.widgets.popup import Popup
from lingchat.ui.widgets.prompt import Prompt, Typed


class Host(App[None]):
    CSS = "Prompt { height: auto; max-height: 33%; } Popup { height: auto; }"

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Typed] = []
        self.waiting: list[Typed] = []
        self.editor_asked = 0
        self.past = History(None, "/p")

    def compose(self) -> ComposeResult:
        popup = Popup()
        yield popup
        yield Prompt(popup, self.past, lambda: self.waiting.pop() if self.waiting else None)

    def on_mount(self) -> None:
        self.prompt.focus()

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    @property
    def popup(self) -> Popup:
        return self.query_one(Popup)

    def on_prompt_submitted(self, message: Prompt.Submitted) -> None:
        self.sent.append(message.typed)

    def on_prompt_editor_wanted(self) -> None:
        self.editor_asked += 1


@asynccontextmanager
async def running(size: tuple[int, int] = (80, 24)) -> AsyncIterator[tuple[Host, Pilot[None]]]:
    app = Host()
    async with app.run_test(size=size) as pilot:
        yield app, pilot


async def paste(app: Host, pilot: Pilot[None], text: str) -> None:
    app.prompt.post_message(Paste(text))
    await pilot.pause()


async def test_enter_sends_and_clears() -> None:
    async with running() as (app, pilot):
        await pilot.press(*"hi there", "enter")
        assert [typed.full for typed in app.sent] == ["hi there"]
        assert app.prompt.text == ""


async def test_keys_that_arrive_together_keep_their_order() -> None:
    async with running() as (app, pilot):
        for key in [*"one", "enter", *"two", "ctrl+j", *"2", "enter", *"rest"]:
            app.post_message(Key(key, key if len(key) == 1 else None))
        await pilot.pause()
        await pilot.pause()
        assert [typed.full for typed in app.sent] == ["one", "two\n2"]
        assert app.prompt.text == "rest"


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter", "alt+enter"])
async def test_newline_keys(key: str) -> None:
    async with running() as (app, pilot):
        await pilot.press("a", key, "b")
        assert app.prompt.text == "a\nb"
        assert not app.sent


async def test_backslash_enter_is_a_newline() -> None:
    async with running() as (app, pilot):
        await pilot.press("a", "\\", "enter", "b", "enter")
        assert [typed.full for typed in app.sent] == ["a\nb"]


async def test_grows_to_a_third_and_no_further() -> None:
    async with running((80, 24)) as (app, pilot):
        assert app.prompt.size.height == 1
        for _ in range(3):
            await pilot.press("ctrl+j")
        await pilot.pause()
        assert app.prompt.size.height == 4
        for _ in range(20):
            await pilot.press("ctrl+j")
        await pilot.pause()
        assert app.prompt.size.height <= 8


async def test_long_line_wraps_and_grows() -> None:
    async with running((40, 24)) as (app, pilot):
        await paste(app, pilot, "word " * 30)
        await pilot.pause()
        assert app.prompt.size.height >= 4


async def test_paste_never_submits_and_loses_control_characters() -> None:
    async with running() as (app, pilot):
        await paste(app, pilot, "one\r\ntwo\rthree\x1b[31m\x07\n")
        assert not app.sent
        assert app.prompt.text.split("\n")[:2] == ["one", "two"]
        assert "\x1b" not in app.prompt.text and "\x07" not in app.prompt.text


async def test_long_paste_is_a_chip_and_expands_on_send() -> None:
    text = "\n".join(f"line {i}" for i in range(5000))
    async with running() as (app, pilot):
        await pilot.press(*"see ")
        await paste(app, pilot, text)
        assert app.prompt.text == "see [pasted 5,000 lines]"
        await pilot.press("enter")
        assert app.sent[0].full == f"see {text}"


async def test_wide_paste_is_a_chip_too_and_two_chips_stay_apart() -> None:
    async with running() as (app, pilot):
        await paste(app, pilot, "x" * 3000)
        await paste(app, pilot, "y" * 3000)
        assert app.prompt.text == "[pasted 3,000 characters][pasted 3,000 characters #2]"
        assert app.prompt.typed.full == "x" * 3000 + "y" * 3000


async def test_chip_opens_with_tab_and_goes_with_one_backspace() -> None:
    text = "\n".join(f"line {i}" for i in range(30))
    async with running() as (app, pilot):
        await paste(app, pilot, text)
        await pilot.press("tab")
        assert app.prompt.text == text
        await pilot.press("ctrl+underscore")
        assert app.prompt.text == "[pasted 30 lines]"
        await pilot.press("end", "backspace")
        assert app.prompt.text == ""


async def test_undo_and_redo() -> None:
    async with running() as (app, pilot):
        await pilot.press(*"abc", "left")
        await pilot.press("x")
        await pilot.press("alt+z")
        assert app.prompt.text == "abc"
        await pilot.press("ctrl+y")
        assert app.prompt.text == "abxc"


async def test_history_filters_by_what_is_typed_and_gives_it_back() -> None:
    async with running() as (app, pilot):
        for text in ("fix one", "write two", "fix three"):
            app.past.add(text)
        await pilot.press(*"fi", "up")
        assert app.prompt.text == "fix three"
        await pilot.press("up")
        assert app.prompt.text == "fix one"
        await pilot.press("up")
        assert app.prompt.text == "fix one"
        await pilot.press("down", "down")
        assert app.prompt.text == "fi"


async def test_up_moves_between_lines_before_history() -> None:
    async with running() as (app, pilot):
        app.past.add("old")
        await pilot.press("a", "ctrl+j", "b", "up")
        assert app.prompt.text == "a\nb"
        assert app.prompt.cursor_location[0] == 0


async def test_up_on_an_empty_prompt_takes_back_what_waits() -> None:
    async with running() as (app, pilot):
        app.past.add("old")
        app.waiting.append(Typed("waiting", {}))
        await pilot.press("up")
        assert app.prompt.text == "waiting"


async def test_search_cycles_accepts_and_gives_back() -> None:
    async with running() as (app, pilot):
        for text in ("alpha cache", "beta", "gamma cache"):
            app.past.add(text)
        await pilot.press(*"cache", "ctrl+r")
        assert [row.text for row in app.popup.rows] == ["gamma cache", "alpha cache"]
        await pilot.press("ctrl+r", "enter")
        assert app.prompt.text == "alpha cache"
        assert not app.sent
        await pilot.press("ctrl+u", *"bet", "ctrl+r")
        app.prompt.close_popup()
        await pilot.pause()
        assert app.prompt.text == "bet"
        assert not app.popup.display


async def test_popup_completes_commands_and_arguments() -> None:
    async with running() as (app, pilot):
        await pilot.press(*"/the")
        assert app.popup.display
        await pilot.press("tab")
        assert app.prompt.text == "/theme "
        assert next(row.text for row in app.popup.rows) == "/theme dark"
        await pilot.press("down", "tab")
        assert app.prompt.text == "/theme light"
        await pilot.press("enter")
        assert [typed.full for typed in app.sent] == ["/theme light"]
        assert not app.popup.display


async def test_enter_on_an_unfinished_name_takes_the_row_and_sends_a_whole_one() -> None:
    async with running() as (app, pilot):
        await pilot.press(*"/hel", "enter")
        assert [typed.full for typed in app.sent] == ["/help"]


async def test_editor_key_asks_for_the_editor() -> None:
    async with running() as (app, pilot):
        await pilot.press("ctrl+g")
        assert app.editor_asked == 1
