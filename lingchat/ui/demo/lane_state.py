"""What a lane shows at an instant: a fold over its recorded events, or a count at a published pace. Pure.

`at(ms)` moves a lane to `ms` after the start; time only goes forward. All digits come from `stats`.
"""

from __future__ import annotations

import itertools
from typing import Protocol

from lingchat.engines.scripted import RecordedTurn, recorded_turns
from lingchat.errors import TraceError
from lingchat.events import Decode, Text, TurnEnd
from lingchat.stats import (
    NO_DRAFT,
    TurnStats,
    format_accept_len,
    format_count,
    format_ms,
    format_percent,
    format_seconds,
)
from lingchat.ui.demo.lanes import Pace
from lingchat.ui.demo.record import Recording
from lingchat.ui.widgets.strip import StripModel
from lingchat.visible import visible

_WORDS = (
    "This is how it feels when a token comes every {ms} ms: five thousand of them in {seconds}. "
    "No model runs here; only the pace is shown. "
)


class LaneState(Protocol):
    title: str
    source: str
    strip: StripModel
    text: str
    done: bool

    def at(self, ms: float) -> None: ...

    def figures(self) -> tuple[str, str]:
        """Two lines: how far it is, and what it cost."""
        ...


class RecordedLane:
    """A rung's own run, on its recorded clock. It starts when its request was accepted."""

    def __init__(self, recording: Recording) -> None:
        turns = recorded_turns(recording.trace)
        if not turns:
            raise TraceError(f"{recording.trace.path} holds no turn to replay")
        self._turn: RecordedTurn = turns[-1]
        self.title = recording.rung.label
        self.source = f"recorded {recording.trace.start.wall[:10]}"
        self.strip = StripModel()
        self.stats = TurnStats(1)
        self.text = ""
        self.done = False
        self._next = 0
        self._ns = 0

    @property
    def length_ms(self) -> float:
        return self._turn.events[-1].t_ns / 1e6

    def at(self, ms: float) -> None:
        self._ns = round(ms * 1e6)
        events = self._turn.events
        while self._next < len(events) and events[self._next].t_ns <= self._ns:
            event = events[self._next]
            self._next += 1
            self.stats.add(event)
            if isinstance(event, Decode):
                self.strip.feed(event)
            elif isinstance(event, Text):
                self.text += visible(event.delta)
            elif isinstance(event, TurnEnd):
                self.done = True
        self.strip.rescale(self.stats.round(0.5), self.stats.round(0.95), self._ns)

    def figures(self) -> tuple[str, str]:
        stats = self.stats
        elapsed = stats.elapsed_ms(self._ns) if stats.ttft_ms is not None else self._ns / 1e6
        progress = f"{format_seconds(elapsed)} · {format_count(stats.tokens)} tok · TTFT {format_ms(stats.ttft_ms)}"
        accept = (
            f"L {format_accept_len(stats)} · {format_percent(stats.accept_rate)} of drafts"
            if stats.drafted_rounds
            else NO_DRAFT
        )
        return progress, f"TPOT {format_ms(stats.tpot(0.5))} / {format_ms(stats.tpot(0.95))} · {accept}"


class PaceLane:
    """Words at a published pace."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.title = pace.label
        self.source = ""
        self.strip = StripModel()
        self.text = ""
        self.tokens = 0
        self.done = False
        sentence = _WORDS.format(ms=f"{pace.ms_per_token:g}", seconds=format_seconds(self.length_ms))
        self._words = itertools.cycle(sentence.split(" ")[:-1])

    @property
    def length_ms(self) -> float:
        return self.pace.tokens * self.pace.ms_per_token

    def at(self, ms: float) -> None:
        tokens = min(self.pace.tokens, int(ms / self.pace.ms_per_token))
        new = tokens - self.tokens
        if new > 0:
            self.text = (self.text + "".join(f"{next(self._words)} " for _ in range(new)))[-4000:]
            self.tokens = tokens
        self.done = tokens == self.pace.tokens

    def figures(self) -> tuple[str, str]:
        elapsed = self.tokens * self.pace.ms_per_token
        return f"{format_seconds(elapsed)} · {format_count(self.tokens)} tok", self.pace.source
