"""Keys of a config.json that both hybrid architectures have, read alike. Knows no architecture. No torch."""

from __future__ import annotations

from typing import Any

from lingchat.architectures.hybrid import LayerKind
from lingchat.architectures.keys import Keys

_MOST_EXPERTS = 1 << 16
_TYPES: dict[str, LayerKind] = {"linear_attention": "kda", "full_attention": "mla"}


def layer_types(keys: Keys, layers: int) -> tuple[LayerKind, ...] | None:
    """The kind of every layer as transformers 5 lists it; None where it does not."""
    types = keys.get("layer_types")
    if types is None:
        return None
    if not isinstance(types, list) or len(types) != layers or not set(map(str, types)) <= _TYPES.keys():
        keys.wrong("layer_types", types, f"a list of {layers}, each {' or '.join(_TYPES)}")
    return tuple(_TYPES[kind] for kind in types)


def dense_layers(keys: Keys, layers: int) -> int:
    """How many layers at the beginning have no experts: from transformers 5's list, or from the authors' count."""
    types = keys.get("mlp_layer_types")
    if types is None:
        return keys.natural("first_k_dense_replace")
    dense = types.count("dense") if isinstance(types, list) else 0
    if types != ["dense"] * dense + ["sparse"] * (layers - dense):
        keys.wrong("mlp_layer_types", types, f"a list of {layers}, first 'dense', then 'sparse'")
    keys.only("first_k_dense_replace", dense)
    return dense


def expert_count(keys: Keys, key: str) -> int:
    experts = keys.count(key)
    if experts > _MOST_EXPERTS:
        keys.wrong(key, experts, f"at most {_MOST_EXPERTS}")
    return experts


def plain_blocks(keys: Keys) -> None:
    """What neither architecture has: biases, or another activation."""
    keys.must("hidden_act", "silu")
    for key in ("use_bias", "use_qkv_bias", "attention_bias", "mlp_bias"):
        keys.only(key, False)
    keys.only("is_encoder_decoder", False)


def mla_sizes(keys: Keys, heads: int, rope: int) -> dict[str, Any]:
    """The sizes of latent attention that both architectures name alike."""
    nope = keys.count("qk_nope_head_dim")
    keys.only("qk_head_dim", nope + rope)
    return {
        "heads": heads,
        "nope": nope,
        "rope": rope,
        "value": keys.count("v_head_dim"),
        "kv_rank": keys.count("kv_lora_rank"),
        "q_rank": None if keys.get("q_lora_rank") is None else keys.count("q_lora_rank"),
    }
