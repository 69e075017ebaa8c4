"""One round, written once: draft, verify, accept, commit, emit. Knows operations, no tensors and no clock.

A round takes the anchor (the last token, whose own row is not computed yet) and up to W - 1 drafts, runs the model
over these rows, keeps the drafts that the model would have chosen, and emits one token more than it keeps. Masked
rows and a count of 0 take the same path, so nothing here branches on what a device buffer holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lingchat.runtime.drafts.base import Drafter
from lingchat.runtime.models.base import Model
from lingchat.runtime.ops.protocol import Buffer, BufferSpec, Cursor, DraftBuffer, Ops, SamplerSpec
from lingchat.runtime.state import State


class Rounds:
    """The buffers of a reply and the passes over them. `width` is W, the most rows of a round."""

    def __init__(self, ops: Ops, model: Model, state: State, drafter: Drafter, width: int, chunk: int) -> None:
        if not 1 <= width <= ops.max_width:
            raise ValueError(f"a round has 1 to {ops.max_width} rows, not {width}")
        self._ops, self._model, self._drafter = ops, model, drafter
        self.state = state
        self.width, self.chunk = width, chunk
        self.ring: Any = ops.ring()

        def integers(name: str, size: int) -> Buffer:
            return ops.allocate(BufferSpec(name, (size,), "i32"))

        self.cursor = Cursor(
            history=integers("history", state.capacity + width + 1),
            length=integers("length", 1),
            left=integers("left", 1),
            done=integers("done", 1),
            count=integers("count", 1),
            accepted=integers("accepted", 1),
            drafted=integers("drafted", 1),
            emitted=integers("emitted", width),
        )
        self._draft = DraftBuffer(ids=integers("draft.ids", width), n=integers("draft.n", 1))
        self._ids = integers("rows.ids", width)
        self._chunk_ids = integers("chunk.ids", chunk)
        self._chunk_count = integers("chunk.count", 1)
        self._sampler: Any = None
        self._logits: Buffer = None

    def begin(self, ids: Sequence[int], budget: int, sampling: SamplerSpec, seed: int, end_ids: Sequence[int]) -> None:
        """A new reply to the prompt `ids` of at most `budget` tokens. `state` must hold a prefix of `ids`."""
        self._ops.fill(self.cursor.history, ids)
        self._ops.fill(self.cursor.length, [len(ids)])
        self._ops.fill(self.cursor.left, [budget])
        self._ops.fill(self.cursor.done, [0])
        self._sampler = self._ops.sampler(sampling, seed, end_ids)

    def take_in(self, ids: Sequence[int]) -> None:
        """The next chunk of the prompt, at most `chunk` tokens: what `prefill` computes."""
        self._ops.fill(self._chunk_ids, ids)
        self._ops.fill(self._chunk_count, [len(ids)])

    def prefill(self, count: int) -> None:
        """Compute the `count` tokens that were taken in, and make them permanent."""
        self._logits, taps = self._model.prefill(self._chunk_ids, count, self.state)
        self._drafter.absorb(taps, self._chunk_count, self.state)
        self.state.commit(self._chunk_count)

    def first(self) -> None:
        """The first token of the reply, from the last chunk's last row: a round without drafts or rows of its own."""
        self._ops.no_draft(self._draft)
        self._ops.accept(self._logits, self._chunk_ids, self._draft, self._sampler, self.cursor)
        self._ops.emit(self.cursor, self.ring)

    def draft(self, limit: int) -> int:
        """Propose up to `limit` tokens; the number of rows that `verify` has to compute."""
        limit = min(limit, self.width - 1)
        self._drafter.propose(self.cursor, self._sampler, limit, self.state, self._draft)
        # Where the host does not know how many there are, it still knows the limit.
        return min(self._ops.draft_rows(self.cursor, self._draft, self._ids), limit + 1)

    def try_rows(self, n_rows: int) -> Buffer:
        """Run the model over so many rows and keep nothing, to see what it costs; their logits."""
        return self._model.verify(self._ids, n_rows, self.state)[0]

    def verify(self, n_rows: int) -> None:
        """Run the model over anchor and drafts, keep what holds, make it permanent, hand it to the ring."""
        logits, taps = self._model.verify(self._ids, n_rows, self.state)
        self._ops.accept(logits, self._ids, self._draft, self._sampler, self.cursor)
        self._drafter.absorb(taps, self.cursor.count, self.state)
        self.state.commit(self.cursor.count)
        self._ops.emit(self.cursor, self.ring)
