"""How long a reply has reasoned, and with how many tokens, told from its events.

Times and tokens are the engine's. A batch of rounds belongs to the text that comes after it, so the count is exact to
the batch in which reasoning ends.

Pure, as all of the fold. Knows nothing of text or screens.
"""

from __future__ import annotations

from lingchat.events import AnyEvent, Decode, Reasoning, Text, ToolCall


class ReasoningMeter:
    """Folds the events of one turn."""

    def __init__(self) -> None:
        self.tokens = 0
        self._waiting = 0  # tokens whose text has not come yet
        self._first: int | None = None
        self._last = 0
        self._start: int | None = None  # of the first round: the first delta comes after its tokens

    def add(self, event: AnyEvent) -> None:
        match event:
            case Decode():
                self._waiting += sum(event.k)
                if self._start is None:
                    self._start = event.t0_ns
            case Reasoning():
                if self._first is None:
                    self._first = event.t_ns if self._start is None else self._start
                self._last = event.t_ns
                self.tokens += self._waiting
                self._waiting = 0
            case Text() | ToolCall():
                self._waiting = 0
                self._start = None
            case _:
                pass

    @property
    def ms(self) -> float | None:
        """From the first token of the reply to the last of its reasoning; None before any."""
        return None if self._first is None else (self._last - self._first) / 1e6
