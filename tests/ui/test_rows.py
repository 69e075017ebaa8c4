"""Lines are counted in cells, never split a grapheme, and together are the text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len, split_graphemes
from textual.content import Span
from textual.style import Style

from lingchat.ui.widgets.blocks import parse
from lingchat.ui.widgets.markdown import Table, block_rows
from lingchat.ui.widgets.rows import Line, Row, breaks, paint, rewrap_last, shown, wrap
from lingchat.visible import visible_line

GRAPHEMES = ["a", "b", "-", ".", " ", " ", "漢", "字", "。", "é", "👨‍👩‍👧", "❤️", "🇩🇪"]
TEXT = st.lists(st.sampled_from(GRAPHEMES), max_size=60).map("".join)


def plain(line: Line, width: int) -> str:
    return "".join(text for text, _, _ in shown(line, width, lambda style: Style()))


@given(TEXT, st.integers(2, 30), st.booleans())
def test_parts_fit_and_together_are_the_text(text: str, width: int, code: bool) -> None:
    bounds = [0, *breaks(text, width, code=code), len(text)]
    assert bounds == sorted(bounds)
    edges = {start for start, _, _ in split_graphemes(text)[0]} | {len(text), 0}
    assert set(bounds) <= edges
    for start, end in pairwise(bounds):
        assert start < end or text == ""
        part = text[start:end] if code else text[start:end].rstrip(" ")
        assert cell_len(part) <= width


@given(TEXT, TEXT, st.integers(6, 30))
def test_growing_a_row_wraps_only_its_end_and_gives_the_same(first: str, more: str, width: int) -> None:
    grown = rewrap_last(wrap(Row(first), width), Row(first + more), width)
    assert [(line.start, line.end) for line in grown] == [
        (line.start, line.end) for line in wrap(Row(first + more), width)
    ]


@given(TEXT | st.text(max_size=60).map(visible_line), st.integers(8, 40), st.integers(0, 5), st.integers(0, 5))
def test_a_painted_line_has_exactly_its_cells(text: str, width: int, left: int, right: int) -> None:
    row = Row(text, [Span(1, 4, "bold")], (("• ", ""),), (("  ", ""),), edge=((" |", ""),))
    for line in wrap(row, width):
        strip = paint(line, width, (left, right), 7, Style(), lambda style: Style(bold=style == "bold"))
        assert sum(segment.cell_length for segment in strip) == strip.cell_length == left + width + right


def test_words_stay_whole_and_spaces_hang_over() -> None:
    assert [plain(line, 7) for line in wrap(Row("one two three"), 7)] == ["one two", "three"]
    assert [plain(line, 3) for line in wrap(Row("abcdefgh"), 3)] == ["abc", "def", "gh"]
    assert [plain(line, 5) for line in wrap(Row("漢字漢字"), 5)] == ["漢字", "漢字"]
    assert [plain(line, 9) for line in wrap(Row("ab 漢字漢。"), 9)] == ["ab 漢字", "漢。"]


def test_offsets_for_selection_point_into_the_text() -> None:
    row = Row("hello world", lead=(("• ", ""),))
    strip = paint(wrap(row, 40)[0], 40, (3, 1), 5, Style(), lambda style: Style())
    meta = [segment.style.meta["offset"] for segment in strip if segment.style is not None]
    assert meta[0] == (-5, 5)  # three columns of margin and the bullet lie before the text


def drawn(text: str, width: int = 40) -> list[str]:
    out = []
    for block in parse(text):
        for part in block_rows(block, 1, "m"):
            for row in part.rows(width) if isinstance(part, Table) else [part]:
                out += [plain(line, width).rstrip() for line in wrap(row, width)]
    return out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a\n- b\n  - c\n", ["• a", "• b", "  ◦ c"]),
        ("9. a\n10. b\n", [" 9. a", "10. b"]),
        ("- a\n\n- b\n", ["• a", "", "• b"]),
        ("- [x] done\n- [ ] open\n", ["• ☑ done", "• ☐ open"]),
        ("> a\n>\n> - b\n", ["▎ a", "▎", "▎ • b"]),
        ("two\nlines\n", ["two", "lines"]),
        ("<b>raw</b> &amp; *em*\n", ["<b>raw</b> & em"]),
        ("a | b\n--|--:\n1 | 22\n", ["a  │  b", "───┼───", "1  │ 22"]),
        ("```\nx\n```\n", ["┌ code " + "─" * 22 + " [1] copy ┐", "│ x" + " " * 35 + " │", "└" + "─" * 38 + "┘"]),
    ],
)
def test_what_blocks_look_like(text: str, expected: list[str]) -> None:
    assert drawn(text) == expected


@pytest.mark.parametrize("width", [4, 8, 11, 20, 61, 200])
def test_no_line_of_a_table_is_wider_than_the_screen(width: int) -> None:
    table = "| model | speed of it | 漢字 |\n|---|--:|:-:|\n| SmolLM2 135M | 243.1 tokens a second | 一二三四五 |\n"
    lines = drawn(table, width)
    assert max(map(cell_len, lines)) <= max(width, 12)
    assert "".join(lines).count("│") >= 4
