"""The recorded driver: a round is noted down once and then carried out by one call of the back end.

What a round does never depends on a device value, so one program serves every round of a draft limit, for whatever
number of rows `draft_rows` finds; another computes a chunk of the prompt, a third chooses the first token. The host
does nothing between the operations: it reads the ring when the call is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lingchat.events import now_ns
from lingchat.runtime.drafts.width import Width
from lingchat.runtime.drivers.base import Driver, TimedRound, chunks
from lingchat.runtime.drivers.eager import EagerDriver
from lingchat.runtime.ops.protocol import Ops, Program, Recorder
from lingchat.runtime.rounds import Rounds
from lingchat.runtime.threads import Threads


class RecordedDriver:
    """`ops` must be the rounds' own back end. Programs are recorded when they are first needed, in a reply."""

    def __init__(self, ops: Ops, recorder: Recorder, rounds: Rounds, threads: Threads | None = None) -> None:
        self._ops, self._recorder = ops, recorder
        self.rounds = rounds
        self.threads = threads
        self._prompt: tuple[Program, Program] | None = None  # a chunk, and the choice of the first token
        self._rounds: dict[int, Program] = {}  # by draft limit
        self._trial: Program | None = None

    def prefill(self, ids: Sequence[int], stops: Sequence[int] = ()) -> Iterator[int]:
        program, _ = self._prompt_programs()
        for end, some in chunks(ids, stops, self.rounds.chunk):
            self.rounds.take_in(some)
            program.run(len(some))
            yield end

    def first(self) -> TimedRound:
        _, program = self._prompt_programs()
        program.run(1)
        return TimedRound(self._ops.take(self.rounds.ring)[0], now_ns())

    def decode(self, width: Width) -> Iterator[TimedRound]:
        while True:
            program = self._round(min(width.depth(), self.rounds.width - 1))
            begin = now_ns()
            program.run(1)
            end, drafted = now_ns(), program.drafted_ns
            for record in self._ops.take(self.rounds.ring):
                width.learn(record.drafted, record.accepted, (end - begin) * 1e-9)
                if self.threads is not None:
                    self.threads.learn(1 + record.drafted, (end - begin) * 1e-9)
                yield TimedRound(record, end, drafted - begin, end - drafted)
                if record.done:
                    return

    def seconds(self, n_rows: int) -> float:
        if self._trial is None:
            with self._recorder.record() as self._trial:
                self.rounds.try_rows(self.rounds.width)
        begin = now_ns()
        self._trial.run(n_rows)
        return (now_ns() - begin) * 1e-9

    def _prompt_programs(self) -> tuple[Program, Program]:
        if self._prompt is None:
            with self._recorder.record() as chunk:
                self.rounds.prefill(self.rounds.chunk)
            # Right behind it: what it chooses from is what the chunk left.
            with self._recorder.record() as choice:
                self.rounds.first()
            self._prompt = chunk, choice
        return self._prompt

    def _round(self, limit: int) -> Program:
        program = self._rounds.get(limit)
        if program is None:
            with self._recorder.record() as program:
                self.rounds.verify(self.rounds.draft(limit))
            self._rounds[limit] = program
        return program


def driver_for(ops: Ops, rounds: Rounds) -> Driver:
    """The driver that suits a back end."""
    return RecordedDriver(ops, ops, rounds) if isinstance(ops, Recorder) else EagerDriver(ops, rounds)
