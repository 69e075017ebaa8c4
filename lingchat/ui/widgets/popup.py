"""The list above the prompt: command completions or history matches, one of them chosen.

It draws lines and moves a mark; what its rows mean is the prompt's matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual.content import Content
from textual.widgets import Static

from lingchat.visible import visible

ROWS = 8


class Row(NamedTuple):
    text: str  # replaces the prompt when accepted
    label: str
    help: str


class Popup(Static):
    """Hidden while it has nothing to offer."""

    def __init__(self) -> None:
        super().__init__("", id="popup", markup=False)
        self.display = False
        self.rows: list[Row] = []
        self.moved = False  # the user chose a row, rather than only typing
        self._at = 0
        self._title = ""

    @property
    def chosen(self) -> Row | None:
        return self.rows[self._at] if self.rows else None

    def offer(self, rows: Sequence[tuple[str, str, str]], title: str = "", keep: bool = False) -> None:
        """Show `rows`, the first one chosen; none closes the popup unless `keep`."""
        self.rows = [Row(*row) for row in rows]
        self._at, self.moved, self._title = 0, False, title
        self.display = bool(self.rows) or keep
        if self.display:
            self._draw()

    def close(self) -> None:
        self.rows, self._title = [], ""
        self.display = False

    def move(self, by: int, wrap: bool = False) -> None:
        if not self.rows:
            return
        at = self._at + by
        self._at = at % len(self.rows) if wrap else min(max(at, 0), len(self.rows) - 1)
        self.moved = True
        self._draw()

    def _draw(self) -> None:
        room = max(1, min(ROWS, self.app.size.height // 2 - 1))
        first = min(max(0, self._at - room + 1), max(0, len(self.rows) - room))
        shown = self.rows[first : first + room]
        width = max((len(row.label) for row in shown), default=0)
        width = min(width, max(8, self.app.size.width // 2))
        lines = [Content.styled(self._title, "$quiet")] if self._title else []
        if not self.rows:
            lines.append(Content.styled("nothing found", "$quiet"))
        for number, row in enumerate(shown, first):
            label = visible(row.label)
            label = label if len(label) <= width or not row.help else label[: width - 1] + "…"
            mark, style = ("›", "bold $accent") if number == self._at else (" ", "")
            help_text = f"  {row.help}" if row.help else ""
            lines.append(Content.assemble((f"{mark} {label:<{width}}", style), (help_text, "$quiet")))
        self.update(Content("\n").join(lines))
        self.styles.height = len(lines)
