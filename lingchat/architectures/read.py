"""Any supported model's configuration, whatever its architecture and kind of file, and what follows from it alone.

The one place that knows which reader belongs to which architecture. Dispatches on `architectures` of a config.json and
`general.architecture` of a GGUF file, never on `model_type`. Knows no key of any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from lingchat.architectures import dense_gguf, dense_hf, dense_names, hybrid_gguf, hybrid_hf, hybrid_names
from lingchat.architectures.dense import DenseConfig
from lingchat.architectures.gguf_common import architecture_of
from lingchat.architectures.hybrid import HybridConfig
from lingchat.catalog.headers import GGUFHeader, SafetensorsHeader, TensorInfo
from lingchat.errors import UnsupportedModel

ModelConfig = DenseConfig | HybridConfig

HF_ARCHITECTURES = (*dense_hf.ARCHITECTURES, *hybrid_hf.ARCHITECTURES)
GGUF_ARCHITECTURES = (*dense_gguf.ARCHITECTURES, *hybrid_gguf.ARCHITECTURES)


def hf_config(header: SafetensorsHeader) -> ModelConfig:
    """The configuration of a safetensors folder.

    Raises UnsupportedModel for an architecture or a key that is not understood, ModelFileError for a contradiction.
    """
    where = str(header.folder / "config.json")
    return _hf_reader(where, header.config)(where, header.config, header.tensors.keys())


def hf_config_alone(where: str, raw: dict[str, Any]) -> ModelConfig:
    """The configuration of a config.json without weights; `where` begins every error. Raises as `hf_config`."""
    return _hf_reader(where, raw)(where, raw, None)


def gguf_config(header: GGUFHeader, read: Callable[[TensorInfo], memoryview]) -> ModelConfig:
    """The configuration of a GGUF file. `read` gives a tensor's bytes, where a configuration needs one's values.

    Raises UnsupportedModel for an architecture or a key that is not understood, ModelFileError for a contradiction.
    """
    if architecture_of(header, GGUF_ARCHITECTURES) in hybrid_gguf.ARCHITECTURES:
        return hybrid_gguf.gguf_config(header)
    return dense_gguf.gguf_config(header, read)


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a file of this model holds, by canonical name; matrices are (out, in)."""
    if isinstance(config, HybridConfig):
        return hybrid_names.expected_shapes(config)
    return dense_names.expected_shapes(config)


def _hf_reader(where: str, raw: dict[str, Any]) -> Callable[[str, dict[str, Any], Collection[str] | None], ModelConfig]:
    names = raw.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in HF_ARCHITECTURES:
        said = f"architectures is {names!r:.80}" if names else "it names no architectures"
        # Ling 2.5 and 2.6 carry the same model_type over another kind of linear attention.
        other = "; `bailing_hybrid` names other models too" if raw.get("model_type") == "bailing_hybrid" else ""
        raise UnsupportedModel(f"{where}: {said}{other}. Known: {', '.join(HF_ARCHITECTURES)}.")
    return hybrid_hf.config_of if names[0] in hybrid_hf.ARCHITECTURES else dense_hf.config_of
