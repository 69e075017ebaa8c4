"""The conversation: what the app tells it to show and what the user does with a message.

Drawing and scrolling are in `message_list`. Actions on messages are posted as Textual messages; the app carries them
out. All text is data: nothing here parses markup.

Knows messages; knows no engine, no session and no app.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from lingchat.ui.widgets.message import MessageView, TurnView
from lingchat.ui.widgets.message_list import MessageList
from lingchat.ui.widgets.reply import Reply

__all__ = ["BlockAction", "Conversation", "MessageView", "Reply", "TurnView"]


class BlockAction(Message):
    """The user asks for something on a message; `view` is what it is about."""

    def __init__(self, message: MessageView) -> None:
        super().__init__()
        self.view: TurnView = message.view
        self.text = message.text  # its source, exact


class Conversation(MessageList):
    """Shows messages and lets a cursor walk over them."""

    class Copy(BlockAction):
        """Copy the source of the message, or of one of its code blocks (`code` is its number)."""

        code: int = 0

    class Open(BlockAction):
        """Show the message alone, its tool calls in full."""

        def __init__(self, message: MessageView) -> None:
            super().__init__(message)
            self.text = message.whole

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
        Binding("alt+up,ctrl+up", "cursor(-1)", "message above", show=False, id="messages.up"),
        Binding("alt+down,ctrl+down", "cursor(1)", "message below", show=False, id="messages.down"),
        Binding("escape", "leave_cursor", "leave messages", show=False, id="messages.leave"),
        Binding("c", "act('copy')", "copy", show=False, id="messages.copy"),
        Binding("o", "act('open')", "open", show=False, id="messages.open"),
        Binding("e", "act('edit')", "edit", show=False, id="messages.edit"),
        Binding("r", "act('regenerate')", "regenerate", show=False, id="messages.regenerate"),
        Binding("b", "act('branch')", "branch", show=False, id="messages.branch"),
        Binding("left", "step_sibling(-1)", "sibling before", show=False, id="messages.sibling_before"),
        Binding("right", "step_sibling(1)", "sibling after", show=False, id="messages.sibling_after"),
        Binding("ctrl+home", "scroll_home", "top", show=False, id="messages.top"),
        Binding("ctrl+end", "scroll_end", "bottom", show=False, id="messages.bottom"),
    ]

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.perf_counter,
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        """`clock` gives seconds; tests put their own."""
        super().__init__(clock=clock, name=name, id=id, classes=classes)
        self._cursor: MessageView | None = None

    # -- what the app calls ---------------------------------------------------------------------------------------

    async def show_turns(self, turns: Sequence[TurnView]) -> None:
        """Shows these messages instead of what is there, from the bottom."""
        self.clear()
        self._all = [self._view(turn) for turn in turns]
        self._first = self._start_of_pages(len(self._all))
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
            self.scroll_to_end()
        else:
            self._settle()
        return message

    def begin_reply(self, header: str = "", node_id: str = "", **more: object) -> Reply:
        """A reply that grows; its deltas are shown at the flush interval."""
        view = TurnView("assistant", "", node_id, header=header, **more)  # type: ignore[arg-type]
        reply = Reply(view, f"m{next(self._keys)}", self)
        reply.reasoning_open = self.reasoning_open
        self._append(reply)
        self._settle()
        return reply

    def withdraw(self, messages: Sequence[MessageView]) -> None:
        """Takes messages at the bottom away again, as if they had never been shown."""
        if self._cursor in messages:
            self.action_leave_cursor()
        for message in messages:
            if message in self._all:
                self._all.remove(message)
            self._due.pop(message, None)  # type: ignore[call-overload]  # a finished one is not due
            self._sizes.pop(message.key, None)
        self._first = min(self._first, self._start_of_pages(len(self._all)))
        self._tops = []
        self._arrange()
        self._settle()

    def clear(self) -> None:
        self._set_cursor(None)
        self._all = []
        self._first = 0
        self._due.clear()
        self._sizes.clear()
        self._seen = 0
        self._arrange()
        self.scroll_to_end()

    def code(self, number: int) -> str | None:
        """Code block `number` of the message under the cursor, else of the last reply that has one."""
        if self._cursor is not None:
            return self._cursor.code(number)
        for message in reversed(self._all):
            if message.view.role == "assistant" and (found := message.code(number)) is not None:
                return found
        return None

    def action_scroll_end(self) -> None:
        self.scroll_to_end()

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
        """Back to the prompt; the view stays."""
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
        room = self._page
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

    def open_reasoning(self, on: bool) -> None:
        """Opens or folds the reasoning of every message, and of those to come."""
        self.reasoning_open = on
        for message in self._all:
            if message.reasoning_open != on:
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
