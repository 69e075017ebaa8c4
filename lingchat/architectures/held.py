"""A file's header becomes a model: its configuration, and every tensor of it found and checked. Nothing is loaded.

Knows which tensors of a file are none of the model's: those that follow from the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from lingchat.architectures.dense import DenseConfig
from lingchat.architectures.dense_gguf import ROPE_FREQS
from lingchat.architectures.match import Held, match, stored_tensors
from lingchat.architectures.read import ModelConfig, gguf_config, hf_config
from lingchat.catalog.headers import GGUFHeader, SafetensorsHeader, TensorInfo

# Buffers that old checkpoints saved; they follow from the configuration.
_DERIVED = re.compile(r"^model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq$")

Read = Callable[[TensorInfo], memoryview]


def held_tensors(header: GGUFHeader | SafetensorsHeader, read: Read) -> tuple[ModelConfig, dict[str, Held]]:
    """The configuration, and the tensors by canonical name in the order of the computation. `read` gives the bytes of
    one; only small ones are asked for.

    Raises ModelFileError (tensors missing or misshapen, or a contradiction) or UnsupportedModel (architecture, key,
    weight type, or tensors that the architecture does not have).
    """
    tensors = header.tensors
    if isinstance(header, GGUFHeader):
        config = gguf_config(header, read)
        scaled = isinstance(config, DenseConfig) and config.rope_factors is not None
        there = {name: info for name, info in tensors.items() if not (scaled and name == ROPE_FREQS)}
        return config, match(header.path, config, stored_tensors(config, gguf=True), there, read)
    config = hf_config(header)
    # A tied checkpoint may hold a copy of the embedding as its head; transformers drops it, and so do we.
    copies = {"lm_head.weight"} if config.tied else set()
    there = {name: info for name, info in tensors.items() if name not in copies and not _DERIVED.match(name)}
    return config, match(header.folder, config, stored_tensors(config, gguf=False), there, read)
