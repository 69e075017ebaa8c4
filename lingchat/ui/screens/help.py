"""Help: every key and command there is, read from the live binding table and the command table.

It lists what it is given, so that it cannot fall behind.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import ModalScreen
from textual.widgets import Static

from lingchat.ui.commands import COMMANDS

KEY_WIDTH = 26
NARROW = 100  # columns of the terminal below which the page fills it
PAGE_WIDTH = 96  # columns of the page at most
NARROW_PAGE = 60  # columns of the page below which descriptions stand under their keys

_NAMES = {
    "underscore": "_",
    "question_mark": "?",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "escape": "esc",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
}


def key_name(key: str) -> str:
    """`ctrl+underscore` as people write it: `ctrl+_`."""
    return "+".join(
        _NAMES.get(part, part.upper() if part[0] == "f" and part[1:].isdigit() else part) for part in key.split("+")
    )


def key_table(node: DOMNode) -> list[tuple[str, str]]:
    """The described bindings of a node as (keys, description), one row an action, in the order they are declared."""
    rows: dict[str, tuple[list[str], str]] = {}
    bindings = node._bindings.copy()
    bindings.apply_keymap(node.app._keymap)
    for key, binding in bindings:
        if binding.description:
            rows.setdefault(binding.action, ([], binding.description))[0].append(key_name(key))
    return [(" ".join(keys), description) for keys, description in rows.values()]


class HelpScreen(ModalScreen[None]):
    """Keys by place, then commands by group. Any of esc, q, F1 and enter closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,f1,enter,ctrl+c,question_mark", "dismiss", "close", show=False),
        Binding("up", "scroll_by(-1)", show=False),
        Binding("down", "scroll_by(1)", show=False),
        Binding("pageup,b", "scroll_by(-15)", show=False),
        Binding("pagedown,space", "scroll_by(15)", show=False),
    ]

    def __init__(self, places: Iterable[tuple[str, DOMNode]]) -> None:
        super().__init__()
        self._tables = [(title, key_table(node)) for title, node in places]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help", can_focus=False):
            yield Static("", markup=False)

    def on_resize(self, event: events.Resize) -> None:
        """Wrap to what the style sheet leaves: the page less its padding and scrollbar."""
        columns = event.size.width
        narrow = columns < NARROW
        self.set_class(narrow, "-narrow")
        width = columns - 3 if narrow else min(PAGE_WIDTH, columns * 9 // 10) - 5
        self.query_one(Static).update(self.text(max(10, width)))

    def text(self, width: int) -> Content:
        """Everything, wrapped to `width` with descriptions in a column of their own."""
        lines: list[Content] = [
            Content.assemble(("keys and commands", "bold $foreground"), ("   esc closes", "$quiet"))
        ]
        for title, rows in self._tables:
            lines += [Content(""), Content.styled(title, "bold $primary")]
            lines += [self._row(keys, description, width) for keys, description in rows]
        group = ""
        for command in COMMANDS:
            if command.group != group:
                group = command.group
                lines += [Content(""), Content.styled(f"{group} commands", "bold $primary")]
            lines.append(self._row(command.usage, command.help, width))
        lines += [Content(""), self._row("//text", "send a text that begins with a slash", width)]
        return Content("\n").join(lines)

    @staticmethod
    def _row(keys: str, description: str, width: int) -> Content:
        column = KEY_WIDTH if width >= NARROW_PAGE else 4
        room = max(10, width - column - 2)
        first, *rest = textwrap.wrap(description, room) or [""]
        head = f"  {keys}"
        if len(head) + 2 > column + 2:  # the keys take a line of their own
            rest, first, pad = [first, *rest], "", ""
        else:
            pad = " " * (column + 2 - len(head))
        lines = [Content.assemble((head + pad, "$accent"), (first, "$foreground"))]
        lines += [Content.styled(" " * (column + 2) + line, "$foreground") for line in rest]
        return Content("\n").join(lines)

    def action_scroll_by(self, lines: int) -> None:
        self.query_one("#help").scroll_relative(y=lines, animate=False)
