"""Finds, checks and opens the native CPU library, and has it built where there is none.

A library lies beside this file when the installation built it, else in the user's cache under its stamp. It is opened
only when its checksum is right, and used only when it carries the stamp of the sources that lie here, agrees on the
size of every struct, and computes on the chosen instruction set what plain C++ computes.

Imports neither torch nor numpy: a start waits for it.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int64, c_void_p
from pathlib import Path

from lingchat.kernels.cpu import build as building
from lingchat.kernels.cpu import structs

BESIDE = building.HERE / "built"

_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "lc_stamp": (c_char_p, ()),
    "lc_sizeof": (c_int64, (c_char_p,)),
    "lc_isa_count": (c_int64, ()),
    "lc_isa_name": (c_char_p, (c_int64,)),
    "lc_isa_runs": (c_int64, (c_int64,)),
    "lc_operation": (c_int64, (c_char_p,)),
    "lc_words": (c_int64, (c_int64,)),
    "lc_run": (c_int64, (c_void_p, c_int64, c_void_p, c_int64, c_void_p)),
    "lc_pool_new": (c_void_p, (c_int64, c_int64)),
    "lc_pool_threads": (c_int64, (c_void_p, c_int64)),
    "lc_pool_free": (None, (c_void_p,)),
    "lc_allocate": (c_void_p, (c_int64,)),
    "lc_allocate_large": (c_void_p, (c_int64,)),
    "lc_release": (None, (c_void_p,)),
}


class Unusable(Exception):
    """A library that is there but must not be used; the text says why."""


class Native:
    """An opened library. `lib` has its functions, typed; `isas` are the instruction sets that run here, best first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lib = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        self.isas: dict[str, int] = {
            self.lib.lc_isa_name(i).decode(): i for i in range(self.lib.lc_isa_count()) if self.lib.lc_isa_runs(i)
        }
        self.isa = next(iter(self.isas))

    def operation(self, name: str) -> int:
        found: int = self.lib.lc_operation(name.encode())
        if found < 0:
            raise KeyError(name)
        return found


def open_library(folder: Path, stamp: str) -> Native:
    """The library in `folder`, checked. Raises Unusable, and FileNotFoundError when there is none."""
    path = folder / building.LIBRARY
    told = (folder / building.CHECKSUM).read_text()
    if building.checksum(path) != told:
        raise Unusable("its checksum is wrong")
    try:
        native = Native(path)
    except (OSError, AttributeError) as error:
        raise Unusable(f"it cannot be opened: {error}") from error
    if native.lib.lc_stamp().decode() != stamp:
        raise Unusable("it was built from other sources")
    for name, kind in structs.STRUCTS.items():
        if native.lib.lc_sizeof(name.encode()) != ctypes.sizeof(kind):
            raise Unusable(f"its {name} is {native.lib.lc_sizeof(name.encode())} bytes, not {ctypes.sizeof(kind)}")
    return native
