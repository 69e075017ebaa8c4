"""`HybridConfig` from a GGUF header of `bailingmoe3` (Ling-3.0) or `kimi-linear`. Knows keys, no tensors' values.

Sources: the gguf package's key tables, llama.cpp's converters and loaders of the two. What a key's absence means is
what those loaders take it for.
"""

from __future__ import annotations

from lingchat.architectures.gguf_common import architecture_of, block_count, check_neutral, vocab_rows
from lingchat.architectures.hybrid import HybridConfig, KDAConfig, LayerKind, MLAConfig, MoEConfig
from lingchat.architectures.keys import Keys
from lingchat.catalog.headers import GGUFHeader

# general.architecture: Hugging Face's class.
ARCHITECTURES = {"bailingmoe3": "BailingMoeV3ForCausalLM", "kimi-linear": "KimiLinearForCausalLM"}

_SIGMOID = 2  # llama.cpp's number of the gating function
# Switches of other architectures: absent, or at a value that changes nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "attention.sliding_window": (0,),
    "moe_every_n_layers": (0, 1),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}


def gguf_config(header: GGUFHeader) -> HybridConfig:
    """The configuration a GGUF header states.

    Raises UnsupportedModel for an architecture or a key that is not understood, ModelFileError for a contradiction.
    """
    name = architecture_of(header, ARCHITECTURES)
    keys = Keys(str(header.path), header.metadata, f"{name}.")
    check_neutral(keys, _NEUTRAL)
    config = _ling(header, keys) if name == "bailingmoe3" else _kimi(header, keys)
    keys.refuse_rest()
    return config


def _ling(header: GGUFHeader, keys: Keys) -> HybridConfig:
    blocks = block_count(header, keys)
    announced = keys.natural("nextn_predict_layers", 0)  # the last blocks, and part of their number
    if announced > 1 or announced >= blocks:
        keys.refuse("nextn_predict_layers", announced, "at most one drafting layer behind the others is supported")
    layers = blocks - announced
    dense = keys.natural("leading_dense_block_count")
    heads = keys.count("attention.head_count")
    keys.only("kda.safe_gate", True)
    kinds = _kinds(keys, layers, blocks)
    mla = _mla(keys, heads, rope_base=keys.number("rope.freq_base", 10000.0), gated=True)
    head_dim = keys.count("kda.head_dim")
    keys.only("attention.value_length", mla.kv_rank, mla.value, head_dim)  # converters leave the last one there
    return HybridConfig(
        architecture=ARCHITECTURES["bailingmoe3"],
        hidden=keys.count("embedding_length"),
        vocab=vocab_rows(header, keys),
        context=keys.count("context_length"),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        tied="output.weight" not in header.tensors,
        kinds=kinds,
        dense_layers=dense,
        ffn=keys.count("feed_forward_length"),
        kda=KDAConfig(
            heads=heads,
            head_dim=head_dim,
            taps=keys.count("ssm.conv_kernel"),
            gate="bounded",
            lower_bound=keys.within("kda.gate_lower_bound", -5.0, 0.0),
            rank=None,
        ),
        mla=mla,
        moe=_moe(keys, renormalize=keys.flag("expert_weights_norm", False)),
        routed_limits=_limits(keys, "swiglu_clamp_exp", layers, blocks, dense),
        shared_limits=_limits(keys, "swiglu_clamp_shexp", layers, blocks, dense),
        # A file may announce the drafting block and leave its tensors out.
        mtp_layers=announced if f"blk.{layers}.nextn.eh_proj.weight" in header.tensors else 0,
        stacked_experts=True,
        split_kv_b=_split(header, kinds),
    )


def _kimi(header: GGUFHeader, keys: Keys) -> HybridConfig:
    layers = block_count(header, keys)
    heads, head_dim = keys.count("attention.head_count"), keys.count("kda.head_dim")
    keys.only("nextn_predict_layers", 0)
    keys.only("expert_weights_norm", True)  # its loader normalises in any case
    keys.ignore(("rope.freq_base", "attention.value_length"))  # nothing is rotated; a size that its loader never reads
    kinds = _kinds(keys, layers, layers)
    nothing = (0.0,) * layers
    return HybridConfig(
        architecture=ARCHITECTURES["kimi-linear"],
        hidden=keys.count("embedding_length"),
        vocab=vocab_rows(header, keys),
        context=keys.count("context_length"),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        tied=False,
        kinds=kinds,
        dense_layers=keys.natural("leading_dense_block_count", 0),
        ffn=keys.count("feed_forward_length"),
        kda=KDAConfig(
            heads=heads,
            head_dim=head_dim,
            taps=keys.count("ssm.conv_kernel"),
            gate="softplus",
            lower_bound=0.0,
            rank=head_dim,
        ),
        mla=_mla(keys, heads, rope_base=None, gated=False),
        moe=_moe(keys, renormalize=True),
        routed_limits=nothing,
        shared_limits=nothing,
        stacked_experts=True,
        split_kv_b=_split(header, kinds),
    )


def _kinds(keys: Keys, layers: int, blocks: int) -> tuple[LayerKind, ...]:
    """The array of KV heads says what a block is: none is KDA, any is MLA. A drafting block is MLA."""
    key = "attention.head_count_kv"
    heads = keys.get(key)
    if not isinstance(heads, list) or len(heads) not in (layers, blocks) or any(type(n) is not int for n in heads):
        keys.wrong(key, heads, f"a list of {blocks} numbers, 0 for a KDA block")
    if not all(heads[layers:]):
        keys.refuse(key, heads[layers:], "only MLA is supported in the drafting block")
    return tuple("mla" if n else "kda" for n in heads[:layers])


def _mla(keys: Keys, heads: int, *, rope_base: float | None, gated: bool) -> MLAConfig:
    rope, rank = keys.count("rope.dimension_count"), keys.count("attention.kv_lora_rank")
    width = keys.count("attention.key_length_mla")
    if width <= rope:
        keys.wrong("attention.key_length_mla", width, f"more than the {rope} shared dimensions")
    # Attention is written down as it runs over latents, or, in files with attn_kv_b, as it runs over heads.
    keys.only("attention.key_length", rank + rope, width)
    return MLAConfig(
        heads=heads,
        nope=width - rope,
        rope=rope,
        value=keys.count("attention.value_length_mla"),
        kv_rank=rank,
        q_rank=None if keys.get("attention.q_lora_rank") in (None, 0) else keys.count("attention.q_lora_rank"),
        rope_base=rope_base,
        gated=gated,
        scale=width**-0.5,
    )


def _moe(keys: Keys, *, renormalize: bool) -> MoEConfig:
    keys.must("expert_gating_func", _SIGMOID)
    width = keys.count("expert_feed_forward_length")
    return MoEConfig(
        experts=keys.count("expert_count"),
        chosen=keys.count("expert_used_count"),
        groups=keys.natural("expert_group_count", 1) or 1,
        chosen_groups=keys.natural("expert_group_used_count", 1) or 1,
        width=width,
        shared_width=keys.count("expert_shared_feed_forward_length", width * keys.count("expert_shared_count")),
        scale=1.0 if keys.get("expert_weights_scale") == 0 else keys.number("expert_weights_scale", 1.0),
        renormalize=renormalize,
    )


def _limits(keys: Keys, key: str, layers: int, blocks: int, dense: int) -> tuple[float, ...]:
    """The SwiGLU limit of every layer of the main model. llama.cpp limits dense blocks by it too; none here has one."""
    said = keys.get(key)
    length = layers if isinstance(said, list) and len(said) == layers else blocks
    limits = keys.numbers(key, length) or (0.0,) * layers
    if any(limits[:dense]) or any(limits[layers:]):
        keys.refuse(key, said, "only layers with experts, and no drafting layer, can be limited")
    return limits[:layers]


def _split(header: GGUFHeader, kinds: tuple[LayerKind, ...]) -> bool:
    """The latent's up-projection lies in two tensors."""
    return any(f"blk.{i}.attn_k_b.weight" in header.tensors for i, kind in enumerate(kinds) if kind == "mla")
