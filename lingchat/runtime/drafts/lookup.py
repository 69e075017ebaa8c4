"""The plain drafter: prompt lookup. Knows the operation, no tensors.

It needs no weights and no state of its own: what followed the latest earlier occurrence of the current suffix is
proposed with certainty. It pays on edits, quotes and code, and proposes nothing elsewhere.
"""

from __future__ import annotations

from typing import Any

from lingchat.runtime.models.base import Taps
from lingchat.runtime.ops.protocol import Buffer, Cursor, DraftBuffer, Ops
from lingchat.runtime.state import State, StateSpec

LONGEST_SUFFIX = 4  # tokens; longer agreement does not choose better


class LookupDrafter:
    name = "lookup"

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def state_spec(self, capacity: int) -> StateSpec:
        return StateSpec((), capacity)

    def propose(self, cursor: Cursor, sampler: Any, limit: int, state: State, out: DraftBuffer) -> None:
        if limit == 0:
            self._ops.no_draft(out)
        else:
            self._ops.lookup(cursor, out, LONGEST_SUFFIX, limit)

    def absorb(self, taps: Taps, count: Buffer, state: State) -> None:
        """Nothing to learn: the history is the cursor's."""
