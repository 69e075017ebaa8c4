"""What a conversation has computed: KV rows and how many of them are permanent.

A model reads committed rows and writes candidates beyond them; `commit` makes rows permanent, `snapshot` and
`restore` go back. For a pure attention model rows are only ever appended, so a snapshot is a length and every
length below it can be resumed. Imports neither torch nor numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from lingchat.runtime.ops.protocol import Buffer, BufferSpec, KVCache, Ops


@dataclass(frozen=True)
class StateSpec:
    """What a model keeps for a sequence. `layers`: (kv_heads, head_dim) of each layer's cache."""

    layers: tuple[tuple[int, int], ...]
    capacity: int  # rows


@dataclass(frozen=True)
class Snapshot:
    """A place that generation can go back to: `length` committed rows."""

    length: int


class State:
    def __init__(self, spec: StateSpec, ops: Ops, element_bytes: int) -> None:
        self.spec = spec
        self._ops = ops
        self._element_bytes = element_bytes
        self.length: Buffer = ops.allocate(BufferSpec("state.length", (1,), "i32"))
        self.caches: Sequence[KVCache] = tuple(
            KVCache(
                ops.allocate(BufferSpec(f"keys.{i}", (heads, spec.capacity, width), "cache")),
                ops.allocate(BufferSpec(f"values.{i}", (heads, spec.capacity, width), "cache")),
            )
            for i, (heads, width) in enumerate(spec.layers)
        )

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
        return (
            sum(2 * prod((heads, self.spec.capacity, width)) for heads, width in self.spec.layers) * self._element_bytes
        )
