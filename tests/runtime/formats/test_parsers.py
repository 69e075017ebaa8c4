"""Reasoning is told from the answer, whatever the chunking."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingchat.runtime.formats.parsers import ReplyParser

PIECES = ["<think>", "</think>", "<", "</", "think", ">", "\n", "\n\n", " ", "a", "b c", "<thin", "</thinx>"]


def split(chunks: list[str], *, inside: bool = False) -> tuple[str, str]:
    """(reasoning, text) of a reply; asserts that no reasoning follows text."""
    parser = ReplyParser(inside=inside)
    parts = [part for chunk in chunks for part in parser.push(chunk)] + parser.finish()
    assert all(delta for _, delta in parts)
    kinds = [kind for kind, _ in parts]
    assert kinds == sorted(kinds)  # "reasoning" before "text"
    reasoning = "".join(str(delta) for kind, delta in parts if kind == "reasoning")
    return reasoning, "".join(str(delta) for kind, delta in parts if kind == "text")


@pytest.mark.parametrize(
    ("reply", "inside", "expected"),
    [
        ("hello", False, ("", "hello")),
        ("<think>\nwhy\n\nso\n</think>\n\nhello\n", False, ("why\n\nso", "hello\n")),
        ("\n <think>why</think>hello", False, ("why", "hello")),
        ("<think>\n\n</think>\n\nhello", False, ("", "hello")),
        ("why\n</think>\nhello", True, ("why", "hello")),
        ("<think> cut off", False, (" cut off", "")),
        ("why </thinker> on</think>x", True, ("why </thinker> on", "x")),
        ("say <think> to begin", False, ("", "say <think> to begin")),
        ("<think>a</think>b<think>c</think>", False, ("a", "b<think>c</think>")),
        ("a</think>b", False, ("", "a</think>b")),
        ("<thin", False, ("", "<thin")),
        ("  ", False, ("", "  ")),
        ("", False, ("", "")),
        ("", True, ("", "")),
    ],
)
def test_replies(reply: str, inside: bool, expected: tuple[str, str]) -> None:
    assert split([reply], inside=inside) == expected
    assert split(list(reply), inside=inside) == expected


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.booleans(), st.data())
def test_any_chunking_gives_the_same_parts(pieces: list[str], inside: bool, data: st.DataObject) -> None:
    reply = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(reply)), max_size=8)))
    edges = [0, *cuts, len(reply)]
    chunks = [reply[a:b] for a, b in itertools.pairwise(edges)]
    assert split(chunks, inside=inside) == split([reply], inside=inside)


def test_only_what_may_be_a_marker_waits() -> None:
    parser = ReplyParser()
    assert parser.push("<th") == []
    assert parser.push("ink>\nbecause") == [("reasoning", "because")]
    assert parser.push(" it is\n") == [("reasoning", " it is")]
    assert parser.push("so <") == [("reasoning", "\nso ")]
    assert parser.push("/think>\n\n") == []
    assert parser.push("Yes") == [("text", "Yes")]
    assert parser.push("<") == [("text", "<")]
    assert parser.push("\n") == [("text", "\n")]


@pytest.mark.parametrize(
    ("reply", "inside", "unanswered"),
    [
        ("thinking and think", True, True),
        ("", True, True),
        ("<think>thinking", False, True),
        ("thinking</think>", True, False),
        ("thinking</think>Yes", True, False),
        ("Yes", False, False),
        ("", False, False),
    ],
)
def test_a_reply_that_ends_in_its_reasoning_says_so(reply: str, inside: bool, unanswered: bool) -> None:
    parser = ReplyParser(inside=inside)
    parts = [*parser.push(reply), *parser.finish()]
    assert parser.unanswered == unanswered
    if unanswered:
        assert all(kind == "reasoning" for kind, _ in parts)


def test_a_model_that_does_not_reason_may_write_the_marker() -> None:
    parser = ReplyParser(reasons=False)
    assert [*parser.push("<think>a</think>"), *parser.finish()] == [("text", "<think>a</think>")]
    assert not parser.unanswered
