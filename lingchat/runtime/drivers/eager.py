"""The eager driver: the host carries out each operation as it comes and knows a round's result at once.

Where the back end records, `recorded.py` takes this place; where the device is not the host, a graph driver will: it
queues rounds ahead and reads the ring late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lingchat.events import now_ns
from lingchat.runtime.drafts.width import Width
from lingchat.runtime.drivers.base import TimedRound, chunks
from lingchat.runtime.ops.protocol import Ops
from lingchat.runtime.rounds import Rounds
from lingchat.runtime.threads import Threads


class EagerDriver:
    def __init__(self, ops: Ops, rounds: Rounds, threads: Threads | None = None) -> None:
        self._ops = ops
        self.rounds = rounds
        self.threads = threads

    def prefill(self, ids: Sequence[int], stops: Sequence[int] = ()) -> Iterator[int]:
        for end, some in chunks(ids, stops, self.rounds.chunk):
            self.rounds.take_in(some)
            self.rounds.prefill(len(some))
            yield end

    def first(self) -> TimedRound:
        self.rounds.first()
        return TimedRound(self._ops.take(self.rounds.ring)[0], now_ns())

    def decode(self, width: Width) -> Iterator[TimedRound]:
        while True:
            begin = now_ns()
            n_rows = self.rounds.draft(width.depth())
            drafted = now_ns()
            self.rounds.verify(n_rows)
            end = now_ns()
            for record in self._ops.take(self.rounds.ring):
                width.learn(record.drafted, record.accepted, (end - begin) * 1e-9)
                if self.threads is not None:
                    self.threads.learn(n_rows, (end - begin) * 1e-9)
                yield TimedRound(record, end, drafted - begin, end - drafted)
                if record.done:
                    return

    def seconds(self, n_rows: int) -> float:
        begin = now_ns()
        self.rounds.try_rows(n_rows)
        self._ops.wait()
        return (now_ns() - begin) * 1e-9
