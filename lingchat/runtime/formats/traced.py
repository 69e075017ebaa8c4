"""Text that remembers which of its characters came from outside the template.

A chat template mixes its own words with the contents of messages. A special token counts only where the template
wrote it, so every character that came from a content carries a mark through whatever the template does to it: strip,
split, slice, replace, join, format. To the template a `Traced` is a plain string; comparisons and tests see no
difference. Where an operation's result cannot be followed, all of it counts as content: that is the safe side.

Knows strings only, no templates and no tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any


class Traced(str):
    """A string with one byte a character in `_mask`: 1 where it came from outside. Made by `traced` or `foreign`."""

    __slots__ = ("_mask",)  # the underscore keeps it out of a sandboxed template's reach
    _mask: bytes

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        return traced(str.__add__(self, other), self._mask + mask_of(other))

    def __radd__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        return traced(str.__add__(other, self), mask_of(other) + self._mask)

    def __mul__(self, count: Any) -> str:
        return traced(str.__mul__(self, count), self._mask * count)

    __rmul__ = __mul__

    def __getitem__(self, key: Any) -> str:
        text = str.__getitem__(self, key)
        return traced(text, self._mask[key] if isinstance(key, slice) else self._mask[key : key + 1 or None])

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def __mod__(self, values: Any) -> str:
        return foreign(str.__mod__(self, values))  # the format itself came from outside

    def _part(self, start: int, text: str) -> str:
        return traced(text, self._mask[start : start + len(text)])

    def _parts(self, texts: Iterable[str]) -> list[str]:
        """Each of `texts`, found in order in this string."""
        at, parts = 0, []
        for text in texts:
            at = self.index(text, at)
            parts.append(self._part(at, text))
            at += len(text)
        return parts

    def _between(self, texts: list[str], separator: str) -> list[str]:
        """`texts`, which stand in this string with one `separator` between two of them."""
        at, parts = 0, []
        for text in texts:
            parts.append(self._part(at, text))
            at += len(text) + len(separator)
        return parts

    def strip(self, chars: str | None = None) -> str:
        return self._part(len(self) - len(str.lstrip(self, chars)), str.strip(self, chars))

    def lstrip(self, chars: str | None = None) -> str:
        text = str.lstrip(self, chars)
        return self._part(len(self) - len(text), text)

    def rstrip(self, chars: str | None = None) -> str:
        return self._part(0, str.rstrip(self, chars))

    def removeprefix(self, prefix: str) -> str:
        text = str.removeprefix(self, prefix)
        return self._part(len(self) - len(text), text)

    def removesuffix(self, suffix: str) -> str:
        return self._part(0, str.removesuffix(self, suffix))

    def split(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:
        texts = str.split(self, sep, maxsplit)
        return self._parts(texts) if sep is None else self._between(texts, sep)

    def rsplit(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:
        texts = str.rsplit(self, sep, maxsplit)
        if sep is not None:
            return self._between(texts, sep)
        end, parts = len(self), []
        for text in reversed(texts):
            start = self.rindex(text, 0, end)
            parts.append(self._part(start, text))
            end = start
        return parts[::-1]

    def splitlines(self, keepends: bool = False) -> list[str]:
        parts = self._between(str.splitlines(self, True), "")
        if keepends:
            return parts
        return [part[: len(text)] for part, text in zip(parts, str.splitlines(self), strict=True)]

    def partition(self, sep: str) -> tuple[str, str, str]:
        head, middle, tail = self._between(list(str.partition(self, sep)), "")
        return head, middle, tail

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        head, middle, tail = self._between(list(str.rpartition(self, sep)), "")
        return head, middle, tail

    def replace(self, old: str, new: str, count: Any = -1) -> str:
        if not old:
            text: str = settle(str.replace(self, old, new, count), self, new)
            return text
        return join_traced(new, self._between(str.split(self, old, count), old))

    def join(self, items: Iterable[str]) -> str:
        return join_traced(self, items)

    def lower(self) -> str:
        return self._same(str.lower(self))

    def upper(self) -> str:
        return self._same(str.upper(self))

    def title(self) -> str:
        return self._same(str.title(self))

    def capitalize(self) -> str:
        return self._same(str.capitalize(self))

    def _same(self, text: str) -> str:
        return traced(text, self._mask) if len(text) == len(self) else foreign(text)


def mask_of(text: str) -> bytes:
    """One byte a character: 1 where it came from outside."""
    return text._mask if isinstance(text, Traced) else bytes(len(text))


def traced(text: str, mask: bytes) -> str:
    """`text` with `mask`; a plain string where no character came from outside."""
    return as_traced(text, mask) if 1 in mask else str.__str__(text)


def as_traced(text: str, mask: bytes | None = None) -> Traced:
    """`text` as a `Traced` even where nothing came from outside, so that its methods follow their arguments."""
    made = str.__new__(Traced, text)
    made._mask = mask_of(text) if mask is None else mask
    return made


def foreign(text: str) -> str:
    """`text` as coming from outside, every character of it."""
    return traced(str.__str__(text), b"\1" * len(text))


def join_traced(separator: str, items: Iterable[str]) -> str:
    """`separator.join(items)` with the marks kept."""
    texts = list(items)
    return traced(str.join(separator, texts), mask_of(separator).join(map(mask_of, texts)))


def carries(value: Any) -> bool:
    """True when `value`, or anything in it, may carry a mark.

    Of an iterator or an unknown object it is not known what is in it, so it may.
    """
    if isinstance(value, str):
        return isinstance(value, Traced) and 1 in value._mask
    if value is None or isinstance(value, int | float | range):
        return False
    if isinstance(value, Mapping):
        return any(carries(part) for item in value.items() for part in item)
    if isinstance(value, list | tuple):
        return any(map(carries, value))
    return True


def settle(result: Any, *sources: Any) -> Any:
    """The `result` of an operation nobody followed: foreign when it is a string and a source carries a mark."""
    if isinstance(result, str) and not isinstance(result, Traced) and carries(sources):
        return foreign(result)
    return result


def format_traced(operation: Callable[[list[Any]], str], values: list[Any]) -> str:
    """`operation(values)`, such as `%` or `str.format`, with the marks of string values kept.

    The operation runs twice: once as it is, once with two characters around each marked value that occur nowhere
    else. If the two results agree but for those, the second tells where the values went; if not, all is foreign.
    """
    plain = str.__str__(operation(values))
    if not carries(values):
        return plain
    opening, closing = _unused_characters(plain)
    masks: dict[str, bytes] = {}

    def tag(value: Any) -> Any:
        if not isinstance(value, Traced):
            return value
        text = str.__str__(value)
        masks[text] = bytes(map(max, masks.get(text, value._mask), value._mask))
        return f"{opening}{text}{closing}"

    parts = operation(list(map(tag, values))).replace(closing, opening).split(opening)
    followed = all(part in masks for part in parts[1::2]) and "".join(parts) == plain
    if not followed or any(carries(value) and not isinstance(value, str) for value in values):
        return foreign(plain)
    return traced(plain, b"".join(masks[p] if i % 2 else bytes(len(p)) for i, p in enumerate(parts)))


def _unused_characters(text: str) -> tuple[str, str]:
    """Two private-use characters that do not occur in `text`."""
    present = set(text)
    free = (chr(point) for point in range(0xF0000, 0xFFFFE) if chr(point) not in present)
    return next(free), next(free)
