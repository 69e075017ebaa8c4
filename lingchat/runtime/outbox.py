"""Rounds, text and tool calls on their way to the front end: batched, in order, never late. Pure Python.

At 30 tokens a second every round leaves by itself; at 500 a batch leaves every `INTERVAL_NS`, so that the pipe and
the screen cost the decode loop next to nothing. Times in a batch are those of the rounds, not of the batch.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence

from lingchat.events import AnyEvent, Decode, Reasoning, Text, ToolCall, now_ns
from lingchat.journal import utf8
from lingchat.runtime.drivers.base import TimedRound
from lingchat.runtime.formats.parts import Part
from lingchat.runtime.formats.parts import ToolCall as Call

INTERVAL_NS = 15_000_000
Emit = Callable[[AnyEvent], None]


class Outbox:
    def __init__(self, emit: Emit, turn: int, drafter: str, keep_ids: bool) -> None:
        self._emit, self._turn, self._drafter, self._keep_ids = emit, turn, drafter, keep_ids
        self._rounds: list[TimedRound] = []
        self._parts: list[Part] = []
        self._calls = 0  # emitted in this turn
        self._last_end = 0
        self._flushed = 0

    def begin(self, prefill_end_ns: int) -> None:
        self._last_end = prefill_end_ns

    def add(self, timed: TimedRound, parts: Sequence[Part]) -> None:
        """A round and what it added to the reply."""
        self._rounds.append(timed)
        self.say(parts)
        if timed.end_ns - self._flushed >= INTERVAL_NS:
            self.flush()

    def say(self, parts: Sequence[Part]) -> None:
        self._parts += parts

    def flush(self) -> None:
        now = now_ns()
        if self._rounds:
            self._emit(self._batch(now))
        self._emit_parts(now)
        self._rounds.clear()
        self._parts.clear()
        self._flushed = now

    def _emit_parts(self, now: int) -> None:
        """What the reply grew by, in its own order; neighbours of one kind are one delta, a call is always whole."""
        for kind, group in itertools.groupby(self._parts, key=lambda part: part[0]):
            if kind == "tool_call":
                for part in group:
                    assert isinstance(part[1], Call)
                    self._emit_call(now, part[1])
                continue
            delta = "".join(str(part[1]) for part in group)
            if delta:
                event = Reasoning if kind == "reasoning" else Text
                self._emit(event(t_ns=now, turn=self._turn, delta=delta))

    def _emit_call(self, now: int, call: Call) -> None:
        # The standard library's encoder: a model may write a number of a hundred digits, and that is no reason to fail.
        arguments = json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":"))
        if not _can_be_sent(arguments):
            arguments = json.dumps(call.arguments, separators=(",", ":"))  # half a surrogate pair stays an escape
        index, self._calls = self._calls, self._calls + 1
        self._emit(
            ToolCall(
                t_ns=now, turn=self._turn, index=index, name=utf8(call.name), arguments=arguments, id=utf8(call.id)
            )
        )

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


def _can_be_sent(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
