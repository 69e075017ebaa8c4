"""Room that operations of the native back end share: results, quantised rows, and what routing leaves for the experts.

Everything here grows when more rows are asked for, and never while a program runs. Structs grow in place, so programs
that were recorded before use the larger room; a result that has moved stays where it was for them.
"""

from __future__ import annotations

import ctypes
from typing import Any

from lingchat.kernels.cpu import structs
from lingchat.kernels.cpu.native import Native
from lingchat.runtime.ops.native_memory import Memory, Result, Slot
from lingchat.runtime.ops.protocol import RouteShape

_SPARE = structs.PANEL  # rows that a tile of them may reach beyond the last


class QuantisedRows:
    """Room for rows of `columns` values, quantised in blocks: an `Act`."""

    def __init__(self, native: Native, columns: int, struct: structs.Act | None = None) -> None:
        self._native, self._columns = native, columns
        self.struct = structs.Act(0, columns) if struct is None else struct
        self.struct.columns = columns
        self.address = ctypes.addressof(self.struct)
        self._memory: Memory | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self._memory is None else self._memory.nbytes

    def reserve(self, rows: int) -> None:
        if rows <= self.struct.capacity:
            return
        blocks = (rows + _SPARE) * -(-self._columns // structs.BLOCK)
        memory = Memory(self._native, blocks * structs.ROW_BLOCK_BYTES)
        self.struct.blocks = memory.address
        self.struct.capacity = rows
        self._memory = memory


class Room:
    def __init__(self, native: Native) -> None:
        self._native = native
        self._slots: dict[str, Slot] = {}
        self._acts: dict[int, QuantisedRows] = {}

    def result(self, name: str, rows: int, columns: int, *, single: bool = False) -> Result:
        """A new result of the operation `name`; the one before it is stale now."""
        slot = self._slot(name)
        return Result(slot, slot.room(self._native, rows * columns * 4), rows, columns, single)

    def scratch(self, name: str, values: int) -> Memory:
        """Room for so many fp32 values within one operation."""
        return self._slot(name).room(self._native, values * 4)

    def act(self, columns: int, rows: int) -> QuantisedRows:
        act = self._acts.get(columns)
        if act is None:
            act = self._acts[columns] = QuantisedRows(self._native, columns)
        act.reserve(rows)
        return act

    @property
    def nbytes(self) -> int:
        """Bytes that are held now; what programs keep of smaller rooms before is not counted."""
        results = sum(slot.memory.nbytes for slot in self._slots.values() if slot.memory is not None)
        return results + sum(act.nbytes for act in self._acts.values())

    def _slot(self, name: str) -> Slot:
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = Slot(name)
        return slot


class Routes:
    """The struct `Routes`: normed rows, the choice for each, and room for the experts' hidden rows."""

    def __init__(self, native: Native, columns: int, shape: RouteShape) -> None:
        self._native = native
        self._columns, self.shape = columns, shape
        self.struct = structs.Routes()
        self.address = ctypes.addressof(self.struct)
        self._act = QuantisedRows(native, columns, self.struct.act)
        self._kept: dict[str, Memory] = {}
        self._inner: tuple[int, int] | None = None
        self._hidden: QuantisedRows | None = None
        self._shared: QuantisedRows | None = None

    def reserve(self, rows: int) -> None:
        """For what `route` writes."""
        k, experts = self.shape.chosen, self.shape.experts
        self._act.reserve(rows)
        sizes = {
            "normed": rows * self._columns,
            "ids": rows * k,
            "weights": rows * k,
            "scores": rows * experts,
            "order": rows * k,
            "starts": experts + 1,
        }
        self._fields(sizes)

    def reserve_hidden(self, rows: int, inner: int, shared_inner: int) -> None:
        """For what `experts_up` and `experts_down` write. The widths are the same in all layers of a route."""
        k = self.shape.chosen
        if self._inner is None:
            self._inner = inner, shared_inner
            self._hidden = QuantisedRows(self._native, inner, self.struct.hidden)
            self._shared = QuantisedRows(self._native, shared_inner, self.struct.shared_hidden)
        if self._inner != (inner, shared_inner) or self._hidden is None or self._shared is None:
            raise ValueError(f"experts of the inner widths {self._inner} and {(inner, shared_inner)} in one model")
        self._hidden.reserve(rows * k)
        self._shared.reserve(rows)
        self._fields({"up": rows * k * inner, "shared_up": rows * shared_inner, "parts": rows * k * self._columns})

    @property
    def nbytes(self) -> int:
        acts = (self._act, self._hidden, self._shared)
        return sum(act.nbytes for act in acts if act is not None) + sum(held.nbytes for held in self._kept.values())

    def _fields(self, sizes: dict[str, int]) -> None:
        for name, values in sizes.items():
            held = self._kept.get(name)
            if held is None or held.nbytes < values * 4:
                self._kept[name] = Memory(self._native, values * 4)
                setattr(self.struct, name, self._kept[name].address)


class Route:
    """One pass's routing: valid until the next one."""

    def __init__(self, routes: Routes, slot: Any, rows: int) -> None:
        self.routes, self._result = routes, slot
        self.rows = rows

    @property
    def address(self) -> int:
        assert self._result.address  # or it is stale
        return self.routes.address
