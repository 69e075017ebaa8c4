"""What a hybrid model's tensors are called in each kind of file, and the shapes they may have there.

Names of Ling-3.0 folders as SGLang's and vLLM's loaders of `bailing_moe_v3` read them, of Kimi-Linear folders as
SGLang's `kimi_linear` does, and of both as transformers' `save_pretrained` writes them; of GGUF files as the gguf
package's tables and llama.cpp's loaders of `bailingmoe3` and `kimi-linear` have them.

A name is looked up under the kind of its layer: KDA and MLA layers both have an `attention.g_proj.weight`, of different
shapes and meanings. Knows no files.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.hybrid_names import expected_shapes

Shape = tuple[int, ...]
# How a file states the rate exp(A_log) of a KDA layer: as it is, as its logarithm, or with the sign of the decay.
Rate = Literal["rate", "log", "negative"]


class Stored(NamedTuple):
    """One canonical tensor as files have it: a file holds it under exactly one of `names`, in one of `shapes`.

    Shapes differ from the canonical one, which is the first, by dimensions of 1 only.
    """

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    rate: Rate | None = None  # of `kda.A` only


_EXPERT = re.compile(r"moe\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
_PARTS = ("gate", "up", "down")
_KIMI_PARTS = {"gate": "w1", "up": "w3", "down": "w2"}

# Within a layer: the canonical name to the name, or names, in a folder.
_MLA = {
    "q_proj": "q_proj",
    "q_a_proj": "q_a_proj",
    "q_a_norm": "q_a_layernorm",
    "q_b_proj": "q_b_proj",
    "kv_a_proj": "kv_a_proj_with_mqa",
    "kv_a_norm": "kv_a_layernorm",
    "kv_b_proj": "kv_b_proj",
    "g_proj": "g_proj",
}
_KDA = {
    **{f"{part}_proj.weight": f"{part}_proj.weight" for part in (*"qkvfgbo", "f_a", "f_b", "g_a", "g_b")},
    **{f"{part}_conv.weight": f"{part}_conv1d.weight" for part in "qkv"},
    "A": "A_log",
    "dt_bias": "dt_bias",
    "o_norm.weight": "o_norm.weight",
}
_LAYER = tuple(
    f"{norm}.weight"
    for norm in ("input_layernorm", "post_attention_layernorm", "enorm", "hnorm", "eh_proj", "final_layernorm")
)


def _folder_names(attention: str, mla_out: str, experts: str, dense: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    bias = ("expert_bias", "e_score_correction_bias")
    names: dict[str, tuple[str, ...]] = {name: (name,) for name in _LAYER}
    names |= {f"kda.{ours}": (f"{attention}.{theirs}",) for ours, theirs in _KDA.items()}
    names |= {f"mla.{ours}.weight": (f"{attention}.{theirs}.weight",) for ours, theirs in _MLA.items()}
    # transformers' renaming of an MLA layer's out-projection is undone for both kinds of layer.
    names["kda.o_proj.weight"] = tuple(f"{attention}.{out}.weight" for out in dict.fromkeys(("o_proj", mla_out)))
    names["mla.o_proj.weight"] = (f"{attention}.{mla_out}.weight",)
    names["moe.router.weight"] = (f"{experts}.gate.weight",)
    names["moe.router_bias"] = tuple(f"{experts}.gate.{name}" for name in bias)
    for part in _PARTS:
        names[f"mlp.{part}_proj.weight"] = tuple(f"{module}.{part}_proj.weight" for module in dense)
        names[f"moe.shared.{part}_proj.weight"] = (f"{experts}.shared_experts.{part}_proj.weight",)
    return names


_LING_LAYER = _folder_names("attention", "dense", "mlp", ("mlp",))
# transformers writes the dense block under the experts' name: its renaming is undone for both.
_KIMI_LAYER = _folder_names("self_attn", "o_proj", "block_sparse_moe", ("mlp", "block_sparse_moe"))

_GGUF_OUTER = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
_GGUF_OUTER["lm_head.weight"] = "output.weight"
_GGUF_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "final_layernorm.weight": "layer_output_norm.weight",
    **{f"{name}.weight": f"nextn.{name}.weight" for name in ("enorm", "hnorm", "eh_proj")},
    **{f"kda.{part}_proj.weight": f"attn_{part}.weight" for part in "qkv"},
    **{f"kda.{part}_conv.weight": f"ssm_conv1d_{part}.weight" for part in "qkv"},
    # A full projection has the name of the first of a pair.
    **{f"kda.{part}_proj.weight": f"ssm_{part}_a.weight" for part in "fg"},
    **{f"kda.{part}_{half}_proj.weight": f"ssm_{part}_{half}.weight" for part in "fg" for half in "ab"},
    "kda.b_proj.weight": "ssm_beta.weight",
    "kda.A": "ssm_a",
    "kda.dt_bias": "ssm_dt.bias",
    "kda.o_norm.weight": "ssm_norm.weight",
    "kda.o_proj.weight": "attn_output.weight",
    **{f"mla.{part}_proj.weight": f"attn_{part}.weight" for part in ("q", "q_a", "q_b", "kv_b", "k_b", "v_b")},
    "mla.q_a_norm.weight": "attn_q_a_norm.weight",
    "mla.kv_a_proj.weight": "attn_kv_a_mqa.weight",
    "mla.kv_a_norm.weight": "attn_kv_a_norm.weight",
    "mla.g_proj.weight": "attn_gate.weight",
    "mla.o_proj.weight": "attn_output.weight",
    "moe.router.weight": "ffn_gate_inp.weight",
    "moe.router_bias": "exp_probs_b.bias",
    **{f"mlp.{part}_proj.weight": f"ffn_{part}.weight" for part in _PARTS},
    **{f"moe.experts.{part}_proj.weight": f"ffn_{part}_exps.weight" for part in _PARTS},
    **{f"moe.shared.{part}_proj.weight": f"ffn_{part}_shexp.weight" for part in _PARTS},
}


def folder_tensors(config: HybridConfig) -> dict[str, Stored]:
    """Every tensor of a safetensors folder by canonical name, in the order of the computation."""
    ling = config.architecture == "BailingMoeV3ForCausalLM"
    return {
        name: Stored(_folder_name(name, ling), _shapes(name, shape), _rate(name, "log"))
        for name, shape in expected_shapes(config).items()
    }


def gguf_tensors(config: HybridConfig) -> dict[str, Stored]:
    """Every tensor of a GGUF file by canonical name, in the order of the computation."""
    rate: Rate = "rate" if config.architecture == "BailingMoeV3ForCausalLM" else "negative"
    return {
        name: Stored((_gguf_name(name),), _shapes(name, shape), _rate(name, rate))
        for name, shape in expected_shapes(config).items()
    }


def _folder_name(name: str, ling: bool) -> tuple[str, ...]:
    if name == "lm_head.weight":
        return (name,)
    if name == "embed_tokens.weight" and ling:
        return ("model.word_embeddings.weight",)
    if not name.startswith("layers."):
        return (f"model.{name}",)
    _, layer, inner = name.split(".", 2)
    prefix = f"model.layers.{layer}."
    if expert := _EXPERT.fullmatch(inner):
        number, part = expert.groups()
        of = f"mlp.experts.{number}.{part}_proj" if ling else f"block_sparse_moe.experts.{number}.{_KIMI_PARTS[part]}"
        return (f"{prefix}{of}.weight",)
    return tuple(prefix + theirs for theirs in (_LING_LAYER if ling else _KIMI_LAYER)[inner])


def _gguf_name(name: str) -> str:
    if not name.startswith("layers."):
        return _GGUF_OUTER[name]
    _, layer, inner = name.split(".", 2)
    return f"blk.{layer}.{_GGUF_LAYER[inner]}"


def _shapes(name: str, shape: Shape) -> tuple[Shape, ...]:
    # llama.cpp's quantiser drops outer dimensions of 1, so that a GGUF file may have any of these.
    if name.endswith("_conv.weight"):
        channels, taps = shape
        return shape, (channels, 1, taps), (1, channels, 1, taps)
    if name.endswith(".kda.A"):
        (heads,) = shape
        return shape, (heads, 1), (1, 1, heads, 1)
    return (shape,)


def _rate(name: str, rate: Rate) -> Rate | None:
    return rate if name.endswith(".kda.A") else None
