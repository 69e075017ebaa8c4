"""The structs that a round's operations share with the host: where a reply stands, how it is sampled, what it emits."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from lingchat.kernels.cpu import structs
from lingchat.kernels.cpu.native import Native
from lingchat.runtime.ops.native_memory import Memory
from lingchat.runtime.ops.protocol import Cursor, RoundRecord, SamplerSpec

_HEAD = 4  # integers of a record before its ids: count, drafted, accepted, done
_RECORDS = 64


def cursor_struct(cursor: Cursor) -> structs.CursorArgs:
    names = [name for name, _ in structs.CursorArgs._fields_]
    return structs.CursorArgs(**{name: getattr(cursor, name).address for name in names})


def sampler_struct(struct: structs.Sampler, spec: SamplerSpec, seed: int, end_ids: Sequence[int]) -> Any:
    """Fills `struct`; what is returned must live as long as it is used."""
    ends = (ctypes.c_int32 * max(1, len(end_ids)))(*end_ids)
    struct.temperature, struct.top_p, struct.min_p = spec.temperature, spec.top_p, spec.min_p
    struct.repetition_penalty, struct.top_k = spec.repetition_penalty, spec.top_k
    struct.seed = ctypes.c_int64(seed).value
    struct.end_count, struct.end_ids = len(end_ids), ctypes.addressof(ends)
    return ends


class Ring:
    """Rounds on their way to the host. Whoever takes them must not fall `_RECORDS` rounds behind."""

    def __init__(self, native: Native) -> None:
        self._size = _HEAD + structs.MAX_WIDTH
        self._memory = Memory(native, _RECORDS * self._size * 4)
        self._integers = (ctypes.c_int32 * (_RECORDS * self._size)).from_address(self._memory.address)
        self._struct = structs.Ring(0, _RECORDS, structs.MAX_WIDTH, self._memory.address)
        self.address = ctypes.addressof(self._struct)
        self._taken = 0

    def take(self) -> list[RoundRecord]:
        taken = []
        while self._taken < self._struct.written:
            place = self._taken % _RECORDS * self._size
            count, drafted, accepted, done, *ids = self._integers[place : place + self._size]
            taken.append(RoundRecord(tuple(ids[:count]), drafted, accepted, done))
            self._taken += 1
        return taken
