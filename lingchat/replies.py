"""What there is to say about a reply besides its text: its tool calls as lines, and that it holds no answer.

One place, so that the screen, the line mode, `-p` and exported sessions say the same. Nothing runs a call here.

Knows events; knows nothing of engines, sessions or screens.
"""

from __future__ import annotations

import msgspec

from lingchat.events import AnyEvent, Reasoning, Text, ToolCall, TurnEnd
from lingchat.visible import visible_line

_CUT = {
    "length": "the length limit was reached",
    "cancel": "it was stopped",
    "interrupted": "lingchat was killed",
}


def call_line(name: str, arguments: str, limit: int | None = None) -> str:
    """A tool call in one line: `get_weather {"city":"Paris","days":3}`.

    `arguments` is JSON text; more than `limit` characters of it are cut, and the line says how many. Everything in it
    is the model's, so control characters are made visible.
    """
    try:
        text = msgspec.json.encode(msgspec.json.decode(arguments)).decode()
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError):
        text = arguments  # shown as it is: what does not parse, or not here, is what one wants to see
    text = visible_line(text)
    if limit is not None and len(text) > limit:
        text = f"{text[:limit]}… {len(text) - limit:,} characters more"
    return f"{visible_line(name)} {'' if text == '{}' else text}".rstrip()


def no_answer(text: str, reasoning: str, calls: int, stop: str) -> str:
    """Why a reply that ended holds reasoning only, as a sentence; empty for any other reply.

    An error says itself why there is nothing, so `stop` "error" gives nothing here.
    """
    if stop in ("", "error") or text.strip() or calls or not reasoning.strip():
        return ""
    cut = _CUT.get(stop)
    return f"no answer: {cut} inside the reasoning" if cut else "no answer: the reply ended inside its reasoning"


class Heard:
    """What a reply consists of as its events come, as far as it matters whether it holds an answer."""

    def __init__(self) -> None:
        self._answered = self._reasoned = False
        self._calls = 0
        self._stop = ""

    def add(self, event: AnyEvent) -> None:
        match event:
            case Text():
                self._answered = self._answered or bool(event.delta.strip())
            case Reasoning():
                self._reasoned = self._reasoned or bool(event.delta.strip())
            case ToolCall():
                self._calls += 1
            case TurnEnd():
                self._stop = event.stop

    @property
    def no_answer(self) -> str:
        """The function's sentence, once the turn has ended."""
        return no_answer("." * self._answered, "." * self._reasoned, self._calls, self._stop)
