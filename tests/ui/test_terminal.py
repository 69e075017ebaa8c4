"""The driver's parts: pastes cut anywhere, and a terminal that goes away."""

from __future__ import annotations

import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import events

from lingchat.ui.terminal import PASTE_END, PASTE_START, LossyFile, PasteParser


def read(*chunks: str) -> list[events.Event]:
    parser = PasteParser()
    found = [message for chunk in chunks for message in parser.feed(chunk)]
    return [message for message in found if isinstance(message, (events.Key, events.Paste))]


def told(messages: list[events.Event]) -> list[str]:
    return [m.text if isinstance(m, events.Paste) else f"<{m.key}>" for m in messages]  # type: ignore[attr-defined]


def test_keys_around_a_paste_stay_keys() -> None:
    assert told(read(f"a{PASTE_START}b\rc{PASTE_END}\r")) == ["<a>", "b\rc", "<enter>"]


def test_a_paste_full_of_escapes_presses_no_key() -> None:
    text = "\x1b[31mred\x1b[0m\r\x1b[A\x1b" + "x" * 60 + "\r\n"
    assert told(read(f"{PASTE_START}{text}{PASTE_END}")) == [text]


@given(st.text(alphabet="ab\r\n\x1b[201~0", max_size=40), st.lists(st.integers(0, 80), max_size=6))
def test_a_paste_is_whole_however_it_is_cut(text: str, cuts: list[int]) -> None:
    text = text.replace(PASTE_END, "")
    whole = f"{PASTE_START}{text}{PASTE_END}z"
    if PASTE_END in whole[: -len(PASTE_END) - 1]:
        return  # the text ends in the beginning of the mark: no terminal can tell
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    chunks = [whole[a:b] for a, b in itertools.pairwise(places)]
    assert told(read(*chunks)) == [text, "<z>"]


def test_two_pastes_in_a_row() -> None:
    assert told(read(f"{PASTE_START}a{PASTE_END}{PASTE_START}b{PASTE_END}")) == ["a", "b"]


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_terminal_that_is_gone_is_told_once_and_blocks_nobody() -> None:
    told_lost: list[bool] = []
    file = LossyFile(Broken(), lambda: told_lost.append(True))
    for _ in range(100):
        file.write("frame")
        file.flush()
    assert file.lost
    assert told_lost == [True]


@pytest.mark.parametrize("text", ["", "x"])
def test_a_terminal_that_is_there_gets_everything(text: str) -> None:
    under = io.StringIO()
    file = LossyFile(under, lambda: None)
    file.write(text)
    file.flush()
    assert under.getvalue() == text
    assert not file.lost
