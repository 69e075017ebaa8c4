"""GGUF headers of Ling-3.0 and Kimi-Linear: those that converters write are read right, broken ones refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.known import KIMI_LINEAR, LING_FLASH, LING_TINY
from lingchat.architectures.read import GGUF_ARCHITECTURES, gguf_config, hf_config_alone
from lingchat.catalog.headers import GGUFHeader, TensorInfo
from lingchat.errors import ModelFileError, UnsupportedModel

LING: dict[str, Any] = {
    "vocab_size": 157184, "context_length": 131072, "embedding_length": 1536, "block_count": 24,
    "feed_forward_length": 4608, "attention.head_count": 16, "attention.head_count_kv": [0, 0, 0, 1] * 6,
    "attention.layer_norm_rms_epsilon": 9.999999974752427e-07, "attention.kv_lora_rank": 512,
    "attention.q_lora_rank": 256, "attention.key_length": 576, "attention.value_length": 512,
    "attention.key_length_mla": 192, "attention.value_length_mla": 128, "rope.dimension_count": 64,
    "rope.freq_base": 6000000.0, "ssm.conv_kernel": 4, "kda.head_dim": 128, "kda.safe_gate": True,
    "kda.gate_lower_bound": -5.0, "expert_count": 128, "expert_used_count": 8, "expert_group_count": 8,
    "expert_group_used_count": 4, "expert_feed_forward_length": 512, "expert_shared_feed_forward_length": 512,
    "expert_shared_count": 1, "leading_dense_block_count": 1, "expert_weights_scale": 2.5,
    "expert_weights_norm": True, "expert_gating_func": 2, "swiglu_clamp_exp": [0.0] * 24,
    "swiglu_clamp_shexp": [0.0] * 24, "nextn_predict_layers": 0,
}  # fmt: skip
FLASH: dict[str, Any] = LING | {
    "context_length": 262144, "embedding_length": 2560, "block_count": 43, "feed_forward_length": 6144,
    "attention.head_count": 32, "attention.head_count_kv": [0, 0, 0, 0, 0, 1] * 7 + [1], "expert_count": 512,
    "expert_feed_forward_length": 768, "expert_shared_feed_forward_length": 768, "leading_dense_block_count": 2,
    "swiglu_clamp_exp": [0.0] * 35 + [4.0] * 7 + [0.0], "swiglu_clamp_shexp": [0.0] * 34 + [5.0] * 6 + [7.0] * 2 + [0.0],
    "nextn_predict_layers": 1,
}  # fmt: skip
del FLASH["attention.q_lora_rank"]
KIMI: dict[str, Any] = {
    "vocab_size": 163840, "context_length": 1048576, "embedding_length": 2304, "block_count": 27,
    "feed_forward_length": 9216, "attention.head_count": 32, "attention.head_count_kv": [0, 0, 0, 1] * 6 + [0, 0, 1],
    "attention.layer_norm_rms_epsilon": 9.999999747378752e-06, "attention.kv_lora_rank": 512,
    "attention.key_length": 576, "attention.value_length": 72, "attention.key_length_mla": 192,
    "attention.value_length_mla": 128, "rope.dimension_count": 64, "rope.freq_base": 10000.0, "ssm.conv_kernel": 4,
    "kda.head_dim": 128, "expert_count": 256, "expert_used_count": 8, "expert_group_count": 1,
    "expert_group_used_count": 1, "expert_feed_forward_length": 1024, "expert_shared_count": 1,
    "leading_dense_block_count": 1, "expert_weights_scale": 2.446000099182129, "expert_gating_func": 2,
}  # fmt: skip
KEYS = {"bailingmoe3": LING, "flash": FLASH, "kimi-linear": KIMI}
ROWS = {"bailingmoe3": 157184, "flash": 157184, "kimi-linear": 163840}
TENSORS = ("output.weight", *(f"blk.{i}.attn_k_b.weight" for i in (3, 5, 26)), "blk.42.nextn.eh_proj.weight")


def read(name: str, *without: str, **changes: Any) -> HybridConfig:
    """A header with the keys of KEYS and `changes` over them (`__` stands for a dot, None takes a key away), and with
    the tensors of TENSORS but `without`."""
    architecture = "bailingmoe3" if name == "flash" else name
    values = KEYS[name] | {key.replace("__", "."): value for key, value in changes.items()}
    metadata = {f"{architecture}.{key}": value for key, value in values.items() if value is not None}
    metadata |= {"general.architecture": architecture, "general.type": "model"}
    tensors = {n: TensorInfo(n, "F32", (1,), 0, 0, 4) for n in (*TENSORS, *map(str, range(100))) if n not in without}
    tensors["token_embd.weight"] = TensorInfo("token_embd.weight", "Q8_0", (ROWS[name], 64), 0, 0, 0)
    config = gguf_config(GGUFHeader(Path("m.gguf"), 3, metadata, tensors, ()), lambda _: memoryview(b""))
    assert isinstance(config, HybridConfig)
    return config


def rounded(config: HybridConfig) -> HybridConfig:
    """Without the noise of fp32 metadata, and as no file stores it."""
    moe = replace(config.moe, scale=round(config.moe.scale, 6))
    eps = float(f"{config.norm_eps:.5e}")
    return replace(config, moe=moe, norm_eps=eps, stacked_experts=False, split_kv_b=False)


@pytest.mark.parametrize(
    ("name", "raw"), [("bailingmoe3", LING_TINY), ("flash", LING_FLASH), ("kimi-linear", KIMI_LINEAR)]
)
def test_a_gguf_file_says_what_the_config_of_its_origin_says(name: str, raw: dict[str, Any]) -> None:
    config = read(name)
    assert rounded(config) == hf_config_alone("config.json", raw)
    assert config.stacked_experts
    assert config.split_kv_b


def test_what_a_key_means_that_is_not_there() -> None:
    assert read("bailingmoe3", kda__safe_gate=None) == read("bailingmoe3")
    assert read("bailingmoe3", nextn_predict_layers=None, swiglu_clamp_exp=None) == read("bailingmoe3")
    assert read("bailingmoe3", expert_shared_feed_forward_length=None).moe.shared_width == 512
    assert read("bailingmoe3", attention__value_length=128) == read("bailingmoe3"), "as converters write it"
    assert not read("bailingmoe3", expert_weights_norm=None).moe.renormalize
    assert read("bailingmoe3", expert_weights_scale=None).moe.scale == 1.0
    assert read("bailingmoe3", expert_weights_scale=0.0).moe.scale == 1.0
    alone = read("bailingmoe3", expert_group_count=None, expert_group_used_count=0).moe
    assert (alone.groups, alone.chosen_groups) == (1, 1)
    assert read("kimi-linear", expert_weights_norm=True) == read("kimi-linear")
    assert read("kimi-linear", leading_dense_block_count=None).dense_layers == 0


def test_the_drafting_block_counts_as_a_block_and_is_no_layer() -> None:
    config = read("flash")
    assert (config.layers, config.mtp_layers) == (42, 1)
    assert read("flash", "blk.42.nextn.eh_proj.weight").mtp_layers == 0, "announced, and left out of the file"
    short = {"attention__head_count_kv": FLASH["attention.head_count_kv"][:42]}
    assert read("flash", swiglu_clamp_exp=FLASH["swiglu_clamp_exp"][:42], **short) == config


def test_what_the_tensors_say() -> None:
    assert read("bailingmoe3", "output.weight").tied
    assert not read("kimi-linear", "output.weight").tied, "its loader needs a head; a lost one is an error later"
    assert not read("kimi-linear", *TENSORS).split_kv_b


def test_ling_and_kimi_linear_are_among_the_supported_architectures() -> None:
    assert {"bailingmoe3", "kimi-linear", "llama"} <= set(GGUF_ARCHITECTURES)
    header = GGUFHeader(Path("m.gguf"), 3, {"general.architecture": "bailingmoe2"}, {}, ())
    with pytest.raises(UnsupportedModel, match=r"'bailingmoe2' is not supported.*bailingmoe3, kimi-linear"):
        gguf_config(header, lambda _: memoryview(b""))


REQUIRED = [key for key in LING if key not in (
    "vocab_size", "kda.safe_gate", "expert_weights_norm", "expert_weights_scale", "nextn_predict_layers",
    "attention.key_length", "attention.value_length", "attention.q_lora_rank", "rope.freq_base", "swiglu_clamp_exp",
    "swiglu_clamp_shexp", "expert_group_count", "expert_group_used_count", "expert_shared_feed_forward_length",
)]  # fmt: skip


@pytest.mark.parametrize("key", REQUIRED)
@pytest.mark.parametrize("name", ["bailingmoe3", "kimi-linear"])
def test_a_key_that_must_be_there(name: str, key: str) -> None:
    if (name, key) in [("kimi-linear", "kda.gate_lower_bound"), ("kimi-linear", "leading_dense_block_count")]:
        return
    with pytest.raises(ModelFileError, match=f"{name}.{key} is missing"):
        read(name, **{key.replace(".", "__"): None})


BROKEN: dict[str, tuple[str, dict[str, Any], type[Exception], str]] = {
    "kv heads a number": ("bailingmoe3", {"attention__head_count_kv": 1}, ModelFileError, "head_count_kv is 1; .* list of 24"),
    "kv heads short": ("bailingmoe3", {"attention__head_count_kv": [0] * 23}, ModelFileError, "head_count_kv is"),
    "kv heads of text": ("bailingmoe3", {"attention__head_count_kv": ["0"] * 24}, ModelFileError, "head_count_kv is"),
    "drafting KDA": ("flash", {"attention__head_count_kv": [0, 0, 0, 0, 0, 1] * 7 + [0]}, UnsupportedModel, "head_count_kv"),
    "clamps short": ("bailingmoe3", {"swiglu_clamp_exp": [0.0] * 23}, ModelFileError, "swiglu_clamp_exp is .* not 23"),
    "clamps a number": ("bailingmoe3", {"swiglu_clamp_shexp": 4.0}, ModelFileError, r"swiglu_clamp_shexp is 4\.0"),
    "clamps negative": ("bailingmoe3", {"swiglu_clamp_exp": [-1.0] * 24}, ModelFileError, r"swiglu_clamp_exp is -1\.0"),
    "clamp of a dense block": ("bailingmoe3", {"swiglu_clamp_shexp": [5.0] * 24}, UnsupportedModel, "swiglu_clamp_shexp"),
    "clamp of the drafting block": ("flash", {"swiglu_clamp_exp": [0.0] * 42 + [4.0]}, UnsupportedModel, "swiglu_clamp_exp"),
    "unsafe gate": ("bailingmoe3", {"kda__safe_gate": False}, UnsupportedModel, "kda.safe_gate = False"),
    "bound": ("bailingmoe3", {"kda__gate_lower_bound": 0.0}, ModelFileError, r"kda.gate_lower_bound is 0\.0"),
    "softmax": ("bailingmoe3", {"expert_gating_func": 1}, UnsupportedModel, "expert_gating_func = 1: only 2"),
    "two drafting blocks": ("flash", {"nextn_predict_layers": 2}, UnsupportedModel, "nextn_predict_layers = 2"),
    "kimi drafting": ("kimi-linear", {"nextn_predict_layers": 1}, UnsupportedModel, "nextn_predict_layers = 1"),
    "kimi clamps": ("kimi-linear", {"swiglu_clamp_exp": [4.0] * 27}, UnsupportedModel, "swiglu_clamp_exp = "),
    "kimi weights": ("kimi-linear", {"expert_weights_norm": False}, UnsupportedModel, "expert_weights_norm = False"),
    "kimi latent experts": ("kimi-linear", {"moe_latent_size": 64}, UnsupportedModel, "moe_latent_size = 64"),
    "yarn": ("bailingmoe3", {"rope__scaling__type": "yarn"}, UnsupportedModel, "rope.scaling.type = 'yarn'"),
    "surprise": ("bailingmoe3", {"surprise": [1]}, UnsupportedModel, r"bailingmoe3.surprise = \[1\]"),
    "window": ("bailingmoe3", {"attention__sliding_window": 512}, UnsupportedModel, "sliding_window = 512"),
    "key length": ("bailingmoe3", {"attention__key_length": 128}, UnsupportedModel, "attention.key_length = 128"),
    "value length": ("bailingmoe3", {"attention__value_length": 64}, UnsupportedModel, "attention.value_length = 64"),
    "mla narrower than rope": ("bailingmoe3", {"attention__key_length_mla": 64}, ModelFileError, "key_length_mla is 64"),
    "blocks": ("bailingmoe3", {"block_count": 10**9}, ModelFileError, "block_count is 1000000000"),
    "vocabulary": ("bailingmoe3", {"vocab_size": 157000}, ModelFileError, "vocab_size is 157000"),
    "a size of text": ("bailingmoe3", {"embedding_length": "1536"}, ModelFileError, "embedding_length is '1536'"),
    "groups": ("bailingmoe3", {"expert_group_count": 7}, ModelFileError, "128 experts do not divide into 7 groups"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_header_is_refused_by_name(case: str) -> None:
    name, changes, error, text = BROKEN[case]
    with pytest.raises(error, match=text):
        read(name, **changes)


def test_an_adapter_is_no_model() -> None:
    header = GGUFHeader(Path("m.gguf"), 3, {"general.architecture": "bailingmoe3", "general.type": "adapter"}, {}, ())
    with pytest.raises(UnsupportedModel, match="adapter"):
        gguf_config(header, lambda _: memoryview(b""))
