"""The conversation on a screen: following, scrolling, the block cursor, copying, and what is laid out when."""

from __future__ import annotations

import itertools
import time

import pytest
from rich.style import Style as RichStyle
from textual.geometry import Offset
from textual.selection import Selection
from ui.helpers import wait_until
from ui.talk_app import REPLY, TALK, TalkApp, what

from lingchat.ui.widgets.conversation import Conversation, TurnView
from lingchat.ui.widgets.message_list import FILL_PAGES, MOUNTED_TURNS


def app() -> TalkApp:
    return TalkApp(panel=False, line=False)


def turns(count: int, lines: int = 3) -> list[TurnView]:
    out = []
    for number in range(count):
        out.append(TurnView("user", f"question {number}", f"u{number}"))
        out.append(TurnView("assistant", f"answer {number}\n" * lines, f"a{number}"))
    return out


def bottom(talk: Conversation) -> bool:
    return talk.scroll_offset.y + talk.size.height >= talk._height


async def test_text_is_shown_as_it_comes_and_the_view_follows() -> None:
    async with (host := app()).run_test(size=(60, 12)) as pilot:
        host.talk.add_user("hello", "09:41")
        reply = host.talk.begin_reply("#1")
        for number in range(40):
            reply.append(f"line {number}\n\n")
            await pilot.pause()
        await wait_until(pilot, lambda: any("line 39" in line for line in host.screen_text()))
        assert host.talk.following and bottom(host.talk)
        reply.finish("40 tok")
        await wait_until(pilot, lambda: any("40 tok" in line for line in host.screen_text()))


async def test_scrolling_up_releases_and_end_attaches_again() -> None:
    async with (host := app()).run_test(size=(60, 12)) as pilot:
        talk = host.talk
        await talk.show_turns(turns(6))
        reply = talk.begin_reply()
        talk.focus()
        await pilot.press("pageup")
        await wait_until(pilot, lambda: not talk.following)
        before = talk.scroll_offset.y
        seen = host.screen_text()[:-1]
        reply.append("more\n\n" * 30)
        talk.flush()
        await wait_until(pilot, lambda: talk.new_lines > 0)
        assert talk.scroll_offset.y == before
        assert host.screen_text()[:-1] == seen
        assert f"↓ {talk.new_lines} new lines" in host.screen_text()[-1]
        reply.finish("done")
        await pilot.pause()
        assert talk.scroll_offset.y == before
        assert host.screen_text()[:-1] == seen
        await pilot.press("end")
        await wait_until(pilot, lambda: talk.following and bottom(talk))
        assert talk.new_lines == 0
        assert "new line" not in host.screen_text()[-1]


async def test_scrolling_back_down_to_the_bottom_attaches() -> None:
    async with (host := app()).run_test(size=(60, 12)) as pilot:
        await host.talk.show_turns(turns(6))
        host.talk.scroll_relative(y=-3, animate=False)
        await wait_until(pilot, lambda: not host.talk.following)
        host.talk.scroll_relative(y=10, animate=False)
        await wait_until(pilot, lambda: host.talk.following)


async def test_the_badge_takes_a_click() -> None:
    async with (host := app()).run_test(size=(60, 12)) as pilot:
        await host.talk.show_turns(turns(6))
        host.talk.scroll_relative(y=-5, animate=False)
        host.talk.add(TurnView("assistant", "new"))
        await wait_until(pilot, lambda: "new line" in host.screen_text()[-1])
        badge = next(segment for segment in host.talk.render_line(11) if "new line" in segment.text)
        assert badge.style is not None and badge.style.bgcolor != host.talk.visual_style.rich_style.bgcolor
        await pilot.click(Conversation, offset=(host.screen_text()[-1].index("new line"), 11))
        await wait_until(pilot, lambda: host.talk.following)


async def test_a_new_question_goes_to_the_bottom() -> None:
    async with (host := app()).run_test(size=(60, 12)) as pilot:
        await host.talk.show_turns(turns(6))
        host.talk.scroll_relative(y=-5, animate=False)
        await wait_until(pilot, lambda: not host.talk.following)
        host.talk.add_user("next")
        await wait_until(pilot, lambda: host.talk.following and bottom(host.talk))


async def test_the_end_of_a_long_reply_never_moves_a_released_view() -> None:
    text = "intro\n\n" + "- **item** of a list\n" * 200 + "\nend [x]\n\n[x]: http://example.org\n"
    async with (host := app()).run_test(size=(60, 12)) as pilot:
        talk = host.talk
        reply = talk.begin_reply()
        reply.append(text)
        talk.flush()
        talk.scroll_to(y=2, animate=False)
        await wait_until(pilot, lambda: not talk.following)
        reply.finish("footer")
        await wait_until(pilot, lambda: "• item of a list" in "\n".join(host.screen_text()))
        assert talk.scroll_offset.y == 2
        assert reply.text == text


async def test_a_thousand_messages_open_with_the_last_ones_only_and_load_as_one_scrolls() -> None:
    async with (host := app()).run_test(size=(60, 12)) as pilot:
        talk = host.talk
        await talk.show_turns(turns(500))
        assert sum(message._built for message in talk.messages) <= 2 * MOUNTED_TURNS
        assert len(talk.mounted) >= 2
        assert sum(message.lines(60) for message in talk.mounted) <= (FILL_PAGES + 2) * 12
        assert "answer 499" in "\n".join(host.screen_text())
        top = talk.mounted[0].view.text
        talk.scroll_home(animate=False)
        await wait_until(pilot, lambda: talk.mounted[0].view.text != top)
        at = next(y for y in range(12) if top in host.screen_text()[y])
        assert at <= 2  # what was on top is still there
        while talk._first:
            talk._load_older()
        talk.scroll_home(animate=False)
        await wait_until(pilot, lambda: "question 0" in "\n".join(host.screen_text()))


async def test_turns_leave_at_the_top_while_the_user_is_at_the_bottom() -> None:
    async with (host := app()).run_test(size=(60, 12)):
        for number in range(MOUNTED_TURNS + 10):
            host.talk.add_user(f"q{number}")
            host.talk.begin_reply().finish("f")
        assert sum(message.view.role == "user" for message in host.talk.mounted) == MOUNTED_TURNS
        assert not any(message.sections for message in host.talk.messages[: host.talk._first])
        assert f"▲ {host.talk._first} earlier messages" in host.talk._line(0, 58).text


async def test_the_block_cursor_walks_and_asks() -> None:
    async with (host := app()).run_test(size=(80, 40)) as pilot:
        talk = host.talk
        await talk.show_turns(TALK)
        talk.focus()
        await pilot.press("alt+up")
        assert talk.cursor == TALK[1]
        assert "r again" in "\n".join(host.screen_text())
        await pilot.press("c", "o", "r", "b", "e", "left", "right", "ctrl+up", "c", "e", "r")
        assert talk.cursor == TALK[0]
        await wait_until(pilot, lambda: len(host.posted) == 8)
        names = [what(message) for message in host.posted]
        assert names == [
            ("Copy", "n2"),
            ("Open", "n2"),
            ("Regenerate", "n2"),
            ("Branch", "n2"),
            ("Sibling", "n2"),
            ("Sibling", "n2"),
            ("Copy", "n1"),
            ("Edit", "n1"),
        ]
        assert host.posted[0].text == REPLY  # type: ignore[attr-defined]
        assert [message.step for message in host.posted if isinstance(message, Conversation.Sibling)] == [-1, 1]
        await pilot.press("escape")
        await wait_until(pilot, lambda: isinstance(host.posted[-1], Conversation.CursorLeft))
        assert talk.cursor is None


async def test_the_cursor_shows_the_message_it_goes_to() -> None:
    async with (host := app()).run_test(size=(60, 12)) as pilot:
        await host.talk.show_turns(turns(30, lines=4))
        for _ in range(50):
            host.talk.action_cursor(-1)
        await wait_until(
            pilot,
            lambda: (
                (host.talk.cursor is not None and host.talk.cursor.node_id == "a5") or host.talk.cursor.node_id == "u5"
            ),
        )
        assert host.talk.cursor is not None
        assert host.talk.cursor.text.splitlines()[0] in "\n".join(host.screen_text())
        assert not host.talk.following


def click_at(host: TalkApp, label: str) -> tuple[int, int]:
    for y in range(host.talk.size.height):
        x = host.talk.render_line(y).text.find(label)
        if x >= 0:
            return x, y
    raise AssertionError(f"{label!r} is not on screen")


async def test_clicks_copy_code_fold_reasoning_and_open_links() -> None:
    async with (host := app()).run_test(size=(80, 45)) as pilot:
        await host.talk.show_turns(TALK)
        await pilot.pause()
        await pilot.click(Conversation, offset=click_at(host, "copy"))
        await wait_until(pilot, lambda: len(host.posted) == 1)
        copied = host.posted[0]
        assert isinstance(copied, Conversation.Copy)
        assert (copied.code, copied.text) == (1, host.talk.code(1))
        assert copied.text.startswith("def grow") and copied.text.endswith("* 3)\n")
        await pilot.click(Conversation, offset=click_at(host, "the docs"))
        await wait_until(pilot, lambda: len(host.posted) == 2)
        assert host.posted[1].href == "http://example.org/kv"  # type: ignore[attr-defined]
        await pilot.click(Conversation, offset=click_at(host, "▸ thought"))
        await wait_until(pilot, lambda: "The user asks about a cache." in "\n".join(host.screen_text()))
        host.talk.action_toggle_reasoning()
        assert "The user asks" not in "\n".join(host.screen_text())
        await pilot.click(Conversation, offset=click_at(host, "›"))
        await wait_until(pilot, lambda: len(host.posted) == 3)
        assert host.posted[2].step == 1  # type: ignore[attr-defined]


async def test_code_is_found_by_number() -> None:
    async with (host := app()).run_test(size=(80, 20)):
        await host.talk.show_turns([*TALK, TurnView("user", "```\nmine\n```"), TurnView("assistant", "no code")])
        assert host.talk.code(1) is not None and host.talk.code(1).startswith("def")  # type: ignore[union-attr]
        assert host.talk.code(2) is None
        assert host.talk.code(0) is None


async def test_selected_text_comes_out_as_it_was_written() -> None:
    long = "one two three four five six seven eight nine ten eleven twelve thirteen"
    async with (host := app()).run_test(size=(40, 20)):
        await host.talk.show_turns([TurnView("assistant", f"{long}\n\n- item\n- more")])
        text = host.talk.get_selection(Selection(None, None))
        assert text is not None
        assert f"{long}\n" in text[0]
        assert "- item\n- more" in text[0]
        part = host.talk.get_selection(Selection(Offset(4, 1), Offset(44, 2)))
        assert part is not None and part[0] == long[4:44]


async def test_a_resize_keeps_the_bottom_and_a_theme_change_repaints() -> None:
    async with (host := app()).run_test(size=(80, 20)) as pilot:
        await host.talk.show_turns(TALK)
        await pilot.resize_terminal(41, 13)
        await wait_until(pilot, lambda: host.talk.size.width == 41 and bottom(host.talk))
        assert "L 2.57" in "\n".join(host.screen_text())
        colors = {segment.style.color for segment in host.talk.render_line(3) if isinstance(segment.style, RichStyle)}
        host.theme = "textual-light"
        await wait_until(
            pilot, lambda: {s.style.color for s in host.talk.render_line(3) if isinstance(s.style, RichStyle)} != colors
        )


async def test_a_resize_keeps_what_a_released_view_shows_and_the_count_of_new_lines() -> None:
    async with (host := app()).run_test(size=(80, 14)) as pilot:
        await host.talk.show_turns(turns(12, lines=6))
        host.talk._load_older()
        host.talk.action_cursor(-1)
        place = host.talk.mounted[6]
        host.talk.scroll_to(y=host.talk._tops[6], animate=False)
        await wait_until(pilot, lambda: not host.talk.following)
        host.talk.add(TurnView("assistant", "new\n" * 5))
        new = host.talk.new_lines
        assert new > 0
        await pilot.resize_terminal(50, 11)
        await wait_until(pilot, lambda: host.talk.size.width == 50)
        assert host.talk._place(host.talk.scroll_offset.y)[0] is place  # type: ignore[index]
        assert abs(host.talk.new_lines - new) <= 1


async def test_turns_shown_before_the_first_layout_fill_the_screen() -> None:
    host = app()
    async with host.run_test(size=(60, 30)) as pilot:
        other = Conversation()
        await other.show_turns(turns(40))
        await host.screen.mount(other)
        await wait_until(pilot, lambda: other.size.height > 0 and other._height >= other.size.height)
        assert other.following


@pytest.mark.parametrize("size", [(20, 5), (24, 6), (40, 12), (61, 16), (200, 60)])
async def test_no_size_is_too_small(size: tuple[int, int]) -> None:
    host = TalkApp()
    async with host.run_test(size=size) as pilot:
        await host.talk.show_turns(TALK)
        reply = host.talk.begin_reply("#8")
        for at in range(0, len(REPLY), 40):
            reply.append(REPLY[at : at + 40])
            await pilot.pause()
        reply.finish("footer")
        host.talk.action_cursor(-1)
        await pilot.pause()
        width = host.talk.scrollable_content_region.width
        for y in range(host.talk.size.height):
            assert host.talk.render_line(y).cell_length == width


async def test_flushes_keep_to_their_interval_and_stop_when_nothing_comes() -> None:
    async with (host := app()).run_test(size=(60, 12)) as pilot:
        flushed: list[float] = []
        flush = host.talk.flush

        def counted() -> None:
            flushed.append(time.perf_counter())
            flush()

        host.talk.flush = counted  # type: ignore[method-assign]
        reply = host.talk.begin_reply()
        for _ in range(50):
            reply.append("word ")
            await pilot.pause()
        await wait_until(pilot, lambda: "word" in "\n".join(host.screen_text()) and not host.talk._due)
        assert all(later - sooner >= 0.06 for sooner, later in itertools.pairwise(flushed))
        assert host.talk._timer is None
