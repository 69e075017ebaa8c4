"""The seam between a drafter and the round. Imports neither torch nor numpy."""

from __future__ import annotations

from typing import Protocol

from lingchat.runtime.models.base import Taps
from lingchat.runtime.ops.protocol import Buffer, Cursor, DraftBuffer


class Drafter(Protocol):
    """Proposes tokens after the anchor. `name` stands in the trace beside every round it drafted."""

    name: str

    def propose(self, cursor: Cursor, limit: int, out: DraftBuffer) -> None:
        """Write up to `limit` proposals into `out`; `n` = 0 takes the same path through the round."""

    def absorb(self, taps: Taps, count: Buffer) -> None:
        """`count` rows of the pass became permanent: learn from them."""
