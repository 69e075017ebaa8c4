"""Messages drawn line by line in one scrolling widget: where they lie, how they are painted, when text moves.

A message is data with laid-out lines, not a tree of widgets, so that a flush while tokens stream costs the lines that
changed, a list of 300 items is mounted by nobody, and a session of 1,000 messages opens at once: only the last turns
are laid out, older ones when the view reaches them.

The view follows the bottom only while the user is there. While text arrives fast it scrolls a few lines ahead of it:
every scrolled line repaints the whole view, and a terminal is slow to take that.

Knows messages and lines; knows nothing of what the user does with them (see `conversation`).
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import count
from typing import ClassVar

from textual import events
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from lingchat.ui.later import later
from lingchat.ui.widgets import message_style
from lingchat.ui.widgets.canvas import Canvas
from lingchat.ui.widgets.message import MessageView, TurnView
from lingchat.ui.widgets.pace import Pace
from lingchat.ui.widgets.reply import Reply
from lingchat.ui.widgets.rows import Line, copied, paint

MOUNTED_TURNS = 20
FILL_PAGES = 3  # laid out at once when a session opens or older turns are reached
REFINE_INLINE = 4000  # characters parsed without a thread
SCROLLBAR_S = 1.0  # while text arrives the scrollbar hardly moves, and follows that often
GUTTER = 1  # column of the block cursor
EDGE = 1  # free column at the right


class MessageList(ScrollView, can_focus=True):
    """The drawing half of the conversation."""

    COMPONENT_CLASSES: ClassVar[set[str]] = message_style.CLASSES
    DEFAULT_CSS = message_style.CSS

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
        self._sizes: dict[str, int] = {}  # lines of each, by key, as last laid out
        self._view_size = Size(0, 0)
        self._height = 0  # lines of all laid-out messages
        self._keys = count(1)
        self.reasoning_open = False  # of messages to come
        self._follow = True
        self._moving = False  # the list itself scrolls
        self._seen = 0  # lines the user has had on screen since the view was released
        self._due: dict[Reply, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.flushed: Callable[[], object] = lambda: (
            None
        )  # told after each flush: what else is due may be drawn with it
        self._scrollbar_at = 0.0
        self.pace = Pace(clock)
        self._canvas = Canvas(self)

    # -- messages ---------------------------------------------------------------------------------------------------

    @property
    def messages(self) -> Sequence[MessageView]:
        return self._all

    @property
    def mounted(self) -> Sequence[MessageView]:
        """The messages that are laid out."""
        return self._all[self._first :]

    def _view(self, view: TurnView) -> MessageView:
        message = MessageView(view, f"m{next(self._keys)}", self)
        message.reasoning_open = self.reasoning_open
        return message

    def _append(self, message: MessageView) -> None:
        self._all.append(message)
        if self._follow:  # nobody looks at the oldest; a released view must not move
            first = max(self._start_of_last_turns(len(self._all)), self._first)
            for old in self._all[self._first : first]:
                old.unload()
            if first > self._first:
                self._first = first
                self._tops = []
        self._arrange(len(self._tops))

    def _start_of_last_turns(self, end: int, turns: int = MOUNTED_TURNS) -> int:
        """Index of the message at which the last `turns` turns before `end` begin."""
        for index in range(end - 1, -1, -1):
            if self._all[index].view.role == "user":
                turns -= 1
                if turns == 0:
                    return index
        return 0

    def _start_of_pages(self, end: int) -> int:
        """The same for as many turns as fill some pages: laying out 20 long ones at once would be felt."""
        first = end
        lines = 0
        for turns in range(1, MOUNTED_TURNS + 1):
            before, first = first, self._start_of_last_turns(end, turns)
            lines += sum(message.lines(self._width) for message in self._all[first:before])
            if first == 0 or lines >= FILL_PAGES * max(self._page, 1):
                break
        return first

    def _load_older(self) -> None:
        """Lays out turns above the first one shown; what is on screen stays where it is."""
        before = self._first
        self._first = self._start_of_pages(before)
        if self._first == before:
            return
        below = self._height - self.scroll_offset.y
        self._arrange()
        self.screen.clear_selection()
        self._scroll(self._height - below)

    # -- lines --------------------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Takes the size of the view. Asking the widget for it on every line would cost more than the line."""
        self._view_size = self.scrollable_content_region.size

    @property
    def _width(self) -> int:
        return max(self._view_size.width - GUTTER - EDGE, 4)

    @property
    def _page(self) -> int:
        return self._view_size.height

    def _arrange(self, start: int = 0, dirty: int | None = None) -> None:
        """Recomputes where messages lie, from laid-out message `start` on, and repaints from line `dirty` on."""
        self._measure()
        width, shown, old = self._width, self.mounted, self._height
        start = min(start, len(self._tops))
        del self._tops[start:]
        y = self._tops[-1] + shown[start - 1].lines(width) if start else int(self._first > 0)
        top = y
        for message in shown[start:]:
            self._tops.append(y)
            self._sizes[message.key] = message.lines(width)
            y += self._sizes[message.key]
        self._height = y
        self._extend(y)
        first = (top if start else 0) if dirty is None else dirty
        self._repaint(first, max(old, y) + 1)
        if not self._follow:
            self._refresh_badge()

    def _repaint(self, first: int, end: int) -> None:
        """Repaints what of the lines `first` to `end` is on screen."""
        y = self.scroll_offset.y
        first, end = max(first - y, 0), min(end - y, self._page)
        if first < end:
            self.refresh(Region(0, first, self._view_size.width, end - first))

    def _extend(self, height: int) -> None:
        """Sets the scrollable height without a layout of the screen, which would repaint everything."""
        size = Size(self._view_size.width, height)
        if size == self.virtual_size:
            return
        self.set_reactive(Widget.virtual_size, size)
        if not self._follow and self._clock() - self._scrollbar_at >= SCROLLBAR_S:
            self._sync_scrollbar()

    def _sync_scrollbar(self) -> None:
        self._scrollbar_at = self._clock()
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.window_virtual_size = self.virtual_size.height
            self.vertical_scrollbar.window_size = self._page
            self.vertical_scrollbar.position = self.scroll_y

    @property
    def text_width(self) -> int:
        """Cells of a message's lines, its indent included."""
        return self._width

    def refine(self, reply: Reply) -> None:
        """Brings a finished reply into its final form; a long one without holding the event loop."""
        if len(reply.text) <= REFINE_INLINE:
            reply.adopt(reply.refinement(self._width)())
        else:
            self.relayout(reply)
            self.run_worker(self._refine(reply), group="refine")

    async def _refine(self, reply: Reply) -> None:
        refined = await asyncio.to_thread(reply.refinement(self._width))
        if reply in self._all:
            reply.adopt(refined)

    def relayout(self, view: MessageView) -> None:
        """The lines of a message have changed in a way only it knows."""
        if view in self.mounted:
            self._arrange(self._all.index(view, self._first) - self._first)
            self._settle()
            self._sync_scrollbar()  # a reply has ended, for one: nothing more would bring the bar to where it belongs

    def on_resize(self, event: events.Resize) -> None:
        """Lays everything out anew; the bottom stays the bottom, else the line on top stays on top."""
        self._measure()
        at, unseen, old = self._place(self.scroll_offset.y), self.new_lines, max(self._height, 1)
        part = 0.0 if at is None else at[1] / max(self._sizes.get(at[0].key, 1), 1)
        if self._follow and self._first:
            self._first = min(self._first, self._start_of_pages(len(self._all)))
        self._arrange()
        if self._follow or at is None:
            self.scroll_to_end()
        else:
            top = self._tops[self._all.index(at[0]) - self._first]
            self._scroll(top + int(part * at[0].lines(self._width)))
            self._seen = self._height - unseen * self._height // old
        self._sync_scrollbar()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._canvas.forget()
        for message in self.mounted:
            for section in message.sections:
                section.strips.clear()

    # -- following the bottom -----------------------------------------------------------------------------------------

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
        self._extend(self._height)
        self._scroll(max(self._height - self._page, 0))
        self._sync_scrollbar()

    def _settle(self, ahead: int = 0) -> None:
        """After lines changed: keeps the bottom on screen if the user is there, up to `ahead` lines beyond it.

        Never scrolls back up: a block that became shorter leaves free lines below, until they are used.
        """
        if not self._follow:
            return
        y = self.scroll_offset.y
        if self._height > y + self._page:
            y = self._height - self._page + min(ahead, max(self._page // 4, 0))
        self._extend(max(self._height, y + self._page))
        self._scroll(y)

    def _scroll(self, y: int) -> None:
        self._moving = True
        try:
            self.scroll_to(y=y, animate=False, force=True)
        finally:
            self._moving = False

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        old, new = round(old_value), round(new_value)
        if old != new:
            self.refresh(Region(0, 0, self._view_size.width, self._page))
            if self._moving and self._clock() - self._scrollbar_at >= SCROLLBAR_S:
                self._sync_scrollbar()  # the view is repainted anyway
        if not self._moving:
            if new >= self.max_scroll_y:
                self._follow = True
            elif new < old and self._follow:
                self._follow = False
                self._seen = self._height
            if self._first and new <= 0:
                self.call_after_refresh(self._load_older)
            self._sync_scrollbar()
        if not self._follow:
            self._seen = max(self._seen, new + self._page)

    # -- flushing -----------------------------------------------------------------------------------------------------

    def schedule(self, reply: Reply) -> None:
        """A reply has something new. It is shown now, or when the interval has passed."""
        self._due[reply] = None
        if self._timer is not None:
            return
        wait = self.pace.wait()
        if wait <= 0:
            self.flush()
        else:
            self._timer = later(self, wait, self._flush_due)

    def _flush_due(self) -> None:
        self._timer = None
        if self._due:
            self.flush()

    def flush(self) -> None:
        """Shows what has arrived."""
        start = self._clock()
        due, self._due = self._due, {}
        old = self._height
        for reply in due:
            changed = reply.flush(self._width)
            if reply in self.mounted:
                place = self._all.index(reply, self._first) - self._first
                self._arrange(place, self._tops[place] + changed)
        self._settle(self.pace.lines_ahead(self._height - old))
        self.pace.flushed(start)
        self.flushed()

    # -- painting -----------------------------------------------------------------------------------------------------

    def render_lines(self, crop: Region) -> list[Strip]:
        start = self._clock()
        self._measure()
        strips = self._plain_lines(crop) if self._canvas.plain else super().render_lines(crop)
        self.pace.painted(self._clock() - start)
        return strips

    def _plain_lines(self, crop: Region) -> list[Strip]:
        """The lines without Textual's way through every rule of their style, and those alone that are asked for.

        A line that did not change is the same strip as before, and brings all that was made of it along.
        """
        canvas, selection, width = self._canvas, self.text_selection, self._view_size.width
        filters, (_, background) = self.get_line_filters(), self.background_colors
        canvas.fit(self.content_size.width)
        bare = crop.column_span == (canvas.left, canvas.left + width)
        strips = []
        for y in crop.line_range:
            strip = self._screen_line(y, width, selection)
            if not bare:
                strip = canvas.beside(strip)
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, background)
            strips.append(strip)
        if bare or crop.column_span == (0, self.region.width):
            return strips
        return [strip.crop(*crop.column_span) for strip in strips]

    def render_line(self, y: int) -> Strip:
        return self._screen_line(y, self._view_size.width, self.text_selection)

    def _screen_line(self, y: int, width: int, selection: Selection | None) -> Strip:
        strip = self._line(self.scroll_offset.y + y, width, selection)
        if y == self._page - 1 and (new := self.new_lines):
            return self._canvas.badge(strip, new, width)
        return strip

    def _refresh_badge(self) -> None:
        self.refresh(Region(0, self._page - 1, self._view_size.width, 1))

    def _place(self, y: int) -> tuple[MessageView, int] | None:
        """The message at line `y` and its line there."""
        place = bisect_right(self._tops, y) - 1
        if place < 0 or y >= self._height:
            return None
        return self._all[self._first + place], y - self._tops[place]

    def _line(self, y: int, width: int, selection: Selection | None = None) -> Strip:
        if self._first and y == 0:
            return self._canvas.older(self._first, width)
        at = self._place(y)
        found = at[0].locate(at[1], self._width) if at is not None else None
        if at is None or found is None:
            return self._canvas.blank(y, width)
        message, (section, index) = at[0], found
        span = selection.get_span(y) if selection is not None else None
        if span is None and (cached := section.strips.get(index)) is not None and cached[0] == y:
            return cached[1]
        room = self._width - section.indent
        left = section.indent + (0 if message.selected else GUTTER)
        margins = (left, max(width - GUTTER - section.indent - room, 0))
        base = self.visual_style
        select = self.screen.get_visual_style("screen--selection") if span is not None else None
        strip = paint(section.lines(self._width)[index], room, margins, y, base, self._canvas.style, span, select)
        if message.selected:
            strip = self._canvas.marked(strip)
        if strip.cell_length != width:  # a screen narrower than the narrowest layout
            strip = strip.adjust_cell_length(width, base.rich_style)
        if span is None:
            section.strips[index] = (y, strip)
        return strip

    # -- selecting text with the mouse ----------------------------------------------------------------------------------

    @property
    def allow_select(self) -> bool:
        return True

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text as it was written: a line broken only by the screen comes out whole."""
        first = selection.start.y if selection.start is not None else 0
        last = selection.end.y if selection.end is not None else self._height - 1
        parts: list[tuple[Line | None, tuple[int, int]]] = []
        for y in range(max(first, 0), min(last, self._height - 1) + 1):
            span, at = selection.get_span(y), self._place(y)
            if span is not None and at is not None:
                found = at[0].locate(at[1], self._width)
                parts.append((found[0].lines(self._width)[found[1]] if found is not None else None, span))
        return copied(parts), "\n"
