"""Ling-3.0's configuration as transformers' own class saves it: read as the published one, and refused by name else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hf_judge import needs_ling

from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.known import LING_FLASH, LING_TINY
from lingchat.architectures.read import hf_config_alone
from lingchat.errors import ModelFileError, UnsupportedModel

# The published key, and what it is saved as.
RENAMED = {
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "num_experts_per_tok": "num_experts_per_token",
}
MOVED = ("partial_rotary_factor", "rope_scaling")  # into rope_parameters
# What of the published keys the class never had, where it made the model itself.
OF_THE_PUBLISHER = (
    "auto_map", "embedding_dropout", "expert_swiglu_limit_list", "gated_attention_proj_granularity_type",
    "group_norm_size", "linear_silu", "max_window_layers", "moe_router_enable_expert_bias",
    "moe_shared_expert_intermediate_size", "mtp_use_kda", "no_kda_lora", "num_kv_heads_for_linear_attn",
    "output_dropout", "rope_interleave", "rotary_dim", "router_dtype", "scale_router_input",
    "score_function", "scoring_func", "seq_aux", "share_expert_swiglu_limit_list", "topk_method", "up_proj_norm",
    "use_bias", "use_kda_lora", "use_mla_nope", "use_nGPT", "use_qk_norm", "use_qkv_bias", "value_norm",
)  # fmt: skip


def resaved(published: dict[str, Any]) -> dict[str, Any]:
    """`published` as transformers 5.24 writes it after reading it."""
    layers, group, dense = (
        published[key] for key in ("num_hidden_layers", "layer_group_size", "first_k_dense_replace")
    )
    kept = {RENAMED.get(key, key): value for key, value in published.items() if key not in MOVED}
    return kept | {
        "architectures": ["BailingHybridForCausalLM"],
        "attention_bias": False,
        "bos_token_id": None,
        "head_dim": published["qk_rope_head_dim"],
        "kda_lower_bound": float(published["kda_lower_bound"]),
        "layer_types": ["linear_attention" if (i + 1) % group else "full_attention" for i in range(layers)],
        "linear_conv_kernel_dim": published["short_conv_kernel_size"],
        "linear_head_dim": published["head_dim"],
        "linear_num_heads": published["num_attention_heads"],
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * (layers - dense),
        "pretraining_tp": 1,
        "rope_parameters": {
            "partial_rotary_factor": published["partial_rotary_factor"],
            "rope_theta": published["rope_theta"],
            "rope_type": "default",
        },
        "transformers_version": "5.24.0",
    }


F, T = resaved(LING_FLASH), resaved(LING_TINY)
PLAIN = {key: value for key, value in T.items() if key not in OF_THE_PUBLISHER}
PLAIN["rope_parameters"] = {"rope_theta": 6000000.0, "rope_type": "default"}


def read(raw: dict[str, Any], **changes: Any) -> HybridConfig:
    """`raw` with `changes` (None: null) over it."""
    config = hf_config_alone("config.json", raw | changes)
    assert isinstance(config, HybridConfig)
    return config


def test_it_is_the_published_model() -> None:
    assert read(F) == read(LING_FLASH)
    assert read(T) == read(LING_TINY) == read(PLAIN)
    assert read(F).routed_limits[-1] == 4.0 and read(F).kda.head_dim == 128


@needs_ling
@pytest.mark.parametrize("published", [LING_FLASH, LING_TINY], ids=["flash", "tiny"])
def test_that_is_how_transformers_saves_it(tmp_path: Path, published: dict[str, Any]) -> None:
    from transformers import BailingHybridConfig

    # As written here the bound is a whole number, which the class does not take.
    (tmp_path / "config.json").write_text(json.dumps(published | {"kda_lower_bound": -5.0}))
    config = BailingHybridConfig.from_pretrained(tmp_path)
    config.architectures = ["BailingHybridForCausalLM"]  # a model of the class writes its name
    config.save_pretrained(tmp_path / "again")
    written = json.loads((tmp_path / "again/config.json").read_text())
    assert written | {"transformers_version": "5.24.0"} == resaved(published)
    assert read(written | {"architectures": ["BailingMoeV3ForCausalLM"]}) == read(published), "the configuration alone"


@needs_ling
def test_that_is_how_transformers_saves_its_own() -> None:
    from transformers import BailingHybridConfig

    sizes = {key: value for key, value in LING_TINY.items() if key not in OF_THE_PUBLISHER}
    made = BailingHybridConfig(**sizes | {"kda_lower_bound": -5.0, "partial_rotary_factor": None, "dtype": None})
    written = json.loads(made.to_json_string(use_diff=False)) | {"architectures": ["BailingHybridForCausalLM"]}
    assert read(written) == read(LING_TINY)


def test_the_schedule_off_the_period_is_what_the_list_says() -> None:
    """transformers' own rule makes KDA layers of what is left over, the published code MLA layers."""
    rest = {"layer_types": None, "mlp_layer_types": None, "num_hidden_layers": 10}
    kda, mla = ["linear_attention"], ["full_attention"]
    for last in (kda, mla):
        types = (kda * 3 + mla) * 2 + last * 2
        kind = "mla" if last is mla else "kda"
        assert read(T, **rest | {"layer_types": types}).kinds[8:] == (kind, kind)
    published = {"architectures": ["BailingMoeV3ForCausalLM"]}
    assert read(T, **published | rest | {"layer_types": types}) == read(LING_TINY, num_hidden_layers=10)
    with pytest.raises(ModelFileError, match="layer_types is"):
        read(T, **published | rest | {"layer_types": types[:8] + kda * 2})


def without(*keys: str) -> dict[str, Any]:
    return dict.fromkeys(keys)


KDA, MLA = "linear_attention", "full_attention"
Broken = tuple[dict[str, Any], dict[str, Any], type[Exception], str]
BROKEN: dict[str, Broken] = {
    "unknown layer type": (T, {"layer_types": ["lightning_attention"] * 24}, ModelFileError,
                           "layer_types is .*a list of 24, each linear_attention or full_attention"),
    "too few layer types": (T, {"layer_types": [KDA, MLA]}, ModelFileError, "layer_types is"),
    "no layer types": (T, without("layer_types"), ModelFileError, "layer_types is missing"),
    "types off the group": (T, {"layer_types": [MLA, KDA, KDA, KDA] * 6}, ModelFileError,
                            "layer_types is .*last of every 4 layers, as layer_group_size says"),
    "group off the types": (T, {"layer_group_size": 6}, ModelFileError, "layer_types is"),
    "unknown mlp type": (T, {"mlp_layer_types": ["dense"] + ["moe"] * 23}, ModelFileError, "mlp_layer_types is"),
    "dense after sparse": (T, {"mlp_layer_types": ["sparse"] * 23 + ["dense"]}, ModelFileError, "mlp_layer_types is"),
    "two counts of dense": (T, {"first_k_dense_replace": 2}, UnsupportedModel, "first_k_dense_replace = 2: only 1"),
    "no count of dense": (T, without("mlp_layer_types", "first_k_dense_replace"), ModelFileError,
                          "first_k_dense_replace is missing"),
    "head_dim of neither": (T, {"head_dim": 192}, UnsupportedModel, "head_dim = 192: only 128 or 64"),
    "no head size": (T, without("head_dim", "linear_head_dim"), ModelFileError, "head_dim is missing"),
    "kda heads": (T, {"linear_num_heads": 8}, UnsupportedModel, "linear_num_heads = 8: only 16"),
    "kda taps": (T, {"linear_conv_kernel_dim": 3}, UnsupportedModel, "linear_conv_kernel_dim = 3: only 4"),
    "kv heads": (T, {"num_key_value_heads": 4}, UnsupportedModel, "num_key_value_heads = 4: only 16"),
    "epsilon": (T, {"rms_norm_eps": 1e-5}, UnsupportedModel, "rms_norm_eps = 1e-05: only 1e-06"),
    "tied": (T, {"tie_word_embeddings": True}, UnsupportedModel, "tie_word_embeddings = True"),
    "unbounded": (T, {"kda_safe_gate": False}, UnsupportedModel, "kda_safe_gate = False"),
    "bound": (T, without("kda_lower_bound"), ModelFileError, "kda_lower_bound is missing"),
    "still": (T, {"use_mla_nope": True}, UnsupportedModel, "use_mla_nope = True"),
    "halves": (T, {"rope_interleave": False}, UnsupportedModel, "rope_interleave = False"),
    "paired": (T, {"no_kda_lora": False}, UnsupportedModel, "no_kda_lora = False"),
    "gate": (T, {"gated_attention_proj_granularity_type": "element_wise"}, UnsupportedModel, "'element_wise'"),
    "scores": (T, {"score_function": "softmax", "scoring_func": "softmax"}, UnsupportedModel, "'softmax'"),
    "biases": (T, {"attention_bias": True}, UnsupportedModel, "attention_bias = True"),
    "shared width": (T, {"moe_shared_expert_intermediate_size": 256}, UnsupportedModel,
                     "moe_shared_expert_intermediate_size = 256: only 512"),
    "two shared": (PLAIN, {"num_shared_experts": 2}, UnsupportedModel, "num_shared_experts = 2"),
    "two drafting layers": (PLAIN, {"num_nextn_predict_layers": 2}, UnsupportedModel, "num_nextn_predict_layers = 2"),
    "two group counts": (T, {"n_group": 4}, ModelFileError, "n_group = 4 and num_expert_group = 8 contradict"),
    "two contexts": (T, {"max_position_embeddings": 4096}, ModelFileError, "max_position_embeddings = 4096 and model_max"),
    "two expert counts": (T, {"num_local_experts": 64}, ModelFileError, "num_experts = 128 and num_local_experts = 64"),
    "two bases": (T, {"rope_parameters": {"rope_theta": 10000.0}}, ModelFileError, r"rope_parameters\.rope_theta is 10000"),
    "other rotation": (T, {"rope_parameters": {"rope_theta": 6e6, "rope_type": "linear", "factor": 2.0}},
                       UnsupportedModel, "rope_type = 'linear'"),
    "unknown key": (T, {"surprise": 1}, UnsupportedModel, "not understood.*surprise = 1"),
    # Ling 2.5 and 2.6, of the same model_type, have none of KDA's keys, under whatever name.
    "lightning attention": (PLAIN, without("short_conv_kernel_size", "kda_safe_gate", "kda_lower_bound"), ModelFileError,
                            "kda_safe_gate is missing"),
    "lightning attention by name": (PLAIN, {"architectures": ["BailingMoeV2_5ForCausalLM"]}, UnsupportedModel,
                                    "BailingMoeV2_5ForCausalLM.*`bailing_hybrid` names other models too"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_configuration_is_refused_by_name(case: str) -> None:
    raw, changes, error, text = BROKEN[case]
    with pytest.raises(error, match=text) as caught:
        read(raw, **changes)
    assert str(caught.value).startswith("config.json: ")


@pytest.mark.parametrize("raw", [F, T, PLAIN], ids=["flash", "tiny", "plain"])
def test_every_key_matters_or_is_harmless(raw: dict[str, Any]) -> None:
    """None of them could be misspelt unnoticed."""
    for key in raw:
        if raw[key] is not None:
            with pytest.raises((ModelFileError, UnsupportedModel)):
                read({k: v for k, v in raw.items() if k != key} | {f"{key}_": raw[key]})


def test_spellings_that_transformers_takes_and_does_not_write() -> None:
    other = {"num_experts": "num_local_experts", "num_shared_experts": "n_shared_experts"}
    other |= {"num_nextn_predict_layers": "num_mtp_layers", "model_max_length": "max_position_embeddings"}
    for raw in (F, PLAIN):
        assert read({other.get(key, key): value for key, value in raw.items()}) == read(raw)
    assert read(F, num_nextn_predict_layers=0) == replace(read(F), mtp_layers=0)
