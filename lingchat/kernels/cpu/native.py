"""The native CPU library, opened: its functions with their types, and what is checked before anybody calls them.

It is opened only when its seal is right, and used only when it carries the stamp of the sources that lie here, agrees
on the size of every struct, and computes on this machine's instruction set what plain C++ computes.

Imports neither torch nor numpy, and is quick to import: a start waits for it.
"""

from __future__ import annotations

import _ctypes
import ctypes
from ctypes import c_char_p, c_int, c_int64, c_void_p
from pathlib import Path
from typing import NamedTuple

from lingchat.kernels.cpu import structs
from lingchat.kernels.cpu.sources import HERE, LIBRARY, SEAL, seal

BESIDE = HERE / "built"

_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "lc_stamp": (c_char_p, ()),
    "lc_sizeof": (c_int64, (c_char_p,)),
    "lc_isa_count": (c_int64, ()),
    "lc_isa_name": (c_char_p, (c_int64,)),
    "lc_isa_runs": (c_int64, (c_int64,)),
    "lc_isa_alike": (c_int64, (c_int64,)),
    "lc_operation": (c_int64, (c_char_p,)),
    "lc_words": (c_int64, (c_int64,)),
    # pool, instruction set, instructions, how many, Run -> 0 done, 1 stopped, -1 refused
    "lc_run": (c_int64, (c_void_p, c_int64, c_void_p, c_int64, c_void_p)),
    "lc_pool_new": (c_void_p, (c_int64, c_int64)),  # most threads, bytes of scratch of each
    "lc_pool_threads": (c_int64, (c_void_p, c_int64)),  # pool, threads from the next run on -> what it became
    "lc_pool_free": (None, (c_void_p,)),
    "lc_allocate": (c_void_p, (c_int64,)),
    "lc_allocate_large": (c_void_p, (c_int64,)),
    "lc_release": (None, (c_void_p,)),
    "lc_kind": (c_int64, (c_char_p, c_char_p)),  # a weight file's type, "int8", "f32" or "f16" -> kind
    "lc_pack": (c_int, (c_void_p, c_void_p, c_int64, c_void_p)),  # pool, PackSource, kind, panels
    "lc_decode": (c_int, (c_int64, c_void_p, c_int64, c_int64, c_void_p)),  # kind, panels, rows, columns, fp32
    "lc_rotations": (None, (c_void_p, c_int64, c_int64, c_int64, c_void_p)),  # frequencies, pairs, begin, end, table
}


class Unusable(Exception):
    """A library that is there but must not be used; the text says why."""


class Native:
    """An opened library. `lib` has its functions, typed; `isas` numbers the instruction sets that run here, best
    first; `isa` is the one in use, the best unless a test sets another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lib = ctypes.CDLL(str(path))
        try:
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(self.lib, name)
                function.restype, function.argtypes = result, arguments
        except AttributeError:
            self.close()
            raise
        self.isas: dict[str, int] = {
            self.lib.lc_isa_name(i).decode(): i for i in range(self.lib.lc_isa_count()) if self.lib.lc_isa_runs(i)
        }
        self.isa = next(iter(self.isas))

    def close(self) -> None:
        """Give a library back that is not used after all: else a better one at the same place would not be opened."""
        _ctypes.dlclose(self.lib._handle)

    @property
    def is_installed(self) -> bool:
        """Built by the installation, not on this machine at first use."""
        return self.path.parent == BESIDE

    def operation(self, name: str) -> int:
        """The number of an operation; KeyError when there is none of that name."""
        found: int = self.lib.lc_operation(name.encode())
        if found < 0:
            raise KeyError(name)
        return found

    def words(self, operation: int) -> int:
        """How many arguments an operation takes."""
        return int(self.lib.lc_words(operation))


class Status(NamedTuple):
    """`native`, or `why` there is none, in a few words; `compiler`: one is installed; `failed`: and it failed."""

    native: Native | None
    why: str = ""
    compiler: bool = True
    failed: bool = False


def open_library(folder: Path, stamped: str) -> Native:
    """The library in `folder`, checked. Raises Unusable, and OSError (FileNotFoundError when there is none)."""
    path = folder / LIBRARY
    told = (folder / SEAL).read_text(errors="replace")
    if told.split()[:1] != [stamped]:
        raise Unusable("it was built from other sources")
    if told != seal(path, stamped):
        raise Unusable("it is damaged")
    try:
        native = Native(path)
    except (OSError, AttributeError) as error:  # another machine's, or functions that are not there
        raise Unusable(str(error)) from error
    fault = _fault(native, stamped)
    if fault:
        native.close()
        raise Unusable(fault)
    return native


def _fault(native: Native, stamped: str) -> str:
    if native.lib.lc_stamp().decode() != stamped:
        return "it was built from other sources"
    for name, kind in structs.STRUCTS.items():
        size = native.lib.lc_sizeof(name.encode())
        if size != ctypes.sizeof(kind):
            return f"its {name} has {size} bytes, not {ctypes.sizeof(kind)}"
    if not native.lib.lc_isa_alike(native.isas[native.isa]):
        return f"it computes other numbers with {native.isa} than in plain C++"
    return ""
