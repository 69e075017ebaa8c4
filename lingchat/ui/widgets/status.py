"""The two lines that frame the chat: the header (what talks to whom) and the status line (what goes on, which keys).

Both fit any width by leaving out what matters least. They are told what to say; they compute nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.widget import Widget

from lingchat.visible import visible

GAP = 3


class Part(msgspec.Struct, frozen=True):
    """A piece of a line. Of the parts that do not fit together, the one with the largest `rank` goes first."""

    text: str
    style: str = ""
    rank: int = 0


def one_line(text: str) -> str:
    """Text safe and flat enough for a single line."""
    return " ".join(visible(text).split())


def fit(left: Sequence[Part], right: Sequence[Part], width: int, gap: int = GAP) -> Content:
    """A line of `width` cells: `left` from the left, `right` from the right, the least important left out."""
    left_parts = [part for part in left if part.text]
    right_parts = [part for part in right if part.text]

    def needed() -> int:
        parts = left_parts + right_parts
        return sum(cell_len(part.text) for part in parts) + gap * max(0, len(parts) - 1)

    while len(left_parts) + len(right_parts) > 1 and needed() > width:
        worst = max(left_parts + right_parts, key=lambda part: part.rank)
        (left_parts if worst in left_parts else right_parts).remove(worst)
    if needed() > width and width > 0:
        only = (left_parts or right_parts)[0]
        cut = set_cell_size(only.text, width - 1).rstrip() + "…" if width > 1 else "…"
        return Content.styled(cut, only.style)
    space = width - needed() + (gap if left_parts and right_parts else 0)
    join = Content(" " * gap)
    lines = [
        join.join([Content.styled(part.text, part.style) for part in parts]) for parts in (left_parts, right_parts)
    ]
    return Content(" " * max(0, space)).join(lines) if right_parts else lines[0]


class Line(Widget):
    """One line of parts; repaints only when they change."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id, markup=False)
        self._left: tuple[Part, ...] = ()
        self._right: tuple[Part, ...] = ()

    def show(self, left: Sequence[Part], right: Sequence[Part] = ()) -> None:
        parts = (tuple(left), tuple(right))
        if parts != (self._left, self._right):
            self._left, self._right = parts
            self.refresh()

    @property
    def plain(self) -> str:
        """What the line says now, as text."""
        return fit(self._left, self._right, self.content_size.width).plain

    def render(self) -> Content:
        return fit(self._left, self._right, self.content_size.width)


class Header(Line):
    """`lingchat  model  "title"` and, at the right, the engine's state and where the figures come from."""

    def __init__(self) -> None:
        super().__init__(id="header")

    def say(self, model: str, title: str, state: str, provenance: str) -> None:
        title = one_line(title)
        title = title if cell_len(title) <= 48 else set_cell_size(title, 47).rstrip() + "…"
        self.show(
            [
                Part("lingchat", "bold $primary", 2),
                Part(one_line(model), "$foreground", 0),
                Part(title, "$quiet", 4),
            ],
            [Part(one_line(state), "$accent", 1), Part(provenance, "$quiet", 3)],
        )


class StatusLine(Line):
    """What goes on, the token counter, and the keys that matter now."""

    def __init__(self) -> None:
        super().__init__(id="status")

    def say(self, state: str, state_style: str, counter: str, counter_style: str, hints: Sequence[str]) -> None:
        left = [Part(one_line(state), state_style, 0), Part(counter, counter_style, 1)]
        self.show(left, [Part(hint, "$quiet", rank) for rank, hint in enumerate(hints, 2)])
