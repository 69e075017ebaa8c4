"""Reading a text that is still arriving.

A reader is a generator: it yields whenever the text does not yet decide what comes next, and is resumed when there is
more. Every decision looks only at text that can no longer change, so the result does not depend on how the text was
cut; and no character is looked at twice, however many pieces it came in.

Knows text and JSON, no markers and no tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
Reader = Generator[None, None, T]

DEEPEST_JSON = 64  # levels; what a model writes is flat, and Python's own parser gives up far above this

_SPACE = re.compile(r"\s*")
_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING_END = re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


class Source:
    """`text` as far as it is known, and how far it has been read.

    `committed` is set by a reader once what it reads can hardly be anything else.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.committed = False

    def literal(self, *options: str) -> Reader[str | None]:
        """Reads the one of `options` that comes next; None, and nothing read, when none of them does."""
        longest = max(map(len, options))
        while True:
            ahead = self.text[self.at : self.at + longest]
            for option in options:
                if ahead.startswith(option):
                    self.at += len(option)
                    return option
            if not any(option.startswith(ahead) for option in options):
                return None
            yield

    def space(self) -> Reader[None]:
        """Reads white space; done when something else has come."""
        while True:
            self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]  # it always matches
            if self.at < len(self.text):
                return
            yield

    def until(self, marker: str) -> Reader[str]:
        """Reads up to and including `marker`; the text before it."""
        start = search = self.at
        while (end := self.text.find(marker, search)) < 0:
            search = max(start, len(self.text) - len(marker) + 1)
            yield
        self.at = end + len(marker)
        return self.text[start:end]

    def word(self, pattern: re.Pattern[str], limit: int) -> Reader[str | None]:
        """Reads the characters of `pattern`, a class repeated; perhaps none. None for more than `limit`."""
        start = self.at
        while True:
            self.at = pattern.match(self.text, self.at).end()  # type: ignore[union-attr]  # it always matches
            if self.at - start > limit:
                return None
            if self.at < len(self.text):
                return self.text[start : self.at]
            yield

    def json(self) -> Reader[Any]:
        """Reads a JSON object or an array of objects; None for anything else, which neither is."""
        start = self.at
        opening = yield from self.literal("{", "[")
        if opening is None:
            return None
        yield from self.space()
        if self.text[self.at] not in ('"}' if opening == "{" else "{"):
            return None  # code in braces, a footnote or a link: not worth holding back
        depth = 1
        while True:
            found = _STRUCTURE.search(self.text, self.at)
            if found is None:
                self.at = len(self.text)
                yield
                continue
            self.at = found.end()
            if found.group() == '"':
                yield from self._string()
            elif found.group() in "{[":
                depth += 1
                if depth > DEEPEST_JSON:
                    return None
            else:
                depth -= 1
                if depth == 0:
                    try:
                        return parse_json(self.text[start : self.at])
                    except ValueError:
                        return None

    def _string(self) -> Reader[None]:
        """Reads the rest of a JSON string, its closing quote included."""
        while True:
            self.at = _STRING_END.match(self.text, self.at).end()  # type: ignore[union-attr]  # it always matches
            # Where it stopped is the quote, or a backslash whose second half has not come.
            if self.at < len(self.text) and self.text[self.at] == '"':
                self.at += 1
                return
            yield


def parse_json(text: str) -> Any:
    """The value of a JSON text as models write it: line breaks in strings pass. Raises `ValueError` where it is none.

    Halves of characters, which JSON can spell and UTF-8 cannot, become U+FFFD.
    """
    try:
        value = json.loads(text, strict=False, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return whole_characters(value) if "\\u" in text else value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def whole_characters(value: Any) -> Any:
    """`value` with U+FFFD for every half of a character in its strings."""
    if isinstance(value, str):
        return _HALF_CHARACTER.sub("\ufffd", value)
    if isinstance(value, list):
        return [whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {whole_characters(key): whole_characters(item) for key, item in value.items()}
    return value
