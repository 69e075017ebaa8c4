"""Instructions for the native back end, carried out one at a time or noted down and replayed.

An instruction is an operation and its arguments: addresses, numbers, structs. Replaying changes none of them; all that
differs from one run to the next is the number of rows and what the memory holds.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Protocol

from lingchat.kernels.cpu import structs
from lingchat.kernels.cpu.native import Native
from lingchat.runtime.ops.protocol import Stopped

# From the first of these on a program is carried out to its end: half a commit would be no state at all.
LASTING = frozenset({"accept", "advance", "commit_kda", "copy", "zero", "emit"})

_SIZE = ctypes.sizeof(structs.Instruction)


class Reaching(Protocol):
    """Something that must hold the positions of a pass before it begins."""

    def reach(self, rows: int) -> None: ...


class Machine:
    """Carries out instructions on a pool of threads. One thread at a time may use it, and any may stop it."""

    def __init__(self, native: Native, pool: int, isa: str) -> None:
        self.native, self._pool = native, pool
        self._isa = native.isas[isa]
        self._operations: dict[str, tuple[int, int]] = {}  # number, words
        self.told = structs.Run()
        self._lasting = structs.Run()  # of what nobody may stop

    @property
    def rows(self) -> int:
        return int(self.told.rows)

    @rows.setter
    def rows(self, count: int) -> None:
        self.told.rows = count

    def instruction(self, name: str, arguments: tuple[Any, ...]) -> bytes:
        """An `Instruction`. Arguments are numbers, structs and arrays, None, or anything with an `address`."""
        found = self._operations.get(name)
        if found is None:
            number = self.native.operation(name)
            found = self._operations[name] = number, int(self.native.lib.lc_words(number))
        number, words = found
        if len(arguments) != words:
            raise TypeError(f"the native {name} takes {words} arguments, not {len(arguments)}")
        values = [value if isinstance(value, (int, float)) else _address(value) for value in arguments]
        codes = "".join(["d" if isinstance(value, float) else "q" for value in values])
        return struct.pack(f"=qq{codes}", number, 0, *values).ljust(_SIZE, b"\0")

    def run(self, name: str, arguments: tuple[Any, ...]) -> None:
        made = ctypes.create_string_buffer(self.instruction(name, arguments), _SIZE)
        self._run(ctypes.addressof(made), 1, self._lasting_run() if name in LASTING else self.told)

    def replay(self, address: int, count: int, lasting: int) -> None:
        """`count` instructions at `address`, the last ones from number `lasting` on together or not at all."""
        self._run(address, lasting, self.told)
        if lasting < count:
            place = address + lasting * _SIZE
            self._run(place, count - lasting, self._lasting_run())

    def _lasting_run(self) -> structs.Run:
        self._lasting.rows = self.told.rows
        return self._lasting

    def _run(self, address: int, count: int, told: structs.Run) -> None:
        status = self.native.lib.lc_run(self._pool, self._isa, address, count, ctypes.addressof(told))
        if status == 1:
            raise Stopped
        if status:
            raise RuntimeError(f"the native library refused {count} instructions")


def _address(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, (ctypes.Structure, ctypes.Array)):
        return ctypes.addressof(value)
    address: int = value.address
    return address


class NativeProgram:
    """Instructions that are replayed together. Filled while it is recorded, then closed."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._noted: list[bytes] = []
        self._kept: list[Any] = []  # what the instructions point to
        self._reaching: list[Reaching] = []
        self._lasting: int | None = None
        self._memory: Any = None
        self._address, self._count = 0, 0

    def note(self, name: str, arguments: tuple[Any, ...]) -> None:
        if self._lasting is None and name in LASTING:
            self._lasting = len(self._noted)
        self._noted.append(self._machine.instruction(name, arguments))
        self._kept.append(arguments)

    def needs(self, what: Reaching) -> None:
        self._reaching.append(what)

    def close(self) -> None:
        self._count = len(self._noted)
        self._memory = ctypes.create_string_buffer(b"".join(self._noted), self._count * _SIZE)
        self._address = ctypes.addressof(self._memory)
        self._noted.clear()

    def run(self, rows: int) -> None:
        self._machine.rows = rows
        for what in self._reaching:
            what.reach(rows)
        lasting = self._count if self._lasting is None else self._lasting
        self._machine.replay(self._address, self._count, lasting)

    @property
    def drafted_ns(self) -> int:
        return int(self._machine.told.drafted_ns)
