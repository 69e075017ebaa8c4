"""Opens a model's weights: configuration, names checked against it, and every tensor's bytes without a copy.

A file's tensors must be exactly those that its architecture has, in their shapes: anything missing, extra or misshapen
is refused before any memory is taken. Bytes stay as they are in the file; `kernels/quant.py` decodes. No torch here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lingchat.architectures.held import held_tensors
from lingchat.architectures.match import Held
from lingchat.architectures.read import ModelConfig
from lingchat.catalog.headers import GGUFHeader, SafetensorsHeader, TensorInfo, read_gguf, read_safetensors_folder
from lingchat.errors import ModelNotFound
from lingchat.runtime.weights.raw import MappedFile, MappedTensor, RawTensor, rates


class Weights:
    """A model's tensors by canonical name, and what they belong to.

    `source` is "gguf" or "safetensors", `path` what was opened, `folder` the folder with it (tokenizer files lie there),
    `metadata` the GGUF metadata (empty otherwise). The files stay mapped while a tensor's bytes are in use.
    """

    def __init__(
        self,
        *,
        config: ModelConfig,
        source: str,
        path: Path,
        folder: Path,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, Held],
        files: tuple[MappedFile, ...],
    ) -> None:
        self.config = config
        self.source = source
        self.path = path
        self.folder = folder
        self.metadata = metadata
        self._tensors = tensors
        self._files = files

    def forget_vocabulary(self) -> None:
        """Let the long lists of the metadata go: a tokenizer has what it needs of them."""
        self.metadata = {key: value for key, value in self.metadata.items() if not isinstance(value, list)}

    def names(self) -> tuple[str, ...]:
        """The canonical names, in the order of the computation."""
        return tuple(self._tensors)

    def tensor(self, name: str) -> MappedTensor | RawTensor:
        """One tensor, undecoded; KeyError for a name that the architecture does not have.

        Its bytes are read when its `data` is asked for, and leave the memory with the last reader of that.
        """
        held = self._tensors[name]
        scales = None if held.scales is None else self._mapped(f"{name}.scales", held.scales)
        mapped = self._mapped(name, held.info, scales)
        return mapped if held.rate is None else rates(mapped, held.rate, self.path)

    def _mapped(self, name: str, info: TensorInfo, scales: MappedTensor | None = None) -> MappedTensor:
        return MappedTensor(name, info.type, info.shape, self._files[info.part], info, scales)

    @property
    def parameters(self) -> int:
        """Values of all tensors, an MTP layer's included; scales of quantised ones are none."""
        return sum(held.parameters for held in self._tensors.values())

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors in the files, scales included."""
        return sum(held.nbytes for held in self._tensors.values())

    @property
    def stored_bytes(self) -> Mapping[str, int]:
        """Bytes in the files by canonical name, scales included."""
        return MappingProxyType({name: held.nbytes for name, held in self._tensors.items()})

    @property
    def stored_types(self) -> Mapping[str, str]:
        """Types in the files by canonical name."""
        return MappingProxyType({name: held.info.type for name, held in self._tensors.items()})

    @property
    def quantization(self) -> str:
        """The type that holds most of the parameters: "Q4_1"."""
        count: Counter[str] = Counter()
        for held in self._tensors.values():
            count[held.info.type] += held.parameters
        return count.most_common(1)[0][0]


def open_weights(path: Path | str) -> Weights:
    """Opens a `.gguf` file (any part of a split one), a safetensors folder, or a folder with one GGUF model in it.

    Raises ModelNotFound, ModelFileError (damaged, or tensors missing or misshapen) or UnsupportedModel (architecture,
    configuration key, weight type, or tensors that the architecture does not have).
    """
    path = Path(path)
    if path.is_dir() and not (path / "config.json").is_file():
        path = _only_gguf(path)
    if path.is_dir():
        return _opened(path, read_safetensors_folder(path))
    if path.suffix in (".safetensors", ".json") and path.is_file():
        raise ModelNotFound(f"{path}: one file of a safetensors model. Give its folder: {path.parent}")
    return _opened(path, read_gguf(path))


def _opened(path: Path, header: GGUFHeader | SafetensorsHeader) -> Weights:
    files = tuple(MappedFile(part) for part in header.parts)
    config, tensors = held_tensors(header, lambda info: files[info.part].view(info))
    gguf = isinstance(header, GGUFHeader)
    return Weights(
        config=config,
        source="gguf" if gguf else "safetensors",
        path=path,
        folder=path.parent if gguf else path,
        metadata=header.metadata if isinstance(header, GGUFHeader) else {},
        tensors=tensors,
        files=files,
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
