"""Rounds and text on their way to the front end: batched, in order, never late. Pure Python.

At 30 tokens a second every round leaves by itself; at 500 a batch leaves every `INTERVAL_NS`, so that the pipe and
the screen cost the decode loop next to nothing. Times in a batch are those of the rounds, not of the batch.
"""

from __future__ import annotations

from collections.abc import Callable

from lingchat.events import AnyEvent, Decode, Reasoning, Text, now_ns
from lingchat.runtime.drivers.eager import TimedRound

INTERVAL_NS = 15_000_000
Emit = Callable[[AnyEvent], None]


class Outbox:
    def __init__(self, emit: Emit, turn: int, drafter: str, keep_ids: bool) -> None:
        self._emit, self._turn, self._drafter, self._keep_ids = emit, turn, drafter, keep_ids
        self._rounds: list[TimedRound] = []
        self._deltas: list[tuple[str, str]] = []
        self._last_end = 0
        self._flushed = 0

    def begin(self, prefill_end_ns: int) -> None:
        self._last_end = prefill_end_ns

    def add(self, timed: TimedRound, deltas: list[tuple[str, str]]) -> None:
        """A round and what it added to the reply: (kind, text) with kind `text` or `reasoning`."""
        self._rounds.append(timed)
        self.say(deltas)
        if timed.end_ns - self._flushed >= INTERVAL_NS:
            self.flush()

    def say(self, deltas: list[tuple[str, str]]) -> None:
        self._deltas += [delta for delta in deltas if delta[1]]

    def flush(self) -> None:
        now = now_ns()
        if self._rounds:
            self._emit(self._batch(now))
        merged: list[list[str]] = []
        for kind, delta in self._deltas:
            if merged and merged[-1][0] == kind:
                merged[-1][1] += delta
            else:
                merged.append([kind, delta])
        for kind, delta in merged:
            event = Reasoning if kind == "reasoning" else Text
            self._emit(event(t_ns=now, turn=self._turn, delta=delta))
        self._rounds.clear()
        self._deltas.clear()
        self._flushed = now

    def _batch(self, now: int) -> Decode:
        start = self._last_end
        ends = [(timed.end_ns - start) // 1000 for timed in self._rounds]
        # The next batch begins where the microseconds of this one end, so that no remainder is lost.
        self._last_end = start + 1000 * ends[-1]
        records = [timed.record for timed in self._rounds]
        return Decode(
            t_ns=now,
            turn=self._turn,
            t0_ns=start,
            dt_us=tuple(end - before for before, end in zip([0, *ends], ends, strict=False)),
            k=tuple(len(record.ids) for record in records),
            m=tuple(record.drafted for record in records),
            a=tuple(record.accepted for record in records),
            drafter=tuple(self._drafter if record.drafted else "" for record in records),
            draft_us=tuple(timed.draft_ns // 1000 for timed in self._rounds),
            verify_us=tuple(timed.verify_ns // 1000 for timed in self._rounds),
            ids=tuple(i for record in records for i in record.ids) if self._keep_ids else (),
        )
