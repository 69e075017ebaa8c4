"""The seam between a model and the round: what every model file offers. Imports neither torch nor numpy."""

from __future__ import annotations

from typing import Protocol

import msgspec

from lingchat.runtime.ops.protocol import Buffer
from lingchat.runtime.state import State, StateSpec


class Taps(msgspec.Struct, frozen=True):
    """What a drafter may learn from a pass: raw residuals [T, d] after the asked layers, the final normed hidden."""

    residuals: tuple[Buffer, ...]
    hidden: Buffer


class Model(Protocol):
    """A target model, written once against `Ops`. Both passes read committed state and never change it."""

    def state_spec(self, capacity: int) -> StateSpec: ...

    def prefill(self, ids: Buffer, count: int, state: State) -> tuple[Buffer, Taps]:
        """A chunk of the prompt: `count` of `ids` after the committed rows; logits of the last row only, [1, V].

        The rows become permanent by `State.commit`.
        """

    def verify(self, ids: Buffer, n_rows: int, state: State) -> tuple[Buffer, Taps]:
        """Anchor and drafts: logits [n_rows, V]. Row r has the same bits for every n_rows > r."""
