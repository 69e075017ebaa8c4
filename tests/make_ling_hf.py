"""Tiny hybrid models as safetensors folders, in the published naming, plain or in the fp8 and int4 layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from ling_models import EOS, PAD, Tiny, Values, kimi_config, ling_config, random_tensors, write_tokenizer
from safetensors.torch import save_file

from lingchat.architectures.hybrid import HybridConfig

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
    """A folder in the naming of the published Ling-3.0.

    `quantized`: all projections of the layers as fp8 in blocks of 128 x 128, or the routed experts as int4 in groups of
    32 of a row, the rest in `dtype`. `changes` are laid over config.json.
    """
    config = config or ling_config()
    raw = ling_raw(config)
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
    """A folder in the naming of the published Kimi-Linear."""
    config = config or kimi_config()
    return _write_hf(
        folder, config, kimi_raw(config), _KIMI_ATTENTION, seed, tensors, shards, dtype, None, changes or {}
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


def ling_raw(config: HybridConfig) -> dict[str, Any]:
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


def kimi_raw(config: HybridConfig) -> dict[str, Any]:
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
