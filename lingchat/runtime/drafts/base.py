"""The seam between a drafter and the round. Imports neither torch nor numpy."""

from __future__ import annotations

from typing import Any, Protocol

from lingchat.runtime.models.base import Taps
from lingchat.runtime.ops.protocol import Buffer, Cursor, DraftBuffer
from lingchat.runtime.state import State, StateSpec


class Drafter(Protocol):
    """Proposes tokens after the anchor. `name` stands in the trace beside every round it drafted.

    Anchor, history and position are the cursor's. `sampler` holds the request's sampling and seed: a drafter that
    draws its proposals leaves the logits it drew from in `out`, and `accept` recomputes q from them.
    """

    name: str

    def state_spec(self, capacity: int) -> StateSpec:
        """The drafter's own rows for a sequence; no layers for one that keeps none."""

    def propose(self, cursor: Cursor, sampler: Any, limit: int, state: State, out: DraftBuffer) -> None:
        """Write up to `limit` proposals into `out`; `n` = 0 takes the same path through the round."""

    def absorb(self, taps: Taps, count: Buffer, state: State) -> None:
        """`count` rows of the pass become permanent: learn from them. Called before the commit."""
