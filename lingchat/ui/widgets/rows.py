"""Rows of styled text and how they become screen lines of a width: the layout under the conversation.

A `Row` is one logical line: a lead (bullet, quote bar, frame), a text with spans, and what happens at the right edge.
`wrap` breaks it into `Line`s counted in cells, so CJK, emoji and combining characters stay whole. Styles are names
(component classes with a dot, or Textual style text) resolved only when a line is painted, so a theme change costs
nothing here.

Knows cells and spans; knows no Markdown and no widgets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from rich.cells import cell_len, split_graphemes
from rich.segment import Segment
from textual.content import Content, Span
from textual.strip import Strip
from textual.style import Style

Piece = tuple[str, "str | Style"]  # text and its style
StyleOf = Callable[["str | Style"], Style]

# A word with the spaces behind it. Between CJK characters a line may break, but not before closing punctuation.
_WIDE = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uff60\U00020000-\U0003ffff"
_CLOSING = "。、，．！？：；）」』】〉》"
_WORD = rf"[{_WIDE}][{_CLOSING}]*\s*|[^\s{_WIDE}]+\s*|\s+"


@cache
def _word() -> re.Pattern[str]:
    """Compiled with the first line that needs it: a start has none, and it takes milliseconds."""
    return re.compile(_WORD)


class Row(NamedTuple):
    """One logical line. `lead` starts its first screen line, `hang` (as wide) every further one."""

    text: str
    spans: Sequence[Span] = ()
    lead: tuple[Piece, ...] = ()
    hang: tuple[Piece, ...] = ()
    edge: tuple[Piece, ...] = ()  # at the right end of each screen line
    fill: str = " "  # between text and edge
    style: str = ""  # of text and fill
    code: bool = False  # break anywhere, keep spaces
    mark: str = ""  # what stands for the lead in copied text


class Line(NamedTuple):
    """The part `start:end` of a row's text that fills one screen line."""

    row: Row
    start: int
    end: int

    @property
    def first(self) -> bool:
        return self.start == 0

    @property
    def last(self) -> bool:
        return self.end == len(self.row.text)


def cells(pieces: Iterable[Piece]) -> int:
    return sum(cell_len(text) for text, _ in pieces)


def breaks(text: str, width: int, *, code: bool = False, start: int = 0) -> list[int]:
    """Offsets at which `text` from `start` on breaks so that each part has at most `width` cells.

    Breaks between words, or anywhere if `code` or a word is too long, but never inside a grapheme. Spaces at a break
    stay on the line before it, beyond the edge, so that the parts together are the text.
    """
    width = max(width, 2)
    if len(text) - start <= width and text.isascii():
        return []
    if code:
        if text.isascii():
            return list(range(start + width, len(text), width))
        return _fold(text, start, len(text), width, 0)[0]
    out: list[int] = []
    used = 0
    for match in _word().finditer(text, start):
        chunk = match.group()
        word = chunk.rstrip()
        size = len(chunk) if chunk.isascii() else cell_len(chunk)
        bare = size - (len(chunk) - len(word)) if chunk[len(word) :].isascii() else cell_len(word)
        if used + bare > width:
            if used and match.start() > start:
                out.append(match.start())
            used = 0
            if bare > width:
                folds, used = _fold(text, match.start(), match.start() + len(word), width, 0)
                out.extend(folds)
                used -= bare
        used = min(used + size, width)  # spaces may hang over the edge
    return out


def _fold(text: str, start: int, end: int, width: int, used: int) -> tuple[list[int], int]:
    """Break offsets of a stretch without break points, and the cells used on its last line."""
    out: list[int] = []
    for first, _, size in split_graphemes(text[start:end])[0]:
        if used + size > width:
            if start + first > 0:
                out.append(start + first)
            used = 0
        used += size
    return out, used


def _room(row: Row, width: int) -> tuple[Row, int]:
    """The cells for a row's text; on a screen too narrow for it the edge goes."""
    room = width - cells(row.lead) - cells(row.edge)
    if row.edge and room < min(cell_len(row.text), 8):
        return row._replace(edge=()), room + cells(row.edge)
    return row, room


def wrap(row: Row, width: int) -> list[Line]:
    """The screen lines of `row` in `width` cells; at least one."""
    row, room = _room(row, width)
    bounds = [0, *breaks(row.text, room, code=row.code), len(row.text)]
    return [Line(row, start, end) for start, end in pairwise(bounds)]


def rewrap_last(lines: list[Line], row: Row, width: int) -> list[Line]:
    """`wrap(row, width)`, given the `lines` of a row whose text is a prefix of this one's: only the end is new."""
    row, room = _room(row, width)
    start = lines[-1].start if lines else 0
    kept = [Line(row, line.start, line.end) for line in lines[:-1]]
    bounds = [start, *breaks(row.text, room, code=row.code, start=start), len(row.text)]
    return kept + [Line(row, first, end) for first, end in pairwise(bounds)]


def shown(
    line: Line, width: int, style_of: StyleOf, selected: tuple[int, int] | None = None, select: Style | None = None
) -> list[tuple[str, Style, int]]:
    """What a line shows: text, style, and the offset in the row's text (-1 for lead, fill and edge)."""
    row = line.row
    base = style_of(row.style)
    out: list[tuple[str, Style, int]] = []
    for text, style in row.lead if line.first else (row.hang or row.lead):
        out.append((text, style_of(style), -1))
    used = cells(row.lead)
    text = row.text[line.start : line.end]
    if not row.code:
        text = text.rstrip(" ") if not line.last else text
    room = max(width - used - cells(row.edge), 0)
    size = cell_len(text)
    while size > room and text.endswith(" "):
        text, size = text[:-1], size - 1
    spans = [
        Span(max(span.start, line.start) - line.start, min(span.end, line.end) - line.start, span.style)
        for span in row.spans
        if span.start < line.end and span.end > line.start
    ]
    if selected is not None and select is not None:
        first, end = selected
        end = len(row.text) if end < 0 else end
        if first < line.end and end > line.start:
            spans.append(Span(max(first - line.start, 0), min(end, line.end) - line.start, select))
    offset = line.start
    if text:
        for part, style in Content(text, spans).render(base, end="", parse_style=style_of):
            out.append((part, style, offset))
            offset += len(part)
    if row.edge or row.fill != " ":
        out.append((row.fill * max(room - size, 0), base, -1))
    if row.edge:
        out.extend((part, style_of(style), -1) for part, style in row.edge)
    return out


def paint(
    line: Line,
    width: int,
    margins: tuple[int, int],
    y: int,
    base: Style,
    style_of: StyleOf,
    selected: tuple[int, int] | None = None,
    select: Style | None = None,
) -> Strip:
    """A line in `width` cells on the style `base`, with margins of spaces; `y` is its place for text selection.

    Neighbours of one style become one segment, since each costs the terminal some forty bytes. So a segment's offset
    into the row's text may begin before the text does; whoever reads a selection clamps it to the line.
    """
    left, right = margins
    parts: list[tuple[str, Style, int]] = [(" " * left, base, -1)] if left else []
    parts += [(text, base + style, offset) for text, style, offset in shown(line, width, style_of, selected, select)]
    used = sum(cell_len(text) for text, _, _ in parts)
    parts.append((" " * max(left + width + right - used, 0), base, -1))
    segments: list[Segment] = []
    at = line.start
    while parts:
        text, style, offset = parts.pop(0)
        while parts and parts[0][1] == style:
            more, _, start = parts.pop(0)
            if offset < 0 <= start:
                offset = start - len(text)
            text += more
        at = offset if offset != -1 else at
        segments.append(Segment(text, style.rich_style_with_offset(at, y)))
        at += len(text) if offset != -1 else 0
    total = left + width + right
    if sum(cell_len(segment.text) for segment in segments) != total:  # joiners alone or out of place
        return Strip(segments).adjust_cell_length(total, base.rich_style)
    return Strip(segments, total)


def copied(parts: Iterable[tuple[Line | None, tuple[int, int]]]) -> str:
    """The text of lines (None: a blank one) between two offsets each, -1 for the end; screen breaks are not in it."""
    out: list[str] = []
    for line, (start, end) in parts:
        if line is None:
            out.append("\n")
            continue
        end = len(line.row.text) if end < 0 else end
        if line.first and start <= 0 and line.row.mark:
            out.append(line.row.mark)
        out.append(line.row.text[max(start, line.start) : max(min(end, line.end), line.start)])
        if line.last:
            out.append("\n")
    return "".join(out).rstrip("\n")
