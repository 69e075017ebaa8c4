"""The eager driver: the host runs each round as it comes and knows its result at once. The CPU's driver.

Where the device is not the host, a graph driver takes this place: it queues rounds ahead and reads the ring late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lingchat.events import now_ns
from lingchat.runtime.drafts.width import Width
from lingchat.runtime.ops.protocol import Ops, RoundRecord
from lingchat.runtime.rounds import Rounds
from lingchat.runtime.threads import Threads


@dataclass(frozen=True)
class TimedRound:
    """A round and its times: the end on the monotonic clock, the parts in nanoseconds."""

    record: RoundRecord
    end_ns: int
    draft_ns: int = 0
    verify_ns: int = 0


class EagerDriver:
    def __init__(self, ops: Ops, rounds: Rounds, threads: Threads | None = None) -> None:
        self._ops = ops
        self.rounds = rounds
        self.threads = threads

    def prefill(self, ids: Sequence[int], stops: Sequence[int] = ()) -> Iterator[int]:
        """Compute `ids` chunk by chunk; yields how many are done after each. A chunk ends at every one of `stops`."""
        done = 0
        for stop in (*stops, len(ids)):
            while done < stop:
                end = min(done + self.rounds.chunk, stop)
                self.rounds.prefill(ids[done:end])
                done = end
                yield done

    def first(self) -> TimedRound:
        """Choose the first token from what the prefill left."""
        self.rounds.first()
        return TimedRound(self._ops.take(self.rounds.ring)[0], now_ns())

    def decode(self, width: Width) -> Iterator[TimedRound]:
        """Rounds until the reply is done. Whoever stops iterating has cancelled after a whole round."""
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
