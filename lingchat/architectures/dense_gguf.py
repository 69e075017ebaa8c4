"""`DenseConfig` from a GGUF header (`<arch>.*` keys). Knows the keys and what each means, no tensors' values.

Sources: the gguf package's key tables, llama.cpp's loaders of `llama`, `qwen2` and `qwen3`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from lingchat.architectures.dense import DenseConfig
from lingchat.architectures.gguf_common import architecture_of, block_count, check_neutral, vocab_rows
from lingchat.architectures.keys import Keys
from lingchat.catalog.headers import GGUFHeader, TensorInfo
from lingchat.errors import ModelFileError

ROPE_FREQS = "rope_freqs.weight"

# general.architecture: (Hugging Face's class, adjacent rope pairs, q/k norm). llama.cpp's converter permutes the rows
# of q and k a head for `llama` alone, so that a pair lies side by side.
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", True, False),
    "qwen2": ("Qwen2ForCausalLM", False, False),
    "qwen3": ("Qwen3ForCausalLM", False, True),
}

# Switches of these architectures' other variants: absent, or at a value that changes nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "nextn_predict_layers": (0,),
}


def gguf_config(header: GGUFHeader, read: Callable[[TensorInfo], memoryview]) -> DenseConfig:
    """The configuration a GGUF header states. `read` gives a tensor's bytes; only `rope_freqs.weight` is asked for.

    Raises UnsupportedModel for an architecture or a key that is not understood, ModelFileError for a contradiction.
    """
    where, metadata, tensors = str(header.path), header.metadata, header.tensors
    name = architecture_of(header, ARCHITECTURES)
    architecture, adjacent, qk_norm = ARCHITECTURES[name]
    keys = Keys(where, metadata, f"{name}.")
    hidden, heads = keys.count("embedding_length"), keys.count("attention.head_count")
    layers = block_count(header, keys)
    head_dim = _head_dim(keys, hidden, heads)
    rope_dim = keys.count("rope.dimension_count", head_dim)
    context = keys.count("context_length")
    window = keys.get("attention.sliding_window")
    if window and not (isinstance(window, int) and window >= context):  # a window as wide as the context hides nothing
        keys.refuse("attention.sliding_window", window, "sliding-window attention is not supported")
    check_neutral(keys, _NEUTRAL)
    config = DenseConfig(
        architecture=architecture,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=keys.count("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=keys.count("feed_forward_length"),
        vocab=vocab_rows(header, keys),
        context=context,
        rope_base=keys.number("rope.freq_base", 10000.0),
        rope_dim=rope_dim,
        rope_adjacent=adjacent,
        rope_factors=_rope_factors(header, read) if name == "llama" else None,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        qkv_bias=name == "qwen2" or (name == "llama" and "blk.0.attn_q.bias" in tensors),
        qk_norm=qk_norm,
        tied="output.weight" not in tensors,
    )
    keys.refuse_rest()
    return config


def _head_dim(keys: Keys, hidden: int, heads: int) -> int:
    if keys.get("attention.key_length") is None and hidden % heads:
        raise ModelFileError(f"{keys.where}: {hidden} dimensions do not divide into {heads} heads. Fetch it again.")
    head_dim = keys.count("attention.key_length", hidden // heads)
    if keys.count("attention.value_length", head_dim) != head_dim:
        keys.refuse("attention.value_length", keys.get("attention.value_length"), f"keys have {head_dim} dimensions")
    return head_dim


def _rope_factors(header: GGUFHeader, read: Callable[[TensorInfo], memoryview]) -> tuple[float, ...] | None:
    """Llama 3's divisors, which GGUF stores as a tensor of their own."""
    info = header.tensors.get(ROPE_FREQS)
    if info is None:
        return None
    if info.type != "F32" or len(info.shape) != 1:
        raise ModelFileError(
            f"{header.path}: {ROPE_FREQS} is {info.type} {info.shape}, not a list of F32. Fetch it again."
        )
    return struct.unpack(f"<{info.shape[0]}f", read(info))
