"""GGUF files of true shapes with random weights: what a laptop holds and reads, without a download.

Quants are drawn from the whole range, scales so that a product keeps its input's size. The text of such a model is
noise; its bytes, its operations and its memory are the real ones.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.hybrid_files import gguf_tensors
from lingchat.architectures.known import KNOWN
from lingchat.architectures.read import hf_config_alone

_FLOAT = ("norm.weight", "layernorm.weight", "_conv.weight", "moe.router.weight")
_Q4_SPREAD = math.sqrt((16**2 - 1) / 12)  # of numbers drawn evenly from 16
_Q6_SPREAD = math.sqrt((64**2 - 1) / 12)
_Q8_SPREAD = math.sqrt((255**2 - 1) / 12)
QWEN3_0_6B = {  # Qwen/Qwen3-0.6B's config.json
    "vocab_size": 151_936,
    "context_length": 40_960,
    "embedding_length": 1024,
    "block_count": 28,
    "feed_forward_length": 3072,
    "attention.head_count": 16,
    "attention.head_count_kv": 8,
    "attention.key_length": 128,
    "attention.value_length": 128,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e6,
}


def write_qwen3(path: Path, kind: str, seed: int = 0) -> None:
    """Qwen3-0.6B's shape in "Q8_0", or in "Q4_K" with the embedding in Q6_K, as files of that name have it."""
    keys = QWEN3_0_6B
    hidden, ffn, width = keys["embedding_length"], keys["feed_forward_length"], keys["attention.key_length"]
    q, kv = keys["attention.head_count"] * width, keys["attention.head_count_kv"] * width
    layer = {
        "attn_norm": (hidden,),
        "attn_q": (q, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_q_norm": (width,),
        "attn_k_norm": (width,),
        "attn_output": (hidden, q),
        "ffn_norm": (hidden,),
        "ffn_gate": (ffn, hidden),
        "ffn_up": (ffn, hidden),
        "ffn_down": (hidden, ffn),
    }
    writer = gguf.GGUFWriter(path, "qwen3", use_temp_file=True)
    _add_keys(
        writer,
        {
            "general.name": f"Qwen3-0.6B shape, {kind}, random weights",
            "general.type": "model",
            **{f"qwen3.{key}": value for key, value in keys.items() if key != "vocab_size"},
            **_vocabulary(keys["vocab_size"], "qwen2"),
        },
    )
    rng = np.random.default_rng(seed)
    shapes = {f"blk.{i}.{name}.weight": shape for i in range(keys["block_count"]) for name, shape in layer.items()}
    for name, shape in {
        "token_embd.weight": (keys["vocab_size"], hidden),
        "output_norm.weight": (hidden,),
        **shapes,
    }.items():
        if len(shape) == 1:
            writer.add_tensor(name, _floats("norm.weight", shape, rng))
            continue
        own = "Q6_K" if kind == "Q4_K" and name == "token_embd.weight" else kind
        data = {"Q8_0": _q8_0, "Q4_K": _q4_k, "Q6_K": _q6_k}[own](shape, rng)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[own])
    _finish(writer)


def write(path: Path, *, layers: int | None = None, seed: int = 0) -> HybridConfig:
    """Ling-3.0-tiny's shape in Q4_0, about 4.5 GB; `layers` keeps the first so many. Returns its configuration."""
    raw = dict(KNOWN["ling-3.0-tiny"])
    if layers is not None:
        raw["num_hidden_layers"] = layers
    from dataclasses import replace

    config = replace(hf_config_alone("ling-3.0-tiny", raw), stacked_experts=True, split_kv_b=True)
    writer = gguf.GGUFWriter(path, "bailingmoe3", use_temp_file=True)
    _add_keys(writer, _keys(config))
    rng = np.random.default_rng(seed)
    for name, stored in gguf_tensors(config).items():
        shape = stored.shapes[0]
        if len(shape) == 1 or name.endswith(_FLOAT):
            writer.add_tensor(stored.names[0], _floats(name, stored.shapes[-1], rng))
        else:
            writer.add_tensor(stored.names[0], _q4_0(shape, rng), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    _finish(writer)
    return config


def _add_keys(writer: gguf.GGUFWriter, keys: dict[str, Any]) -> None:
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in keys.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            adders[type(value)](key, value)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _floats(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    values = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith(".A"):
        return np.exp(values)
    if name.endswith("norm.weight"):
        return 1 + values / 10
    return values / np.float32(math.sqrt(shape[-1])) if len(shape) > 1 else values / 10


def _blocks(shape: tuple[int, ...], values: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Random bytes [blocks, size] of blocks of so many values."""
    count = math.prod(shape) // values
    return np.frombuffer(rng.bytes(size * count), np.uint8).reshape(count, size).copy()


def _halves(count: int, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Scales around `scale`, fp16 as bytes [count, 2]."""
    return (rng.uniform(0.8, 1.2, (count, 1)) * scale).astype(np.float16).view(np.uint8)


def _q4_0(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    data = _blocks(shape, 32, 18, rng)
    data[:, :2] = _halves(len(data), 1 / (_Q4_SPREAD * math.sqrt(shape[-1])), rng)
    return data.reshape(*shape[:-1], -1)


def _q8_0(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    data = _blocks(shape, 32, 34, rng)
    data[:, :2] = _halves(len(data), 1 / (_Q8_SPREAD * math.sqrt(shape[-1])), rng)
    return data.reshape(*shape[:-1], -1)


def _q4_k(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Scale and offset of all 32 values are 32 times d, and 240 times d: their mean is nought."""
    data = _blocks(shape, 256, 144, rng)
    scale = 1 / (32 * _Q4_SPREAD * math.sqrt(shape[-1]))
    data[:, :2] = _halves(len(data), scale, rng)
    data[:, 2:4] = (data[:, :2].copy().view(np.float16) * np.float16(7.5)).view(np.uint8)
    data[:, 4:12] = 32  # six bits of scales and offsets 0..3, and the upper two of the others' nought
    data[:, 12:16] = 0  # scales and offsets 4..7 have their low four bits here
    data[:, 4:8] |= 0b10 << 6  # and their upper two there: 32
    data[:, 8:12] |= 0b10 << 6
    return data.reshape(*shape[:-1], -1)


def _q6_k(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    data = _blocks(shape, 256, 210, rng)
    data[:, 192:208] = 32  # the sixteen scales
    data[:, 208:] = _halves(len(data), 1 / (32 * _Q6_SPREAD * math.sqrt(shape[-1])), rng)
    return data.reshape(*shape[:-1], -1)


def _keys(config: HybridConfig) -> dict[str, Any]:
    kda, mla, moe = config.kda, config.mla, config.moe
    model = {
        "vocab_size": config.vocab,
        "context_length": config.context,
        "embedding_length": config.hidden,
        "block_count": config.layers,
        "feed_forward_length": config.ffn,
        "attention.head_count": mla.heads,
        "attention.head_count_kv": [int(kind == "mla") for kind in config.kinds],
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "attention.kv_lora_rank": mla.kv_rank,
        "attention.q_lora_rank": mla.q_rank,
        "attention.key_length": mla.kv_rank + mla.rope,
        "attention.value_length": mla.kv_rank,
        "attention.key_length_mla": mla.nope + mla.rope,
        "attention.value_length_mla": mla.value,
        "rope.dimension_count": mla.rope,
        "rope.freq_base": mla.rope_base,
        "ssm.conv_kernel": kda.taps,
        "kda.head_dim": kda.head_dim,
        "kda.safe_gate": True,
        "kda.gate_lower_bound": kda.lower_bound,
        "expert_count": moe.experts,
        "expert_used_count": moe.chosen,
        "expert_group_count": moe.groups,
        "expert_group_used_count": moe.chosen_groups,
        "expert_feed_forward_length": moe.width,
        "expert_shared_feed_forward_length": moe.shared_width,
        "expert_shared_count": 1,
        "expert_weights_norm": moe.renormalize,
        "expert_weights_scale": moe.scale,
        "expert_gating_func": 2,
        "leading_dense_block_count": config.dense_layers,
    }
    return {
        "general.name": "Ling-3.0-tiny shape, random weights",
        "general.type": "model",
        **{f"bailingmoe3.{key}": value for key, value in model.items()},
        **_vocabulary(config.vocab, "bailingmoe2"),
    }


def _vocabulary(size: int, pretokenizer: str) -> dict[str, Any]:
    """The bytes, and words made up: every id a model of random weights may choose has a text."""
    special = ["<|role_end|>", "<role>", "</role>", "<think>", "</think>"]
    letters = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    words = [chr(byte) if byte in letters else chr(next(others)) for byte in range(256)]
    words += ["th", "the"]
    words += [f"Ġword{i}" for i in range(size - len(words) - len(special))]
    kinds = [int(gguf.TokenType.NORMAL)] * len(words) + [int(gguf.TokenType.CONTROL)] * len(special)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pretokenizer,
        "tokenizer.ggml.tokens": words + special,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["t h", "th e"],
        "tokenizer.ggml.eos_token_id": size - len(special),
        "tokenizer.ggml.add_bos_token": False,
    }


if __name__ == "__main__":
    import sys

    print(json.dumps({"layers": write(Path(sys.argv[1])).layers}))
