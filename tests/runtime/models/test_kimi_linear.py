"""Kimi-Linear against transformers' own checkpoints, fp64 and llama.cpp, by every way through the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hf_judge import model_logits, scatter_weights
from ling_cases import POSITIONS, VARIANTS, Case, distance, ids_of, log_softmax
from ling_reference import Reference
from make_ling import kimi_config, write_kimi_gguf, write_kimi_hf, write_tokenizer
from runtime.helpers import Bench

Cases = Callable[..., Case]

pytestmark = pytest.mark.usefixtures("one_thread")

KIMI = [name for name in VARIANTS if name.startswith("kimi")]
EXACT = 5e-5


@dataclass
class Saved:
    """A random model that transformers wrote, and its logits of `ids`."""

    folder: Path
    ids: list[int]
    logits: torch.Tensor
    bench: Bench


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("kimi")
    model = transformers_model()
    model.save_pretrained(folder, max_shard_size="400KB")
    write_tokenizer(folder)
    ids = ids_of(300, 3)
    return Saved(folder, ids, torch.from_numpy(model_logits(model, ids)), Bench(folder))


def transformers_model() -> Any:
    """Fresh weights of transformers' own initialisation for A_log and dt_bias, larger ones for the rest. Its norms of
    the latent have an epsilon of 1e-6 always, so that is the configuration's too."""
    config = transformers.KimiLinearConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=5,
        num_attention_heads=2,
        num_key_value_heads=2,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        num_local_experts=16,
        num_experts_per_tok=4,
        linear_attn_config={
            "full_attn_layers": [4, 5],
            "kda_layers": [1, 2, 3],
            "head_dim": 32,
            "num_heads": 2,
            "short_conv_kernel_size": 4,
        },
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    model = transformers.KimiLinearForCausalLM(config).eval()
    scatter_weights(model)
    return model


@pytest.mark.parametrize("count", [*range(1, 17), 63, 64, 65, 300])
def test_transformers_checkpoints_within_1e_4(saved: Saved, count: int) -> None:
    """fp32 logits of prompts of 1 to 2 W tokens, and around and beyond a chunk: prefill, W rows and token by token."""
    want = saved.logits[:count].float()
    close = {"rtol": 0.0, "atol": 1e-4}
    for chunk in (512, 64, 7):
        torch.testing.assert_close(saved.bench.prefill_logits(saved.ids[:count], chunk), want[-1], **close)
    for width in (1, 8):
        torch.testing.assert_close(saved.bench.verify_logits(saved.ids[:count], width), want, **close)


@pytest.mark.parametrize("name", KIMI)
def test_f32_files_give_the_judges_numbers(ling_case: Cases, name: str) -> None:
    case = ling_case(name)
    bench = Bench(case.tiny.path)
    assert bench.model.config == case.tiny.config
    for width in (1, 8):
        assert distance(bench.verify_logits(case.ids, width), case.fp64).max() < EXACT
    assert distance(bench.prefill_logits(case.ids, 64), case.fp64[-1]) < EXACT
    got = log_softmax(bench.verify_logits(case.ids, 8))
    assert distance(got, case.llama_cpp).max() < EXACT
    np.testing.assert_allclose(got, case.llama_cpp, atol=1e-3)


def test_safetensors_in_the_published_naming_equal_gguf(tmp_path: Path) -> None:
    gguf = write_kimi_gguf(tmp_path / "model.gguf", kimi_config(layers=6), seed=13)
    hf = write_kimi_hf(tmp_path / "hf", kimi_config(layers=6), seed=13, shards=2)
    ids = ids_of(POSITIONS, 13)
    got = Bench(hf.path).verify_logits(ids, 8)
    assert distance(got, Bench(gguf.path).verify_logits(ids, 8)).max() < 1e-5
    assert distance(got, Reference(hf.config, hf.tensors).logits(ids)).max() < EXACT


def test_row_zero_has_the_bits_of_a_single_row(ling_case: Cases) -> None:
    case = ling_case("kimi")
    bench = Bench(case.tiny.path, width=16)
    single = bench.verify_logits(case.ids[:32], 1)
    for width in (2, 3, 7, 8, 9, 16):
        assert torch.equal(bench.verify_logits(case.ids[:32], width), single), width
