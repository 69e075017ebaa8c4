"""A page of text over the chat: full latency figures, an opened message, an answer too long for a line."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from lingchat.visible import visible

NARROW = 100  # columns of the terminal below which the page fills it


class TextScreen(ModalScreen[None]):
    """Plain text with a title; esc closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,ctrl+c", "dismiss", "close", show=False),
        Binding("up", "scroll_by(-1)", show=False),
        Binding("down", "scroll_by(1)", show=False),
        Binding("pageup,b", "scroll_by(-15)", show=False),
        Binding("pagedown,space", "scroll_by(15)", show=False),
        Binding("c", "copy", "copy", show=False),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self.text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="text-page", can_focus=False):
            head = Content.assemble((visible(self._title), "bold $foreground"), ("   esc closes · c copies", "$quiet"))
            yield Static(head, id="text-title", markup=False)
            yield Static(Content(visible(self.text)), id="text-body", markup=False)

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width < NARROW, "-narrow")

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(self.text)

    def action_scroll_by(self, lines: int) -> None:
        self.query_one("#text-page").scroll_relative(y=lines, animate=False)
