"""What the readers of GGUF configurations share: which architecture a header names, its blocks, its vocabulary, and
the switches that must be off.

Knows no architecture's own keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lingchat.architectures.keys import MOST_LAYERS, Keys
from lingchat.catalog.headers import GGUFHeader
from lingchat.errors import ModelFileError, UnsupportedModel

# Absent, or at a value that changes nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "logit_scale": (0.0, 1.0),
    "pooling_type": (0,),
    "residual_scale": (0.0, 1.0),
    "rope.scale_linear": (1.0,),
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0.0, 1.0),
    "rope.scaling.attn_factor": (1.0,),
    "use_parallel_residual": (False,),
}
# Notes of the converter, and parameters of a rope scaling that `rope.scaling.type` above says is off.
_HARMLESS = ("tensor_data_layout", "rope.scaling.original_context_length", "rope.scaling.finetuned")


def architecture_of(header: GGUFHeader, known: Iterable[str]) -> str:
    """`general.architecture`, one of `known`, of a whole model. Raises UnsupportedModel."""
    where = header.path
    kind = header.metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(f"{where}: general.type is {kind!r}. Only complete models can be run.")
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in known:
        raise UnsupportedModel(f"{where}: the architecture {name!r:.80} is not supported. Known: {', '.join(known)}.")
    return name


def block_count(header: GGUFHeader, keys: Keys) -> int:
    """Blocks of the model, never more than the file has tensors."""
    blocks = keys.count("block_count")
    if blocks > min(len(header.tensors), MOST_LAYERS):
        raise ModelFileError(
            f"{keys.where}: {keys.prefix}block_count is {blocks}, but the file holds {len(header.tensors)} tensors. "
            "Fetch it again."
        )
    return blocks


def vocab_rows(header: GGUFHeader, keys: Keys) -> int:
    """The embedding's rows. The token list may be shorter (rows without a token), never longer."""
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFileError(f"{header.path}: token_embd.weight is missing or no matrix. Fetch the file again.")
    rows = embedding.shape[0]
    tokens = header.metadata.get("tokenizer.ggml.tokens", [])
    said = keys.count("vocab_size", rows)
    if said != rows or len(tokens) > rows:
        raise ModelFileError(
            f"{header.path}: the embedding has {rows} rows, vocab_size is {said}, {len(tokens)} tokens are listed. "
            "They do not fit together; fetch the file again."
        )
    return rows


def check_neutral(keys: Keys, own: Mapping[str, tuple[object, ...]]) -> None:
    """Raises UnsupportedModel for a switch of another architecture that is on. `own`: values allowed here alone."""
    for key, allowed in (_NEUTRAL | own).items():
        keys.only(key, *allowed)
    keys.ignore(_HARMLESS)
