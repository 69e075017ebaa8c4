"""Tiny hybrid models as GGUF files, as llama.cpp's converter writes them, in any type the gguf package quantises to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from ling_models import (
    EOS,
    FIRST_SPECIAL,
    PAD,
    SPECIAL,
    TEMPLATE,
    Tiny,
    Values,
    kimi_config,
    ling_config,
    random_tensors,
    tokens,
)
from make_models import MERGES

from lingchat.architectures.hybrid import HybridConfig

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
        add_key(writer, key, value)
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


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, list):
        writer.add_array(key, value)
        return
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    adders[type(value)](key, value)
