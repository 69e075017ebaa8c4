"""What a weight file says about itself: GGUF headers and safetensors folders, read in milliseconds.

Strict: every count, length, offset and size is checked against the file before it is used, so that a damaged,
truncated or hostile file ends in an error that names the file, the place and the way out, and whatever is returned
can be trusted. The tensors themselves are not read. Formats: GGUF versions 2 and 3 (ggml's docs/gguf.md), safetensors
(its README, "Format").

Knows no architectures: a name is a name here, and a metadata key is not interpreted beyond `general.alignment` and
`split.*`. Neither torch nor numpy.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from lingchat.catalog.header_checks import (
    DAMAGED,
    MAX_JSON,
    TensorInfo,
    bad,
    check_overlap,
    guess,
    json_object,
    open_file,
    read_bytes,
    shown,
    some,
    tensor_nbytes,
)
from lingchat.errors import ModelNotFound, UnsupportedModel
from lingchat.kernels.blocks import GGML_TYPES, SAFETENSORS_TYPES, Block

__all__ = ["GGUFHeader", "SafetensorsHeader", "TensorInfo", "read_gguf", "read_safetensors_folder"]

_ALIGNMENT = 32  # GGUF's default for `general.alignment`
_MAX_DIMS = 4  # GGML_MAX_DIMS
_MAX_ARRAY = 1 << 24  # values in one array; the largest vocabularies have a million
_MAX_DEPTH = 4  # arrays within arrays in GGUF metadata; real files have none
_SPLIT = re.compile(r"^(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$")

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# GGUF's value types by number: struct codes of the scalars, then string and array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9


class GGUFHeader(msgspec.Struct, frozen=True):
    """A GGUF model: one file, or all parts of a split one. `metadata` is the first part's."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    parts: tuple[Path, ...]


class SafetensorsHeader(msgspec.Struct, frozen=True):
    """A folder with `config.json` and safetensors files: one, or the shards that its index names."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, TensorInfo]
    parts: tuple[Path, ...]


def read_gguf(path: Path | str) -> GGUFHeader:
    """The header of a `.gguf` file; of a split model, any part's path will do.

    Raises ModelNotFound when the file or one of its parts is missing, ModelFileError when it is damaged, and
    UnsupportedModel for a version, byte order or tensor type that nothing here can read.
    """
    path = Path(path)
    match = _SPLIT.match(path.name)
    if match is None:
        version, metadata, tensors = _read_gguf_file(path, 0)
        count = metadata.get("split.count", 1)
        if count not in (0, 1):
            bad(
                path,
                f"part of a model split into {count} files, but its name does not say which part",
                "Give the parts their names back: NAME-00001-of-0000N.gguf and so on.",
            )
        return GGUFHeader(path, version, metadata, tensors, (path,))
    return _read_split(path, match["stem"], int(match["no"]), int(match["count"]))


def _read_split(path: Path, stem: str, number: int, count: int) -> GGUFHeader:
    if not 1 <= number <= count:
        bad(path, f"its name says part {number} of {count}", "Give the file its name back.")
    parts = tuple(path.with_name(f"{stem}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1))
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ModelNotFound(
            f"{path.parent}: {len(missing)} of the model's {count} files missing: {some(missing)}. "
            "Put all parts into one folder."
        )
    all_tensors: dict[str, TensorInfo] = {}
    first: tuple[int, dict[str, Any]] | None = None
    for index, part in enumerate(parts):
        version, metadata, tensors = _read_gguf_file(part, index)
        said = (metadata.get("split.no", index), metadata.get("split.count", count))
        if said != (index, count):
            bad(
                part,
                f"it says part {said[0]} of {said[1]} (from 0), its name says part {index} of {count}",
                "The parts of two models were mixed; fetch them again.",
            )
        twice = all_tensors.keys() & tensors.keys()
        if twice:
            bad(
                part,
                f"tensors that an earlier part holds too: {some(sorted(twice))}",
                "The parts of two models were mixed; fetch them again.",
            )
        all_tensors |= tensors
        first = first or (version, metadata)
    assert first is not None
    total = first[1].get("split.tensors.count", len(all_tensors))
    if total != len(all_tensors):
        bad(parts[0], f"the parts hold {len(all_tensors)} tensors, {total} were promised", DAMAGED)
    return GGUFHeader(parts[0], first[0], first[1], all_tensors, parts)


def _read_gguf_file(path: Path, part: int) -> tuple[int, dict[str, Any], dict[str, TensorInfo]]:
    with open_file(path) as file:
        size = path.stat().st_size
        if size < 24:
            bad(path, f"{size} bytes are no GGUF header", DAMAGED)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            return _Reader(path, buffer, size, part).read()


class _Reader:
    """A cursor over one mapped GGUF file. `place` names what is being read, for errors."""

    def __init__(self, path: Path, buffer: mmap.mmap, size: int, part: int) -> None:
        self.path, self.buffer, self.size, self.part = path, buffer, size, part
        self.at = 0
        self.place = "the header"

    def read(self) -> tuple[int, dict[str, Any], dict[str, TensorInfo]]:
        version = self._version()
        n_tensors, n_keys = self._u64(), self._u64()
        # The smallest tensor entry takes 24 bytes and the smallest key 13: a count beyond that is not believed.
        if n_tensors * 24 + n_keys * 13 > self.size - self.at:
            bad(self.path, f"{n_tensors} tensors and {n_keys} keys cannot fit into its {self.size} bytes", DAMAGED)
        metadata: dict[str, Any] = {}
        for i in range(n_keys):
            self.place = f"metadata key {i + 1} of {n_keys}"
            key = self._string()
            self.place = f"metadata key {shown(key)}"
            if key in metadata:
                bad(self.path, f"{self.place} comes twice", DAMAGED)
            metadata[key] = self._value(self._u32(), 0)
        entries = [self._entry(i, n_tensors) for i in range(n_tensors)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            bad(self.path, f"general.alignment is {alignment!r}, not a power of two", DAMAGED)
        return version, metadata, self._place_tensors(entries, alignment)

    def _version(self) -> int:
        magic = self.buffer[:4]
        if magic != b"GGUF":
            bad(
                self.path,
                f"not a GGUF file: it begins with {magic!r}{guess(self.buffer[:64])}",
                "Give a .gguf file, or the folder of a safetensors model.",
            )
        version: int = _U32.unpack_from(self.buffer, 4)[0]
        if version and not version & 0xFFFF:
            raise UnsupportedModel(
                f"{self.path}: a big-endian GGUF file. Only little-endian ones can be read; fetch or convert that one."
            )
        if version not in (2, 3):
            raise UnsupportedModel(
                f"{self.path}: GGUF version {version}. Versions 2 and 3 can be read; convert it again."
            )
        self.at = 8
        return version

    def _need(self, nbytes: int) -> None:
        if nbytes > self.size - self.at:
            bad(
                self.path,
                f"{self.place} at byte {self.at} needs {nbytes} bytes more, the file ends at byte {self.size}",
                DAMAGED,
            )

    def _u32(self) -> int:
        self._need(4)
        value: int = _U32.unpack_from(self.buffer, self.at)[0]
        self.at += 4
        return value

    def _u64(self) -> int:
        self._need(8)
        value: int = _U64.unpack_from(self.buffer, self.at)[0]
        self.at += 8
        return value

    def _string(self) -> str:
        length = self._u64()
        self._need(length)
        start, self.at = self.at, self.at + length
        return self.buffer[start : self.at].decode("utf-8", "surrogateescape")

    def _strings(self, count: int) -> list[str]:
        # The hot loop: a vocabulary and its merges are 100,000 strings and more. Locals, and one check a string.
        buffer, at, end, length_at = self.buffer, self.at, self.size, _U64.unpack_from
        out: list[bytes] = []
        try:
            for _ in range(count):
                start = at + 8
                at = start + length_at(buffer, at)[0]
                if at > end:
                    break
                out.append(buffer[start:at])
        except struct.error:  # the length itself lies behind the end
            at = end + 1
        if at > end:
            bad(
                self.path,
                f"string {len(out) + 1} of {count} in {self.place} reaches beyond the end of the file at byte {end}",
                DAMAGED,
            )
        self.at = at
        # Decoded in one piece, where the mark between two is in none of them.
        joined = b"\0".join(out)
        if joined.count(b"\0") == len(out) - 1:
            return joined.decode("utf-8", "surrogateescape").split("\0")
        return [text.decode("utf-8", "surrogateescape") for text in out]

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._numbers(kind, 1)[0]
        if depth == _MAX_DEPTH:
            bad(self.path, f"{self.place} nests arrays more than {_MAX_DEPTH} deep", DAMAGED)
        item, count = self._u32(), self._u64()
        if count > _MAX_ARRAY:
            bad(self.path, f"{self.place} is an array of {count} values, at most {_MAX_ARRAY} are read", DAMAGED)
        if item == _STRING:
            self._need(8 * count)
            return self._strings(count)
        if item == _ARRAY:
            self._need(12 * count)
            return [self._value(_ARRAY, depth + 1) for _ in range(count)]
        return self._numbers(item, count)

    def _numbers(self, kind: int, count: int) -> list[Any]:
        code = _SCALARS.get(kind)
        if code is None:
            bad(self.path, f"{self.place} at byte {self.at} has the unknown value type {kind}", DAMAGED)
        nbytes = struct.calcsize("<" + code) * count
        self._need(nbytes)
        start, self.at = self.at, self.at + nbytes
        if kind == _BOOL and any(byte > 1 for byte in self.buffer[start : self.at]):
            bad(self.path, f"{self.place} at byte {start} holds a truth value that is neither 0 nor 1", DAMAGED)
        return list(struct.unpack_from(f"<{count}{code}", self.buffer, start))

    def _entry(self, i: int, n_tensors: int) -> tuple[str, tuple[int, ...], str, Block, int]:
        self.place = f"tensor entry {i + 1} of {n_tensors}"
        name = self._string()
        self.place = f"tensor {shown(name)}"
        n_dims = self._u32()
        if n_dims > _MAX_DIMS:
            bad(self.path, f"{self.place} has {n_dims} dimensions, at most {_MAX_DIMS} are possible", DAMAGED)
        shape = tuple(reversed([self._u64() for _ in range(n_dims)]))
        kind, offset = self._u32(), self._u64()
        if kind not in GGML_TYPES:
            raise UnsupportedModel(
                f"{self.path}: {self.place} has the weight type number {kind}, which is unknown here. "
                "Use a file in another quantisation, Q4_K_M or Q8_0 for instance."
            )
        return name, shape, *GGML_TYPES[kind], offset

    def _place_tensors(
        self, entries: Iterable[tuple[str, tuple[int, ...], str, Block, int]], alignment: int
    ) -> dict[str, TensorInfo]:
        base = -(-self.at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, shape, kind, block, offset in entries:
            what = f"tensor {shown(name)}"
            if name in tensors:
                bad(self.path, f"{what} comes twice", DAMAGED)
            if offset % alignment:
                bad(self.path, f"{what} begins at {offset}, not a multiple of the alignment {alignment}", DAMAGED)
            nbytes = tensor_nbytes(self.path, what, kind, shape, block)
            if base + offset + nbytes > self.size:
                bad(
                    self.path,
                    f"{what} needs {nbytes} bytes from byte {base + offset} on, the file ends at byte {self.size}",
                    DAMAGED,
                )
            tensors[name] = TensorInfo(name, kind, shape, self.part, base + offset, nbytes)
        check_overlap(self.path, tensors.values())
        return tensors


def read_safetensors_folder(folder: Path | str) -> SafetensorsHeader:
    """The headers of a folder with `config.json` and `model.safetensors`, or shards and their index.

    Raises ModelNotFound when a file is missing, ModelFileError when one is damaged, UnsupportedModel for a dtype
    that the format does not have.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelNotFound(f"{folder}: no such folder. Give the folder that holds config.json and the weights.")
    config = json_object(folder / "config.json", read_bytes(folder / "config.json"))
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.is_file() or not index.is_file():
        found = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
        if len(found) != 1:
            which = f"{len(found)} safetensors files and no {index.name}" if found else "no safetensors weights"
            raise ModelNotFound(f"{folder}: {which}. Fetch the complete model folder again.")
        return SafetensorsHeader(folder, config, _read_safetensors_file(found[0], 0), (found[0],))
    places = json_object(index, read_bytes(index)).get("weight_map")
    if not isinstance(places, dict) or not places:
        bad(index, "its weight_map is missing or empty", DAMAGED)
    odd = [str(value) for value in places.values() if not isinstance(value, str) or Path(value).name != value]
    if odd:
        bad(index, f"these are no plain file names: {some(sorted(set(odd)))}", DAMAGED)
    parts = tuple(folder / name for name in sorted(set(places.values())))
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ModelNotFound(
            f"{folder}: {len(missing)} of the model's {len(parts)} weight files missing: {some(missing)}. "
            "Fetch the complete model folder again."
        )
    tensors: dict[str, TensorInfo] = {}
    for i, part in enumerate(parts):
        held = _read_safetensors_file(part, i)
        expected = {name for name, place in places.items() if place == part.name}
        if held.keys() != expected:
            bad(part, f"its tensors and {index.name} differ in {some(sorted(held.keys() ^ expected))}", DAMAGED)
        tensors |= held
    return SafetensorsHeader(folder, config, tensors, parts)


def _read_safetensors_file(path: Path, part: int) -> dict[str, TensorInfo]:
    with open_file(path) as file:
        size = path.stat().st_size
        start = file.read(8)
        if len(start) < 8:
            bad(path, f"{size} bytes are no safetensors header", DAMAGED)
        length: int = _U64.unpack(start)[0]
        if length > min(MAX_JSON, size - 8):
            bad(
                path,
                f"not a safetensors file, or cut off: its header would take {length} of {size} bytes{guess(start)}",
                DAMAGED,
            )
        header = json_object(path, file.read(length))
    base, tensors = 8 + length, {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        what = f"tensor {shown(name)}"
        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
            bad(path, f"{what} has no dtype, shape and data_offsets", DAMAGED)
        kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not _counts(shape) or not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            bad(path, f"{what} has the shape {shape!r:.80} and the data_offsets {offsets!r:.80}", DAMAGED)
        if not isinstance(kind, str) or kind not in SAFETENSORS_TYPES:
            raise UnsupportedModel(f"{path}: {what} has the dtype {kind!r:.80}, which is unknown here.")
        nbytes = tensor_nbytes(path, what, kind, tuple(shape), SAFETENSORS_TYPES[kind])
        if offsets[1] - offsets[0] != nbytes:
            bad(path, f"{what} holds {offsets[1] - offsets[0]} bytes, its shape needs {nbytes}", DAMAGED)
        if base + offsets[1] > size:
            bad(path, f"{what} ends at byte {base + offsets[1]}, the file at byte {size}", DAMAGED)
        tensors[name] = TensorInfo(name, kind, tuple(shape), part, base + offsets[0], nbytes)
    check_overlap(path, tensors.values())
    end = max((t.offset + t.nbytes for t in tensors.values()), default=base)
    if end != size:
        bad(path, f"{size - end} bytes behind the last tensor belong to nothing", DAMAGED)
    return tensors


def _counts(value: Any) -> bool:
    """A list of a few numbers, none negative. JSON's integers have no limit of their own, and their product is taken."""
    return isinstance(value, list) and len(value) <= 8 and all(type(n) is int and 0 <= n < 1 << 64 for n in value)
