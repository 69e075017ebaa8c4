"""`DenseConfig` from a Hugging Face `config.json`. Dispatches on `architectures`, never on `model_type`.

Sources: transformers' configuration and modelling files of llama, qwen2 and qwen3, before and after version 5 (which
writes `rope_parameters` where `rope_theta` and `rope_scaling` were).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lingchat.architectures.dense import DenseConfig, llama3_factors
from lingchat.architectures.hf_common import HARMLESS, layer_count
from lingchat.architectures.keys import Keys
from lingchat.catalog.headers import SafetensorsHeader
from lingchat.errors import ModelFileError, UnsupportedModel

# The class: (bias on q, k and v; q/k norm).
ARCHITECTURES = {
    "LlamaForCausalLM": (False, False),
    "Qwen2ForCausalLM": (True, False),
    "Qwen3ForCausalLM": (False, True),
}

# Switches that must be absent, null, or at the value that leaves the computation as it is.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "mlp_bias": (False,),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
    "partial_rotary_factor": (1.0, 1),
    "quantization_config": (),
    "is_decoder": (False, True),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({},),
}


def hf_config(header: SafetensorsHeader) -> DenseConfig:
    """The configuration of a folder's `config.json`.

    Raises UnsupportedModel for an architecture or a key that is not understood, ModelFileError for a contradiction.
    """
    return config_of(str(header.folder / "config.json"), header.config, header.tensors.keys())


def config_of(where: str, raw: dict[str, Any], tensors: Collection[str] | None) -> DenseConfig:
    """The configuration `raw` states. `tensors` are the names of the checkpoint; None: there are only these keys.

    `where` begins every error. Raises as `hf_config`.
    """
    architecture = _architecture(where, raw)
    qkv_bias, qk_norm = ARCHITECTURES[architecture]
    keys = Keys(where, raw)
    hidden, heads, layers = keys.count("hidden_size"), keys.count("num_attention_heads"), layer_count(keys, tensors)
    if keys.get("head_dim") is None and hidden % heads:
        raise ModelFileError(f"{where}: hidden_size {hidden} does not divide into {heads} heads. Fetch it again.")
    # Qwen3 has heads of 128 unless told otherwise; the others split the hidden size.
    head_dim = keys.count("head_dim", 128 if architecture == "Qwen3ForCausalLM" else hidden // heads)
    context = keys.count("max_position_embeddings")
    if keys.get("hidden_act") != "silu":
        keys.refuse("hidden_act", keys.get("hidden_act"), "only 'silu' is supported")
    if architecture == "Qwen2ForCausalLM":
        keys.ignore(("attention_bias",))  # its class has the bias in any case; the tensors are checked
    else:
        keys.only("attention_bias", False)
    _full_attention(keys, layers, context)
    for key, allowed in _NEUTRAL.items():
        keys.only(key, *allowed)
    keys.ignore(HARMLESS)
    base, factors = _rope(keys, head_dim)
    config = DenseConfig(
        architecture=architecture,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=keys.count("num_key_value_heads", heads),
        head_dim=head_dim,
        ffn=keys.count("intermediate_size"),
        vocab=keys.count("vocab_size"),
        context=context,
        rope_base=base,
        rope_dim=head_dim,
        rope_adjacent=False,
        rope_factors=factors,
        norm_eps=keys.number("rms_norm_eps"),
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        tied=_tied(keys, tensors),
    )
    keys.refuse_rest()
    return config


def _architecture(where: str, raw: dict[str, Any]) -> str:
    names = raw.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in ARCHITECTURES:
        said = f"architectures is {names!r:.80}" if names else "it names no architectures"
        raise UnsupportedModel(f"{where}: {said}. Known: {', '.join(ARCHITECTURES)}.")
    return str(names[0])


def _tied(keys: Keys, tensors: Collection[str] | None) -> bool:
    """What the config says; where it says nothing, the head is tied when there is none of its own.

    Without tensors it is not tied, as these classes have it. An explicit `false` without a head is not taken as tied: a
    lost file would pass for a smaller model.
    """
    said = keys.get("tie_word_embeddings")
    if said is None:
        return tensors is not None and "lm_head.weight" not in tensors
    if not isinstance(said, bool):
        keys.refuse("tie_word_embeddings", said, "only true or false is possible")
    return said


def _full_attention(keys: Keys, layers: int, context: int) -> None:
    """Every layer sees the whole context, or the model is refused."""
    window, used = keys.get("sliding_window"), keys.get("use_sliding_window")
    kinds = keys.get("layer_types")
    if kinds is not None and kinds != ["full_attention"] * layers:
        shown = sorted(set(map(str, kinds))) if isinstance(kinds, list) else kinds
        keys.refuse("layer_types", shown, "only full_attention in every layer is supported")
    if used is False or window is None:
        return
    if used is None and type(window) is int and window >= context:
        return  # a window that nothing ever leaves
    keys.refuse("sliding_window", window, "sliding-window attention is not supported")


def _rope(keys: Keys, head_dim: int) -> tuple[float, tuple[float, ...] | None]:
    """Base and divisors, from `rope_theta` and `rope_scaling` or from transformers 5's `rope_parameters`."""
    base = keys.number("rope_theta", 10000.0)
    factors = None
    for outer in ("rope_scaling", "rope_parameters"):
        scaling = keys.get(outer)
        if scaling is None:
            continue
        if not isinstance(scaling, dict):
            keys.refuse(outer, scaling, "only a table of values is possible")
        inner = Keys(keys.where, {f"{outer}.{key}": value for key, value in scaling.items()}, f"{outer}.")
        base = inner.number("rope_theta", base)
        kind, old_kind = inner.get("rope_type"), inner.get("type")
        kind = old_kind if kind is None else kind
        inner.only("partial_rotary_factor", 1.0, 1)
        if kind == "llama3":
            factors = llama3_factors(
                base,
                head_dim,
                factor=inner.number("factor"),
                low=inner.number("low_freq_factor"),
                high=inner.number("high_freq_factor"),
                original_context=inner.number("original_max_position_embeddings"),
            )
        elif kind not in (None, "default"):
            inner.refuse("rope_type", kind, "only llama3 rope scaling is supported")
        inner.refuse_rest()
    return base, factors
