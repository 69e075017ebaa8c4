"""Tiny random checkpoints of the Ling-3.0 and Kimi-Linear architectures, complete: weights, tokenizer, chat template.

`write_ling_hf` and `write_kimi_hf` write safetensors folders in the published naming, `write_ling_gguf` and
`write_kimi_gguf` what llama.cpp's converter writes. All of one seed and size hold the same weights. Each returns a
`Tiny`: the configuration that reading must give, and by canonical name the fp32 values that the file's bytes stand
for, with the experts of a layer stacked and the latent's up-projection whole, however the file has them.

The names of `hybrid_names.py` are used here, those of files are written down anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import torch
from make_models import MERGES, byte_letters
from safetensors.torch import save_file

from lingchat.architectures.hybrid import HybridConfig, KDAConfig, LayerKind, MLAConfig, MoEConfig
from lingchat.architectures.hybrid_names import expected_shapes

Values = dict[str, torch.Tensor]  # fp32 by canonical name

VOCAB = 512
SPECIAL = (
    "<|endoftext|>", "<|role_end|>", "<role>", "</role>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<tool_response>", "</tool_response>",
)  # fmt: skip
FIRST_SPECIAL = VOCAB - len(SPECIAL)
PAD, EOS = FIRST_SPECIAL, FIRST_SPECIAL + 1
TEMPLATE = (
    "{%- set directive = 'detailed thinking ' + ('off' if enable_thinking is defined and not enable_thinking else 'on') -%}"
    "{{- '<role>SYSTEM</role>' -}}"
    "{%- if messages[0].role == 'system' -%}{{- messages[0].content + '\\n' -}}{%- endif -%}"
    "{{- directive + '<|role_end|>' -}}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'user' -%}{{- '<role>HUMAN</role>' + message.content + '<|role_end|>' -}}"
    "{%- elif message.role == 'assistant' -%}"
    "{{- '<role>ASSISTANT</role>\\n<think></think>' + message.content + '<|role_end|>' -}}"
    "{%- elif message.role == 'system' and not loop.first -%}"
    "{{- '<role>SYSTEM</role>' + message.content + '<|role_end|>' -}}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<role>ASSISTANT</role>\\n<think>' -}}"
    "{%- if enable_thinking is defined and not enable_thinking -%}{{- '</think>' -}}{%- endif -%}{%- endif -%}"
)


@dataclass
class Tiny:
    path: Path
    config: HybridConfig
    tensors: Values


# --------------------------------------------------------------------------------------------------- configurations


@dataclass(frozen=True)
class _Head:
    kda: int
    nope: int
    rope: int
    value: int
    kv_rank: int

    def mla(self, heads: int, *, q_rank: int | None, rope_base: float | None, gated: bool) -> MLAConfig:
        scale = (self.nope + self.rope) ** -0.5
        return MLAConfig(heads, self.nope, self.rope, self.value, self.kv_rank, q_rank, rope_base, gated, scale)


_TINY_HEAD = _Head(kda=32, nope=32, rope=16, value=32, kv_rank=64)
_PUBLISHED_HEAD = _Head(kda=128, nope=128, rope=64, value=128, kv_rank=512)


def ling_kinds(layers: int, period: int) -> tuple[LayerKind, ...]:
    """Every `period`-th layer and all of a last incomplete period attend fully."""
    whole = layers // period * period
    return tuple("mla" if (i + 1) % period == 0 or i >= whole else "kda" for i in range(layers))


def ling_config(
    *,
    period: int = 4,
    layers: int = 9,
    q_rank: int | None = None,
    experts: int = 16,
    dense: int = 1,
    limits: bool = False,
    mtp: int = 0,
    hidden: int = 64,
    heads: int = 2,
    head_dim: int | None = None,
    published_heads: bool = False,
) -> HybridConfig:
    """A tiny Ling-3.0. `head_dim` is of KDA alone. `limits`: the routed experts of the last two layers and the shared ones of the last three are
    limited, low enough to bite. `published_heads`: a head is as large as in the published models."""
    head = _PUBLISHED_HEAD if published_heads else _TINY_HEAD
    return HybridConfig(
        architecture="BailingMoeV3ForCausalLM",
        hidden=hidden,
        vocab=VOCAB,
        context=2048,
        norm_eps=1e-6,
        tied=False,
        kinds=ling_kinds(layers, period),
        dense_layers=dense,
        ffn=96,
        kda=KDAConfig(heads, head_dim or head.kda, 4, "bounded", -5.0, None),
        mla=head.mla(heads, q_rank=q_rank, rope_base=6000000.0, gated=True),
        moe=MoEConfig(experts, 4, 4, 2, 32, 32, 2.5, True),
        routed_limits=tuple(0.5 if limits and i >= layers - 2 else 0.0 for i in range(layers)),
        shared_limits=tuple(
            (0.4 if i < layers - 1 else 0.7) if limits and i >= layers - 3 else 0.0 for i in range(layers)
        ),
        mtp_layers=mtp,
    )


def kimi_config(
    *, layers: int = 5, experts: int = 16, hidden: int = 64, heads: int = 2, published_heads: bool = False
) -> HybridConfig:
    """A tiny Kimi-Linear: every fourth layer and the last attend fully."""
    none, head = (0.0,) * layers, _PUBLISHED_HEAD if published_heads else _TINY_HEAD
    return HybridConfig(
        architecture="KimiLinearForCausalLM",
        hidden=hidden,
        vocab=VOCAB,
        context=2048,
        norm_eps=1e-5,
        tied=False,
        kinds=tuple("mla" if i % 4 == 3 or i == layers - 1 else "kda" for i in range(layers)),
        dense_layers=1,
        ffn=96,
        kda=KDAConfig(heads, head.kda, 4, "softplus", 0.0, head.kda),
        mla=head.mla(heads, q_rank=None, rope_base=None, gated=False),
        moe=MoEConfig(experts, 4, 1, 1, 32, 32, 2.446, True),
        routed_limits=none,
        shared_limits=none,
    )


# ----------------------------------------------------------------------------------------------------------- weights


def random_tensors(config: HybridConfig, seed: int = 0, *, steady: bool = False) -> Values:
    """Weights that keep every value near 1, with decays, router biases and norms that are not trivial.

    Matrices have variance 1 / inputs. Decays of single steps reach from about 0.99 to below 0.1. `steady`: biases lie
    so far apart that every token of a layer has the same experts, whatever a judge that rounds makes of their scores.
    """
    rng = np.random.default_rng(seed)
    whole = replace(config, stacked_experts=True, split_kv_b=False)
    values = {name: torch.from_numpy(_random(name, shape, rng)) for name, shape in expected_shapes(whole).items()}
    if steady:
        values |= {name: _steady_bias(config, rng) for name in values if name.endswith(".router_bias")}
    return values


def looping_tensors(config: HybridConfig, seed: int = 0) -> Values:
    """Weights whose greedy text runs in circles of seven, but leaves them now and then: lookup is often right and
    sometimes wrong. A token's row of the head is the embedding of the one before it in its circle."""
    values = random_tensors(config, seed)
    token = torch.arange(config.vocab // 7 * 7)
    after = token // 7 * 7 + (token + 1) % 7
    values["lm_head.weight"][after] = values["embed_tokens.weight"][token] * 0.5
    for name in values:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            values[name] *= 0.8
    return values


def _steady_bias(config: HybridConfig, rng: np.random.Generator) -> torch.Tensor:
    """No two groups' pairs and no two experts closer than 1, which is more than scores differ."""
    groups, size = config.moe.groups, config.moe.experts // config.moe.groups
    inner = np.stack([rng.permutation(size) for _ in range(groups)])
    bias = (2 * size + 1) * rng.permutation(groups)[:, None] + 2 * inner
    return torch.from_numpy(bias.astype(np.float32).reshape(-1))


def _random(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    plain = rng.standard_normal(shape)
    if name.endswith(".A"):
        values = rng.uniform(0.25, 2.0, shape)
    elif name.endswith(".dt_bias"):
        values = rng.uniform(-4.0, 1.0, shape)
    elif name.endswith(".router_bias"):
        values = rng.uniform(-0.3, 0.3, shape)
    elif name.endswith("_conv.weight"):
        values = plain * 0.5
    elif len(shape) == 1:
        values = 1 + 0.1 * plain
    elif name == "embed_tokens.weight":
        values = plain
    else:
        values = plain * shape[-1] ** -0.5
    return values.astype(np.float32)


# --------------------------------------------------------------------------------------------------------- tokenizer


def tokens() -> list[str]:
    """The vocabulary: 256 bytes in byte-level BPE's letters, merged pairs, padding, the special tokens at the end."""
    words = [*byte_letters(), *(merge.replace(" ", "") for merge in MERGES)]
    return [*words, *(f"[PAD{i}]" for i in range(len(words), FIRST_SPECIAL)), *SPECIAL]


def write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words = [word for word in tokens()[:FIRST_SPECIAL] if not word.startswith("[PAD")]
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(tokens())}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    assert tokenizer.token_to_id(words[-1]) == len(words) - 1
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|role_end|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, PAD], "pad_token_id": PAD}))


# ------------------------------------------------------------------------------------------------------ Hugging Face

Quantized = Literal["fp8", "int4"]

_LING_ATTENTION = {
    "kda": {
        **{f"{p}_proj.weight": f"{p}_proj.weight" for p in "qkvfgbo"},
        **{f"{p}_conv.weight": f"{p}_conv1d.weight" for p in "qkv"},
        "A": "A_log",
        "dt_bias": "dt_bias",
        "o_norm.weight": "o_norm.weight",
    },
    "mla": {
        "q_proj.weight": "q_proj.weight",
        "q_a_proj.weight": "q_a_proj.weight",
        "q_a_norm.weight": "q_a_layernorm.weight",
        "q_b_proj.weight": "q_b_proj.weight",
        "kv_a_proj.weight": "kv_a_proj_with_mqa.weight",
        "kv_a_norm.weight": "kv_a_layernorm.weight",
        "kv_b_proj.weight": "kv_b_proj.weight",
        "g_proj.weight": "g_proj.weight",
        "o_proj.weight": "dense.weight",
    },
}
_KIMI_ATTENTION = {
    "kda": _LING_ATTENTION["kda"] | {f"{p}_{r}_proj.weight": f"{p}_{r}_proj.weight" for p in "fg" for r in "ab"},
    "mla": _LING_ATTENTION["mla"] | {"o_proj.weight": "o_proj.weight"},
}


def write_ling_hf(
    folder: Path,
    config: HybridConfig | None = None,
    *,
    seed: int = 0,
    tensors: Values | None = None,
    shards: int = 1,
    dtype: torch.dtype = torch.float32,
    quantized: Quantized | None = None,
    changes: dict[str, Any] | None = None,
) -> Tiny:
    """A folder in the naming of the published Ling-3.0 (section 3.1 of its description).

    `quantized`: all projections of the layers as fp8 in blocks of 128 x 128, or the routed experts as int4 in groups of
    32 of a row, the rest in `dtype`. `changes` are laid over config.json.
    """
    config = config or ling_config()
    raw = _ling_raw(config)
    return _write_hf(folder, config, raw, _LING_ATTENTION, seed, tensors, shards, dtype, quantized, changes or {})


def write_kimi_hf(
    folder: Path,
    config: HybridConfig | None = None,
    *,
    seed: int = 0,
    tensors: Values | None = None,
    shards: int = 1,
    dtype: torch.dtype = torch.float32,
    changes: dict[str, Any] | None = None,
) -> Tiny:
    """A folder in the naming of the published Kimi-Linear (section 3.2)."""
    config = config or kimi_config()
    return _write_hf(
        folder, config, _kimi_raw(config), _KIMI_ATTENTION, seed, tensors, shards, dtype, None, changes or {}
    )


def _write_hf(
    folder: Path,
    config: HybridConfig,
    raw: dict[str, Any],
    attention: dict[str, dict[str, str]],
    seed: int,
    tensors: Values | None,
    shards: int,
    dtype: torch.dtype,
    quantized: Quantized | None,
    changes: dict[str, Any],
) -> Tiny:
    folder.mkdir(parents=True, exist_ok=True)
    values: Values = {}
    files: Values = {}
    for name, tensor in (tensors or random_tensors(config, seed)).items():
        parts = _hf_tensors(config, attention, name, tensor)
        stored = [_stored(of, part, dtype, quantized) for of, part in parts.items()]
        for companions, _ in stored:
            files |= companions
        seen = [value for _, value in stored]
        values[name] = (torch.stack(seen) if ".moe.experts." in name else seen[0]).reshape(tensor.shape)
    raw |= {"torch_dtype": str(dtype).removeprefix("torch."), **_quantization(config, quantized), **changes}
    (folder / "config.json").write_text(json.dumps(raw, indent=1))
    _write_shards(folder, files, shards)
    write_tokenizer(folder)
    return Tiny(folder, config, values)


def _hf_tensors(
    config: HybridConfig, attention: dict[str, dict[str, str]], name: str, tensor: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The file's tensors of one canonical tensor, in order."""
    ling = config.architecture == "BailingMoeV3ForCausalLM"
    outer = {"embed_tokens": "model.word_embeddings" if ling else "model.embed_tokens", "norm": "model.norm"}
    if not name.startswith("layers."):
        part = name.removesuffix(".weight")
        return {f"{outer.get(part, part)}.weight": tensor}
    _, layer, kind, *rest = name.split(".", 3)
    prefix = f"model.layers.{layer}."
    if kind in attention:
        module = "attention" if ling else "self_attn"
        (inner,) = rest
        if inner == "A":
            tensor = tensor.log() if ling else tensor.log().view(1, 1, -1, 1)
        if inner.endswith("_conv.weight"):
            tensor = tensor.unsqueeze(1)
        return {f"{prefix}{module}.{attention[kind][inner]}": tensor}
    if kind == "moe":
        return _hf_experts(f"{prefix}{'mlp' if ling else 'block_sparse_moe'}.", rest[0], tensor, ling)
    return {f"{prefix}{'.'.join([kind, *rest])}": tensor}


def _hf_experts(prefix: str, inner: str, tensor: torch.Tensor, ling: bool) -> dict[str, torch.Tensor]:
    if inner == "router.weight":
        return {f"{prefix}gate.weight": tensor}
    if inner == "router_bias":
        return {f"{prefix}gate.{'expert_bias' if ling else 'e_score_correction_bias'}": tensor}
    if inner.startswith("shared."):
        return {f"{prefix}shared_experts.{inner.removeprefix('shared.')}": tensor}
    projection = inner.removeprefix("experts.").removesuffix(".weight")
    name = projection if ling else {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}[projection]
    return {f"{prefix}experts.{e}.{name}.weight": one.contiguous() for e, one in enumerate(tensor)}


def _stored(
    name: str, tensor: torch.Tensor, dtype: torch.dtype, quantized: Quantized | None
) -> tuple[Values, torch.Tensor]:
    """The tensors that stand for one in the file, and the fp32 values they mean."""
    layer = name.startswith("model.layers.") and tensor.ndim == 2 and not name.endswith(".gate.weight")
    if quantized == "fp8" and layer and "conv1d" not in name and not name.endswith("eh_proj.weight"):
        data, scales, value = fp8_blocks(tensor)
        return {name: data, f"{name}_scale_inv": scales}, value
    if quantized == "int4" and ".experts." in name:
        stem = name.removesuffix(".weight")
        packed, scales, value = int4_groups(tensor, dtype)
        shape = torch.tensor(tensor.shape, dtype=torch.int64)
        return {f"{stem}.weight_packed": packed, f"{stem}.weight_scale": scales, f"{stem}.weight_shape": shape}, value
    if name.endswith(("A_log", "dt_bias", "bias", "_conv1d.weight")):
        dtype = torch.float32
    stored = tensor.to(dtype).contiguous()
    value = stored.float()
    return {name: stored}, value.exp() if name.endswith("A_log") else value


def fp8_blocks(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[N, K] as float8_e4m3fn with one fp32 scale a block of 128 x 128: data, scales, the values they stand for."""
    rows, columns = tensor.shape
    scales = torch.empty(-(-rows // 128), -(-columns // 128))
    data = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    value = torch.empty(rows, columns)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            scales[i, j] = tensor[at].abs().max() / 448
            data[at] = (tensor[at] / scales[i, j]).to(torch.float8_e4m3fn)
            value[at] = data[at].float() * scales[i, j]
    return data, scales, value


def int4_groups(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[N, K] as symmetric int4 in groups of 32: eight q + 8 an int32, the first lowest; scales; the values."""
    rows, columns = tensor.shape
    groups = tensor.view(rows, columns // 32, 32)
    scales = (groups.abs().amax(-1) / 7.5).to(dtype)
    quants = (groups / scales.float().unsqueeze(-1)).round().clamp(-8, 7)
    value = (quants * scales.float().unsqueeze(-1)).view(rows, columns)
    nibbles = (quants.view(rows, columns // 8, 8) + 8).to(torch.int64)
    packed = (nibbles << torch.arange(0, 32, 4)).sum(-1)
    packed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    return packed, scales, value


def _quantization(config: HybridConfig, quantized: Quantized | None) -> dict[str, Any]:
    if quantized == "fp8":
        method = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "weight_block_size": [128, 128],
            "activation_scheme": "dynamic",
        }
        return {"quantization_config": method}
    if quantized == "int4":
        weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
        method = {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": ["lm_head", "re:.*attention.*", "re:.*shared_experts.*", "re:.*mlp.gate$"],
            "quantization_status": "compressed",
        }
        return {"quantization_config": method}
    return {}


def _write_shards(folder: Path, files: Values, shards: int) -> None:
    if shards == 1:
        save_file(files, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(files)
    of_shard = [names[i * len(names) // shards : (i + 1) * len(names) // shards] for i in range(shards)]
    index: dict[str, str] = {}
    for i, part in enumerate(of_shard):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        save_file({name: files[name] for name in part}, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
    size = sum(tensor.numel() * tensor.element_size() for tensor in files.values())
    text = json.dumps({"metadata": {"total_size": size}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)


def _ling_raw(config: HybridConfig) -> dict[str, Any]:
    """config.json with the published keys, the unused ones included."""
    kda, mla, moe = config.kda, config.mla, config.moe
    return {
        "architectures": ["BailingMoeV3ForCausalLM"],
        "model_type": "bailing_hybrid",
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "layer_group_size": config.kinds.index("mla") + 1,
        "num_attention_heads": mla.heads,
        "num_key_value_heads": mla.heads,
        "head_dim": kda.head_dim,
        "short_conv_kernel_size": kda.taps,
        "no_kda_lora": True,
        "kda_safe_gate": True,
        "kda_lower_bound": kda.lower_bound,
        "q_lora_rank": mla.q_rank,
        "kv_lora_rank": mla.kv_rank,
        "qk_nope_head_dim": mla.nope,
        "qk_rope_head_dim": mla.rope,
        "qk_head_dim": mla.nope + mla.rope,
        "v_head_dim": mla.value,
        "gated_attention_proj_granularity_type": "head_wise",
        "use_mla_nope": False,
        "rope_theta": mla.rope_base,
        "rope_interleave": True,
        "rope_scaling": None,
        "partial_rotary_factor": 0.5,
        "rotary_dim": mla.rope,
        "max_position_embeddings": config.context,
        "intermediate_size": config.ffn,
        "first_k_dense_replace": config.dense_layers,
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.chosen,
        "num_shared_experts": 1,
        "moe_intermediate_size": moe.width,
        "moe_shared_expert_intermediate_size": moe.shared_width,
        "n_group": moe.groups,
        "topk_group": moe.chosen_groups,
        "score_function": "sigmoid",
        "scoring_func": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "norm_topk_prob": moe.renormalize,
        "routed_scaling_factor": moe.scale,
        "topk_method": "noaux_tc",
        "router_dtype": "fp32",
        "expert_swiglu_limit_list": list(config.routed_limits) if any(config.routed_limits) else None,
        "share_expert_swiglu_limit_list": list(config.shared_limits) if any(config.shared_limits) else None,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
        "use_bias": False,
        "use_qkv_bias": False,
        "use_qk_norm": True,
        "linear_silu": False,
        "max_window_layers": 28,
        "seq_aux": True,
        "tie_word_embeddings": config.tied,
        "num_nextn_predict_layers": config.mtp_layers,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }


def _kimi_raw(config: HybridConfig) -> dict[str, Any]:
    kda, mla, moe = config.kda, config.mla, config.moe
    full = [i + 1 for i, kind in enumerate(config.kinds) if kind == "mla"]
    return {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "linear_attn_config": {
            "full_attn_layers": full,
            "kda_layers": [i for i in range(1, config.layers + 1) if i not in full],
            "head_dim": kda.head_dim,
            "num_heads": kda.heads,
            "short_conv_kernel_size": kda.taps,
        },
        "num_attention_heads": mla.heads,
        "num_key_value_heads": mla.heads,
        "head_dim": 24,
        "q_lora_rank": mla.q_rank,
        "kv_lora_rank": mla.kv_rank,
        "qk_nope_head_dim": mla.nope,
        "qk_rope_head_dim": mla.rope,
        "v_head_dim": mla.value,
        "mla_use_nope": True,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "model_max_length": config.context,
        "intermediate_size": config.ffn,
        "first_k_dense_replace": config.dense_layers,
        "moe_layer_freq": 1,
        "num_experts": moe.experts,
        "num_experts_per_token": moe.chosen,
        "num_shared_experts": 1,
        "moe_intermediate_size": moe.width,
        "num_expert_group": moe.groups,
        "topk_group": moe.chosen_groups,
        "use_grouped_topk": True,
        "moe_renormalize": moe.renormalize,
        "moe_router_activation_func": "sigmoid",
        "routed_scaling_factor": moe.scale,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tied,
        "num_nextn_predict_layers": 0,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "bos_token_id": PAD,
    }


# -------------------------------------------------------------------------------------------------------------- GGUF

_GGUF_OUTER = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
_GGUF_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "final_layernorm.weight": "layer_output_norm.weight",
    **{f"{n}.weight": f"nextn.{n}.weight" for n in ("enorm", "hnorm", "eh_proj")},
    **{f"kda.{p}_proj.weight": f"attn_{p}.weight" for p in "qkv"},
    **{f"kda.{p}_conv.weight": f"ssm_conv1d_{p}.weight" for p in "qkv"},
    **{f"kda.{p}_proj.weight": f"ssm_{p}_a.weight" for p in "fg"},
    **{f"kda.{p}_{r}_proj.weight": f"ssm_{p}_{r}.weight" for p in "fg" for r in "ab"},
    "kda.b_proj.weight": "ssm_beta.weight",
    "kda.A": "ssm_a",
    "kda.dt_bias": "ssm_dt.bias",
    "kda.o_norm.weight": "ssm_norm.weight",
    "kda.o_proj.weight": "attn_output.weight",
    "mla.q_proj.weight": "attn_q.weight",
    "mla.q_a_proj.weight": "attn_q_a.weight",
    "mla.q_a_norm.weight": "attn_q_a_norm.weight",
    "mla.q_b_proj.weight": "attn_q_b.weight",
    "mla.kv_a_proj.weight": "attn_kv_a_mqa.weight",
    "mla.kv_a_norm.weight": "attn_kv_a_norm.weight",
    "mla.g_proj.weight": "attn_gate.weight",
    "mla.o_proj.weight": "attn_output.weight",
    "moe.router.weight": "ffn_gate_inp.weight",
    "moe.router_bias": "exp_probs_b.bias",
    **{f"mlp.{p}_proj.weight": f"ffn_{p}.weight" for p in ("gate", "up", "down")},
    **{f"moe.experts.{p}_proj.weight": f"ffn_{p}_exps.weight" for p in ("gate", "up", "down")},
    **{f"moe.shared.{p}_proj.weight": f"ffn_{p}_shexp.weight" for p in ("gate", "up", "down")},
}
_FP32 = ("_conv.weight", ".A", ".dt_bias", "router.weight", "router_bias")


def write_ling_gguf(
    path: Path,
    config: HybridConfig | None = None,
    *,
    seed: int = 0,
    tensors: Values | None = None,
    qtype: str = "F32",
    pre: str = "bailingmoe2",
    metadata: dict[str, Any] | None = None,
) -> Tiny:
    """A `bailingmoe3` file, matrices in `qtype`. `metadata` adds or replaces keys; None there leaves one out."""
    config = config or ling_config()
    return _write_gguf(path, config, "bailingmoe3", _ling_keys(config), seed, tensors, qtype, pre, metadata or {})


def write_kimi_gguf(
    path: Path,
    config: HybridConfig | None = None,
    *,
    seed: int = 0,
    tensors: Values | None = None,
    qtype: str = "F32",
    pre: str = "kimi-k2",
    metadata: dict[str, Any] | None = None,
) -> Tiny:
    """A `kimi-linear` file. Its `ssm_a` is -exp(A_log), and it does not say that weights are renormalised."""
    config = config or kimi_config()
    keys = _shared_keys(config)
    return _write_gguf(path, config, "kimi-linear", keys, seed, tensors, qtype, pre, metadata or {})


def _write_gguf(
    path: Path,
    config: HybridConfig,
    arch: str,
    keys: dict[str, Any],
    seed: int,
    tensors: Values | None,
    qtype: str,
    pre: str,
    metadata: dict[str, Any],
) -> Tiny:
    writer = gguf.GGUFWriter(path, arch)
    everything = {"general.name": "tiny", "general.type": "model", **_tokenizer_keys(pre)}
    everything |= {f"{arch}.{key}": value for key, value in keys.items()}
    for key, value in (everything | metadata).items():
        _add_key(writer, key, value)
    values: Values = {}
    for name, tensor in (tensors or random_tensors(config, seed)).items():
        seen = []
        for of, part in _gguf_tensors(config, arch, name, tensor).items():
            kind = "F32" if len(tensor.shape) == 1 or name.endswith(_FP32) else qtype
            code = gguf.GGMLQuantizationType[kind]
            data = gguf.quantize(part.numpy(), code)
            writer.add_tensor(of, data, raw_dtype=None if kind in ("F32", "F16") else code)
            seen.append(torch.from_numpy(np.array(gguf.dequantize(data, code), np.float32).reshape(part.shape)))
        if name.endswith(".kv_b_proj.weight"):
            values[name] = torch.cat([seen[0].transpose(1, 2), seen[1]], 1).reshape(tensor.shape)
        else:
            values[name] = seen[0].reshape(tensor.shape).abs() if name.endswith(".A") else seen[0].reshape(tensor.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Tiny(path, _as_gguf_has_it(config), values)


def _as_gguf_has_it(config: HybridConfig) -> HybridConfig:
    """Numbers are fp32 in a GGUF file; experts are stacked, and the latent's up-projection is in two."""

    def fp32(*numbers: float) -> tuple[float, ...]:
        return tuple(float(np.float32(number)) for number in numbers)

    return replace(
        config,
        norm_eps=fp32(config.norm_eps)[0],
        moe=replace(config.moe, scale=fp32(config.moe.scale)[0]),
        routed_limits=fp32(*config.routed_limits),
        shared_limits=fp32(*config.shared_limits),
        stacked_experts=True,
        split_kv_b=True,
    )


def _gguf_tensors(config: HybridConfig, arch: str, name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    if not name.startswith("layers."):
        return {f"{_GGUF_OUTER[name.removesuffix('.weight')]}.weight": tensor}
    _, layer, inner = name.split(".", 2)
    prefix = f"blk.{layer}."
    if inner == "mla.kv_b_proj.weight":
        mla = config.mla
        keys, values = tensor.view(mla.heads, mla.nope + mla.value, mla.kv_rank).split([mla.nope, mla.value], 1)
        k_b = keys.transpose(1, 2).contiguous()
        return {f"{prefix}attn_k_b.weight": k_b, f"{prefix}attn_v_b.weight": values.contiguous()}
    if inner.endswith("_conv.weight"):
        tensor = tensor.view(1, tensor.shape[0], 1, tensor.shape[1])
    if inner == "kda.A":
        tensor = tensor.view(-1, 1) if arch == "bailingmoe3" else -tensor.view(1, 1, -1, 1)
    return {f"{prefix}{_GGUF_LAYER[inner]}": tensor}


def _shared_keys(config: HybridConfig) -> dict[str, Any]:
    kda, mla, moe = config.kda, config.mla, config.moe
    heads = [int(kind == "mla") for kind in config.kinds] + [1] * config.mtp_layers
    keys = {
        "vocab_size": config.vocab,
        "context_length": config.context,
        "embedding_length": config.hidden,
        "block_count": config.layers + config.mtp_layers,
        "feed_forward_length": config.ffn,
        "attention.head_count": mla.heads,
        "attention.head_count_kv": heads,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "attention.kv_lora_rank": mla.kv_rank,
        "attention.key_length": mla.kv_rank + mla.rope,
        "attention.value_length": mla.kv_rank,
        "attention.key_length_mla": mla.nope + mla.rope,
        "attention.value_length_mla": mla.value,
        "rope.dimension_count": mla.rope,
        "rope.freq_base": mla.rope_base or 10000.0,
        "ssm.conv_kernel": kda.taps,
        "kda.head_dim": kda.head_dim,
        "expert_count": moe.experts,
        "expert_used_count": moe.chosen,
        "expert_group_count": moe.groups,
        "expert_group_used_count": moe.chosen_groups,
        "expert_feed_forward_length": moe.width,
        "expert_shared_count": 1,
        "leading_dense_block_count": config.dense_layers,
        "expert_weights_scale": moe.scale,
        "expert_gating_func": 2,
    }
    return keys | ({"attention.q_lora_rank": mla.q_rank} if mla.q_rank else {})


def _ling_keys(config: HybridConfig) -> dict[str, Any]:
    keys = _shared_keys(config) | {
        "kda.safe_gate": True,
        "kda.gate_lower_bound": config.kda.lower_bound,
        "expert_shared_feed_forward_length": config.moe.shared_width,
        "expert_weights_norm": config.moe.renormalize,
    }
    more = [0.0] * config.mtp_layers
    if any(config.routed_limits):
        keys["swiglu_clamp_exp"] = [*config.routed_limits, *more]
    if any(config.shared_limits):
        keys["swiglu_clamp_shexp"] = [*config.shared_limits, *more]
    if config.mtp_layers:
        keys["nextn_predict_layers"] = config.mtp_layers
    return keys


def _tokenizer_keys(pre: str) -> dict[str, Any]:
    kinds = [gguf.TokenType.UNUSED if word.startswith("[PAD") else gguf.TokenType.NORMAL for word in tokens()]
    kinds[FIRST_SPECIAL:] = [gguf.TokenType.CONTROL] * len(SPECIAL)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens(),
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.padding_token_id": PAD,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def _add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, list):
        writer.add_array(key, value)
        return
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    adders[type(value)](key, value)
