"""`HybridConfig` from a Hugging Face `config.json` of Ling-3.0 or Kimi-Linear.

Dispatches on `architectures`, never on `model_type`: `bailing_hybrid` names two kinds of model. The keys of both come
in two spellings, their authors' own and that of transformers 5, which writes Ling-3.0 as `BailingHybridForCausalLM`.
Sources: the configuration classes of all, and SGLang's and vLLM's loaders of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lingchat.architectures.hf_common import HARMLESS, layer_count
from lingchat.architectures.hybrid import HybridConfig, KDAConfig, LayerKind, MLAConfig, MoEConfig
from lingchat.architectures.hybrid_keys import dense_layers, expert_count, layer_types, mla_sizes, plain_blocks
from lingchat.architectures.keys import Keys
from lingchat.architectures.quantization import read_quantization
from lingchat.architectures.yarn import read_yarn
from lingchat.catalog.headers import SafetensorsHeader
from lingchat.errors import UnsupportedModel

# What a config.json calls an architecture, and what a HybridConfig does.
ARCHITECTURES = {
    "BailingMoeV3ForCausalLM": "BailingMoeV3ForCausalLM",
    "BailingHybridForCausalLM": "BailingMoeV3ForCausalLM",
    "KimiLinearForCausalLM": "KimiLinearForCausalLM",
}

# Of both: dropout and losses of training, and the class of the checkpoint's own code.
_TRAINING = (
    "auto_map",
    "embedding_dropout",
    "output_dropout",
    "output_router_logits",
    "router_aux_loss_coef",
    "aux_loss_alpha",
    "mtp_loss_scaling_factor",
    "seq_aux",
)
# Keys that Ling-3.0's configurations carry and none of its code reads.
_UNUSED_BY_LING = (
    "use_qk_norm",
    "linear_silu",
    "max_window_layers",
    "mtp_use_kda",
    "use_nGPT",
    "scale_router_input",
    "group_norm_size",
    "num_kv_heads_for_linear_attn",
    "up_proj_norm",
    "value_norm",
    "use_kda_lora",
)
# Nothing is rotated in Kimi-Linear, so the base says nothing; `head_dim` is left over from another model.
_UNUSED_BY_KIMI = ("head_dim", "rope_theta")


def hf_config(header: SafetensorsHeader) -> HybridConfig:
    """The configuration of a folder's `config.json`.

    Raises UnsupportedModel for an architecture or a key that is not understood, ModelFileError for a contradiction.
    """
    return config_of(str(header.folder / "config.json"), header.config, header.tensors.keys())


def config_of(where: str, raw: dict[str, Any], tensors: Collection[str] | None) -> HybridConfig:
    """The configuration `raw` states. `tensors` are the names of the checkpoint; None: there are only these keys.

    `where` begins every error. Raises as `hf_config`.
    """
    keys = Keys(where, raw)
    keys.ignore(HARMLESS)
    keys.ignore(_TRAINING)
    names = keys.get("architectures")
    if names in (["BailingMoeV3ForCausalLM"], ["BailingHybridForCausalLM"]):
        config = _ling(keys, tensors, resaved=names == ["BailingHybridForCausalLM"])
    elif names == ["KimiLinearForCausalLM"]:
        config = _kimi(keys, tensors)
    else:
        raise UnsupportedModel(f"{where}: architectures is {names!r:.80}. Known: {', '.join(ARCHITECTURES)}.")
    keys.refuse_rest()
    return config


# Ling-3.0


def _ling(keys: Keys, tensors: Collection[str] | None, *, resaved: bool) -> HybridConfig:
    """`resaved`: by transformers' class. It has one kind of each block and need not say which, and says all else,
    beside whatever the published configuration said. It knows no SwiGLU limits, but keeps their lists."""
    layers = layer_count(keys, tensors)
    heads, head_dim = keys.count("num_attention_heads"), _kda_head_dim(keys)
    keys.only("num_key_value_heads", heads)
    keys.only("linear_num_heads", heads)
    plain_blocks(keys)
    # The decay of full rank within bounds, and a gate of one value a head: the other forms have other tensors.
    said = keys.only if resaved else keys.must
    said("no_kda_lora", True)
    keys.must("kda_safe_gate", True)
    said("gated_attention_proj_granularity_type", "head_wise")
    if resaved:
        keys.only("tie_word_embeddings", False)  # the class never ties them
        keys.must("rms_norm_eps", 1e-6)  # which is what it norms latents with, whatever this says
    keys.ignore(_UNUSED_BY_LING)
    kinds = _ling_kinds(keys, layers, resaved)
    dense = dense_layers(keys, layers)
    limits = [_limits(keys, f"{who}_swiglu_limit_list", layers, dense) for who in ("expert", "share_expert")]
    taps = keys.count("short_conv_kernel_size")
    keys.only("linear_conv_kernel_dim", taps)
    return HybridConfig(
        architecture="BailingMoeV3ForCausalLM",
        hidden=keys.count("hidden_size"),
        vocab=keys.count("vocab_size"),
        context=keys.count(keys.either("max_position_embeddings", "model_max_length")),
        norm_eps=keys.number("rms_norm_eps"),
        tied=keys.flag("tie_word_embeddings", False),
        kinds=kinds,
        dense_layers=dense,
        ffn=keys.count("intermediate_size"),
        kda=KDAConfig(
            heads=heads,
            head_dim=head_dim,
            taps=taps,
            gate="bounded",
            lower_bound=keys.within("kda_lower_bound", -5.0, 0.0),
            rank=None,
        ),
        mla=_ling_mla(keys, heads, head_dim, resaved),
        moe=_ling_moe(keys, resaved),
        routed_limits=limits[0],
        shared_limits=limits[1],
        mtp_layers=_mtp(keys, layers, tensors),
        quantization=read_quantization(keys),
    )


def _kda_head_dim(keys: Keys) -> int:
    """transformers moves it to `linear_head_dim`, and writes the rotated width of MLA heads to `head_dim`."""
    if keys.get("linear_head_dim") is None:
        return keys.count("head_dim")
    size = keys.count("linear_head_dim")
    keys.only("head_dim", size, keys.count("qk_rope_head_dim"))
    return size


def _ling_kinds(keys: Keys, layers: int, resaved: bool) -> tuple[LayerKind, ...]:
    """The last layer of each group is MLA, and so is what is left over after the last whole group, unless a list that
    transformers wrote says otherwise: its own rule makes KDA layers of that."""
    group = keys.count("layer_group_size")
    whole = layers // group * group
    kinds: tuple[LayerKind, ...] = tuple("mla" if (i + 1) % group == 0 or i >= whole else "kda" for i in range(layers))
    types = layer_types(keys, layers)
    if types is None:
        if resaved:
            keys.wrong("layer_types", None, f"a list of {layers}, one a layer")
        return kinds
    sure = whole if resaved else layers
    if types[:sure] != kinds[:sure]:
        wanted = f"'full_attention' for the last of every {group} layers, as layer_group_size says"
        keys.wrong("layer_types", keys.get("layer_types"), wanted)
    return types


def _ling_mla(keys: Keys, heads: int, head_dim: int, resaved: bool) -> MLAConfig:
    rope = keys.count("qk_rope_head_dim")
    # Both tell how much of `head_dim` is rotated in other models. Here `rope` says it, and all of it is rotated.
    keys.only("rotary_dim", rope)
    keys.only("partial_rotary_factor", 1, 1.0, rope / head_dim)
    if resaved:
        keys.only("use_mla_nope", False)
    still = keys.flag("use_mla_nope", False)
    if not still:
        (keys.only if resaved else keys.must)("rope_interleave", True)
    keys.ignore(("rope_interleave",))
    base, factors, stretch = _rope(keys, rope, head_dim, still)
    mla = mla_sizes(keys, heads, rope)
    return MLAConfig(
        **mla,
        rope_base=None if still else base,
        rope_factors=factors,
        gated=True,
        scale=(mla["nope"] + rope) ** -0.5 * stretch,
    )


def _rope(keys: Keys, rope: int, head_dim: int, still: bool) -> tuple[float, tuple[float, ...] | None, float]:
    """Base, divisors, and what the scores' scale is multiplied by; from `rope_theta` and `rope_scaling`, or from the
    `rope_parameters` of transformers 5."""
    base, factors, stretch = keys.get("rope_theta"), None, 1.0
    base = None if base is None else keys.number("rope_theta")
    for outer in ("rope_scaling", "rope_parameters"):
        table = keys.table(outer)
        if table is None:
            continue
        inner = None if table.get("rope_theta") is None else table.number("rope_theta")
        if inner is not None and base not in (None, inner):
            table.wrong("rope_theta", inner, f"the same as rope_theta, {base:g}")
        base = inner if base is None else base
        table.only("partial_rotary_factor", 1, 1.0, rope / head_dim)
        kind = table.get(table.either("rope_type", "type"))
        if kind == "yarn" and not still:
            factors, stretch = read_yarn(table, base or keys.number("rope_theta"), rope)
        elif kind not in (None, "default"):
            table.refuse("rope_type", kind, "only yarn, on rotated dimensions, is supported")
        table.refuse_rest()
    if base is None and not still:
        keys.wrong("rope_theta", None, "a number above 0")
    return base or 0.0, factors, stretch


def _ling_moe(keys: Keys, resaved: bool) -> MoEConfig:
    said = keys.only if resaved else keys.must
    keys.must(keys.either("num_shared_experts", "n_shared_experts"), 1)
    said(keys.either("score_function", "scoring_func"), "sigmoid")
    said("moe_router_enable_expert_bias", True)
    keys.only("topk_method", "noaux_tc")
    keys.only("router_dtype", "fp32")
    width = keys.count("moe_intermediate_size")
    if resaved:
        keys.only("moe_shared_expert_intermediate_size", width)
    return MoEConfig(
        experts=expert_count(keys, keys.either("num_experts", "num_local_experts")),
        chosen=keys.count(keys.either("num_experts_per_tok", "num_experts_per_token")),
        groups=keys.count(keys.either("n_group", "num_expert_group")),
        chosen_groups=keys.count("topk_group"),
        width=width,
        shared_width=keys.count("moe_shared_expert_intermediate_size", width),
        scale=keys.number("routed_scaling_factor"),
        renormalize=keys.flag(keys.either("norm_topk_prob", "moe_renormalize")),
    )


def _limits(keys: Keys, key: str, layers: int, dense: int) -> tuple[float, ...]:
    """The SwiGLU limit of every layer of the main model; a drafting layer has none."""
    limits = keys.numbers(key, layers) or (0.0,) * layers
    if any(limits[:dense]):
        keys.refuse(key, list(limits[:dense]), f"the first {dense} layers have no experts to limit")
    return limits


def _mtp(keys: Keys, layers: int, tensors: Collection[str] | None) -> int:
    """Drafting layers: as many as announced, or none where the checkpoint was published without their tensors, as all
    are that transformers saves."""
    key = keys.either("num_nextn_predict_layers", "num_mtp_layers")
    announced = keys.natural(key, 0)
    if announced > 1:
        keys.refuse(key, announced, "at most one drafting layer is supported")
    first = f"model.layers.{layers}."
    held = tensors is None or any(name.startswith(first) for name in tensors)
    return announced if held else 0


# Kimi-Linear


def _kimi(keys: Keys, tensors: Collection[str] | None) -> HybridConfig:
    layers = layer_count(keys, tensors)
    heads = keys.count("num_attention_heads")
    keys.only("num_key_value_heads", heads)
    plain_blocks(keys)
    keys.only("mla_use_nope", True)  # transformers 5 leaves it out: its class rotates nothing either
    keys.only("rope_scaling")
    keys.only("num_nextn_predict_layers", 0)
    keys.only("moe_layer_freq", 1)
    keys.ignore(_UNUSED_BY_KIMI)
    linear = _Linear(keys, layers)
    rope = keys.count("qk_rope_head_dim")
    mla = mla_sizes(keys, heads, rope)
    nothing = (0.0,) * layers
    return HybridConfig(
        architecture="KimiLinearForCausalLM",
        hidden=keys.count("hidden_size"),
        vocab=keys.count("vocab_size"),
        context=keys.count(keys.either("model_max_length", "max_position_embeddings")),
        norm_eps=keys.number("rms_norm_eps"),
        tied=keys.flag("tie_word_embeddings", False),
        kinds=linear.kinds,
        dense_layers=dense_layers(keys, layers),
        ffn=keys.count("intermediate_size"),
        kda=KDAConfig(
            heads=linear.heads,
            head_dim=linear.head_dim,
            taps=linear.taps,
            gate="softplus",
            lower_bound=0.0,
            rank=linear.head_dim,
        ),
        mla=MLAConfig(**mla, rope_base=None, gated=False, scale=(mla["nope"] + rope) ** -0.5),
        moe=_kimi_moe(keys),
        routed_limits=nothing,
        shared_limits=nothing,
        quantization=read_quantization(keys),
    )


class _Linear:
    """The KDA layers: from `linear_attn_config`, whose lists count from 1, or from transformers 5's flat keys."""

    def __init__(self, keys: Keys, layers: int) -> None:
        flat = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
        nested = keys.table("linear_attn_config")
        said = layer_types(keys, layers)
        if nested is None:
            self.heads, self.head_dim, self.taps = (keys.count(name) for name in flat)
            if said is None:
                keys.wrong("linear_attn_config", None, "there, or `layer_types`")
            self.kinds = said
            return
        sizes = [nested.count(name) for name in ("num_heads", "head_dim", "short_conv_kernel_size")]
        for name, size in zip(flat, sizes, strict=True):
            keys.only(name, size)
        self.heads, self.head_dim, self.taps = sizes
        self.kinds = self._lists(nested, layers)
        if said not in (None, self.kinds):
            keys.wrong("layer_types", keys.get("layer_types"), "the layers that linear_attn_config lists")
        nested.refuse_rest()

    @staticmethod
    def _lists(nested: Keys, layers: int) -> tuple[LayerKind, ...]:
        kda, full = nested.get("kda_layers"), nested.get("full_attn_layers")
        for key, found in (("kda_layers", kda), ("full_attn_layers", full)):
            if not isinstance(found, list) or not all(type(n) is int for n in found):
                nested.wrong(key, found, "a list of layer numbers, counted from 1")
        if sorted((*kda, *full)) != list(range(1, layers + 1)):
            nested.wrong("kda_layers", kda, f"with full_attn_layers each of the layers 1 to {layers} once")
        return tuple("kda" if i + 1 in set(kda) else "mla" for i in range(layers))


def _kimi_moe(keys: Keys) -> MoEConfig:
    keys.only("moe_router_activation_func", "sigmoid")
    groups = keys.count(keys.either("num_expert_group", "n_group"), 1)
    keys.only("use_grouped_topk", *((True,) if groups > 1 else (True, False)))
    keys.only("topk_method", "noaux_tc")
    width = keys.count("moe_intermediate_size")
    return MoEConfig(
        experts=expert_count(keys, keys.either("num_experts", "num_local_experts")),
        chosen=keys.count(keys.either("num_experts_per_token", "num_experts_per_tok")),
        groups=groups,
        chosen_groups=keys.count("topk_group", 1),
        width=width,
        shared_width=width * keys.count(keys.either("num_shared_experts", "n_shared_experts")),
        scale=keys.number("routed_scaling_factor"),
        renormalize=keys.flag(keys.either("moe_renormalize", "norm_topk_prob")),
    )
