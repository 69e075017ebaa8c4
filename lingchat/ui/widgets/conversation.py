"""The conversation: a list of messages drawn line by line.

It is one widget, not a tree of widgets. A message is data with laid-out lines, so that a flush while tokens stream
costs the lines that changed, a list of 300 items is mounted by nobody, and a session of 1,000 messages opens at once:
only the last turns are laid out, older ones when the view reaches them.

The view follows the bottom only while the user is there. Actions on messages are posted as Textual messages; the app
carries them out. All text is data: nothing here parses markup.

Knows messages and lines; knows no engine, no session and no app.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import count
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.timer import Timer

from lingchat.ui.widgets.message import MessageView, Reply, TurnView
from lingchat.ui.widgets.rows import paint

MOUNTED_TURNS = 20
MIN_FLUSH_S = 0.066  # text moves at most 15 times a second
FLUSH_SHARE = 4  # a flush waits at least this many times what the last one cost
GUTTER = 1  # column of the block cursor
EDGE = 1  # free column at the right


class BlockAction(Message):
    """The user asks for something on a message; `view` is what it is about."""

    def __init__(self, message: MessageView) -> None:
        super().__init__()
        self.view: TurnView = message.view
        self.text = message.text  # its source, exact


class Conversation(ScrollView, can_focus=True):
    """Shows messages and lets a cursor walk over them."""

    class Copy(BlockAction):
        """Copy the source of the message, or of one of its code blocks (`code` is its number)."""

        code: int = 0

    class Open(BlockAction):
        """Show the message alone."""

    class Edit(BlockAction):
        """Change this user message and send it again, as a sibling."""

    class Regenerate(BlockAction):
        """Answer again, as a sibling."""

    class Branch(BlockAction):
        """Go on from this message in a branch of its own."""

    class Sibling(BlockAction):
        """Show the sibling `step` to the right."""

        step: int = 0

    class OpenLink(Message):
        """A link was clicked. The address is the model's: ask or check before following it."""

        def __init__(self, href: str) -> None:
            super().__init__()
            self.href = href

    class CursorLeft(Message):
        """The block cursor is gone; the prompt may take the keys again."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("alt+up,ctrl+up", "cursor(-1)", "message above", show=False),
        Binding("alt+down,ctrl+down", "cursor(1)", "message below", show=False),
        Binding("escape", "leave_cursor", "leave messages", show=False),
        Binding("c", "act('copy')", "copy", show=False),
        Binding("o", "act('open')", "open", show=False),
        Binding("e", "act('edit')", "edit", show=False),
        Binding("r", "act('regenerate')", "regenerate", show=False),
        Binding("b", "act('branch')", "branch", show=False),
        Binding("left", "step_sibling(-1)", "sibling before", show=False),
        Binding("right", "step_sibling(1)", "sibling after", show=False),
        Binding("ctrl+home", "scroll_home", "top", show=False),
        Binding("ctrl+end", "scroll_end", "bottom", show=False),
    ]

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "conversation--user",
        "conversation--model",
        "conversation--muted",
        "conversation--hint",
        "conversation--rule",
        "conversation--code",
        "conversation--inline-code",
        "conversation--bullet",
        "conversation--quote-bar",
        "conversation--strong",
        "conversation--em",
        "conversation--s",
        "conversation--h1",
        "conversation--h2",
        "conversation--h3",
        "conversation--h4",
        "conversation--h5",
        "conversation--h6",
        "conversation--error",
        "conversation--cursor",
        "conversation--more",
    }

    DEFAULT_CSS = """
    Conversation {
        height: 1fr;
        overflow-x: hidden;
        overflow-y: scroll;
        scrollbar-size-vertical: 1;
        scrollbar-background: $background;
        scrollbar-background-hover: $background;
        scrollbar-background-active: $background;
        scrollbar-color: $foreground 20%;
        scrollbar-color-hover: $foreground 40%;
        background: $background;
        color: $foreground;
        & > .conversation--user { color: $text-success; text-style: bold; }
        & > .conversation--model { color: $text-primary; text-style: bold; }
        & > .conversation--muted { color: $foreground 55%; }
        & > .conversation--hint { color: $text-accent; }
        & > .conversation--rule { color: $foreground 30%; }
        & > .conversation--code { color: $foreground 90%; }
        & > .conversation--inline-code { color: $text-warning; background: $warning 10%; }
        & > .conversation--bullet { color: $text-primary; }
        & > .conversation--quote-bar { color: $text-secondary; }
        & > .conversation--strong { text-style: bold; }
        & > .conversation--em { text-style: italic; }
        & > .conversation--s { text-style: strike; }
        & > .conversation--h1 { color: $text-primary; text-style: bold underline; }
        & > .conversation--h2 { color: $text-primary; text-style: bold; }
        & > .conversation--h3 { color: $text-secondary; text-style: bold; }
        & > .conversation--h4 { text-style: bold; }
        & > .conversation--h5 { text-style: bold italic; }
        & > .conversation--h6 { text-style: italic; }
        & > .conversation--error { color: $text-error; text-style: bold; }
        & > .conversation--cursor { color: $accent; }
        & > .conversation--more { background: $primary; color: $background; text-style: bold; }
        &:ansi {
            background: ansi_default;
            color: ansi_default;
            & > .conversation--user { color: ansi_green; }
            & > .conversation--model { color: ansi_blue; }
            & > .conversation--muted { color: ansi_bright_black; }
            & > .conversation--hint { color: ansi_magenta; }
            & > .conversation--rule { color: ansi_bright_black; }
            & > .conversation--code { color: ansi_default; }
            & > .conversation--inline-code { color: ansi_yellow; background: ansi_default; }
            & > .conversation--bullet { color: ansi_blue; }
            & > .conversation--h1 { color: ansi_blue; }
            & > .conversation--h2 { color: ansi_blue; }
            & > .conversation--h3 { color: ansi_cyan; }
            & > .conversation--quote-bar { color: ansi_cyan; }
            & > .conversation--error { color: ansi_red; }
            & > .conversation--cursor { color: ansi_magenta; }
            & > .conversation--more { background: ansi_blue; color: ansi_white; }
        }
    }
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.perf_counter,
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        """`clock` gives seconds; tests put their own."""
        super().__init__(name=name, id=id, classes=classes)
        self._clock = clock
        self._all: list[MessageView] = []
        self._first = 0  # messages before it are not laid out
        self._tops: list[int] = []  # first line of each laid-out message
        self._height = 0
        self._keys = count(1)
        self._cursor: MessageView | None = None
        self._follow = True
        self._moving = False  # the conversation itself scrolls
        self._seen = 0  # lines the user has had on screen since the view was released
        self._due: dict[Reply, None] = {}
        self._timer: Timer | None = None
        self._next_flush = 0.0
        self._paint_cost = 0.0
        self.flush_cost = 0.0  # seconds the last flush took, painting included
        self._styles: dict[str, Style] = {}

    # -- what the app calls ---------------------------------------------------------------------------------------

    async def show_turns(self, turns: Sequence[TurnView]) -> None:
        """Shows these messages instead of what is there, from the bottom."""
        self.clear()
        self._all = [self._view(turn) for turn in turns]
        self._first = self._start_of_last_turns(len(self._all))
        self._arrange()
        self.scroll_to_end()

    def add_user(self, text: str, time: str = "", node_id: str = "", **more: object) -> MessageView:
        """A message of the user at the bottom; the view goes there."""
        return self.add(TurnView("user", text, node_id, time, **more))  # type: ignore[arg-type]

    def add(self, view: TurnView) -> MessageView:
        """Any finished message at the bottom."""
        message = self._view(view)
        self._append(message)
        if view.role == "user":
            self._follow = True
        self._arrange()
        self._settle()
        return message

    def begin_reply(self, header: str = "", node_id: str = "", **more: object) -> Reply:
        """A reply that grows; its deltas are shown at the flush interval."""
        view = TurnView("assistant", "", node_id, header=header, **more)  # type: ignore[arg-type]
        reply = Reply(view, f"m{next(self._keys)}", self)
        self._append(reply)
        self._arrange()
        self._settle()
        return reply

    def clear(self) -> None:
        self._set_cursor(None)
        self._all = []
        self._first = 0
        self._due.clear()
        self._follow = True
        self._seen = 0
        self._arrange()

    @property
    def messages(self) -> Sequence[MessageView]:
        return self._all

    @property
    def following(self) -> bool:
        """Whether the view stays at the bottom as text arrives."""
        return self._follow

    @property
    def new_lines(self) -> int:
        """Lines below the view that the user has not seen."""
        return 0 if self._follow else max(self._height - self._seen, 0)

    def scroll_to_end(self) -> None:
        """Goes to the bottom and stays there."""
        self._follow = True
        self._settle()

    def code(self, number: int) -> str | None:
        """Code block `number` of the message under the cursor, else of the last reply that has one."""
        if self._cursor is not None:
            return self._cursor.code(number)
        for message in reversed(self._all):
            if message.view.role == "assistant" and (found := message.code(number)) is not None:
                return found
        return None

    # -- messages and lines ---------------------------------------------------------------------------------------

    def _view(self, view: TurnView) -> MessageView:
        return MessageView(view, f"m{next(self._keys)}", self)

    def _append(self, message: MessageView) -> None:
        self._all.append(message)
        if self._follow:  # nobody looks at the oldest; a released view must not move
            first = self._start_of_last_turns(len(self._all))
            for old in self._all[self._first : first]:
                old.unload()
            if first > self._first:
                self._first = first
                self._tops = []

    def _start_of_last_turns(self, end: int, turns: int = MOUNTED_TURNS) -> int:
        """Index of the message at which the last `turns` turns before `end` begin."""
        for index in range(end - 1, -1, -1):
            if self._all[index].view.role == "user":
                turns -= 1
                if turns == 0:
                    return index
        return 0

    @property
    def _width(self) -> int:
        return max(self.scrollable_content_region.width - GUTTER - EDGE, 4)

    def _arrange(self, start: int = 0) -> None:
        """Recomputes where messages lie, from laid-out message `start` on."""
        width = self._width
        shown = self._all[self._first :]
        del self._tops[start:]
        y = self._tops[-1] + shown[start - 1].lines(width) if start else (1 if self._first else 0)
        for message in shown[start:]:
            self._tops.append(y)
            y += message.lines(width)
        self._height = y
        size = Size(self.scrollable_content_region.width, y)
        if size != self.virtual_size:
            self.virtual_size = size
        self.refresh()

    def _settle(self) -> None:
        """After lines changed: stay at the bottom if that is where the user is."""
        if self._follow:
            self._moving = True
            try:
                self.scroll_to(y=self.max_scroll_y, animate=False)
            finally:
                self._moving = False

    def relayout(self, view: MessageView) -> None:
        if view in self._all[self._first :]:
            self._arrange(self._all.index(view, self._first) - self._first)
            self._settle()

    def on_resize(self, event: events.Resize) -> None:
        self._arrange()
        self._settle()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()
        for message in self._all[self._first :]:
            for section in message.sections:
                section.strips.clear()

    def _load_older(self) -> None:
        before = self._first
        self._first = self._start_of_last_turns(before)
        if self._first == before:
            return
        below = self._height - self.scroll_offset.y
        self._tops = []
        self._arrange()
        self.screen.clear_selection()
        self._moving = True
        try:
            self.scroll_to(y=self._height - below, animate=False)
        finally:
            self._moving = False

    # -- flushing -------------------------------------------------------------------------------------------------

    def schedule(self, reply: Reply) -> None:
        """A reply has something new. It is shown now, or when the interval has passed."""
        self._due[reply] = None
        if self._timer is not None:
            return
        wait = self._next_flush - self._clock()
        if wait <= 0:
            self.flush()
        else:
            self._timer = self.set_timer(wait, self._flush_due)

    def _flush_due(self) -> None:
        self._timer = None
        if self._due:
            self.flush()

    def flush(self) -> None:
        """Shows what has arrived."""
        start = self._clock()
        due, self._due = self._due, {}
        first = len(self._tops)
        for reply in due:
            reply.flush()
            if reply in self._all:
                first = min(first, self._all.index(reply) - self._first)
        self._arrange(max(first, 0))
        self._settle()
        end = self._clock()
        self.flush_cost = end - start + self._paint_cost
        self._paint_cost = 0.0
        self._next_flush = end + max(MIN_FLUSH_S, FLUSH_SHARE * self.flush_cost)

    # -- drawing --------------------------------------------------------------------------------------------------

    def render_lines(self, crop: Region) -> list[Strip]:
        start = self._clock()
        strips = super().render_lines(crop)
        self._paint_cost += self._clock() - start
        return strips

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        strip = self._line(self.scroll_offset.y + y, width)
        if y == self.scrollable_content_region.height - 1 and (new := self.new_lines):
            click = Style.from_meta({"@click": ("scroll_end", ())})
            style = (self._style(".conversation--more") + click).rich_style
            text = f" ↓ {new:,} new line{'s' if new != 1 else ''} "
            if len(text) < width:
                strip = Strip.join(
                    [strip.crop(0, width - len(text) - 1), Strip([Segment(text, style)]), strip.crop(width - 1)]
                )
        return strip

    def _line(self, y: int, width: int) -> Strip:
        base = self.visual_style
        blank = Strip.blank(width, base.rich_style)
        if self._first and y == 0:
            return self._older_line(width)
        place = bisect_right(self._tops, y) - 1
        if place < 0 or y >= self._height:
            return blank
        message = self._all[self._first + place]
        found = message.locate(y - self._tops[place], self._width)
        if found is None:
            return blank
        section, index = found
        selection = self.text_selection
        span = selection.get_span(y) if selection is not None else None
        if span is None and (cached := section.strips.get(index)) is not None and cached[0] == y:
            return cached[1]
        room = self._width - section.indent
        select = self.screen.get_visual_style("screen--selection") if span is not None else None
        body = paint(section.lines(self._width)[index], room, y, base, self._style, span, select)
        gutter = "▌" if message.selected else " "
        left = Segment(gutter, (base + self._style(".conversation--cursor")).rich_style)
        pad = Segment(" " * section.indent, base.rich_style)
        right = Segment(" " * max(width - GUTTER - section.indent - room, 0), base.rich_style)
        strip = Strip([left, pad, *body, right], width)
        if span is None:
            section.strips[index] = (y, strip)
        return strip

    def _older_line(self, width: int) -> Strip:
        click = Style.from_meta({"@click": ("load_older", ())})
        style = (self.visual_style + self._style(".conversation--muted") + click).rich_style
        text = f"▲ {self._first:,} earlier messages"[:width]
        return Strip([Segment(text.center(width), style)], width)

    def _style(self, style: str | Style) -> Style:
        if isinstance(style, Style):
            return style
        if (known := self._styles.get(style)) is None:
            known = self.get_visual_style(style[1:], partial=True) if style.startswith(".") else self._get_style(style)
            self._styles[style] = known
        return known

    # -- scrolling by the user --------------------------------------------------------------------------------------

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        bottom = round(new_value) + self.scrollable_content_region.height
        if not self._moving:
            if round(new_value) >= self.max_scroll_y:
                self._follow = True
            elif new_value < old_value:
                self._release()
            if self._first and round(new_value) <= 0:
                self.call_after_refresh(self._load_older)
        if not self._follow:
            self._seen = max(self._seen, bottom)

    def _release(self) -> None:
        if self._follow:
            self._follow = False
            self._seen = self._height

    def action_scroll_end(self) -> None:
        self.scroll_to_end()
        self.refresh()

    def action_load_older(self) -> None:
        self._load_older()

    # -- block cursor -----------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> TurnView | None:
        return self._cursor.view if self._cursor is not None else None

    def action_cursor(self, step: int) -> None:
        """Moves the block cursor by `step` messages; from nowhere it enters at the last one."""
        if not self._all:
            return
        if self._cursor is None:
            place = len(self._all) - 1
        else:
            place = self._all.index(self._cursor) + step
            if place >= len(self._all):
                self.action_leave_cursor()
                return
        place = max(place, 0)
        while place < self._first:
            self._load_older()
        self._set_cursor(self._all[place])
        self.focus(scroll_visible=False)
        self._show_message(place)

    def action_leave_cursor(self) -> None:
        """Back to the prompt, and to the bottom if that is where the cursor was."""
        self._set_cursor(None)
        self.post_message(self.CursorLeft())

    def _set_cursor(self, message: MessageView | None) -> None:
        for changed, selected in ((self._cursor, False), (message, True)):
            if changed is not None:
                changed.select(selected)
                for section in changed.sections:
                    section.strips.clear()
        self._cursor = message
        self.refresh()

    def _show_message(self, place: int) -> None:
        """Scrolls so that the message, or its beginning, is on screen."""
        top = self._tops[place - self._first]
        height = self._all[place].lines(self._width) - 1
        room = self.scrollable_content_region.height
        y = self.scroll_offset.y
        if top < y or height >= room:
            self.scroll_to(y=top, animate=False)
        elif top + height > y + room:
            self.scroll_to(y=top + height - room, animate=False)

    def action_act(self, action: str) -> None:
        if self._cursor is None:
            return
        kinds = {
            "copy": self.Copy,
            "open": self.Open,
            "edit": self.Edit,
            "regenerate": self.Regenerate,
            "branch": self.Branch,
        }
        if action == "edit" and self._cursor.view.role != "user":
            return
        if action == "regenerate" and self._cursor.view.role != "assistant":
            return
        self.post_message(kinds[action](self._cursor))

    def action_step_sibling(self, step: int) -> None:
        if self._cursor is not None:
            self._post_sibling(self._cursor, step)

    def _post_sibling(self, message: MessageView, step: int) -> None:
        if 1 <= message.view.sibling + step <= message.view.siblings:
            event = self.Sibling(message)
            event.step = step
            self.post_message(event)

    # -- clicks -----------------------------------------------------------------------------------------------------

    def _by_key(self, key: str) -> MessageView | None:
        return next((message for message in self._all if message.key == key), None)

    def action_copy_code(self, key: str, number: int) -> None:
        message = self._by_key(key)
        if message is not None and (code := message.code(number)) is not None:
            event = self.Copy(message)
            event.code, event.text = number, code
            self.post_message(event)

    def action_sibling(self, key: str, step: int) -> None:
        if (message := self._by_key(key)) is not None:
            self._post_sibling(message, step)

    def action_fold_reasoning(self, key: str) -> None:
        if (message := self._by_key(key)) is not None:
            message.toggle_reasoning()

    def action_toggle_reasoning(self) -> None:
        """Opens or folds the reasoning under the cursor, else the last one."""
        targets = [self._cursor] if self._cursor is not None else reversed(self._all[self._first :])
        for message in targets:
            if message.has_reasoning:
                message.toggle_reasoning()
                return

    def action_open_link(self, href: str) -> None:
        self.post_message(self.OpenLink(href))

    # -- selecting text with the mouse ------------------------------------------------------------------------------

    @property
    def allow_select(self) -> bool:
        return True

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text as it was written: a line broken only by the screen comes out whole."""
        out: list[str] = []
        first = selection.start.y if selection.start is not None else 0
        last = selection.end.y if selection.end is not None else self._height - 1
        for y in range(max(first, 0), min(last, self._height - 1) + 1):
            span = selection.get_span(y)
            place = bisect_right(self._tops, y) - 1
            if span is None or place < 0:
                continue
            message = self._all[self._first + place]
            found = message.locate(y - self._tops[place], self._width)
            if found is None:
                out.append("\n")
                continue
            line = found[0].lines(self._width)[found[1]]
            start, end = span[0], len(line.row.text) if span[1] < 0 else span[1]
            if line.first and start == 0 and line.row.mark:
                out.append(line.row.mark)
            out.append(line.row.text[max(start, line.start) : min(end, line.end)])
            if line.last:
                out.append("\n")
        return "".join(out).rstrip("\n"), "\n"
