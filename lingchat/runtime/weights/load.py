"""Opens a model's weights: configuration, names checked against it, and every tensor's bytes without a copy.

A file's tensors must be exactly those that its architecture has, in their shapes: anything missing, extra or misshapen
is refused before any memory is taken. Bytes stay as they are in the file; `kernels/quant.py` decodes. No torch here.
"""

from __future__ import annotations

import errno
import math
import mmap
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lingchat.catalog.headers import TensorInfo, read_gguf, read_safetensors_folder
from lingchat.errors import ModelFileError, ModelNotFound, UnsupportedModel
from lingchat.kernels.blocks import DECODABLE
from lingchat.architectures.dense import DenseConfig
from lingchat.architectures.dense_gguf import ROPE_FREQS, gguf_config
from lingchat.architectures.dense_names import expected_shapes, gguf_name, hf_name
from lingchat.architectures.dense_hf import hf_config

# Buffers that old checkpoints saved; they follow from the configuration.
_DERIVED = re.compile(r"^model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq$")


_MADV_POPULATE_READ = 22  # Linux 5.14 and later; Python's mmap has no name for it


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as it lies in its file: `data` is a read-only view of the map, uint8, of `type`'s blocks, row by row."""

    name: str
    type: str
    shape: tuple[int, ...]
    data: memoryview


class Weights:
    """A model's tensors by canonical name, and what they belong to.

    `path` is what was opened, `folder` the folder with it (tokenizer files lie there), `metadata` the GGUF metadata
    (empty otherwise), `hf_config` the raw config.json (empty otherwise). The files stay mapped while a tensor's bytes
    are in use.
    """

    def __init__(
        self,
        *,
        config: DenseConfig,
        source: str,
        path: Path,
        folder: Path,
        metadata: Mapping[str, Any],
        hf_config: Mapping[str, Any],
        tensors: Mapping[str, TensorInfo],
        files: tuple[_Mapped, ...],
    ) -> None:
        self.config = config
        self.source = source
        self.path = path
        self.folder = folder
        self.metadata = metadata
        self.hf_config = hf_config
        self._tensors = tensors
        self._files = files

    def names(self) -> tuple[str, ...]:
        """The canonical names, in the order of the computation."""
        return tuple(self._tensors)

    def tensor(self, name: str) -> RawTensor:
        """The bytes of one tensor; KeyError for a name that the architecture does not have."""
        info = self._tensors[name]
        return RawTensor(name, info.type, info.shape, self._files[info.part].view(info))

    @property
    def parameters(self) -> int:
        return sum(math.prod(info.shape) for info in self._tensors.values())

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors in the files."""
        return sum(info.nbytes for info in self._tensors.values())

    @property
    def quantization(self) -> str:
        """The type that holds most of the parameters: "Q4_1"."""
        held: Counter[str] = Counter()
        for info in self._tensors.values():
            held[info.type] += math.prod(info.shape)
        return held.most_common(1)[0][0]


class _Mapped:
    """One file, mapped read-only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._view = memoryview(self._map)

    def view(self, info: TensorInfo) -> memoryview:
        self._populate(info)
        return self._view[info.offset : info.offset + info.nbytes]

    def _populate(self, info: TensorInfo) -> None:
        """Maps a tensor's pages in one call: one fault a page took 1.5 to 3.4 s for the default model on a small
        virtual machine, this takes 7 ms. A file cut off meanwhile is an error here, and a dead process without it."""
        if sys.platform != "linux":
            return
        start = info.offset // mmap.PAGESIZE * mmap.PAGESIZE
        try:
            self._map.madvise(_MADV_POPULATE_READ, start, info.offset + info.nbytes - start)
        except OSError as error:
            if error.errno != errno.EINVAL:  # Linux before 5.14 does not know the advice; the pages come when touched
                what = f"{self._path}: {info.name} cannot be read ({error.strerror})"
                raise ModelFileError(f"{what}: the file was changed, or its disk fails. Fetch it again.") from error


def open_weights(path: Path | str) -> Weights:
    """Opens a `.gguf` file (any part of a split one), a safetensors folder, or a folder with one GGUF model in it.

    Raises ModelNotFound, ModelFileError (damaged, or tensors missing or misshapen) or UnsupportedModel (architecture,
    configuration key, weight type, or tensors that the architecture does not have).
    """
    path = Path(path)
    if path.is_dir() and not (path / "config.json").is_file():
        path = _only_gguf(path)
    if path.is_dir():
        return _open_safetensors(path)
    if path.suffix in (".safetensors", ".json") and path.is_file():
        raise ModelNotFound(f"{path}: one file of a safetensors model. Give its folder: {path.parent}")
    return _open_gguf(path)


def _open_gguf(path: Path) -> Weights:
    header = read_gguf(path)
    files = tuple(_Mapped(part) for part in header.parts)
    config = gguf_config(header, lambda info: files[info.part].view(info))
    derived = {ROPE_FREQS} if config.rope_factors is not None else set()
    held = {name: info for name, info in header.tensors.items() if name not in derived}
    names = {canonical: gguf_name(canonical) for canonical in expected_shapes(config)}
    return Weights(
        config=config,
        source="gguf",
        path=path,
        folder=path.parent,
        metadata=header.metadata,
        hf_config={},
        tensors=_checked(path, config, names, held),
        files=files,
    )


def _open_safetensors(folder: Path) -> Weights:
    header = read_safetensors_folder(folder)
    config = hf_config(header)
    # A tied checkpoint may hold a copy of the embedding as its head; transformers drops it, and so do we.
    copies = {"lm_head.weight"} if config.tied else set()
    held = {n: info for n, info in header.tensors.items() if n not in copies and not _DERIVED.match(n)}
    names = {canonical: hf_name(canonical) for canonical in expected_shapes(config)}
    return Weights(
        config=config,
        source="safetensors",
        path=folder,
        folder=folder,
        metadata={},
        hf_config=header.config,
        tensors=_checked(folder, config, names, held),
        files=tuple(_Mapped(part) for part in header.parts),
    )


def _only_gguf(folder: Path) -> Path:
    found = sorted(folder.glob("*.gguf"))
    models = {re.sub(r"-\d{5}-of-\d{5}\.gguf$", "", file.name): file for file in reversed(found)}
    if len(models) == 1:
        return next(iter(models.values()))
    what = f"{len(models)} GGUF models ({', '.join(sorted(f.name for f in models.values()))})" if models else "no model"
    raise ModelNotFound(
        f"{folder}: {what} in this folder. Give a .gguf file, or a folder with config.json and weights."
    )


def _checked(
    path: Path, config: DenseConfig, names: Mapping[str, str], held: Mapping[str, TensorInfo]
) -> dict[str, TensorInfo]:
    """`held` by canonical name, when it is exactly what `config` needs. `names` maps canonical names to the file's."""
    shapes = expected_shapes(config)
    missing = [name for name in names.values() if name not in held]
    extra = sorted(held.keys() - set(names.values()))
    wrong = [
        f"{name} is {held[name].shape}, not {shapes[canonical]}"
        for canonical, name in names.items()
        if name in held and held[name].shape != shapes[canonical]
    ]
    what = f"{path}: the tensors do not fit {config.architecture}"
    if missing or wrong:
        parts = [_listed("missing", missing), _listed("of another shape", wrong), _listed("unknown", extra)]
        raise ModelFileError(f"{what}. {' '.join(part for part in parts if part)} Fetch the model again.")
    if extra:
        raise UnsupportedModel(f"{what}. {_listed('unknown', extra)} It computes something else; use another model.")
    undecodable: dict[str, list[str]] = {}
    for name in names.values():
        if held[name].type not in DECODABLE:
            undecodable.setdefault(held[name].type, []).append(name)
    if undecodable:
        types = "; ".join(f"{kind} ({len(of)} tensors, {of[0]} for one)" for kind, of in sorted(undecodable.items()))
        raise UnsupportedModel(f"{path}: weight types that cannot be read: {types}. Supported: {', '.join(DECODABLE)}.")
    return {canonical: held[name] for canonical, name in names.items()}


def _listed(what: str, names: Iterable[str]) -> str:
    text = ", ".join(names)
    return f"{what.capitalize()}: {text}." if text else ""
