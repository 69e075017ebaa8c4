"""What a conversation has computed: cache rows, KDA states, and how many tokens of them are permanent.

A model reads what is committed and stages candidates; `commit` makes rows permanent. Rows of attention are only ever
appended, so for them a place to go back to is a length. A KDA state is overwritten by every commit: it can be resumed
only where it stands, or where a snapshot was kept. Imports neither torch nor numpy.
"""

from __future__ import annotations

import msgspec

from lingchat.architectures import states
from lingchat.architectures.states import KeyValueRows, LatentRows, LayerState, Recurrent
from lingchat.runtime.ops.protocol import Buffer, BufferSpec, DType, KDACache, KVCache, LatentCache, Ops

LayerCache = KVCache | LatentCache | KDACache


class StateSpec(msgspec.Struct, frozen=True):
    """What a model or a drafter keeps for a sequence: each layer's state, and rows for `capacity` tokens."""

    layers: tuple[LayerState, ...]
    capacity: int


class Snapshot(msgspec.Struct, frozen=True):
    """A place that generation can go back to: `length` committed rows, of the target and of the drafter alike.

    `slot`: which of the state's copies holds the recurrent states of that place; None where there are none to hold.
    """

    length: int
    slot: int | None = None


class State:
    """The target's layers (`caches`) and the drafter's (`draft_caches`), which keep step: one length counts both.

    `width` is the most rows of a round, `places` how many snapshots of recurrent states there is room for.
    """

    def __init__(
        self, spec: StateSpec, draft: StateSpec, ops: Ops, element_bytes: int, width: int = 1, places: int = 0
    ) -> None:
        self.capacity = spec.capacity
        self._ops = ops
        layers = (*spec.layers, *draft.layers)
        self.snapshot_bytes = states.state_bytes(layers, element_bytes)
        self.state_bytes = self.snapshot_bytes + states.staging_bytes(layers, element_bytes, width)
        self.length: Buffer = ops.allocate(BufferSpec("state.length", (1,), "i32"))
        self.caches = _allocate(spec, "target", ops, width)
        self.draft_caches = _allocate(draft, "draft", ops, width)
        self.cache_bytes = sum(rows.nbytes for cache in (*self.caches, *self.draft_caches) for rows in _rows(cache))
        self._recurrent = [cache for cache in (*self.caches, *self.draft_caches) if isinstance(cache, KDACache)]
        self._places = Places(places) if self._recurrent else None
        self._copies: dict[int, list[tuple[Buffer, Buffer]]] = {}
        self._layers = [layer for layer in layers if isinstance(layer, Recurrent)]

    @property
    def appends_only(self) -> bool:
        """Every length can be resumed; no snapshot is ever needed."""
        return self._places is None

    @property
    def places(self) -> int:
        """Snapshots that there is room for."""
        return self._places.room if self._places is not None else 0

    def commit(self, count: Buffer) -> None:
        """Make `count` (device int32 [1], 0..W) candidate rows permanent: the anchor and accepted drafts."""
        self._ops.advance(self.length, count)
        for cache in self._recurrent:
            self._ops.commit_kda(cache, count)

    def snapshot(self, length: int) -> Snapshot:
        """Keep the state as it stands, after `length` tokens. The host knows the length from its own list of ids."""
        if self._places is None:
            return Snapshot(length)
        slot = self._places.keep(length)
        if slot is None:
            return Snapshot(length)
        for cache, (state, window) in zip(self._recurrent, self._copy(slot), strict=True):
            self._ops.copy(cache.state, state)
            self._ops.copy(cache.window, window)
        return Snapshot(length, slot)

    def nearest(self, length: int, current: int) -> Snapshot:
        """The latest place at or before `length` committed rows that can be resumed; `current` is where it stands."""
        if self._places is None or length == current:
            return Snapshot(length)
        found = self._places.nearest(length)
        return Snapshot(0) if found is None else Snapshot(found, self._places.slot(found))

    def restore(self, snapshot: Snapshot, current: int) -> None:
        """Go back to a place. Snapshots of later places are of a text that is no longer the state's: they go."""
        self._ops.fill(self.length, [snapshot.length])
        if self._places is None:
            return
        self._places.drop_after(snapshot.length)
        if snapshot.slot is not None:
            for cache, (state, window) in zip(self._recurrent, self._copy(snapshot.slot), strict=True):
                self._ops.copy(state, cache.state)
                self._ops.copy(window, cache.window)
        elif snapshot.length == 0:
            for cache in self._recurrent:
                self._ops.zero(cache.state)
                self._ops.zero(cache.window)
        elif snapshot.length != current:
            raise ValueError(f"no snapshot of {snapshot.length} tokens is kept")

    def forget(self) -> None:
        """Back to nothing."""
        self.restore(Snapshot(0), 0)

    def bytes(self) -> int:
        """All of it: cache rows, states with their staging, and the room for snapshots."""
        return self.cache_bytes + self.state_bytes + self.places * self.snapshot_bytes

    def _copy(self, slot: int) -> list[tuple[Buffer, Buffer]]:
        """The buffers of a snapshot, made when it is first used."""
        if slot not in self._copies:
            self._copies[slot] = [
                (
                    self._ops.allocate(_state_spec(f"snapshot.{slot}.{i}", layer)),
                    self._ops.allocate(_window_spec(f"snapshot.{slot}.{i}", layer)),
                )
                for i, layer in enumerate(self._layers)
            ]
        return self._copies[slot]


class Places:
    """Which lengths have a snapshot, in `room` slots. Pure Python.

    When all are taken, the snapshot goes whose loss would cost the least: going back to its place would then begin at
    the one before it, and the further a place lies behind, the less often anybody goes back there.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self._slots: dict[int, int] = {}  # length -> slot

    def lengths(self) -> list[int]:
        return sorted(self._slots)

    def slot(self, length: int) -> int:
        return self._slots[length]

    def nearest(self, length: int) -> int | None:
        return max((kept for kept in self._slots if kept <= length), default=None)

    def drop_after(self, length: int) -> None:
        self._slots = {kept: slot for kept, slot in self._slots.items() if kept <= length}

    def keep(self, length: int) -> int | None:
        """A slot for `length`, the newest place; None where there is no room at all."""
        if length in self._slots:
            return self._slots[length]
        if self.room == 0:
            return None
        if len(self._slots) == self.room:
            del self._slots[self._cheapest(length)]
        slot = min(set(range(self.room)) - set(self._slots.values()))
        self._slots[length] = slot
        return slot

    def _cheapest(self, end: int) -> int:
        kept = self.lengths()
        before = dict(zip(kept, [0, *kept], strict=False))
        return min(kept, key=lambda length: (length - before[length]) / (end - length))


def _allocate(spec: StateSpec, owner: str, ops: Ops, width: int) -> tuple[LayerCache, ...]:
    def rows(name: str, *shape: int, dtype: DType = "cache") -> Buffer:
        return ops.allocate(BufferSpec(f"{owner}.{name}", shape, dtype))

    def layer(i: int, kind: LayerState) -> LayerCache:
        match kind:
            case KeyValueRows(heads, size):
                shape = heads, spec.capacity, size
                return KVCache(rows(f"keys.{i}", *shape, dtype="keys"), rows(f"values.{i}", *shape, dtype="values"))
            case LatentRows(size):
                return LatentCache(rows(f"latents.{i}", spec.capacity, size))
        name = f"{owner}.{i}"
        staged = BufferSpec(f"{name}.staged", (width, kind.heads, kind.key_dim, kind.value_dim), "f32")
        return KDACache(
            state=ops.allocate(_state_spec(name, kind)),
            window=ops.allocate(_window_spec(name, kind)),
            staged_states=ops.allocate(staged),
            staged_inputs=rows(f"inputs.{i}", width + kind.taps - 1, kind.channels),
        )

    return tuple(layer(i, kind) for i, kind in enumerate(spec.layers))


def _rows(cache: LayerCache) -> tuple[Buffer, ...]:
    """What grows with the context."""
    match cache:
        case KVCache(keys, values):
            return keys, values
        case LatentCache(latents):
            return (latents,)
    return ()


def _state_spec(name: str, layer: Recurrent) -> BufferSpec:
    return BufferSpec(f"{name}.state", (layer.heads, layer.key_dim, layer.value_dim), "f32")


def _window_spec(name: str, layer: Recurrent) -> BufferSpec:
    return BufferSpec(f"{name}.window", (layer.taps - 1, layer.channels), "cache")
