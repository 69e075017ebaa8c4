"""Configurations of Ling-3.0 and Kimi-Linear: published ones are read right, broken ones refused by name and value."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.known import KIMI_LINEAR, KNOWN, LING_FLASH, LING_TINY
from lingchat.architectures.read import hf_config, hf_config_alone
from lingchat.catalog.headers import SafetensorsHeader, TensorInfo
from lingchat.errors import ModelFileError, UnsupportedModel

FP8: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "scale_fmt": "ue8m0",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head", "model.layers.1.mlp.gate"],
}
INT4_WEIGHTS: dict[str, Any] = {
    "num_bits": 4,
    "type": "int",
    "symmetric": True,
    "strategy": "group",
    "group_size": 32,
    "dynamic": False,
    "actorder": None,
    "block_structure": None,
    "observer": "minmax",
    "observer_kwargs": {},
}


def int4(group: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The published int4 layout; `changes` go into the weights' table, `group` beside it."""
    inner = {"targets": ["Linear"], "weights": INT4_WEIGHTS | changes, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": inner | (group or {})},
        "ignore": ["lm_head", "re:.*attention.*"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
        "version": "0.12.2",
    }


def read(raw: dict[str, Any], **changes: Any) -> HybridConfig:
    """`raw` with `changes` (None: null) over it."""
    config = hf_config_alone("config.json", raw | changes)
    assert isinstance(config, HybridConfig)
    return config


def held(raw: dict[str, Any], *names: str) -> HybridConfig:
    """`raw` read beside a checkpoint with tensors of `names`, and some more."""
    tensors = {n: TensorInfo(n, "BF16", (1,), 0, 0, 2) for n in (*names, *map(str, range(100)))}
    config = hf_config(SafetensorsHeader(Path("folder"), raw, tensors, ()))
    assert isinstance(config, HybridConfig)
    return config


def mla_layers(config: HybridConfig) -> list[int]:
    return [i for i, kind in enumerate(config.kinds) if kind == "mla"]


# What is published


def test_ling_flash() -> None:
    config = read(LING_FLASH)
    assert (config.hidden, config.layers, config.vocab, config.context) == (2560, 42, 157184, 262144)
    assert mla_layers(config) == [5, 11, 17, 23, 29, 35, 41]
    assert (config.dense_layers, config.ffn, config.norm_eps, config.tied) == (2, 6144, 1e-6, False)
    kda, mla, moe = config.kda, config.mla, config.moe
    assert (kda.heads, kda.head_dim, kda.taps, kda.gate, kda.lower_bound, kda.rank) == (32, 128, 4, "bounded", -5, None)
    assert (mla.heads, mla.nope, mla.rope, mla.value, mla.kv_rank, mla.q_rank) == (32, 128, 64, 128, 512, None)
    assert (mla.rope_base, mla.rope_factors, mla.gated, mla.scale) == (6e6, None, True, 192**-0.5)
    assert (moe.experts, moe.chosen, moe.groups, moe.chosen_groups) == (512, 8, 8, 4)
    assert (moe.width, moe.shared_width, moe.scale, moe.renormalize) == (768, 768, 2.5, True)
    assert config.routed_limits == (0.0,) * 35 + (4.0,) * 7
    assert config.shared_limits == (0.0,) * 34 + (5.0,) * 6 + (7.0,) * 2
    assert (config.mtp_layers, config.quantization) == (1, "none")


def test_ling_tiny() -> None:
    config = read(LING_TINY)
    assert mla_layers(config) == [3, 7, 11, 15, 19, 23]
    assert (config.hidden, config.mla.q_rank, config.moe.experts, config.dense_layers) == (1536, 256, 128, 1)
    assert (config.mtp_layers, set(config.routed_limits + config.shared_limits)) == (0, {0.0})


def test_kimi_linear() -> None:
    config = read(KIMI_LINEAR)
    assert mla_layers(config) == [3, 7, 11, 15, 19, 23, 26]
    kda, mla, moe = config.kda, config.mla, config.moe
    assert (kda.heads, kda.head_dim, kda.gate, kda.rank, config.norm_eps) == (32, 128, "softplus", 128, 1e-5)
    assert (mla.rope_base, mla.gated, mla.scale, mla.rope) == (None, False, 192**-0.5, 64)
    assert (moe.experts, moe.groups, moe.chosen_groups, moe.scale, moe.width) == (256, 1, 1, 2.446, 1024)
    assert config.context == 1048576


def test_the_schedule_of_a_layer_count_off_the_period() -> None:
    assert mla_layers(read(LING_TINY, num_hidden_layers=10)) == [3, 7, 8, 9]
    assert mla_layers(read(LING_FLASH | {k: None for k in LING_FLASH if "limit_list" in k}, num_hidden_layers=7)) == [
        5,
        6,
    ]


def test_kimi_linear_as_transformers_5_writes_it() -> None:
    from transformers import KimiLinearConfig

    made = KimiLinearConfig(**{k: v for k, v in KIMI_LINEAR.items() if k != "auto_map"})
    for text in (made.to_json_string(), made.to_json_string(use_diff=False)):
        written = json.loads(text)
        assert "linear_attn_config" not in written or "layer_types" in written
        assert read(written) == read(KIMI_LINEAR)
    flat = {k: v for k, v in written.items() if k not in ("linear_attn_config", "first_k_dense_replace")}
    assert read(flat) == read(KIMI_LINEAR), "its own keys alone"


def test_dispatch_is_on_architectures_and_never_on_model_type() -> None:
    assert read(LING_TINY, model_type="kimi_linear") == read(LING_TINY)
    for names in (["BailingMoeV2_5ForCausalLM"], ["BailingMoeLinearV2ForCausalLM"]):
        with pytest.raises(
            UnsupportedModel, match=r"`bailing_hybrid` names other models too.*BailingMoeV3ForCausalLM"
        ) as caught:
            read(LING_TINY, architectures=names)
        assert names[0] in str(caught.value)
    for other in (None, [], "BailingMoeV3ForCausalLM", ["BailingMoeV3ForCausalLM", "Another"], [7]):
        with pytest.raises(UnsupportedModel, match=r"Known: LlamaForCausalLM.*KimiLinearForCausalLM"):
            read(LING_TINY, architectures=other, model_type=None)


def test_rope_parameters_do_not_shrink_the_rotation_again() -> None:
    without = {k: v for k, v in LING_TINY.items() if k not in ("rope_theta", "rope_scaling")}
    parameters = {"partial_rotary_factor": 0.5, "rope_theta": 6000000, "rope_type": "default"}
    assert read(without, rope_parameters=parameters) == read(LING_TINY)
    assert read(LING_TINY).mla.rope == 64


def test_mla_without_rotation() -> None:
    config = read(LING_TINY, use_mla_nope=True)
    assert config.mla == replace(read(LING_TINY).mla, rope_base=None)
    assert read(LING_TINY, use_mla_nope=True, rope_theta=None).mla == config.mla


@pytest.mark.parametrize(("fast", "slow"), [(32, 1), (20, 2)])
def test_yarn_is_that_of_transformers(fast: float, slow: float) -> None:
    import torch
    from transformers import DeepseekV3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 131072}
    scaling |= {"mscale": 0.7, "mscale_all_dim": 0.7, "beta_fast": fast, "beta_slow": slow}
    theirs = DeepseekV3Config(
        rope_parameters=scaling | {"rope_theta": 6e6}, qk_rope_head_dim=64, max_position_embeddings=524288
    )
    frequencies, length = ROPE_INIT_FUNCTIONS["yarn"](theirs)
    mla = read(LING_TINY, rope_scaling=scaling).mla
    assert mla.rope_factors is not None
    assert (length, mla.rope_factors[0], mla.rope_factors[-1]) == (1.0, 1.0, 4.0)
    assert any(1.0 < factor < 4.0 for factor in mla.rope_factors)
    ours = torch.tensor([6e6 ** (-2 * i / 64) / mla.rope_factors[i] for i in range(32)], dtype=torch.float64)
    assert torch.allclose(ours, frequencies.double(), rtol=1e-5, atol=0)
    assert mla.scale == pytest.approx(192**-0.5 * (0.1 * 0.7 * 1.3862943611198906 + 1) ** 2, rel=1e-12)


def test_a_drafting_layer_without_tensors_is_none() -> None:
    assert held(LING_FLASH, "model.layers.42.enorm.weight").mtp_layers == 1
    assert held(LING_FLASH, "model.layers.41.input_layernorm.weight").mtp_layers == 0


@pytest.mark.parametrize("key", ["use_qk_norm", "linear_silu", "max_window_layers", "mtp_use_kda", "use_nGPT",
                                 "scale_router_input", "seq_aux", "group_norm_size", "num_kv_heads_for_linear_attn",
                                 "up_proj_norm", "value_norm", "use_kda_lora"])  # fmt: skip
def test_keys_that_no_code_reads_change_nothing(key: str) -> None:
    assert read(LING_FLASH, **{key: 7}) == read(LING_FLASH)
    assert read({k: v for k, v in LING_FLASH.items() if k != key}) == read(LING_FLASH)


def test_quantised_checkpoints() -> None:
    assert read(LING_FLASH, quantization_config=FP8) == replace(read(LING_FLASH), quantization="fp8")
    assert read(LING_TINY, quantization_config=int4()) == replace(read(LING_TINY), quantization="int4")


# What is broken

Broken = tuple[dict[str, Any], dict[str, Any], type[Exception], str]


def _missing() -> dict[str, Broken]:
    """Keys without which nothing can be computed, absent and null."""
    ling = [
        "hidden_size", "num_hidden_layers", "layer_group_size", "num_attention_heads", "head_dim", "vocab_size",
        "short_conv_kernel_size", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rope_theta",
        "intermediate_size", "first_k_dense_replace", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
        "n_group", "topk_group", "routed_scaling_factor", "norm_topk_prob", "rms_norm_eps", "kda_lower_bound",
        "max_position_embeddings", "no_kda_lora", "kda_safe_gate", "gated_attention_proj_granularity_type",
        "rope_interleave", "moe_router_enable_expert_bias", "num_shared_experts", "hidden_act",
    ]  # fmt: skip
    kimi = [
        "linear_attn_config", "num_experts", "num_experts_per_token", "num_shared_experts", "moe_renormalize",
        "routed_scaling_factor", "first_k_dense_replace", "model_max_length", "kv_lora_rank", "hidden_act",
    ]  # fmt: skip
    cases: dict[str, Broken] = {}
    for name, raw, keys in (("ling", LING_FLASH, ling), ("kimi", KIMI_LINEAR, kimi)):
        for key in keys:
            said = "linear_num_heads" if key == "linear_attn_config" else key
            cases[f"{name} without {key}"] = (
                {k: v for k, v in raw.items() if k != key}, {}, ModelFileError, f"{said} is missing"
            )  # fmt: skip
            cases[f"{name} {key} null"] = (raw, {key: None}, ModelFileError, f"{said} is missing")
    return cases


def _linear(**changes: Any) -> dict[str, Any]:
    return {"linear_attn_config": KIMI_LINEAR["linear_attn_config"] | changes}


def _yarn(**changes: Any) -> dict[str, Any]:
    scaling = {
        "type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 131072,
        "mscale": 1,
        "mscale_all_dim": 1,
    }
    return {"rope_scaling": {k: v for k, v in (scaling | changes).items() if v is not None}}


F, K, T = LING_FLASH, KIMI_LINEAR, LING_TINY
BROKEN: dict[str, Broken] = _missing() | {
    # wrong types
    "hidden a string": (F, {"hidden_size": "2560"}, ModelFileError, "hidden_size is '2560'"),
    "hidden a float": (F, {"hidden_size": 2560.0}, ModelFileError, r"hidden_size is 2560\.0"),
    "hidden true": (F, {"hidden_size": True}, ModelFileError, "hidden_size is True"),
    "experts 0": (F, {"num_experts": 0}, ModelFileError, "num_experts is 0"),
    "layers absurd": (F, {"num_hidden_layers": 10**9}, ModelFileError, "num_hidden_layers is 1000000000"),
    "experts absurd": (F, {"num_experts": 10**9}, ModelFileError, "num_experts is 1000000000"),
    "dense negative": (F, {"first_k_dense_replace": -1}, ModelFileError, "first_k_dense_replace is -1"),
    "eps not finite": (F, {"rms_norm_eps": float("nan")}, ModelFileError, "rms_norm_eps is nan"),
    "norm_topk_prob 1": (F, {"norm_topk_prob": 1}, ModelFileError, "norm_topk_prob is 1; it must be true or false"),
    "use_mla_nope text": (F, {"use_mla_nope": "no"}, ModelFileError, "use_mla_nope is 'no'"),
    "tie text": (F, {"tie_word_embeddings": "no"}, ModelFileError, "tie_word_embeddings is 'no'"),
    "rope_scaling a list": (F, {"rope_scaling": [2.0]}, ModelFileError, r"rope_scaling is \[2\.0\]"),
    "quantization a text": (F, {"quantization_config": "fp8"}, ModelFileError, "quantization_config is 'fp8'"),
    "linear a list": (K, {"linear_attn_config": [1]}, ModelFileError, r"linear_attn_config is \[1\]"),
    # wrong lists
    "limits short": (F, {"expert_swiglu_limit_list": [0] * 41}, ModelFileError,
                     "expert_swiglu_limit_list is .*; it must be a list of 42 numbers, one a layer, not 41"),
    "limits long": (F, {"share_expert_swiglu_limit_list": [0] * 43}, ModelFileError,
                    "share_expert_swiglu_limit_list is .*, not 43"),
    "limits a number": (F, {"expert_swiglu_limit_list": 4}, ModelFileError, "expert_swiglu_limit_list is 4"),
    "limits of text": (F, {"expert_swiglu_limit_list": ["4"] * 42}, ModelFileError, "expert_swiglu_limit_list is '4'"),
    "limits negative": (F, {"expert_swiglu_limit_list": [-4] * 42}, ModelFileError, "expert_swiglu_limit_list is -4"),
    "limits infinite": (F, {"expert_swiglu_limit_list": [float("inf")] * 42}, ModelFileError, "list is inf"),
    "limits of dense layers": (F, {"share_expert_swiglu_limit_list": [5] * 42}, UnsupportedModel,
                               "share_expert_swiglu_limit_list.*first 2 layers have no experts"),
    "kda list short": (K, _linear(kda_layers=[1, 2]), ModelFileError, r"linear_attn_config\.kda_layers is \[1, 2\]"),
    "kda list from 0": (K, _linear(kda_layers=[0, 1]), ModelFileError, r"kda_layers is \[0, 1\].*layers 1 to 27 once"),
    "kda list twice": (K, _linear(full_attn_layers=[1, 4]), ModelFileError, "kda_layers"),
    "kda list of text": (K, _linear(kda_layers=["1"]), ModelFileError, r"kda_layers is \['1'\]"),
    "kda list missing": (K, _linear(full_attn_layers=None), ModelFileError, "full_attn_layers is missing"),
    "kda heads missing": (K, _linear(num_heads=None), ModelFileError, r"linear_attn_config\.num_heads is missing"),
    "layer types short": (K, {"layer_types": ["linear_attention"]}, ModelFileError, "layer_types is"),
    "layer types unknown": (K, {"layer_types": ["mamba"] * 27}, ModelFileError, "layer_types is"),
    "mlp types odd": (K, {"mlp_layer_types": ["sparse"] * 26 + ["dense"]}, ModelFileError, "mlp_layer_types is"),
    # not supported
    "unknown key": (F, {"surprise": 1}, UnsupportedModel, "not understood.*surprise = 1"),
    "unknown kimi key": (K, {"moe_latent_size": 64}, UnsupportedModel, "moe_latent_size = 64"),
    "unknown linear key": (K, _linear(gate_lower_bound=-5), UnsupportedModel, r"linear_attn_config\.gate_lower_bound = -5"),
    "pregate": (T, {"pregate_enabled": True}, UnsupportedModel, "pregate_enabled = True"),
    "mlx quantisation": (T, {"quantization": {"bits": 4}}, UnsupportedModel, "quantization = {'bits': 4}"),
    "act": (F, {"hidden_act": "gelu"}, UnsupportedModel, "hidden_act = 'gelu'"),
    "paired ling": (F, {"no_kda_lora": False}, UnsupportedModel, "no_kda_lora = False"),
    "unbounded ling": (F, {"kda_safe_gate": False}, UnsupportedModel, "kda_safe_gate = False"),
    "bound too low": (F, {"kda_lower_bound": -8}, ModelFileError, "kda_lower_bound is -8"),
    "bound positive": (F, {"kda_lower_bound": 0}, ModelFileError, "kda_lower_bound is 0"),
    "gate a channel": (F, {"gated_attention_proj_granularity_type": "element_wise"}, UnsupportedModel, "element_wise"),
    "rope halves": (F, {"rope_interleave": False}, UnsupportedModel, "rope_interleave = False"),
    "partly rotated": (F, {"partial_rotary_factor": 0.25}, UnsupportedModel, r"partial_rotary_factor = 0\.25"),
    "rotary_dim": (F, {"rotary_dim": 32}, UnsupportedModel, "rotary_dim = 32: only 64"),
    "softmax": (F, {"score_function": "softmax", "scoring_func": "softmax"}, UnsupportedModel, "score_function = 'softmax'"),
    "topk method": (F, {"topk_method": "greedy"}, UnsupportedModel, "topk_method = 'greedy'"),
    "router bf16": (F, {"router_dtype": "bf16"}, UnsupportedModel, "router_dtype = 'bf16'"),
    "no bias": (F, {"moe_router_enable_expert_bias": False}, UnsupportedModel, "moe_router_enable_expert_bias = False"),
    "two shared": (F, {"num_shared_experts": 2}, UnsupportedModel, "num_shared_experts = 2"),
    "biases": (F, {"use_qkv_bias": True}, UnsupportedModel, "use_qkv_bias = True"),
    "two drafting layers": (F, {"num_nextn_predict_layers": 2}, UnsupportedModel, "num_nextn_predict_layers = 2"),
    "window": (F, {"sliding_window": 4096}, UnsupportedModel, "sliding_window = 4096"),
    "rope linear": (F, {"rope_scaling": {"type": "linear", "factor": 2}}, UnsupportedModel, "rope_scaling.rope_type = 'linear'"),
    "yarn surprise": (F, _yarn(surprise=1), UnsupportedModel, r"rope_scaling\.surprise = 1"),
    "yarn without factor": (F, _yarn(factor=None), ModelFileError, r"rope_scaling\.factor is missing"),
    "yarn factor 1": (F, _yarn(factor=1), ModelFileError, r"rope_scaling\.factor is 1"),
    "yarn original": (F, _yarn(original_max_position_embeddings=None), ModelFileError, "original_max_position_embeddings"),
    "yarn two mscales": (F, _yarn(mscale=0.7), UnsupportedModel, r"rope_scaling\.mscale = 0\.7"),
    "yarn plain": (F, _yarn(mscale=None, mscale_all_dim=None), UnsupportedModel, "attention_factor"),
    "yarn still": (F, _yarn() | {"use_mla_nope": True}, UnsupportedModel, "rope_type = 'yarn'"),
    "kimi rotated": (K, {"mla_use_nope": False}, UnsupportedModel, "mla_use_nope = False"),
    "kimi frequency": (K, {"moe_layer_freq": 2}, UnsupportedModel, "moe_layer_freq = 2"),
    "kimi softmax": (K, {"moe_router_activation_func": "softmax"}, UnsupportedModel, "'softmax'"),
    "kimi drafting": (K, {"num_nextn_predict_layers": 1}, UnsupportedModel, "num_nextn_predict_layers = 1"),
    "kimi plain topk": (K, {"num_expert_group": 8, "topk_group": 4, "use_grouped_topk": False}, UnsupportedModel,
                        "use_grouped_topk = False"),
    # quantisation
    "no method": (F, {"quantization_config": {"bits": 4}}, UnsupportedModel, r"quantization_config\.quant_method = None"),
    "gptq": (F, {"quantization_config": {"quant_method": "gptq"}}, UnsupportedModel, "quant_method = 'gptq'"),
    "fp8 block": (F, {"quantization_config": FP8 | {"weight_block_size": [64, 64]}}, UnsupportedModel,
                  r"quantization_config\.weight_block_size = \[64, 64\]"),
    "fp8 no block": (F, {"quantization_config": FP8 | {"weight_block_size": None}}, ModelFileError,
                     "weight_block_size is missing"),
    "fp8 e5m2": (F, {"quantization_config": FP8 | {"fmt": "e5m2"}}, UnsupportedModel, "fmt = 'e5m2'"),
    "fp8 static": (F, {"quantization_config": FP8 | {"activation_scheme": "static"}}, UnsupportedModel, "'static'"),
    "fp8 surprise": (F, {"quantization_config": FP8 | {"surprise": 1}}, UnsupportedModel,
                     r"quantization_config\.surprise = 1"),
    "int4 format": (F, {"quantization_config": int4() | {"format": "marlin-24"}}, UnsupportedModel, "'marlin-24'"),
    "int4 groups": (F, {"quantization_config": int4() | {"config_groups": {}}}, ModelFileError, "config_groups is missing"),
    "int4 group": (F, {"quantization_config": int4() | {"config_groups": {"group_0": {}}}}, ModelFileError, "group_0"),
    "int4 bits": (F, {"quantization_config": int4(num_bits=8)}, UnsupportedModel, "num_bits = 8"),
    "int4 group size": (F, {"quantization_config": int4(group_size=128)}, UnsupportedModel, "group_size = 128"),
    "int4 zero points": (F, {"quantization_config": int4(symmetric=False)}, UnsupportedModel, "symmetric = False"),
    "int4 order": (F, {"quantization_config": int4(actorder="group")}, UnsupportedModel, "actorder = 'group'"),
    "int4 activations": (F, {"quantization_config": int4({"input_activations": {"num_bits": 8}})}, UnsupportedModel,
                         "input_activations"),
    "int4 channel": (F, {"quantization_config": int4(strategy="channel")}, UnsupportedModel, "strategy = 'channel'"),
    # contradictions
    "two scores": (F, {"score_function": "softmax"}, ModelFileError, "score_function = 'softmax' and scoring_func = 'sigmoid'"),
    "two thetas": (F, {"rope_parameters": {"rope_theta": 10000}}, ModelFileError, "rope_parameters.rope_theta is 10000"),
    "heads": (F, {"num_key_value_heads": 8}, UnsupportedModel, "num_key_value_heads = 8: only 32"),
    "qk_head_dim": (F, {"qk_head_dim": 128}, UnsupportedModel, "qk_head_dim = 128: only 192"),
    "odd rope": (F, {"qk_rope_head_dim": 63, "rotary_dim": 63, "qk_head_dim": 191, "partial_rotary_factor": 1.0},
                 ModelFileError, "rotated width 63 is odd"),
    "groups": (F, {"n_group": 7}, ModelFileError, "512 experts do not divide into 7 groups"),
    "groups chosen": (F, {"topk_group": 9}, ModelFileError, "9 of 8 groups"),
    "too many chosen": (T, {"topk_group": 1, "num_experts_per_tok": 17}, ModelFileError, "17 experts"),
    "layer kinds": (K, {"layer_types": ["full_attention"] * 27}, ModelFileError, "layer_types is"),
    "kimi heads": (K, {"linear_head_dim": 64}, UnsupportedModel, "linear_head_dim = 64: only 128"),
    "kimi experts": (K, {"num_local_experts": 128}, ModelFileError, "num_experts = 256 and num_local_experts = 128"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_configuration_is_refused_by_name(case: str) -> None:
    raw, changes, error, text = BROKEN[case]
    with pytest.raises(error, match=text) as caught:
        read(raw, **changes)
    assert str(caught.value).startswith(("config.json: ", "The model's configuration contradicts itself"))


@pytest.mark.parametrize("name", [name for name in KNOWN if "qwen" not in name])
def test_every_key_of_a_published_configuration_matters_or_is_harmless(name: str) -> None:
    """None of them could be misspelt unnoticed."""
    for key in KNOWN[name]:
        misspelt = {k: v for k, v in KNOWN[name].items() if k != key} | {f"{key}_": KNOWN[name][key]}
        if KNOWN[name][key] is not None:
            with pytest.raises((ModelFileError, UnsupportedModel)):
                read(misspelt)
