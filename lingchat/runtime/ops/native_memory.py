"""Memory of the native back end, and the handles that models, rounds and states hold of it.

An allocated buffer is reached through a cell, a pointer in memory, since a commit exchanges the pointers of recurrent
states. The result of an operation is a place that the next call of the same operation overwrites: its handle knows, and
refuses to be read afterwards. Addresses are plain integers here; the handles keep the memory behind them alive.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence

from lingchat.kernels.cpu import structs
from lingchat.kernels.cpu.native import Native
from lingchat.runtime.ops.protocol import BufferSpec

_BYTES = {"f32": 4, "i32": 4, "cache": 2, "keys": 2, "values": 1}
_ALIGNMENT = 64
_ARENA = 32 << 20  # bytes that are asked of the system at a time, for weights


class Memory:
    """Zeroed bytes, 64-byte aligned, whose pages the system gives when they are first touched."""

    __slots__ = ("__weakref__", "address", "nbytes")

    def __init__(self, native: Native, nbytes: int, *, large: bool = False) -> None:
        allocate = native.lib.lc_allocate_large if large else native.lib.lc_allocate
        address = allocate(nbytes)
        if not address:
            raise MemoryError(f"the system gave no {nbytes:,} bytes: alloc failed")
        self.address: int = address
        self.nbytes = nbytes
        weakref.finalize(self, native.lib.lc_release, address).atexit = False


class Arena:
    """Room for weights, side by side in large pieces, so that the system can use its large pages."""

    def __init__(self, native: Native) -> None:
        self._native = native
        self._pieces: list[Memory] = []
        self._left = 0

    def take(self, nbytes: int) -> int:
        """The address of so many bytes, which live as long as the arena."""
        nbytes = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        if nbytes > _ARENA // 2:
            piece = Memory(self._native, nbytes, large=True)
            self._pieces.insert(0, piece)
            return piece.address
        if nbytes > self._left:
            self._pieces.append(Memory(self._native, _ARENA, large=True))
            self._left = _ARENA
        last = self._pieces[-1]
        self._left -= nbytes
        return last.address + last.nbytes - self._left - nbytes


class Buffer:
    """What `allocate` gives: `cells` pointers, one for each leading index of a rank-4 f32 buffer, else one.

    Keys are whole numbers of 16 bits, values of 8, as kernels/cpu/ops_attention.h lays them out: positions in whole
    panels, values' columns too. The scales of both, an fp32 a row, lie behind the values, at `scales`.
    """

    def __init__(self, native: Native, spec: BufferSpec) -> None:
        self.spec = spec
        shape = list(spec.shape)
        if spec.dtype in ("keys", "values"):
            shape[1] = structs.whole_panels(shape[1])
        self.shape = tuple(shape)
        if spec.dtype == "values":
            shape[2] = structs.whole_panels(shape[2])
        scales = 2 * 4 * math.prod(shape[:2]) if spec.dtype == "values" else 0
        count = shape[0] if spec.dtype == "f32" and len(shape) == 4 else 1
        self.nbytes = math.prod(shape) * _BYTES[spec.dtype] + scales
        self.each = self.nbytes // max(1, count)  # bytes behind a cell
        self._memory = Memory(native, self.nbytes)
        self.cells = (ctypes.c_void_p * count)(*(self._memory.address + i * self.each for i in range(count)))
        self.address = self._memory.address  # of a buffer whose pointer is never exchanged
        self.scales = self.address + self.nbytes - scales
        integers = math.prod(shape) if spec.dtype == "i32" else 0
        self._integers = (ctypes.c_int32 * integers).from_address(self.address)

    def fill(self, values: Sequence[int], offset: int) -> None:
        if not 0 <= offset <= offset + len(values) <= len(self._integers):
            raise ValueError(f"{len(values)} values do not fit into {self.spec.name} at {offset}")
        self._integers[offset : offset + len(values)] = values

    def __int__(self) -> int:
        """The first value of an i32 buffer."""
        return int(self._integers[0])

    def read(self) -> bytes:
        return b"".join(ctypes.string_at(cell, self.each) for cell in self.cells)


class StaleResult(RuntimeError):
    """A result was read after its operation had been called again."""


class Slot:
    """Where one operation keeps its results; `stamp` counts them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.memory: Memory | None = None
        self.stamp = 0

    def room(self, native: Native, nbytes: int) -> Memory:
        """At least so many bytes. Who holds a smaller piece from before goes on with that."""
        if self.memory is None or self.memory.nbytes < nbytes:
            self.memory = Memory(native, nbytes)
        return self.memory


class Result:
    """fp32 [rows, columns] of an operation; `single`: one row, however many a pass has."""

    __slots__ = ("_memory", "_slot", "_stamp", "columns", "rows", "single")

    def __init__(self, slot: Slot, memory: Memory, rows: int, columns: int, single: bool) -> None:
        slot.stamp += 1
        self._slot, self._memory, self._stamp = slot, memory, slot.stamp
        self.rows, self.columns, self.single = rows, columns, single

    @property
    def address(self) -> int:
        if self._stamp != self._slot.stamp:
            raise StaleResult(f"a result of {self._slot.name} is read after {self._slot.name} was called again")
        return self._memory.address

    def read(self) -> bytes:
        return ctypes.string_at(self.address, self.rows * self.columns * 4)
