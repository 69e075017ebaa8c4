"""Tables of rotations for the native back end: cos and sin of every position that was reached so far."""

from __future__ import annotations

import ctypes
from ctypes import c_double

from lingchat.kernels.cpu import structs
from lingchat.kernels.cpu.native import Native
from lingchat.runtime.ops.native_memory import Buffer, Memory
from lingchat.runtime.ops.protocol import Rotation

_STEP = 1024  # positions by which a table grows


class Table:
    """fp32 [positions, dim / 2, 2]. Grows by moving; who points to it looks after every `reach`."""

    def __init__(self, native: Native, rotation: Rotation) -> None:
        self._native = native
        self._pairs = rotation.dim // 2
        factors = rotation.factors or (1.0,) * self._pairs
        frequencies = (rotation.base ** (-2 * i / rotation.dim) / factors[i] for i in range(self._pairs))
        self._frequencies = (c_double * self._pairs)(*frequencies)
        self._memory: Memory | None = None
        self._end = 0

    @property
    def address(self) -> int:
        assert self._memory is not None
        return self._memory.address

    def reach(self, end: int) -> None:
        """Hold the positions below `end`."""
        if end <= self._end:
            return
        size = -(-end // _STEP) * _STEP
        memory = Memory(self._native, size * self._pairs * 8)
        if self._memory is not None:
            ctypes.memmove(memory.address, self._memory.address, self._memory.nbytes)
        frequencies = ctypes.addressof(self._frequencies)
        self._native.lib.lc_rotations(frequencies, self._pairs, self._end, size, memory.address)
        self._memory, self._end = memory, size


class NativeRows:
    """The rows of a pass: the struct that operations read, and its table."""

    def __init__(self, ids: Buffer, length: Buffer, table: Table | None, rotation: Rotation | None) -> None:
        self.ids, self._length, self._table = ids, length, table
        dim, adjacent = (0, False) if rotation is None else (rotation.dim, rotation.adjacent)
        self._struct = structs.Rows(ids=ids.address, length=length.address, dim=dim, adjacent=adjacent)
        self.address = ctypes.addressof(self._struct)

    def reach(self, rows: int) -> None:
        """Before a pass of up to `rows` rows."""
        if self._table is not None:
            self._table.reach(int(self._length) + max(rows, structs.MAX_WIDTH))
            self._struct.rotations = self._table.address
