"""Whole models by native code: every architecture and weight type near fp32, and the same bits however they are run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch
from kernels.cpu import native
from ling_cases import ids_of
from make_ling import (
    kimi_config,
    ling_config,
    random_tensors,
    write_kimi_gguf,
    write_kimi_hf,
    write_ling_gguf,
    write_ling_hf,
)
from make_models import FAMILIES, write_gguf, write_hf
from runtime.helpers import NATIVE, Bench

IDS = ids_of(40, 9)
DENSE_IDS = [3 + i % 300 for i in IDS]
SURE = 0.3  # gap of the two best logits from which on rounding must not choose otherwise
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")


def divergence(want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler, nats, of each row."""
    p, q = want.double().log_softmax(-1), got.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def near(path: Path, ids: list[int], bound: float) -> None:
    """Close to fp32 with the same weights, about as close as torch's int8, and sure of the same tokens."""
    want, int8 = (Bench(path, dtype).verify_logits(ids, 8) for dtype in ("fp32", "int8"))
    got = Bench(path, NATIVE).verify_logits(ids, 8)
    assert torch.isfinite(got).all()
    assert not torch.equal(got, want)
    assert divergence(want, got).mean() < bound
    assert divergence(want, got).mean() < 1.5 * divergence(want, int8).mean() + bound / 10
    best = want.topk(2).values
    clear = best[:, 0] - best[:, 1] > SURE
    assert clear.sum() > len(ids) // 10
    assert torch.equal(got.argmax(-1)[clear], want.argmax(-1)[clear])


@pytest.mark.parametrize("family", FAMILIES)
def test_safetensors_of_dense_families(family: str, tmp_path: Path) -> None:
    write_hf(tmp_path, family, dtype=torch.bfloat16, tied=False)
    near(tmp_path, DENSE_IDS, 4e-3)


@pytest.mark.parametrize("qtype", TYPES)
def test_every_weight_type_of_a_gguf_file(qtype: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "llama3" if qtype == "Q4_1" else "qwen3", qtype)
    near(tmp_path / "model.gguf", DENSE_IDS, 4e-3)


def test_a_file_of_several_types(tmp_path: Path) -> None:
    """As llama.cpp mixes them: the parts of one matrix differ, and so do embedding and head."""
    types = {
        "embed_tokens.weight": "Q6_K",
        "layers.0.self_attn.v_proj.weight": "Q8_0",
        "layers.1.self_attn.q_proj.weight": "Q5_K",
        "layers.1.mlp.up_proj.weight": "Q5_0",
        "layers.0.mlp.down_proj.weight": "Q6_K",
    }
    write_gguf(tmp_path / "model.gguf", "qwen2", "Q4_K", types=types)
    near(tmp_path / "model.gguf", DENSE_IDS, 4e-3)


def test_sizes_that_fill_no_panel(tmp_path: Path) -> None:
    write_hf(tmp_path, "llama", hidden=104, ffn=168, heads=4, kv_heads=2, head_dim=40, vocab=331, tied=True)
    near(tmp_path, DENSE_IDS, 4e-3)
    bench = Bench(tmp_path, NATIVE, threads=2)
    assert torch.equal(bench.verify_logits(DENSE_IDS, 5), bench.verify_logits(DENSE_IDS, 1))


HYBRIDS = {
    "ling": ling_config(period=4, layers=5, q_rank=32, limits=True),
    "ling-heads": ling_config(period=4, layers=4, q_rank=32, experts=32, published_heads=True),
    "kimi": kimi_config(layers=5),
    "kimi-heads": kimi_config(layers=4, published_heads=True),
}


def write_hybrid(path: Path, name: str, qtype: str = "Q8_0") -> Path:
    """With routers that choose the same experts however scores are rounded."""
    config = HYBRIDS[name]
    write = write_ling_gguf if name.startswith("ling") else write_kimi_gguf
    return write(path, config, tensors=random_tensors(config, 6, steady=True), qtype=qtype).path


@pytest.mark.parametrize(
    ("name", "qtype"),
    [
        *((name, "Q8_0") for name in HYBRIDS),
        *(("ling", qtype) for qtype in ("F32", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1")),
    ],
)
def test_hybrid_gguf(name: str, qtype: str, tmp_path: Path) -> None:
    near(write_hybrid(tmp_path / "model.gguf", name, qtype), IDS, 4e-3)


@pytest.mark.parametrize("quantized", [None, "fp8", "int4"])
def test_ling_safetensors(quantized: Literal["fp8", "int4"] | None, tmp_path: Path) -> None:
    config = ling_config(period=4, layers=5, hidden=160, q_rank=32)
    tensors = random_tensors(config, 6, steady=True)
    write_ling_hf(tmp_path, config, tensors=tensors, dtype=torch.bfloat16, shards=2, quantized=quantized)
    near(tmp_path, IDS, 4e-3)


def test_kimi_safetensors(tmp_path: Path) -> None:
    config = kimi_config(layers=5)
    write_kimi_hf(tmp_path, config, tensors=random_tensors(config, 6, steady=True))
    near(tmp_path, IDS, 4e-3)


@pytest.fixture(scope="module", params=["llama", "ling", "kimi"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model") / "model.gguf"
    if request.param == "llama":
        write_gguf(found, "llama", "Q4_1")
        return found
    return write_hybrid(found, request.param, "Q4_0")


def test_the_same_bits_for_every_width_and_number_of_threads(path: Path) -> None:
    want = Bench(path, NATIVE).verify_logits(DENSE_IDS, 1)
    for threads in (1, 2, 3):
        bench = Bench(path, NATIVE, threads=threads)
        for width in range(1, 17):
            assert torch.equal(bench.verify_logits(DENSE_IDS, width), want), (threads, width)
        for chunk in (3, 17, 40):
            assert torch.equal(bench.prefill_logits(DENSE_IDS, chunk), want[-1]), (threads, chunk)


def test_the_same_bits_on_every_instruction_set(path: Path) -> None:
    want = Bench(path, NATIVE, isa="plain").verify_logits(DENSE_IDS, 5)
    for isa in native.isas():
        bench = Bench(path, NATIVE, threads=2, isa=isa)
        assert torch.equal(bench.verify_logits(DENSE_IDS, 5), want), isa
        assert torch.equal(bench.prefill_logits(DENSE_IDS, 40), want[-1]), isa
