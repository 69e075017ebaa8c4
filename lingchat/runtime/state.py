"""What a conversation has computed: KV rows and how many of them are permanent.

A model reads committed rows and writes candidates beyond them; `commit` makes rows permanent, `snapshot` and
`restore` go back. For a pure attention model rows are only ever appended, so a snapshot is a length and every
length below it can be resumed. Imports neither torch nor numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lingchat.runtime.ops.protocol import Buffer, BufferSpec, KVCache, Ops


@dataclass(frozen=True)
class StateSpec:
    """What a model or a drafter keeps for a sequence. `layers`: (kv_heads, head_dim) of each layer's cache."""

    layers: tuple[tuple[int, int], ...]
    capacity: int  # rows

    def bytes(self, element_bytes: int) -> int:
        return sum(2 * heads * self.capacity * width for heads, width in self.layers) * element_bytes


@dataclass(frozen=True)
class Snapshot:
    """A place that generation can go back to: `length` committed rows, of the target and of the drafter alike."""

    length: int


class State:
    """The target's rows (`caches`) and the drafter's (`draft_caches`), which keep step: one length counts both."""

    def __init__(self, spec: StateSpec, draft: StateSpec, ops: Ops, element_bytes: int) -> None:
        self.capacity = spec.capacity
        self._ops = ops
        self._bytes = spec.bytes(element_bytes) + draft.bytes(element_bytes)
        self.length: Buffer = ops.allocate(BufferSpec("state.length", (1,), "i32"))
        self.caches = _allocate(spec, "target", ops)
        self.draft_caches = _allocate(draft, "draft", ops)

    def commit(self, count: Buffer) -> None:
        """Make `count` (device int32 [1], 0..W) candidate rows permanent: the anchor and accepted drafts."""
        self._ops.advance(self.length, count)

    def snapshot(self, length: int) -> Snapshot:
        """The state after `length` tokens. The host knows the length from its own list of ids."""
        return Snapshot(length)

    def nearest(self, length: int) -> Snapshot:
        """The latest place at or before `length` committed rows that can be resumed; here every row is one."""
        return Snapshot(length)

    def restore(self, snapshot: Snapshot) -> None:
        self._ops.fill(self.length, [snapshot.length])

    def bytes(self) -> int:
        return self._bytes


def _allocate(spec: StateSpec, owner: str, ops: Ops) -> Sequence[KVCache]:
    def rows(name: str, heads: int, width: int) -> Buffer:
        return ops.allocate(BufferSpec(f"{owner}.{name}", (heads, spec.capacity, width), "cache"))

    return tuple(
        KVCache(rows(f"keys.{i}", heads, width), rows(f"values.{i}", heads, width))
        for i, (heads, width) in enumerate(spec.layers)
    )
