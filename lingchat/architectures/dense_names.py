"""The canonical tensor names of a dense decoder, with the shape each must have, and their names in GGUF files.

Canonical is Hugging Face's name without the leading `model.`: `layers.3.self_attn.q_proj.weight`. Knows no files.
"""

from __future__ import annotations

from lingchat.architectures.dense import DenseConfig

_GGUF_OUTER = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
}
_GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def expected_shapes(config: DenseConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, by canonical name; matrices are (out, in)."""
    hidden, ffn = config.hidden, config.ffn
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }
    if config.qkv_bias:
        layer |= {
            "self_attn.q_proj.bias": (q,),
            "self_attn.k_proj.bias": (kv,),
            "self_attn.v_proj.bias": (kv,),
        }
    if config.qk_norm:
        layer |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (config.vocab, hidden)}
    for i in range(config.layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    shapes["norm.weight"] = (hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab, hidden)
    return shapes


def gguf_name(canonical: str) -> str:
    """The GGUF name of a canonical one: `layers.3.self_attn.q_proj.weight` is `blk.3.attn_q.weight`."""
    stem, kind = canonical.rsplit(".", 1)
    if stem in _GGUF_OUTER:
        return f"{_GGUF_OUTER[stem]}.{kind}"
    _, layer, rest = stem.split(".", 2)
    return f"blk.{layer}.{_GGUF_LAYER[rest]}.{kind}"


def hf_name(canonical: str) -> str:
    """The name in a Hugging Face checkpoint."""
    return canonical if canonical.startswith("lm_head.") else f"model.{canonical}"
