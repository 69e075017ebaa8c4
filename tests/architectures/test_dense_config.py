"""Configurations: those of published models are read right, and what is not understood is refused by name and value."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from make_models import LLAMA3_SCALING, hf_model, tiny_config

from lingchat.architectures.dense import DenseConfig
from lingchat.architectures.dense_gguf import gguf_config
from lingchat.architectures.dense_hf import hf_config
from lingchat.catalog.headers import GGUFHeader, SafetensorsHeader, TensorInfo
from lingchat.errors import LingchatError, ModelFileError, UnsupportedModel

SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False,
    "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
    "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None,
    "rope_theta": 100000, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.42.3",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "use_cache": True, "vocab_size": 49152,
}  # fmt: skip
QWEN25: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
    "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.43.1",
    "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
LLAMA32: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0", "use_cache": True, "vocab_size": 128256,
}  # fmt: skip
GGUF_SMOLLM2: dict[str, Any] = {
    "general.architecture": "llama", "general.type": "model", "general.file_type": 3, "llama.block_count": 30,
    "llama.context_length": 8192, "llama.embedding_length": 576, "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9, "llama.attention.head_count_kv": 3, "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06, "llama.vocab_size": 49152,
    "llama.rope.dimension_count": 64, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"] * 49152,
}  # fmt: skip
GGUF_MISTRAL: dict[str, Any] = {
    "general.architecture": "llama", "llama.context_length": 32768, "llama.embedding_length": 4096,
    "llama.block_count": 32, "llama.feed_forward_length": 14336, "llama.rope.dimension_count": 128,
    "llama.attention.head_count": 32, "llama.attention.head_count_kv": 8,
    "llama.attention.layer_norm_rms_epsilon": 1e-05, "llama.rope.freq_base": 1000000.0,
}  # fmt: skip
GGUF_QWEN3: dict[str, Any] = {
    "general.architecture": "qwen3", "general.type": "model", "qwen3.block_count": 28, "qwen3.context_length": 40960,
    "qwen3.embedding_length": 1024, "qwen3.feed_forward_length": 3072, "qwen3.attention.head_count": 16,
    "qwen3.attention.head_count_kv": 8, "qwen3.rope.freq_base": 1000000.0,
    "qwen3.attention.layer_norm_rms_epsilon": 1e-06, "qwen3.attention.key_length": 128,
    "qwen3.attention.value_length": 128, "tokenizer.ggml.tokens": ["a"] * 151936,
}  # fmt: skip
GGUF_QWEN25: dict[str, Any] = {
    "general.architecture": "qwen2", "qwen2.block_count": 24, "qwen2.context_length": 32768,
    "qwen2.embedding_length": 896, "qwen2.feed_forward_length": 4864, "qwen2.attention.head_count": 14,
    "qwen2.attention.head_count_kv": 2, "qwen2.rope.freq_base": 1000000.0,
    "qwen2.attention.layer_norm_rms_epsilon": 1e-06, "tokenizer.ggml.tokens": ["a"] * 151936,
}  # fmt: skip


def hf(config: dict[str, Any], *names: str, **changes: Any) -> DenseConfig:
    """The configuration of a folder with `config` and `changes` (None: null) over it, and tensors of `names`."""
    tensors = {n: TensorInfo(n, "F32", (1,), 0, 0, 4) for n in (*names, *map(str, range(100)))}
    return hf_config(SafetensorsHeader(Path("folder"), config | changes, tensors, ()))


def gguf(metadata: dict[str, Any], rows: int, *names: str, rope: tuple[float, ...] = (), **changes: Any) -> DenseConfig:
    """The configuration of a GGUF header with an embedding of `rows` rows; `__` in a changed key stands for a dot."""
    arch = metadata["general.architecture"]
    changed = {f"{arch}.{key.replace('__', '.')}": value for key, value in changes.items()}
    tensors = {n: TensorInfo(n, "F32", (1,), 0, 0, 4) for n in (*names, *map(str, range(100)))}
    tensors["token_embd.weight"] = TensorInfo("token_embd.weight", "Q8_0", (rows, 64), 0, 0, 0)
    if rope:
        tensors["rope_freqs.weight"] = TensorInfo("rope_freqs.weight", "F32", (len(rope),), 0, 0, 4 * len(rope))
    packed = memoryview(struct.pack(f"<{len(rope)}f", *rope))
    return gguf_config(GGUFHeader(Path("m.gguf"), 3, metadata | changed, tensors, ()), lambda _: packed)


def sizes(c: DenseConfig) -> tuple[Any, ...]:
    return c.hidden, c.layers, c.heads, c.kv_heads, c.head_dim, c.ffn, c.vocab, c.context, c.rope_base, c.rope_dim


def switches(c: DenseConfig) -> tuple[bool, ...]:
    return c.rope_adjacent, c.rope_factors is not None, c.qkv_bias, c.qk_norm, c.tied


SIZES = {
    "smollm2": (576, 30, 9, 3, 64, 1536, 49152, 8192, 1e5, 64),
    "qwen25": (896, 24, 14, 2, 64, 4864, 151936, 32768, 1e6, 64),
    "qwen3": (1024, 28, 16, 8, 128, 3072, 151936, 40960, 1e6, 128),
    "llama32": (2048, 16, 32, 8, 64, 8192, 128256, 131072, 5e5, 64),
    "mistral": (4096, 32, 32, 8, 128, 14336, 32000, 32768, 1e6, 128),
}


PUBLISHED: dict[str, tuple[Callable[[], DenseConfig], tuple[bool, ...]]] = {
    "smollm2": (lambda: hf(SMOLLM2), (False, False, False, False, True)),
    "qwen25": (lambda: hf(QWEN25), (False, False, True, False, True)),
    "qwen3": (lambda: hf(QWEN3), (False, False, False, True, True)),
    "llama32": (lambda: hf(LLAMA32), (False, True, False, False, True)),
    "smollm2 gguf": (lambda: gguf(GGUF_SMOLLM2, 49152), (True, False, False, False, True)),
    "qwen25 gguf": (lambda: gguf(GGUF_QWEN25, 151936), (False, False, True, False, True)),
    "qwen3 gguf": (lambda: gguf(GGUF_QWEN3, 151936), (False, False, False, True, True)),
    "mistral gguf": (lambda: gguf(GGUF_MISTRAL, 32000, "output.weight"), (True, False, False, False, False)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations(name: str) -> None:
    read, want = PUBLISHED[name]
    config = read()
    assert sizes(config) == SIZES[name.split()[0]]
    assert switches(config) == want


def test_the_architecture_comes_from_architectures_and_never_from_model_type() -> None:
    assert hf(SMOLLM2, model_type="qwen3").architecture == "LlamaForCausalLM"
    assert hf(QWEN25, model_type="qwen3").qkv_bias
    for names in (["MixtralForCausalLM"], ["LlamaForCausalLM", "Other"], [], None, "LlamaForCausalLM", [7]):
        with pytest.raises(UnsupportedModel, match="Known: LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"):
            hf(SMOLLM2, architectures=names)


def test_defaults_are_those_of_transformers() -> None:
    old = {k: v for k, v in SMOLLM2.items() if k not in ("rope_theta", "num_key_value_heads", "tie_word_embeddings")}
    config = hf(old, "lm_head.weight")
    assert (config.rope_base, config.kv_heads, config.tied) == (10000.0, 9, False)
    assert hf(old).tied, "without a word in the config and without a head, the embedding is the head"
    assert hf({k: v for k, v in QWEN3.items() if k != "head_dim"}).head_dim == 128


@pytest.mark.parametrize("family", ["llama", "llama3", "qwen2", "qwen3"])
def test_what_todays_transformers_saves_is_read_to_the_last_key(family: str, tmp_path: Path) -> None:
    config = hf_model(family).config
    config.architectures = [tiny_config(family).architecture]
    assert hf(config.to_dict(), *(() if config.tie_word_embeddings else ("lm_head.weight",))) == tiny_config(family)


def test_llama3_scaling_is_that_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    keys = ("hidden_size", "num_attention_heads", "head_dim", "max_position_embeddings")
    rope = LLAMA32["rope_scaling"] | {"rope_theta": LLAMA32["rope_theta"]}
    frequencies, factor = ROPE_INIT_FUNCTIONS["llama3"](
        LlamaConfig(**{k: LLAMA32[k] for k in keys}, rope_parameters=rope)
    )
    factors = hf(LLAMA32).rope_factors
    assert factors is not None
    assert (min(factors), max(factors), factor) == (1.0, 32.0, 1.0)
    assert any(1.0 < f < 32.0 for f in factors)
    ours = torch.tensor([5e5 ** (-2 * i / 64) / factors[i] for i in range(32)], dtype=torch.float64)
    assert torch.allclose(ours, frequencies.double(), rtol=1e-6, atol=0)


def test_llama3_scaling_of_a_gguf_file_is_its_tensor() -> None:
    factors = (1.0,) * 20 + (8.0,) * 12
    assert gguf(GGUF_SMOLLM2, 49152, rope=factors).rope_factors == factors
    for wrong in ((1.0,) * 31, (1.0,) * 31 + (0.0,), (1.0,) * 31 + (float("nan"),)):
        with pytest.raises(ModelFileError, match="rope factor"):
            gguf(GGUF_SMOLLM2, 49152, rope=wrong)


REFUSED_HF = {
    "hidden_act": (SMOLLM2, "gelu"),
    "attention_bias": (SMOLLM2, True),
    "mlp_bias": (LLAMA32, True),
    "rope_interleaved": (SMOLLM2, True),
    "quantization_config": (QWEN3, {"quant_method": "gptq"}),
    "partial_rotary_factor": (SMOLLM2, 0.5),
    "auto_map": (SMOLLM2, {"AutoModelForCausalLM": "modeling.Other"}),
    "sliding_window": (SMOLLM2, 4096),
    "layer_types": (QWEN3, ["sliding_attention"] * 28),
    "logit_scale": (SMOLLM2, 0.5),
    "rope_scaling.rope_type": (SMOLLM2, {"rope_type": "yarn", "factor": 4.0}),
    "attn_logit_softcapping": (QWEN3, 50.0),
    "tie_word_embeddings": (QWEN3, "yes"),
}


@pytest.mark.parametrize("key", REFUSED_HF)
def test_a_key_that_changes_the_numbers_is_refused_with_its_value(key: str) -> None:
    config, value = REFUSED_HF[key]
    with pytest.raises(UnsupportedModel) as caught:
        hf(config, **{key.split(".")[0]: value})
    shown = value["rope_type"] if key.startswith("rope_scaling") else value[0] if isinstance(value, list) else value
    assert "config.json" in str(caught.value)
    assert key.split(".")[0] in str(caught.value)
    assert repr(shown) in str(caught.value)
    assert hf(config, **{key: None} if key not in ("hidden_act", "tie_word_embeddings") else {}), "null is absent"


def test_a_sliding_window_counts_only_when_it_is_used() -> None:
    hf(QWEN25, sliding_window=4096)  # use_sliding_window is false
    hf({k: v for k, v in QWEN25.items() if k != "use_sliding_window"})  # as wide as the context
    hf(QWEN3, layer_types=["full_attention"] * 28)
    with pytest.raises(UnsupportedModel, match="sliding_window"):
        hf(QWEN25, use_sliding_window=True)
    for odd in (28, True, "full_attention"):  # no list at all
        with pytest.raises(UnsupportedModel, match="layer_types = "):
            hf(QWEN3, layer_types=odd)


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "linear", "factor": 2.0},
        {"type": "dynamic", "factor": 2.0},
        {"rope_type": "longrope", "short_factor": [1.0]},
        {"rope_type": "default", "surprise": 1},
        {"rope_type": "default", "partial_rotary_factor": 0.5},
        {"full_attention": {"rope_type": "default"}},
        [1, 2],
    ],
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rope_scaling_that_is_not_understood(key: str, scaling: Any) -> None:
    with pytest.raises(UnsupportedModel, match=key):
        hf(SMOLLM2, **{key: scaling})


def test_rope_parameters_of_transformers_5() -> None:
    without = {k: v for k, v in LLAMA32.items() if k not in ("rope_theta", "rope_scaling")}
    parameters = LLAMA32["rope_scaling"] | {"rope_theta": 500000.0}
    assert hf(without, rope_parameters=parameters) == hf(LLAMA32)
    with pytest.raises(ModelFileError, match=r"rope_parameters\.low_freq_factor is missing"):
        hf(without, rope_parameters={k: v for k, v in LLAMA3_SCALING.items() if k != "low_freq_factor"})


REFUSED_GGUF = {
    "rope__scaling__type": "yarn",
    "rope__scaling__factor": 4.0,
    "rope__scale_linear": 2.0,
    "expert_count": 8,
    "attention__sliding_window": 4096,
    "attention__value_length": 32,
    "attention__clamp_kqv": 8.0,
    "attention__layer_norm_epsilon": 1e-5,
    "logit_scale": 0.5,
    "final_logit_softcapping": 30.0,
    "feed_forward_length": [1536, 512],
    "surprise": [1, 2],
}


@pytest.mark.parametrize("key", REFUSED_GGUF)
def test_a_gguf_key_that_changes_the_numbers_is_refused_with_its_value(key: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        gguf(GGUF_SMOLLM2, 49152, **{key: REFUSED_GGUF[key]})
    assert f"llama.{key.replace('__', '.')} = {REFUSED_GGUF[key]!r}" in str(caught.value)


def test_gguf_keys_at_their_neutral_value_change_nothing() -> None:
    neutral: dict[str, Any] = {
        "rope__scaling__type": "none",
        "expert_count": 0,
        "rope__scale_linear": 1.0,
        "tensor_data_layout": "x",
    }
    neutral |= {"attention__sliding_window": 8192}  # as wide as the context
    wanted = gguf(GGUF_SMOLLM2, 49152)
    assert gguf(GGUF_SMOLLM2, 49152, **neutral) == wanted
    assert gguf(GGUF_SMOLLM2, 49152, attention__head_count_kv=[3] * 30) == wanted


@pytest.mark.parametrize("name", ["bailingmoe3x", "gemma3", "", 7, None])
def test_an_unknown_gguf_architecture_is_refused_by_name(name: Any) -> None:
    header = GGUFHeader(Path("m.gguf"), 3, {"general.architecture": name}, {}, ())
    with pytest.raises(UnsupportedModel, match=r"Known: llama, qwen2, qwen3\.") as caught:
        gguf_config(header, lambda _: memoryview(b""))
    assert repr(name) in str(caught.value)


def test_a_lora_adapter_is_no_model() -> None:
    with pytest.raises(UnsupportedModel, match="adapter"):
        gguf(GGUF_SMOLLM2 | {"general.type": "adapter"}, 49152)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_attention_heads": 7}, "divide"),
        ({"num_key_value_heads": 4}, "KV heads"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 576.0}, "hidden_size"),
        ({"intermediate_size": None}, "intermediate_size is missing"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ({"rms_norm_eps": None}, "rms_norm_eps is missing"),
        ({"rope_theta": -1}, "rope_theta"),
        ({"head_dim": 63}, "odd"),
    ],
)
def test_contradictions_in_a_config_are_named(change: dict[str, Any], what: str) -> None:
    with pytest.raises(ModelFileError, match=what):
        hf(SMOLLM2, **change)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"block_count": 10**9}, "block_count"),
        ({"block_count": 0}, "block_count"),
        ({"vocab_size": 49151}, "vocab_size is 49151"),
        ({"rope__dimension_count": 66}, "rotated width 66"),
        ({"rope__dimension_count": 7}, "odd"),
        ({"attention__head_count": 7}, "divide"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, "epsilon"),
        ({"context_length": "8192"}, "context_length"),
    ],
)
def test_contradictions_in_a_gguf_header_are_named(change: dict[str, Any], what: str) -> None:
    with pytest.raises(ModelFileError, match=what):
        gguf(GGUF_SMOLLM2, 49152, **change)


def test_more_tokens_than_rows_is_an_error_and_fewer_is_none() -> None:
    assert gguf({k: v for k, v in GGUF_QWEN3.items()}, 152064).vocab == 152064
    with pytest.raises(LingchatError, match="151936 tokens"):
        gguf(GGUF_QWEN3, 151000)


def test_partly_rotated_heads_of_a_gguf_file() -> None:
    assert gguf(GGUF_SMOLLM2, 49152, rope__dimension_count=32).rope_dim == 32
