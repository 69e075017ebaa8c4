"""Splits a reply into reasoning and answer while it arrives: `<think> ... </think>`, as Qwen3 and its kin write it.

Knows text only.
"""

from __future__ import annotations

from typing import Literal

from lingchat.runtime.formats.parts import Part

OPEN, CLOSE = "<think>", "</think>"


class ReasoningSplitter:
    """Deltas of a reply to ("reasoning" | "text", delta) parts.

    `inside`: the prompt already opened the reasoning. A reply opens it only with its very first word; the marker later
    on is text, as the model may well talk about it. Markers and the line breaks around them are dropped; what may
    become a marker is held back until it is decided. The parts do not depend on how the reply was cut into deltas.
    """

    def __init__(self, *, inside: bool = False) -> None:
        self._state: Literal["start", "reasoning", "text"] = "reasoning" if inside else "start"
        self.unanswered = False
        self._held = ""
        self._trim = inside  # drop line breaks until the first other character

    def push(self, delta: str) -> list[Part]:
        """The parts that became certain with this delta."""
        self._held += delta
        parts: list[Part] = []
        if self._state == "start" and not self._open():
            return parts
        if self._state == "reasoning" and not self._reason(parts):
            return parts
        self._emit(parts, "text", self._take(self._held))
        self._held = ""
        return parts

    def finish(self) -> list[Part]:
        """What was still held back."""
        parts: list[Part] = []
        rest, self._held = self._held, ""
        if self._state == "reasoning":
            self._emit(parts, "reasoning", self._take(rest).rstrip("\n"))
            self.unanswered = True
        else:
            self._emit(parts, "text", self._take(rest))
        return parts

    def _open(self) -> bool:
        """True once it is decided whether the reply begins with reasoning."""
        begun = self._held.lstrip()
        if begun.startswith(OPEN):
            self._state, self._trim, self._held = "reasoning", True, begun[len(OPEN) :]
            return True
        if OPEN.startswith(begun):
            return False
        self._state = "text"
        return True

    def _reason(self, parts: list[Part]) -> bool:
        """True once the reasoning is over; `_held` is then what follows it."""
        end = self._held.find(CLOSE)
        if end >= 0:
            self._emit(parts, "reasoning", self._take(self._held[:end]).rstrip("\n"))
            self._state, self._trim, self._held = "text", True, self._held[end + len(CLOSE) :]
            return True
        # Line breaks are held as well: those right before the marker belong to it.
        certain = len(self._held) - _overlap(self._held, CLOSE)
        certain = len(self._held[:certain].rstrip("\n"))
        self._emit(parts, "reasoning", self._take(self._held[:certain]))
        self._held = self._held[certain:]
        return False

    def _take(self, text: str) -> str:
        if self._trim:
            text = text.lstrip("\n")
            self._trim = not text
        return text

    def _emit(self, parts: list[Part], kind: Literal["reasoning", "text"], text: str) -> None:
        if text:
            parts.append((kind, text))


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that begins `marker`."""
    for size in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0
