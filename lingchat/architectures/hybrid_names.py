"""The canonical tensor names of a hybrid model, with the shape each must have.

Canonical names are ours, one set for both architectures and both kinds of file; `hybrid_files.py` knows what each is
called in a file. H heads, P = H * head_dim, D hidden, r a rank. Knows no files.

    embed_tokens.weight [V, D]   norm.weight [D]   lm_head.weight [V, D]
    layers.N.input_layernorm.weight, layers.N.post_attention_layernorm.weight [D]
    layers.N.kda.{q,k,v}_proj.weight [P, D]      .{q,k,v}_conv.weight [P, taps]
             .f_proj.weight, .g_proj.weight [P, D]                    full rank
             .f_a_proj, .g_a_proj [r, D], .f_b_proj, .g_b_proj [P, r]  or in pairs
             .b_proj.weight [H, D]   .A [H], which is exp(A_log)   .dt_bias [P]   .o_norm.weight [head_dim]
             .o_proj.weight [D, P]
    layers.N.mla.q_proj.weight [H (nope + rope), D], or .q_a_proj [q_rank, D], .q_a_norm [q_rank], .q_b_proj
             .kv_a_proj.weight [kv_rank + rope, D]   .kv_a_norm.weight [kv_rank]
             .kv_b_proj.weight [H (nope + value), kv_rank], or, split, .k_b_proj.weight [H, kv_rank, nope]
             and .v_b_proj.weight [H, value, kv_rank]
             .g_proj.weight [H, D] where gated   .o_proj.weight [D, H value]
    layers.N.mlp.{gate,up}_proj.weight [F, D]   .down_proj.weight [D, F]
    layers.N.moe.router.weight [E, D]   .router_bias [E]
             .experts.E.{gate,up}_proj.weight [I, D], .down_proj.weight [D, I],
             or, stacked, .experts.{gate,up,down}_proj.weight with E in front
             .shared.{gate,up,down}_proj.weight
    layers.L (MTP, L the number of layers): .enorm.weight, .hnorm.weight [D], .eh_proj.weight [D, 2 D],
             an MLA layer with experts as above, .final_layernorm.weight [D]
"""

from __future__ import annotations

from lingchat.architectures.hybrid import HybridConfig

Shapes = dict[str, tuple[int, ...]]


def expected_shapes(config: HybridConfig, *, mtp: bool = True) -> Shapes:
    """Every tensor of the model by canonical name; matrices are (out, in). `mtp`: with the MTP layer, if it has one."""
    shapes: Shapes = {"embed_tokens.weight": (config.vocab, config.hidden)}
    for index, kind in enumerate(config.kinds):
        layer = _attention(config, kind) | (_experts(config) if config.is_moe(index) else _dense(config))
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    for index in range(config.layers, config.layers + (config.mtp_layers if mtp else 0)):
        layer = _mtp(config) | _attention(config, "mla") | _experts(config)
        layer["final_layernorm.weight"] = (config.hidden,)
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["norm.weight"] = (config.hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab, config.hidden)
    return shapes


def is_routed_expert(name: str) -> bool:
    """Whether a canonical name is of a routed expert."""
    return ".moe.experts." in name


def _attention(config: HybridConfig, kind: str) -> Shapes:
    hidden = config.hidden
    block = _kda(config) if kind == "kda" else _mla(config)
    norms = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    return norms | {f"{kind}.{name}": shape for name, shape in block.items()}


def _kda(config: HybridConfig) -> Shapes:
    kda, hidden = config.kda, config.hidden
    width = kda.heads * kda.head_dim
    shapes: Shapes = {}
    for part in "qkv":
        shapes[f"{part}_proj.weight"] = (width, hidden)
        shapes[f"{part}_conv.weight"] = (width, kda.taps)
    for part in "fg":
        if kda.rank is None:
            shapes[f"{part}_proj.weight"] = (width, hidden)
        else:
            shapes[f"{part}_a_proj.weight"] = (kda.rank, hidden)
            shapes[f"{part}_b_proj.weight"] = (width, kda.rank)
    return shapes | {
        "b_proj.weight": (kda.heads, hidden),
        "A": (kda.heads,),
        "dt_bias": (width,),
        "o_norm.weight": (kda.head_dim,),
        "o_proj.weight": (hidden, width),
    }


def _mla(config: HybridConfig) -> Shapes:
    mla, hidden = config.mla, config.hidden
    heads, query = mla.heads, mla.heads * (mla.nope + mla.rope)
    shapes: Shapes = {}
    if mla.q_rank is None:
        shapes["q_proj.weight"] = (query, hidden)
    else:
        shapes["q_a_proj.weight"] = (mla.q_rank, hidden)
        shapes["q_a_norm.weight"] = (mla.q_rank,)
        shapes["q_b_proj.weight"] = (query, mla.q_rank)
    shapes["kv_a_proj.weight"] = (mla.kv_rank + mla.rope, hidden)
    shapes["kv_a_norm.weight"] = (mla.kv_rank,)
    if config.split_kv_b:
        shapes["k_b_proj.weight"] = (heads, mla.kv_rank, mla.nope)
        shapes["v_b_proj.weight"] = (heads, mla.value, mla.kv_rank)
    else:
        shapes["kv_b_proj.weight"] = (heads * (mla.nope + mla.value), mla.kv_rank)
    if mla.gated:
        shapes["g_proj.weight"] = (heads, hidden)
    shapes["o_proj.weight"] = (hidden, heads * mla.value)
    return shapes


def _dense(config: HybridConfig) -> Shapes:
    return _feed_forward("mlp.", config.ffn, config.hidden)


def _experts(config: HybridConfig) -> Shapes:
    moe, hidden = config.moe, config.hidden
    shapes: Shapes = {"moe.router.weight": (moe.experts, hidden), "moe.router_bias": (moe.experts,)}
    if config.stacked_experts:
        one = _feed_forward("moe.experts.", moe.width, hidden)
        shapes |= {name: (moe.experts, *shape) for name, shape in one.items()}
    else:
        for expert in range(moe.experts):
            shapes |= _feed_forward(f"moe.experts.{expert}.", moe.width, hidden)
    return shapes | _feed_forward("moe.shared.", moe.shared_width, hidden)


def _feed_forward(prefix: str, width: int, hidden: int) -> Shapes:
    return {
        f"{prefix}gate_proj.weight": (width, hidden),
        f"{prefix}up_proj.weight": (width, hidden),
        f"{prefix}down_proj.weight": (hidden, width),
    }


def _mtp(config: HybridConfig) -> Shapes:
    hidden = config.hidden
    return {"enorm.weight": (hidden,), "hnorm.weight": (hidden,), "eh_proj.weight": (hidden, 2 * hidden)}
