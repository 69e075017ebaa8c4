"""Splits a reply into reasoning, answer and tool calls while it arrives.

Knows text only: the markers of reasoning, and the forms of calls it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lingchat.runtime.formats.calls import CallForm, Calls
from lingchat.runtime.formats.markers import FENCE, THINK_CLOSE, THINK_OPEN
from lingchat.runtime.formats.parts import Part
from lingchat.runtime.formats.source import Reader, Source
from lingchat.runtime.formats.tools import Tools

State = Literal["start", "reasoning", "text"]


class ReplyParser:
    """Deltas of a reply to parts: `("reasoning" | "text", delta)` and `("tool_call", ToolCall)`, in their order.

    `reasons`: the model marks its reasoning. `inside`: the prompt already opened it. Otherwise a reply opens it only
    with its very first word; the marker later on is text, as the model may well talk about it. Reasoning ends at its
    closing marker or at a call. `forms` are the ways in which calls may be written, tried in this order.

    Markers, and line breaks around them and around calls, are dropped; what may become a marker is held back until it
    is decided. What begins like a call and is none stays what it stands in, every character of it; a call that
    breaks off after a beginning that can hardly be anything else is text. The parts do not depend on how the
    reply was cut into deltas.

    `unanswered` is True after `finish` when the reply ended inside its reasoning.
    """

    def __init__(
        self,
        *,
        reasons: bool = True,
        inside: bool = False,
        forms: Sequence[CallForm] = (),
        tools: Tools | None = None,
    ) -> None:
        self.unanswered = False
        self._state: State = "reasoning" if inside else "start" if reasons else "text"
        self._tools = tools or Tools()
        self._forms = [form for form in forms if self._tools or not form.at_line_start]
        self._held = ""  # undecided
        self._breaks = ""  # line breaks before it: a marker or a call swallows them
        self._trim = inside  # right after a marker or a call: line breaks that come next are dropped
        self._line_start = True
        self._in_code = False  # between fences: what stands there is an example, unless the fence held calls alone
        self._broken = False  # a call was none: plain JSON after it may be the rest of it
        self._called = False  # there was a call, so that what closes its section may come
        self._reasoning_open = False  # a call ended the reasoning, so that its closing marker may still come
        self._attempt: _Attempt | None = None

    def push(self, delta: str) -> list[Part]:
        """The parts that became certain with this delta."""
        self._held += delta
        return self._advance(last=False)

    def finish(self) -> list[Part]:
        """What was still held back; the parser must not be used afterwards."""
        parts = self._advance(last=True)
        if self._state == "reasoning":
            self.unanswered = True
        elif self._breaks:
            parts.append(("text", self._breaks))
        return parts

    def _advance(self, *, last: bool) -> list[Part]:
        parts: list[Part] = []
        while self._held and self._step(parts, last):
            pass
        return parts

    def _step(self, parts: list[Part], last: bool) -> bool:
        """Decides about the beginning of what is held; False when more must come first."""
        if self._state == "start":
            return self._begin(last)
        if self._attempt is not None:
            return self._read_call(parts, self._attempt, last)
        return self._read_plain(parts, last)

    def _begin(self, last: bool) -> bool:
        """Whether the reply opens its reasoning."""
        begun = self._held.lstrip()
        if begun.startswith(THINK_OPEN):
            self._state, self._trim, self._held = "reasoning", True, begun[len(THINK_OPEN) :]
        elif last or not THINK_OPEN.startswith(begun):
            self._state = "text"
        else:
            return False
        return True

    def _read_plain(self, parts: list[Part], last: bool) -> bool:
        """Hands out what stands before the next marker or possible call, and takes the marker away."""
        markers = self._markers()
        at, found = min(((self._find(*marker), marker[0]) for marker in markers.items()), default=(len(self._held), ""))
        if at < len(self._held):
            self._say(parts, self._held[:at])
            self._held = self._held[at:]
            if found == THINK_CLOSE:
                self._take_away(found)
                self._state, self._reasoning_open = "text", False
            elif any(found in form.closers for form in self._forms):
                self._take_away(found)
            elif found == FENCE and self._in_code:
                self._in_code = False
                self._say(parts, found)
                self._held = self._held[len(found) :]
            else:
                self._attempt = _Attempt(self._forms, found, self._tools)
            return True
        keep = 0 if last else max((_overlap(self._held, marker) for marker in markers), default=0)
        certain = len(self._held) - keep
        self._say(parts, self._held[:certain])
        self._held = self._held[certain:]
        return False

    def _markers(self) -> dict[str, bool]:
        """What may end plain text here, and whether it counts at the start of a line only."""
        markers: dict[str, bool] = {}
        for form in self._forms:
            if not form.at_line_start or (self._state == "text" and not self._broken):
                openers = [opener for opener in form.openers if opener == FENCE or not self._in_code]
                markers |= dict.fromkeys(openers, form.at_line_start)
            if self._called:
                markers |= dict.fromkeys(form.closers, False)
        if self._state == "reasoning" or self._reasoning_open:
            markers[THINK_CLOSE] = False
        return markers

    def _find(self, marker: str, at_line_start: bool) -> int:
        """Where `marker` stands in what is held; past its end for nowhere."""
        at = self._held.find(marker)
        while at_line_start and at >= 0 and not self._begins_line(at):
            at = self._held.find(marker, at + 1)
        return at if at >= 0 else len(self._held)

    def _begins_line(self, at: int) -> bool:
        return self._held[at - 1] == "\n" if at else bool(self._breaks) or self._line_start

    def _read_call(self, parts: list[Part], attempt: _Attempt, last: bool) -> bool:
        """Goes on reading what may be a call."""
        calls = attempt.read(self._held, last)
        if calls is None and not attempt.declined:
            return False
        self._attempt = None
        if self._state == "reasoning" and (calls is not None or attempt.committed):
            self._state, self._reasoning_open, self._breaks = "text", True, ""
        if calls is None:
            self._in_code |= attempt.opener == FENCE
            self._broken |= self._state == "text" and not attempt.at_line_start
            self._say(parts, attempt.opener)
            self._held = self._held[len(attempt.opener) :]
        else:
            parts += [("tool_call", call) for call in calls]
            self._take_away(self._held[: attempt.end])
            self._called = True
        return True

    def _take_away(self, marker: str) -> None:
        """Drops a marker or a call, with the line breaks around it."""
        self._held = self._held[len(marker) :]
        self._breaks, self._trim, self._line_start = "", True, True

    def _say(self, parts: list[Part], text: str) -> None:
        """Hands out plain text, but for line breaks at its end that a marker or a call may swallow."""
        if self._trim:
            text = text.lstrip("\n")
        if not text:
            return
        reasoning = self._state == "reasoning"
        shown = text.rstrip("\n") if reasoning or self._tools else text
        if shown:
            parts.append(("reasoning" if reasoning else "text", self._breaks + shown))
            self._breaks = ""
            self._trim = self._line_start = False
        self._breaks += text[len(shown) :]


class _Attempt:
    """What may be a call, read by one form after another until one takes it."""

    def __init__(self, forms: Sequence[CallForm], opener: str, tools: Tools) -> None:
        self.opener = opener
        self.end = 0  # of the call, once there is one
        self.committed = False  # some form took it for a call for a while
        self.declined = False
        self._tools = tools
        self._forms = [form for form in forms if opener in form.openers]
        self.at_line_start = all(form.at_line_start for form in self._forms)
        self._source = Source("")
        self._reader: Reader[Calls | None] | None = None

    def read(self, text: str, last: bool) -> Calls | None:
        """The calls; None when more must come first, and when every form has `declined`."""
        self._source.text = text
        while self._reader is not None or self._forms:
            if self._reader is None:
                self._source = Source(text)
                self._reader = self._forms.pop(0).read(self._source, self._tools)
            calls = None
            try:
                next(self._reader)
                if not last:
                    return None
            except StopIteration as done:
                calls = done.value
            self.committed |= self._source.committed
            if calls is not None:
                self.end = self._source.at
                return calls  # type: ignore[no-any-return]  # what a reader of calls returns
            self._reader = None
        self.declined = True
        return None


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that begins `marker`."""
    for size in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0
