"""Text from outside reaches no widget as anything but text: no escape sequence, no markup, no crash."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from textual.content import Content
from ui.helpers import wait_until
from ui.latency_events import MS
from ui.talk_app import TalkApp

from lingchat.engines.api import ToolCall
from lingchat.events import Engine, TurnStart
from lingchat.stats import RunStats
from lingchat.ui.widgets.conversation import TurnView

HOSTILE = [
    "\x1b[2J\x1b[H wiped",
    "\x1b]0;new title\x07",
    "\x1b]52;c;aGk=\x1b\\",
    "\x1bPq#0;2;0;0;0\x1b\\",
    "\x1b_apc\x1b\\ \x1b^pm\x1b\\",
    "\x9b31m \x9d0;t\x9c \x90q\x9c",
    "\u202etxet desrever\u202c \u2066isolated\u2069",
    "[bold]not bold[/bold] [@click=app.quit]quit[/] [/nothing] [red",
    "[link](javascript:alert(1)) ![image](file:///etc/passwd) <a href=x>y</a>",
    "`\x1b[31m` **\x1b[0m** [\x1b](http://x/\x1b)",
    "```\x1b[31m\n\x1b[2J\ncode\x07\n```",
    "| \x1b[1m | b |\n|---|---|\n| \x9b | \u202e |",
    "nul \x00 del \x7f cr \r alone\r\n",
    "\ud800 lone surrogate \udfff",
    "\u2028 line \u2029 separators \x85 \x0b \x0c",
    "a" * 5000,
    "漢" * 500 + "\u200d" * 20,
    "\u0301" * 50 + "e" + "\u0301" * 200,
]


def check(host: TalkApp) -> None:
    """Nothing drawn holds a control character, and every line fits."""
    for widget in (host.talk, host.panel, host.line):
        assert widget is not None
        for y in range(widget.size.height):
            strip = widget.render_line(y)
            text = strip.text
            bad = [char for char in text if unicodedata.category(char) in ("Cc", "Cs") or "\u202a" <= char <= "\u2069"]
            assert not bad, (widget, text)
            text.encode("utf-8")
            assert sum(segment.cell_length for segment in strip) == strip.cell_length


async def show_everywhere(host: TalkApp, text: str) -> None:
    talk = host.talk
    await talk.show_turns(
        [
            TurnView("user", text, time=text, name=text),
            TurnView(
                "assistant",
                text,
                header=text,
                reasoning=text,
                reasoning_note=text,
                calls=(ToolCall(text, text), ToolCall(text, json.dumps({text: text}, ensure_ascii=False))),
                footer=text,
                error=text,
            ),
            TurnView("notice", text),
        ]
    )
    reply = talk.begin_reply(text, name=text)
    reply.append_reasoning(text)
    reply.set_reasoning_note(text)
    reply.set_status(text)
    reply.call(ToolCall(text, text))
    for char in text[:300]:
        reply.append(char)
    talk.flush()
    talk.action_toggle_reasoning()
    check(host)
    reply.fail(text)
    talk.action_cursor(-1)
    talk.scroll_home(animate=False)
    run = RunStats()
    for event in (
        Engine(t_ns=0, phase="load", message=text, model=text, backend=text, total_bytes=10, done_bytes=5),
        TurnStart(t_ns=MS, turn=1, prompt_tokens=3, reused=0, text=text),
    ):
        run.add(event)
        for view in (host.panel, host.line):
            assert view is not None
            view.set_provenance(text[:200])
            view.fold(run, event, MS)
            view.live.draw()


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_text_is_only_text(text: str) -> None:
    host = TalkApp()
    async with host.run_test(size=(120, 40)) as pilot:
        await show_everywhere(host, text)
        await wait_until(pilot, lambda: not host.talk._due)
        await pilot.pause()
        check(host)
        svg = host.export_screenshot()
        assert "\x1b" not in svg and "\u202e" not in svg


async def test_markup_is_shown_as_written() -> None:
    host = TalkApp()
    async with host.run_test(size=(120, 40)) as pilot:
        await host.talk.show_turns([TurnView("user", "[bold]x[/bold]"), TurnView("assistant", "[bold]y[/bold] [/z]")])
        await pilot.pause()
        assert "[bold]x[/bold]" in "\n".join(host.screen_text())
        assert "[bold]y[/bold] [/z]" in "\n".join(host.screen_text())
        assert host.panel is not None
        host.panel.set_provenance("[red]live")
        assert host.panel.border_subtitle == "[red]live" or Content("[red]live").plain in str(
            host.panel.border_subtitle
        )


async def test_links_that_run_something_are_not_links() -> None:
    host = TalkApp()
    async with host.run_test(size=(80, 20)) as pilot:
        await host.talk.show_turns(
            [TurnView("assistant", "[a](javascript:x) [b](file:///x) [c](vbscript:x) [d](https://ok)")]
        )
        await pilot.pause()
        clicks = {
            segment.style.meta["@click"][1]
            for y in range(3)
            for segment in host.talk.render_line(y)
            if segment.style is not None and "@click" in segment.style.meta
        }
        assert clicks == {("https://ok",)}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(codec=None), max_size=200), st.integers(20, 90))
async def test_any_text_at_any_width(text: str, width: int) -> None:
    host = TalkApp()
    async with host.run_test(size=(width, 20)) as pilot:
        await show_everywhere(host, text)
        await pilot.pause()
        check(host)
