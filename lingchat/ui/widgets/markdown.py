"""Turns a finished Markdown block into rows: what a reply looks like.

One pass over the block's tokens, once; no widgets, no parsing of styles, no markup. All text goes through `visible`.
A table needs the width, so it stays a `Table` until then.

Knows tokens and rows; knows nothing of streaming or of the screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
from rich.cells import cell_len
from textual.content import Span
from textual.style import Style

from lingchat.ui.widgets.blocks import Block
from lingchat.ui.widgets.rows import Piece, Row, breaks, cells
from lingchat.visible import visible, visible_line

if TYPE_CHECKING:
    from markdown_it.token import Token

HIGHLIGHT_LINES = 60  # longer code stays plain: lexing it would hold the event loop
TAB = 4
BULLETS = ("•", "◦", "▪", "‣")


class Cell(msgspec.Struct, frozen=True):
    text: str
    spans: tuple[Span, ...]


class Table(msgspec.Struct, frozen=True):
    """A table before its columns have widths. `align` holds "left", "right" or "center" a column."""

    head: tuple[Cell, ...]
    body: tuple[tuple[Cell, ...], ...]
    align: tuple[str, ...]
    lead: tuple[Piece, ...] = ()
    hang: tuple[Piece, ...] = ()

    def rows(self, width: int) -> list[Row]:
        room = max(width - cells(self.lead), 1)
        widths = _column_widths((self.head, *self.body), room)
        out: list[Row] = []
        for number, row in enumerate((self.head, *self.body)):
            out.extend(self._row(row, widths, ".conversation--strong" if number == 0 else ""))
            if number == 0:
                rule = "─┼─".join("─" * size for size in widths)
                out.append(Row(rule, style=".conversation--rule", code=True))
        lead, hang = self.lead, self.hang or self.lead
        return [row._replace(lead=hang if index else lead, hang=hang) for index, row in enumerate(out)]

    def _row(self, row: Sequence[Cell], widths: list[int], style: str) -> list[Row]:
        columns = [_cell_lines(cell, size) for cell, size in zip(row, widths, strict=True)]
        out = []
        for number in range(max(map(len, columns))):
            text, spans = "", []
            for column, (lines, size) in enumerate(zip(columns, widths, strict=True)):
                if column:
                    spans.append(Span(len(text), len(text) + 3, ".conversation--rule"))
                    text += " │ "
                cell = lines[number] if number < len(lines) else Cell("", ())
                spare = size - cell_len(cell.text)
                before = {"right": spare, "center": spare // 2}.get(self.align[column], 0)
                text += " " * before
                spans += [Span(span.start + len(text), span.end + len(text), span.style) for span in cell.spans]
                text += cell.text + " " * (spare - before)
            if style:
                spans.insert(0, Span(0, len(text), style))
            out.append(Row(text, spans, code=True))
        return out


def _cell_lines(cell: Cell, width: int) -> list[Cell]:
    bounds = [0, *breaks(cell.text, width), len(cell.text)]
    out = []
    for start, end in pairwise(bounds):
        text = cell.text[start:end].rstrip(" ")
        spans = tuple(
            Span(max(span.start, start) - start, min(span.end, start + len(text)) - start, span.style)
            for span in cell.spans
            if span.start < start + len(text) and span.end > start
        )
        out.append(Cell(text, spans))
    return out


def _column_widths(rows: Sequence[Sequence[Cell]], room: int) -> list[int]:
    """Natural widths if they fit, else the widest columns give way until they do; no column below 2 cells."""
    count = len(rows[0])
    natural = [max(2, *(cell_len(row[column].text) for row in rows)) for column in range(count)]
    spare = room - 3 * (count - 1) - sum(natural)
    while spare < 0 and max(natural) > 2:
        widest = max(natural)
        second = max((size for size in natural if size < widest), default=2)
        several = [column for column in range(count) if natural[column] == widest]
        give = max(1, min(widest - max(second, 2), -spare // len(several)))
        for column in several:
            if spare < 0:
                natural[column] -= give
                spare += give
    return natural


Flow = list["Row | Table"]


def block_rows(block: Block, code_number: int, message: str) -> Flow:
    """The rows of one block. Its code blocks are numbered from `code_number`; `message` names it in click actions."""
    return _Builder(code_number, message).build(block.tokens)


def code_top(info: str, number: int | None, message: str, lead: tuple[Piece, ...] = ()) -> Row:
    """The upper edge of a code frame: language, and what copies it (no number while it is still being written)."""
    name = visible_line(info.split(maxsplit=1)[0])[:20] if info.strip() else "code"
    edge: tuple[Piece, ...] = (("┐", ".conversation--rule"),)
    if number is not None:
        click = Style.from_meta({"@click": ("copy_code", (message, number))})
        edge = ((f" [{number}] ", ".conversation--muted"), ("copy", click), (" ┐", ".conversation--rule"))
    return Row(
        name + " ",
        [Span(0, len(name), ".conversation--muted")],
        (*lead, ("┌ ", ".conversation--rule")),
        edge=edge,
        fill="─",
        style=".conversation--rule",
        code=True,
    )


def code_line(text: str, spans: Sequence[Span] = (), lead: tuple[Piece, ...] = ()) -> Row:
    side: Piece = ("│ ", ".conversation--rule")
    more: Piece = ("│↪", ".conversation--rule")
    return Row(
        text,
        spans,
        (*lead, side),
        (*lead, more),
        edge=((" │", ".conversation--rule"),),
        code=True,
        style=".conversation--code",
    )


def code_bottom(lead: tuple[Piece, ...] = ()) -> Row:
    side: Piece = ("└", ".conversation--rule")
    return Row("", (), (*lead, side), edge=(("┘", ".conversation--rule"),), fill="─", style=".conversation--rule")


class _Builder:
    def __init__(self, code_number: int, message: str) -> None:
        self.code_number = code_number
        self.message = message
        self.flow: Flow = []
        self.lead: tuple[Piece, ...] = ()  # for the next row
        self.hang: tuple[Piece, ...] = ()  # for the rows after it
        self.mark = ""
        self.tight = False  # inside the items of a tight list

    def build(self, tokens: Iterable[Token]) -> Flow:
        self.tokens = list(tokens)
        self.at = 0
        while self.at < len(self.tokens):
            self._block()
        return self.flow

    def _take(self) -> Token:
        token = self.tokens[self.at]
        self.at += 1
        return token

    def _add(self, row: Row) -> None:
        self.flow.append(
            row._replace(
                lead=(*self.lead, *row.lead), hang=(*self.hang, *(row.hang or row.lead)), mark=self.mark or row.mark
            )
        )
        self.lead, self.mark = self.hang, ""

    def _gap(self) -> None:
        """A blank row between blocks, unless a bullet waits for its text."""
        if self.flow and self.lead == self.hang:
            self._add(Row(""))

    def _block(self) -> None:
        token = self._take()
        kind = token.type
        if kind in ("paragraph_open", "heading_open"):
            inline = self._take()
            self._take()
            if not token.hidden:
                self._gap()
            text, spans = inline_text(inline)
            style = f".conversation--{token.tag}" if kind == "heading_open" else ""
            self._lines(text, spans, style)
        elif kind in ("fence", "code_block"):
            self._gap()
            self._code(token)
        elif kind == "hr":
            self._gap()
            self._add(Row("", fill="─", style=".conversation--rule"))
        elif kind in ("bullet_list_open", "ordered_list_open"):
            self._list(token)
        elif kind == "blockquote_open":
            self._gap()
            self._nested(((("▎ "), ".conversation--quote-bar"),), "blockquote_close")
        elif kind == "table_open":
            self._gap()
            self._table()

    def _lines(self, text: str, spans: list[Span], style: str) -> None:
        start = 0
        for line in text.split("\n"):
            end = start + len(line)
            inside = [
                Span(max(span.start, start) - start, min(span.end, end) - start, span.style)
                for span in spans
                if span.start < end and span.end > start
            ]
            if style:
                inside.insert(0, Span(0, len(line), style))
            self._add(Row(line, inside))
            start = end + 1

    def _nested(self, more: tuple[Piece, ...], close: str) -> None:
        """Blocks up to `close`, each row behind `more`."""
        lead, hang = self.lead, self.hang
        self.lead, self.hang = (*lead, *more), (*hang, *more)
        tight, self.tight = self.tight, False
        before = len(self.flow)
        first = True
        while self.tokens[self.at].type != close:
            if first:
                saved, self.flow = self.flow, []
                self._block()
                self.flow = saved + self.flow
                first = False
            else:
                self._block()
        self._take()
        if len(self.flow) == before:
            self._add(Row(""))
        self.lead, self.hang = hang, hang
        self.tight = tight

    def _list(self, token: Token) -> None:
        level = token.level // 2
        loose = _loose(self.tokens, self.at - 1)
        if not self.tight:
            self._gap()
        tight, self.tight = self.tight, not loose
        ordered = token.type == "ordered_list_open"
        close = "ordered_list_close" if ordered else "bullet_list_close"
        number = int(str(token.attrs.get("start", 1)))
        size = len(str(number + _items(self.tokens, self.at - 1) - 1)) if ordered else 1
        lead, hang = self.lead, self.hang
        first = True
        while self.tokens[self.at].type != close:
            self._take()  # list_item_open
            if loose and not first:
                self._gap()
            sign = f"{number}.".rjust(size + 1) if ordered else BULLETS[level % len(BULLETS)]
            room = " " * (len(sign) + 1)
            self.lead, self.hang = (
                (*(lead if first else hang), (sign + " ", ".conversation--bullet")),
                (*hang, (room, "")),
            )
            self.mark = f"{number}. " if ordered else "- "
            self._item()
            self.lead, self.hang = hang, hang
            number += 1
            first = False
        self._take()
        self.tight = tight

    def _item(self) -> None:
        before = len(self.flow)
        while self.tokens[self.at].type != "list_item_close":
            if len(self.flow) == before and self.tokens[self.at].type == "paragraph_open":
                _tick(self.tokens[self.at + 1])
            self._block()
        self._take()
        if len(self.flow) == before:
            self._add(Row(""))

    def _code(self, token: Token) -> None:
        number = self.code_number
        self.code_number += 1
        self._add(code_top(token.info, number, self.message))
        for text, spans in code_lines(token.content, token.info):
            self._add(code_line(text, spans))
        self._add(code_bottom())

    def _table(self) -> None:
        rows: list[list[Cell]] = []
        align: list[str] = []
        while (token := self._take()).type != "table_close":
            if token.type == "tr_open":
                rows.append([])
            elif token.type in ("th_open", "td_open"):
                if len(rows) == 1:
                    align.append(str(token.attrs.get("style", "")).removeprefix("text-align:") or "left")
                text, spans = inline_text(self._take())
                rows[-1].append(Cell(text.replace("\n", " "), tuple(spans)))
        head, *body = (tuple(row) for row in rows)
        self.flow.append(Table(head, tuple(body), tuple(align), self.lead, self.hang))
        self.lead, self.mark = self.hang, ""


def _matching(tokens: Sequence[Token], start: int) -> int:
    depth = 0
    for index in range(start, len(tokens)):
        depth += tokens[index].nesting
        if depth == 0:
            return index
    return len(tokens)


def _items(tokens: Sequence[Token], start: int) -> int:
    level = tokens[start].level + 1
    inside = tokens[start : _matching(tokens, start)]
    return sum(token.type == "list_item_open" and token.level == level for token in inside)


def _loose(tokens: Sequence[Token], start: int) -> bool:
    level = tokens[start].level + 2
    inside = tokens[start : _matching(tokens, start)]
    return any(token.type == "paragraph_open" and token.level == level and not token.hidden for token in inside)


_TICKS = {"[ ] ": "☐ ", "[x] ": "☑ ", "[X] ": "☑ "}


def _tick(inline: Token) -> None:
    """A task list's box, at the start of an item."""
    first = inline.children[0] if inline.children else None
    if first is not None and first.type == "text" and first.content[:4] in _TICKS:
        first.content = _TICKS[first.content[:4]] + first.content[4:]


def code_lines(code: str, info: str) -> list[tuple[str, Sequence[Span]]]:
    """The lines of a code block as shown, highlighted if it is short and its language is known."""
    text = visible(code.removesuffix("\n")).expandtabs(TAB)
    plain = text.split("\n")
    language = info.split(maxsplit=1)[0] if info.strip() else ""
    if not language or len(plain) > HIGHLIGHT_LINES or len(text) > 100 * HIGHLIGHT_LINES:
        return [(line, ()) for line in plain]
    from textual.highlight import highlight  # it brings Pygments

    content = highlight(text, language=visible_line(language))
    lines = content.split("\n", allow_blank=True)
    if len(lines) != len(plain):  # a lexer that changed the text would show code nobody wrote
        return [(line, ()) for line in plain]
    return [(line, part.spans) for line, part in zip(plain, lines, strict=True)]


def inline_text(inline: Token) -> tuple[str, list[Span]]:
    """The text of an inline token and its spans."""
    parts: list[str] = []
    spans: list[Span] = []
    stack: list[tuple[str | Style, int]] = []
    size = 0

    def add(text: str) -> None:
        nonlocal size
        text = visible(text).replace("\t", " ")
        parts.append(text)
        size += len(text)

    for token in inline.children or ():
        kind = token.type
        if kind in ("softbreak", "hardbreak"):
            add("\n")
        elif kind == "code_inline":
            start = size
            add(token.content)
            spans.append(Span(start, size, ".conversation--inline-code"))
        elif kind == "image":
            start = size
            add(f"[image: {token.content}]" if token.content else "[image]")
            spans.append(Span(start, size, _link(str(token.attrs.get("src", "")))))
        elif token.nesting == 1:
            style = _link(str(token.attrs.get("href", ""))) if kind == "link_open" else f".conversation--{token.tag}"
            stack.append((style, size))
        elif token.nesting == -1:
            opened, start = stack.pop()
            spans.append(Span(start, size, opened))
        else:
            add(token.content)
    return "".join(parts), spans


def _link(href: str) -> Style:
    return Style.from_meta({"@click": ("open_link", (href,))}) + Style(underline=True)
