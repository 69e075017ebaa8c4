"""What is said about a reply besides its text."""

from __future__ import annotations

import pytest

from lingchat.replies import call_line, no_answer


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("look", '{"where": "Paris",\n "days": 3}', 'look {"where":"Paris","days":3}'),
        ("look", "{}", "look"),
        ("größe", '{"text":"漢字"}', 'größe {"text":"漢字"}'),
        ("two words", '{"a":"one\\ntwo"}', 'two words {"a":"one\\ntwo"}'),
        ("evil\x1b[2J\nname", '{"a":"\\u001b[31m\\u202e"}', 'evil␛[2J⏎name {"a":"\\u001b[31m⇄"}'),
        ("long", '{"n":' + "9" * 40 + "}", 'long {"n":' + "9" * 40 + "}"),
        ("deep", "[" * 9000, "deep " + "[" * 9000),
        ("half", '{"a":"\ud800"}', 'half {"a":"\ufffd"}'),
        ("cut", '{"a": 1, "b"\x07', 'cut {"a": 1, "b"␇'),
    ],
)
def test_a_call_is_one_line_without_control_characters(name: str, arguments: str, line: str) -> None:
    assert call_line(name, arguments) == line
    assert len(call_line(name, arguments).splitlines()) == 1


def test_a_long_call_says_how_much_is_left_out() -> None:
    line = call_line("write", '{"text":"' + "x" * 5000 + '"}', 200)
    assert len(line) < 250 and line.endswith("… 4,811 characters more")
    assert len(call_line("write", '{"text":"' + "x" * 5000 + '"}')) > 5000


@pytest.mark.parametrize(
    ("text", "reasoning", "calls", "stop", "said"),
    [
        ("", "hm", 0, "length", "the length limit was reached inside the reasoning"),
        (" \n", "hm", 0, "cancel", "it was stopped inside the reasoning"),
        ("", "hm", 0, "interrupted", "lingchat was killed inside the reasoning"),
        ("", "hm", 0, "eos", "the reply ended inside its reasoning"),
        ("42", "hm", 0, "length", ""),
        ("", "hm", 1, "eos", ""),
        ("", "", 0, "length", ""),
        ("", "hm", 0, "error", ""),  # the error says it
        ("", "hm", 0, "", ""),  # still being written
    ],
)
def test_an_empty_answer_is_named(text: str, reasoning: str, calls: int, stop: str, said: str) -> None:
    assert no_answer(text, reasoning, calls, stop) == (f"no answer: {said}" if said else "")
