"""A GGUF of Ling-3.0-tiny's true shape in Q4_0, its weights random: what a laptop holds and reads, without a download.

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
_Q4_0_SPREAD = math.sqrt((16**2 - 1) / 12)


def write(path: Path, *, layers: int | None = None, seed: int = 0) -> HybridConfig:
    """Write the file, about 4.5 GB; `layers` keeps the first so many. Returns its configuration."""
    raw = dict(KNOWN["ling-3.0-tiny"])
    if layers is not None:
        raw["num_hidden_layers"] = layers
    from dataclasses import replace

    config = replace(hf_config_alone("ling-3.0-tiny", raw), stacked_experts=True, split_kv_b=True)
    writer = gguf.GGUFWriter(path, "bailingmoe3", use_temp_file=True)
    for key, value in _keys(config).items():
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            adders[type(value)](key, value)
    rng = np.random.default_rng(seed)
    for name, stored in gguf_tensors(config).items():
        shape = stored.shapes[0]
        if len(shape) == 1 or name.endswith(_FLOAT):
            writer.add_tensor(stored.names[0], _floats(name, stored.shapes[-1], rng))
        else:
            writer.add_tensor(stored.names[0], _q4_0(shape, rng), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return config


def _floats(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    values = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith(".A"):
        return np.exp(values)
    if name.endswith("norm.weight"):
        return 1 + values / 10
    return values / np.float32(math.sqrt(shape[-1])) if len(shape) > 1 else values / 10


def _q4_0(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    blocks = math.prod(shape) // 32
    data = np.frombuffer(rng.bytes(18 * blocks), np.uint8).reshape(blocks, 18).copy()
    scale = 1 / (_Q4_0_SPREAD * math.sqrt(shape[-1]))
    data[:, :2] = (rng.uniform(0.8, 1.2, (blocks, 1)) * scale).astype(np.float16).view(np.uint8)
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
        **_vocabulary(config.vocab),
    }


def _vocabulary(size: int) -> dict[str, Any]:
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
        "tokenizer.ggml.pre": "bailingmoe2",
        "tokenizer.ggml.tokens": words + special,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["t h", "th e"],
        "tokenizer.ggml.eos_token_id": size - len(special),
        "tokenizer.ggml.add_bos_token": False,
    }


if __name__ == "__main__":
    import sys

    print(json.dumps({"layers": write(Path(sys.argv[1])).layers}))
