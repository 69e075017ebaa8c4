"""Nothing a model writes can reach the terminal as a command."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingchat.visible import visible, visible_line

CONTROL = [chr(code) for code in [*range(0x20), *range(0x7F, 0xA0)] if chr(code) not in "\t\n"]
BIDI = [chr(code) for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))]

SEQUENCES = [
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x1b]52;c;aGk=\x1b\\",
    "\x1bPq#0\x1b\\",
    "\x1b_apc\x1b\\",
    "\x1b^pm\x1b\\",
    "\x9b31m",
    "\x9d0;t\x9c",
    "\x90q\x9c",
    "\x07\x08\x0c\x0e",
    "\u202eevil\u202c",
    "\u2066a\u2069",
]


@pytest.mark.parametrize("char", CONTROL + BIDI + ["\u2028", "\u2029", "\ud800", "\udfff", "\U000e0041"])
def test_every_control_becomes_one_visible_symbol(char: str) -> None:
    shown = visible(f"a{char}b")
    assert len(shown) == 3
    assert shown[0] == "a" and shown[2] == "b"
    assert unicodedata.category(shown[1]) in {"So", "Sm"}


@pytest.mark.parametrize("text", ["", "plain", "tab\tand\nnewline", "漢字 👨‍👩‍👧 é ﷽", "a\u200db"])
def test_ordinary_text_is_untouched(text: str) -> None:
    assert visible(text) is text


@pytest.mark.parametrize("text", SEQUENCES)
def test_no_sequence_survives(text: str) -> None:
    shown = visible(text)
    assert len(shown) == len(text)
    assert not any(unicodedata.category(char) in {"Cc", "Cf", "Cs"} for char in shown)


def test_tab_and_newline_stay_but_not_in_a_line() -> None:
    assert visible("a\tb\nc") == "a\tb\nc"
    assert visible_line("a\tb\nc") == "a b⏎c"


@given(st.text(), st.integers(min_value=0))
def test_chunks_give_the_same_as_the_whole(text: str, where: int) -> None:
    at = where % (len(text) + 1)
    assert visible(text[:at]) + visible(text[at:]) == visible(text)
    assert len(visible(text)) == len(text)
    assert visible(visible(text)) == visible(text)
    visible(text).encode("utf-8")
