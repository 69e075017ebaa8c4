"""Marks follow characters through every string operation, and never get lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingchat.runtime.formats.traced import Traced, foreign, format_traced, join_traced, mask_of, traced

# Template text is upper case and content lower case, so that every character shows where it came from.
TEXT = st.text("ABC-. \n", max_size=8)
CONTENT = st.text("abc-. \n", max_size=8)
MIXED = st.lists(st.one_of(TEXT, CONTENT.map(foreign)), max_size=5).map(lambda parts: join_traced("", parts))


def assert_true_marks(value: Any, *, plain: Any) -> None:
    """`value` reads as `plain`, and its marks say content for lower case and template for upper case."""
    if isinstance(plain, list | tuple):
        assert len(value) == len(plain)
        for one, other in zip(value, plain, strict=True):
            assert_true_marks(one, plain=other)
        return
    assert value == plain and len(mask_of(value)) == len(plain)
    for char, mark in zip(plain, mask_of(value), strict=True):
        assert not (char.isupper() and mark) and not (char.islower() and not mark), (plain, mask_of(value))


OPERATIONS: dict[str, Any] = {
    "strip": lambda s: s.strip(),
    "lstrip": lambda s: s.lstrip(),
    "rstrip": lambda s: s.rstrip(" .-"),
    "strip letters": lambda s: s.strip("aA. "),
    "split": lambda s: s.split(),
    "split once": lambda s: s.split(None, 1),
    "split at": lambda s: s.split("-"),
    "split at twice": lambda s: s.split(". ", 2),
    "rsplit": lambda s: s.rsplit(),
    "rsplit once": lambda s: s.rsplit(None, 1),
    "rsplit at once": lambda s: s.rsplit("-", 1),
    "splitlines": lambda s: s.splitlines(),
    "splitlines kept": lambda s: s.splitlines(True),
    "partition": lambda s: s.partition("-"),
    "rpartition": lambda s: s.rpartition("-"),
    "removeprefix": lambda s: s.removeprefix("-"),
    "removesuffix": lambda s: s.removesuffix("-"),
    "replace": lambda s: s.replace("-", "X"),
    "replace once": lambda s: s.replace(".", "", 1),
    "slice": lambda s: s[1:-1],
    "reverse": lambda s: s[::-1],
    "index": lambda s: s[-1] if s else "",
    "iterate": lambda s: list(s),
    "add": lambda s: "A" + s + "B" + s,
    "times": lambda s: 2 * s * 2,
    "join": lambda s: s.join(["A", "B"]) if isinstance(s, str) else s,
    "str": lambda s: str(s),
}


@pytest.mark.parametrize("name", OPERATIONS)
@given(text=MIXED)
def test_marks_follow(name: str, text: str) -> None:
    operation = OPERATIONS[name]
    assert_true_marks(operation(text), plain=operation(str.__str__(text)))


@given(MIXED)
def test_case_keeps_marks(text: str) -> None:
    for change in (str.lower, str.upper, str.title, str.capitalize):
        changed = getattr(text, change.__name__)()
        assert changed == change(str.__str__(text)) and mask_of(changed) == mask_of(text)


def test_a_case_change_that_changes_length_is_foreign() -> None:
    assert mask_of((foreign("ß") + "X").upper()) == b"\1\1\1"


@given(MIXED, MIXED, MIXED)
def test_replacing_with_content(text: str, old: str, new: str) -> None:
    if old and isinstance(text, Traced):
        assert_true_marks(text.replace(old, new), plain=str.__str__(text).replace(str.__str__(old), str.__str__(new)))


@given(st.lists(MIXED, max_size=3))
def test_formats(values: list[str]) -> None:
    plain = list(map(str.__str__, values))
    form = "-".join(["X%s"] * len(values))
    assert_true_marks(
        format_traced(lambda found: form % tuple(found), list(values)),
        plain=form % tuple(plain),
    )


def test_a_format_that_cannot_be_followed_is_foreign() -> None:
    cut = format_traced(lambda found: "X%.1s" % tuple(found), [foreign("ab")])  # noqa: UP031
    assert cut == "Xa" and mask_of(cut) == b"\1\1"
    nested = format_traced(lambda found: f"X{found[0]}", [[foreign("a")]])
    assert mask_of(nested) == b"\1" * len(nested)


def test_to_a_template_it_is_a_string() -> None:
    text = foreign("abc")
    assert isinstance(text, str) and text == "abc" and hash(text) == hash("abc") and {"abc": 1}[text] == 1
    assert "b" in text and text.startswith("a") and text.find("c") == 2 and foreign("") == "" and not foreign("")
    assert type(traced("abc", b"\0\0\0")) is str
