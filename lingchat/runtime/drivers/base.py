"""What the engine asks of a driver, and what a round looks like from the outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from lingchat.runtime.drafts.width import Width
from lingchat.runtime.ops.protocol import RoundRecord
from lingchat.runtime.rounds import Rounds
from lingchat.runtime.threads import Threads


class TimedRound(msgspec.Struct, frozen=True):
    """A round and its times: the end on the monotonic clock, the parts in nanoseconds."""

    record: RoundRecord
    end_ns: int
    draft_ns: int = 0
    verify_ns: int = 0


class Driver(Protocol):
    """Carries out the passes of a reply, one after the other. Every one may raise `ops.protocol.Stopped`."""

    rounds: Rounds
    threads: Threads | None  # told what every round cost

    def prefill(self, ids: Sequence[int], stops: Sequence[int] = ()) -> Iterator[int]:
        """Compute `ids` chunk by chunk; yields how many are done after each. A chunk ends at every one of `stops`."""

    def first(self) -> TimedRound:
        """Choose the first token from what the prefill left."""

    def decode(self, width: Width) -> Iterator[TimedRound]:
        """Rounds until the reply is done. Whoever stops iterating has cancelled after a whole round."""

    def seconds(self, n_rows: int) -> float:
        """What a pass over so many rows takes now. Nothing of it is kept."""


def chunks(ids: Sequence[int], stops: Sequence[int], longest: int) -> Iterator[tuple[int, Sequence[int]]]:
    """`ids` in pieces of at most `longest`, none across one of `stops`; each with where it ends."""
    done = 0
    for stop in (*stops, len(ids)):
        while done < stop:
            end = min(done + longest, stop)
            yield end, ids[done:end]
            done = end
