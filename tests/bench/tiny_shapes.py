"""Published configurations made small: every kind of layer in a few thousand parameters."""

from __future__ import annotations

from typing import Any

from lingchat.architectures.known import KNOWN

LING: dict[str, Any] = {
    **KNOWN["ling-3.0-tiny"],
    "vocab_size": 640,
    "hidden_size": 256,
    "num_hidden_layers": 5,
    "layer_group_size": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "qk_head_dim": 48,
    "rotary_dim": 16,
    "v_head_dim": 32,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 64,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "max_position_embeddings": 512,
}
QWEN: dict[str, Any] = {
    **KNOWN["qwen3-4b"],
    "vocab_size": 640,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
}
TINY = {**KNOWN, "ling-3.0-tiny": LING, "qwen3-4b": QWEN}
