"""Sections of a message: rows that change together, with the screen lines and strips made of them.

A section keeps its lines for the last width and the strips painted from them, so a flush pays only for what changed.

Knows rows and finished blocks; knows nothing of messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.strip import Strip

from lingchat.ui.widgets.blocks import Block
from lingchat.ui.widgets.markdown import TAB, block_rows, code_line
from lingchat.ui.widgets.rows import Line, Piece, Row, rewrap_last, wrap
from lingchat.visible import visible

INDENT = 2  # columns of the body under its header


class Section:
    """Rows that change together."""

    def __init__(self, flow: Sequence[object] = (), *, indent: int = INDENT, gap: bool = False) -> None:
        self.flow = flow  # Row, or anything with rows(width)
        self.indent = indent
        self.gap = gap  # a blank line above
        self.width = -1
        self.strips: dict[int, tuple[int, Strip]] = {}  # line -> the y it was painted for, its strip
        self._lines: list[Line] = []

    def lines(self, width: int) -> list[Line]:
        if width != self.width:
            self.width = width
            self.strips.clear()
            self._lines = self.layout(width - self.indent)
        return self._lines

    def layout(self, width: int) -> list[Line]:
        lines = [Line(_BLANK, 0, 0)] if self.gap else []
        for part in self.flow:
            for row in [part] if isinstance(part, Row) else part.rows(width):  # type: ignore[attr-defined]
                lines.extend(wrap(row, width))
        return lines

    def dirty(self) -> None:
        self.width = -1


_BLANK = Row("")


class GrowingText(Section):
    """Plain text that grows at its end; only its last row is laid out again.

    Newlines at the end wait for the text after them, so that the last line is never blank.
    """

    def __init__(self, *, gap: bool = False, lead: tuple[Piece, ...] = (), style: str = "") -> None:
        super().__init__(gap=gap)
        self._lead = lead
        self._style = style
        self._rows: list[Row] = []
        self._held = ""
        self._code = False
        self.hidden = False

    def lines(self, width: int) -> list[Line]:
        return [] if self.hidden else super().lines(width)

    def restart(self, top: Row | None = None) -> None:
        """Empties the text; with `top`, what comes is code under that row."""
        self._rows = [] if top is None else [top]
        self._code = top is not None
        self._held = ""
        self.dirty()

    def close(self, row: Row) -> None:
        """The last row, after which nothing comes."""
        self._rows.append(row)
        self.dirty()

    def grow(self, text: str) -> None:
        text = self._held + text.replace("\r\n", "\n")
        body = text.rstrip("\n")
        self._held = text[len(body) :]
        if not body:
            return
        first, *others = visible(body).expandtabs(TAB).split("\n")
        fresh = not self._rows or (self._code and len(self._rows) == 1)
        if fresh:
            others = [first, *others]
        else:
            row = self._rows[-1]._replace(text=self._rows[-1].text + first)
            self._rows[-1] = row
            if self.width >= 0:
                self._extend_last(row)
        for line in others:
            row = code_line(line) if self._code else Row(line, (), self._lead, style=self._style)
            self._rows.append(row)
            if self.width >= 0:
                self._lines.extend(wrap(row, self.width - self.indent))

    def _extend_last(self, row: Row) -> None:
        first = len(self._lines) - 1
        while first > 0 and self._lines[first].start > 0:
            first -= 1
        kept = self._lines[first:]
        self._lines[first:] = rewrap_last(kept, row, self.width - self.indent)
        self.strips.pop(first + len(kept) - 1, None)

    def layout(self, width: int) -> list[Line]:
        if not self._rows:
            return []
        lines = [Line(_BLANK, 0, 0)] if self.gap else []
        for row in self._rows:
            lines.extend(wrap(row, width))
        return lines


class BlockSection(Section):
    """A finished block."""

    def __init__(self, block: Block, codes_before: int, key: str, *, gap: bool) -> None:
        super().__init__(block_rows(block, codes_before + 1, key), gap=gap)
        self.identity = (block.digest, codes_before, gap)
