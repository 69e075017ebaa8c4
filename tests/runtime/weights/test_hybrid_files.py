"""The names of hybrid models' tensors: the published tables and counts, the gguf package's names, and those that
transformers writes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from hf_judge import needs_ling
from make_ling import kimi_config, ling_config
from safetensors import safe_open

from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.hybrid_files import Stored, folder_tensors, gguf_tensors
from lingchat.architectures.hybrid_names import expected_shapes
from lingchat.architectures.known import KNOWN
from lingchat.architectures.read import hf_config_alone


def known(name: str) -> HybridConfig:
    config = hf_config_alone(name, KNOWN[name])
    assert isinstance(config, HybridConfig)
    return config


def as_gguf(config: HybridConfig) -> HybridConfig:
    return replace(config, stacked_experts=True, split_kv_b=True)


def by_file_name(tensors: dict[str, Stored]) -> dict[str, Stored]:
    return {name: stored for stored in tensors.values() for name in stored.names}


# Section 3.1 of the model's description, a layer of each kind; `{}` is the layer.
LING = {
    "ling-3.0-flash": {
        "model.word_embeddings.weight": (157184, 2560),
        "model.norm.weight": (2560,),
        "lm_head.weight": (157184, 2560),
        "model.layers.0.input_layernorm.weight": (2560,),
        "model.layers.0.post_attention_layernorm.weight": (2560,),
        "model.layers.0.attention.v_proj.weight": (4096, 2560),
        "model.layers.0.attention.k_conv1d.weight": (4096, 1, 4),
        "model.layers.0.attention.f_proj.weight": (4096, 2560),
        "model.layers.0.attention.g_proj.weight": (4096, 2560),
        "model.layers.0.attention.b_proj.weight": (32, 2560),
        "model.layers.0.attention.A_log": (32,),
        "model.layers.0.attention.dt_bias": (4096,),
        "model.layers.0.attention.o_norm.weight": (128,),
        "model.layers.0.attention.o_proj.weight": (2560, 4096),
        "model.layers.5.attention.q_proj.weight": (6144, 2560),
        "model.layers.5.attention.kv_a_proj_with_mqa.weight": (576, 2560),
        "model.layers.5.attention.kv_a_layernorm.weight": (512,),
        "model.layers.5.attention.kv_b_proj.weight": (8192, 512),
        "model.layers.5.attention.g_proj.weight": (32, 2560),
        "model.layers.5.attention.dense.weight": (2560, 4096),
        "model.layers.1.mlp.gate_proj.weight": (6144, 2560),
        "model.layers.1.mlp.down_proj.weight": (2560, 6144),
        "model.layers.2.mlp.gate.weight": (512, 2560),
        "model.layers.2.mlp.gate.expert_bias": (512,),
        "model.layers.41.mlp.experts.511.up_proj.weight": (768, 2560),
        "model.layers.41.mlp.experts.511.down_proj.weight": (2560, 768),
        "model.layers.41.mlp.shared_experts.gate_proj.weight": (768, 2560),
        "model.layers.42.enorm.weight": (2560,),
        "model.layers.42.hnorm.weight": (2560,),
        "model.layers.42.eh_proj.weight": (2560, 5120),
        "model.layers.42.attention.g_proj.weight": (32, 2560),
        "model.layers.42.mlp.experts.0.gate_proj.weight": (768, 2560),
        "model.layers.42.final_layernorm.weight": (2560,),
    },
    "ling-3.0-tiny": {
        "model.layers.0.attention.q_proj.weight": (2048, 1536),
        "model.layers.3.attention.q_a_proj.weight": (256, 1536),
        "model.layers.3.attention.q_a_layernorm.weight": (256,),
        "model.layers.3.attention.q_b_proj.weight": (3072, 256),
        "model.layers.3.attention.g_proj.weight": (16, 1536),
        "model.layers.23.mlp.experts.127.gate_proj.weight": (512, 1536),
    },
    "kimi-linear": {
        "model.embed_tokens.weight": (163840, 2304),
        "model.layers.0.self_attn.f_a_proj.weight": (128, 2304),
        "model.layers.0.self_attn.g_b_proj.weight": (4096, 128),
        "model.layers.0.self_attn.A_log": (1, 1, 32, 1),
        "model.layers.0.self_attn.q_conv1d.weight": (4096, 1, 4),
        "model.layers.0.mlp.gate_proj.weight": (9216, 2304),
        "model.layers.26.self_attn.kv_b_proj.weight": (8192, 512),
        "model.layers.26.self_attn.o_proj.weight": (2304, 4096),
        "model.layers.26.block_sparse_moe.gate.e_score_correction_bias": (256,),
        "model.layers.26.block_sparse_moe.experts.255.w1.weight": (1024, 2304),
        "model.layers.26.block_sparse_moe.experts.255.w2.weight": (2304, 1024),
        "model.layers.26.block_sparse_moe.shared_experts.up_proj.weight": (1024, 2304),
    },
}
COUNTS = {"ling-3.0-flash": 127_486_405_600, "ling-3.0-tiny": 7_893_392_800}


@pytest.mark.parametrize("name", LING)
def test_published_names_have_their_published_shapes(name: str) -> None:
    tensors = by_file_name(folder_tensors(known(name)))
    for file_name, shape in LING[name].items():
        assert shape in tensors[file_name].shapes, file_name


@pytest.mark.parametrize("name", ["ling-3.0-flash", "ling-3.0-tiny", "kimi-linear"])
def test_the_tensors_of_either_file_are_the_published_number_of_parameters(name: str) -> None:
    config = known(name)
    for tensors in (folder_tensors(config), gguf_tensors(as_gguf(config))):
        count = sum(math.prod(stored.shapes[0]) for stored in tensors.values())
        assert count == COUNTS.get(name, count)
        assert round(count / 1e9, 2) == {"ling-3.0-flash": 127.49, "ling-3.0-tiny": 7.89, "kimi-linear": 49.12}[name]
        assert len(by_file_name(tensors)) == sum(len(stored.names) for stored in tensors.values()), (
            "a name stands twice"
        )
        assert all(
            math.prod(shape) == math.prod(stored.shapes[0]) for stored in tensors.values() for shape in stored.shapes
        )


def test_one_name_means_a_wide_gate_in_kda_layers_and_a_narrow_one_in_mla_layers() -> None:
    tensors = folder_tensors(known("ling-3.0-flash"))
    wide, narrow = tensors["layers.0.kda.g_proj.weight"], tensors["layers.5.mla.g_proj.weight"]
    assert wide.names[0].replace(".0.", ".5.") == narrow.names[0]
    assert (wide.shapes, narrow.shapes) == (((4096, 2560),), ((32, 2560),))


def test_tensors_of_the_drafting_layer_are_there_where_it_is_configured_only() -> None:
    flash, tiny = known("ling-3.0-flash"), known("ling-3.0-tiny")
    assert [name for name in by_file_name(gguf_tensors(as_gguf(flash))) if name.startswith("blk.42.nextn.")]
    assert "blk.42.layer_output_norm.weight" in by_file_name(gguf_tensors(as_gguf(flash)))
    without = replace(flash, mtp_layers=0)
    assert not [name for name in by_file_name(folder_tensors(without)) if name.startswith("model.layers.42.")]
    assert not [name for name in by_file_name(folder_tensors(tiny)) if "eh_proj" in name]


def test_gguf_names_are_those_of_the_gguf_package() -> None:
    config = as_gguf(known("kimi-linear"))
    arch = gguf.MODEL_TENSORS[gguf.MODEL_ARCH.KIMI_LINEAR]
    theirs = {gguf.TENSOR_NAMES[kind].format(bid=bid) for kind in arch for bid in range(config.layers)}
    theirs |= {gguf.TENSOR_NAMES[kind] for kind in arch}
    for name, stored in by_file_name(gguf_tensors(config)).items():
        assert name.removesuffix(".weight").removesuffix(".bias") in theirs, name
        assert name.endswith((".weight", ".bias")) == (not name.endswith("ssm_a"))
        assert name.endswith(".bias") == ("ssm_dt" in name or "exp_probs_b" in name)
        assert stored.rate == ("negative" if name.endswith("ssm_a") else None)
    whole = by_file_name(gguf_tensors(replace(config, split_kv_b=False)))
    assert whole["blk.3.attn_kv_b.weight"].shapes == ((8192, 512),)
    split = by_file_name(gguf_tensors(config))
    assert split["blk.3.attn_k_b.weight"].shapes == ((32, 512, 128),)
    assert split["blk.3.attn_v_b.weight"].shapes == ((32, 128, 512),)


def test_canonical_names_are_all_found_in_either_kind_of_file() -> None:
    for config in (ling_config(mtp=1), ling_config(q_rank=24), kimi_config()):
        assert list(folder_tensors(config)) == list(expected_shapes(config))
        assert list(gguf_tensors(as_gguf(config))) == list(expected_shapes(as_gguf(config)))


def saved_shapes(model: torch.nn.Module, folder: Path) -> dict[str, tuple[int, ...]]:
    model.save_pretrained(folder)
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


@pytest.mark.parametrize("kind", ["kimi_linear", pytest.param("bailing_hybrid", marks=needs_ling)])
def test_transformers_saves_every_tensor_under_one_of_its_names(kind: str, tmp_path: Path) -> None:
    """A second witness of the official names, but for the out-projection of Ling's KDA layers: `dense` too."""
    import transformers

    kimi = kind == "kimi_linear"
    config = kimi_config() if kimi else ling_config(q_rank=24)
    name = "KimiLinear" if kimi else "BailingHybrid"
    theirs = getattr(transformers, f"{name}Config")(
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        intermediate_size=config.ffn,
        num_attention_heads=config.mla.heads,
        num_key_value_heads=config.mla.heads,
        kv_lora_rank=config.mla.kv_rank,
        q_lora_rank=config.mla.q_rank,
        qk_nope_head_dim=config.mla.nope,
        qk_rope_head_dim=config.mla.rope,
        v_head_dim=config.mla.value,
        linear_num_heads=config.kda.heads,
        linear_head_dim=config.kda.head_dim,
        num_experts=config.moe.experts,
        num_experts_per_token=config.moe.chosen,
        moe_intermediate_size=config.moe.width,
        num_expert_group=config.moe.groups,
        topk_group=config.moe.chosen_groups,
        layer_types=["full_attention" if k == "mla" else "linear_attention" for k in config.kinds],
        mlp_layer_types=["sparse" if config.is_moe(i) else "dense" for i in range(config.layers)],
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    saved = saved_shapes(getattr(transformers, f"{name}ForCausalLM")(theirs), tmp_path)
    tensors = by_file_name(folder_tensors(config))
    assert ("model.layers.0.attention.dense.weight" in saved) == (not kimi)
    assert saved.keys() <= tensors.keys()
    assert len(saved) == len(folder_tensors(config))
    assert all(shape in tensors[name].shapes for name, shape in saved.items())
