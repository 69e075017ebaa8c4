"""A reply in line mode: its text as it comes, and what stands between the lines in brackets.

Nothing is taken back once it is printed. Reasoning is left out unless it is shown; either way its time and tokens are
told when it ends. A tool call is a line. Knows events; where lines go is given.
"""

from __future__ import annotations

from collections.abc import Callable

from lingchat.events import AnyEvent, Error, Reasoning, Text, ToolCall
from lingchat.replies import Heard, call_line
from lingchat.stats import ReasoningMeter, reasoning_note


class PlainReply:
    """Folds the events of one turn into text. `write` takes text as it is, `say` a line of ours."""

    def __init__(self, write: Callable[[str], None], say: Callable[[str], None], *, reasoning_shown: bool) -> None:
        self._write = write
        self._say = say
        self._shown = reasoning_shown
        self._meter = ReasoningMeter()
        self._heard = Heard()
        self._thinking = False
        self._last = "\n"  # the character before the cursor

    def add(self, event: AnyEvent) -> None:
        self._meter.add(event)
        self._heard.add(event)
        match event:
            case Reasoning():
                self._begin_thinking()
                if self._shown:
                    self._put(event.delta)
            case Text() if event.delta:
                self._end_thinking()
                self._put(event.delta)
            case ToolCall():
                self._end_thinking()
                self.line(f"[tool call, not run: {call_line(event.name, event.arguments)}]")
            case Error():
                self._end_thinking()
                self.end_line()

    def line(self, text: str) -> None:
        """A line of ours, on a line of its own."""
        self.end_line()
        self._say(text)

    def end_line(self) -> None:
        if self._last != "\n":
            self._put("\n")

    def end(self) -> None:
        """Nothing more comes."""
        self._end_thinking()
        if self._heard.no_answer:
            self.line(f"[{self._heard.no_answer}]")
        self.end_line()

    def _begin_thinking(self) -> None:
        if not self._thinking:
            self._thinking = True
            self.line("[thinking]" if self._shown else "[thinking; /think show shows it]")

    def _end_thinking(self) -> None:
        if self._thinking:
            self._thinking = False
            self.line(
                f"[{'/thinking' if self._shown else 'thought'} {reasoning_note(self._meter.ms, self._meter.tokens)}]"
            )

    def _put(self, text: str) -> None:
        if text:
            self._write(text)
            self._last = text[-1]
