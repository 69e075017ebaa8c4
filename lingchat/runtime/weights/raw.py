"""Undecoded tensors: bytes given, or a place in a mapped file whose pages are held only while somebody looks at them.

A mapped tensor's pages come with its bytes and go when the last reader of those bytes is gone, so a model can be packed
from files larger than the memory that is left. What is used in place (quantised experts on a CPU) is read all along,
and stays. Knows bytes and places, no formats; no torch.
"""

from __future__ import annotations

import errno
import math
import mmap
import struct
import sys
import weakref
from pathlib import Path

import msgspec

from lingchat.architectures.hybrid_files import Rate
from lingchat.catalog.headers import TensorInfo
from lingchat.errors import ModelFileError

_TOO_LARGE = 88.0  # exp of more is no fp32
# Linux maps so many bytes around a page that is touched when they are in its cache: pages of tensors that were let go
# before come back with the first page of the next one.
_FAULT_AROUND = 1 << 16
_MADV_POPULATE_READ = 22  # Linux 5.14 and later; Python's mmap has no name for it


class RawTensor(msgspec.Struct, frozen=True):
    """A tensor's bytes: `data` uint8, of `type`'s blocks, row by row."""

    name: str
    type: str
    shape: tuple[int, ...]
    data: memoryview
    scales: RawTensor | None = None


class MappedTensor(msgspec.Struct, frozen=True):
    """A tensor as it lies in its file. Each time `data` is asked for it is a new read-only view, mapped in whole."""

    name: str
    type: str
    shape: tuple[int, ...]
    file: MappedFile
    info: TensorInfo
    scales: MappedTensor | None = None

    @property
    def data(self) -> memoryview:
        return self.file.view(self.info)


class MappedFile:
    """One file, mapped read-only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._view = memoryview(self._map)

    def view(self, info: TensorInfo) -> memoryview:
        """A tensor's bytes, all of them in memory. Raises ModelFileError when the file was cut off meanwhile."""
        start = info.offset // mmap.PAGESIZE * mmap.PAGESIZE
        length = info.offset + info.nbytes - start
        self._populate(info.name, start, length)
        view = self._view[info.offset : info.offset + info.nbytes]
        if sys.platform == "linux" and length:
            # Whoever still has a part of the view, or of a page that a neighbour shares, only reads it from the file
            # again: the pages are clean. The map itself lives as long as a view.
            first = max(0, start - _FAULT_AROUND)
            length = min(start + length + _FAULT_AROUND, len(self._map)) - first
            weakref.finalize(view, self._map.madvise, mmap.MADV_DONTNEED, first, length).atexit = False
        return view

    def _populate(self, name: str, start: int, length: int) -> None:
        """Maps a tensor's pages in one call: one fault a page took 1.5 to 3.4 s for the default model on a small
        virtual machine, this takes 7 ms. A file cut off meanwhile is an error here, and a dead process without it."""
        if sys.platform != "linux" or not length:
            return
        try:
            self._map.madvise(_MADV_POPULATE_READ, start, length)
        except OSError as error:
            if error.errno != errno.EINVAL:  # Linux before 5.14 does not know the advice; the pages come when touched
                what = f"{self._path}: {name} cannot be read ({error.strerror})"
                raise ModelFileError(f"{what}: the file was changed, or its disk fails. Fetch it again.") from error


def rates(stored: MappedTensor, rate: Rate, where: Path) -> RawTensor:
    """exp(A_log) of a KDA layer, fp32 [heads], from what the file states of it in F32, F16 or BF16.

    Raises ModelFileError when one of them is not a positive finite number.
    """
    values = _floats(stored.data, stored.type)
    if rate == "log":
        values = [math.exp(value) if value < _TOO_LARGE else math.inf for value in values]
    elif rate == "negative":
        values = [-value for value in values]
    if not all(0 < value < math.exp(_TOO_LARGE) for value in values):
        raise ModelFileError(
            f"{where}: {stored.info.name} holds values that are no rate of decay. Fetch the model again."
        )
    return RawTensor(stored.name, "F32", stored.shape, memoryview(struct.pack(f"<{len(values)}f", *values)))


def _floats(data: memoryview, type: str) -> list[float]:
    if type == "BF16":  # the upper half of an fp32
        words = struct.unpack(f"<{len(data) // 2}H", data)
        return list(struct.unpack(f"<{len(words)}f", struct.pack(f"<{len(words)}I", *(word << 16 for word in words))))
    code = {"F32": "f", "F16": "e"}[type]
    return list(struct.unpack(f"<{len(data) // struct.calcsize('<' + code)}{code}", data))
