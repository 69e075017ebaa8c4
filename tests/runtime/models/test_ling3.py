"""Ling-3.0 as a whole against fp64 and llama.cpp: both schedules, GGUF and safetensors, every way through the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hf_judge import hf_logits, needs_ling
from ling_cases import POSITIONS, VARIANTS, Case, distance, ids_of, log_softmax
from ling_reference import Reference
from llama_cpp_judge import llama_cpp
from make_ling import (
    Tiny,
    kimi_config,
    ling_config,
    random_tensors,
    write_kimi_gguf,
    write_ling_gguf,
    write_ling_hf,
)
from runtime.helpers import Bench

from lingchat.architectures.hybrid import HybridConfig
from lingchat.runtime.weights.load import open_weights

Cases = Callable[..., Case]

pytestmark = pytest.mark.usefixtures("one_thread")

LING = [name for name in VARIANTS if not name.startswith("kimi")]
# Of llama.cpp, whose cache is fp32 here, so that little is left to either side's rounding.
EXACT = 5e-5
# llama.cpp rounds activations to the weights' precision: the median and the largest distance of a position that are
# allowed, and the gap in log-probability above which the best token must be the same.
LOOSE = {"BF16": (0.02, 0.06, 0.05), "Q8_0": (0.08, 0.5, 0.25), "Q4_0": (0.08, 0.5, 0.25)}


def every_way(bench: Bench, ids: list[int], want: np.ndarray) -> None:
    for width in (1, 8):
        assert distance(bench.verify_logits(ids, width), want).max() < EXACT, width
    for chunk in (5, 64):
        assert distance(bench.prefill_logits(ids, chunk), want[-1]) < EXACT, chunk


@pytest.mark.parametrize("name", LING)
def test_f32_files_give_the_judges_numbers(ling_case: Cases, name: str) -> None:
    case = ling_case(name)
    bench = Bench(case.tiny.path)
    assert bench.model.config == case.tiny.config
    every_way(bench, case.ids, case.fp64)
    got = log_softmax(bench.verify_logits(case.ids, 8))
    assert distance(got, case.llama_cpp).max() < EXACT
    np.testing.assert_allclose(got, case.llama_cpp, atol=1e-3)


@pytest.mark.parametrize("name", ["period-4-off", "period-6-off-limits", "kimi"])
@pytest.mark.parametrize("qtype", LOOSE)
def test_quantised_files_give_fp64_exactly_and_llama_cpp_nearly(ling_case: Cases, name: str, qtype: str) -> None:
    """What a block stands for is exact, so fp64 with the same values is a tight judge; llama.cpp is a loose one."""
    case = ling_case(name, qtype)
    bench = Bench(case.tiny.path)
    logits = bench.verify_logits(case.ids, 8)
    assert distance(logits, case.fp64).max() < EXACT
    assert distance(bench.prefill_logits(case.ids, 64), case.fp64[-1]) < EXACT
    got = log_softmax(logits)
    median, most, sure = LOOSE[qtype]
    off = distance(got, case.llama_cpp)
    assert np.median(off) < median and off.max() < most
    best = np.sort(got, axis=1)
    clear = best[:, -1] - best[:, -2] > sure
    assert clear.sum() > POSITIONS // 4
    assert (got.argmax(1) == case.llama_cpp.argmax(1))[clear].all()


def fp32(folder: Path, config: HybridConfig, seed: int) -> tuple[Tiny, Tiny]:
    """The same weights as GGUF and as safetensors."""
    return (
        write_ling_gguf(folder / "model.gguf", config, seed=seed),
        write_ling_hf(folder / "hf", config, seed=seed, shards=3),
    )


@pytest.mark.parametrize("q_rank", [None, 32])
@pytest.mark.parametrize("period", [4, 6])
def test_safetensors_in_the_published_naming_equal_gguf(tmp_path: Path, period: int, q_rank: int | None) -> None:
    config = ling_config(period=period, layers=period + 1, q_rank=q_rank, limits=True, mtp=1)
    gguf, hf = fp32(tmp_path, config, 10)
    bench = Bench(hf.path)
    assert bench.model.config == hf.config
    ids = ids_of(POSITIONS, 10)
    assert distance(bench.verify_logits(ids, 8), Bench(gguf.path).verify_logits(ids, 8)).max() < 1e-5


@needs_ling
def test_a_published_folder_gives_transformers_numbers(tmp_path: Path) -> None:
    tiny = write_ling_hf(tmp_path, ling_config(period=4, layers=8, q_rank=32), seed=8)
    ids = ids_of(POSITIONS)
    want = hf_logits(transformers.BailingHybridForCausalLM, tmp_path, ids)
    every_way(Bench(tiny.path), ids, want)


@pytest.mark.parametrize("quantized", ["fp8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_published_quantised_folders_are_read_exactly(tmp_path: Path, quantized: str, dtype: torch.dtype) -> None:
    """Hidden size and experts' widths above 128, so that blocks of fp8 scales are several and partly filled."""
    config = ling_config(period=4, layers=4, limits=True, hidden=160)
    tiny = write_ling_hf(tmp_path, config, seed=11, quantized=quantized, dtype=dtype)
    ids = ids_of(16, 11)
    want = Reference(config, tiny.tensors).logits(ids)
    assert distance(Bench(tiny.path).verify_logits(ids, 8), want).max() < EXACT
    exact = Reference(config, random_tensors(config, 11)).logits(ids)
    assert distance(want, exact).max() > 1e-3  # it is quantised


@pytest.mark.parametrize("dtype", ["fp8", "int4"])
def test_published_quantised_folders_run_as_they_are(tmp_path: Path, dtype: str) -> None:
    """Their weights stay as the file has them, the others are bf16. Routers are steady: no expert flips."""
    config = ling_config(period=4, layers=4, hidden=160)
    tensors = random_tensors(config, 14, steady=True)
    tiny = write_ling_hf(tmp_path, config, tensors=tensors, quantized=dtype, dtype=torch.bfloat16)
    ids = ids_of(32, 14)
    off = distance(Bench(tiny.path, dtype).verify_logits(ids, 8), Reference(config, tiny.tensors).logits(ids))
    assert 1e-4 < np.median(off) < 0.02 and off.max() < 0.1


# Ling-3.0-flash, sections 2.1 and 6.4.
FLASH_LAYERS = 42
FLASH_ROUTED = tuple(4.0 if i >= 35 else 0.0 for i in range(FLASH_LAYERS))
FLASH_SHARED = tuple(0.0 if i < 34 else 5.0 if i < 40 else 7.0 for i in range(FLASH_LAYERS))


def test_the_published_schedule_of_kinds_and_limits(tmp_path: Path) -> None:
    """All 42 layers of Ling-3.0-flash in tiny widths, with activations large enough that each limit binds: layer 34
    limits its shared expert alone, 35 both, and 40 its shared one less."""
    config = replace(
        ling_config(period=6, layers=FLASH_LAYERS, dense=2), routed_limits=FLASH_ROUTED, shared_limits=FLASH_SHARED
    )
    assert [i for i, kind in enumerate(config.kinds) if kind == "mla"] == [5, 11, 17, 23, 29, 35, 41]
    tensors = random_tensors(config, 15)
    for name in tensors:
        if ".moe." in name and name.endswith(("gate_proj.weight", "up_proj.weight")):
            tensors[name] *= 4
        elif ".moe." in name and name.endswith("down_proj.weight"):
            tensors[name] /= 16
    tiny = write_ling_gguf(tmp_path / "model.gguf", config, tensors=tensors)
    ids = ids_of(12, 15)
    want = Reference(config, tiny.tensors).logits(ids)
    got = Bench(tiny.path).verify_logits(ids, 8)
    assert distance(got, want).max() < EXACT
    with llama_cpp(tiny.path) as judge:
        assert distance(judge.next_token(ids), log_softmax(got[-1])) < EXACT
    for layer, routed, shared in ((34, 4.0, 5.0), (34, 0.0, 0.0), (35, 0.0, 5.0), (35, 4.0, 0.0), (40, 4.0, 5.0)):
        changed = replace(
            config,
            routed_limits=(*FLASH_ROUTED[:layer], routed, *FLASH_ROUTED[layer + 1 :]),
            shared_limits=(*FLASH_SHARED[:layer], shared, *FLASH_SHARED[layer + 1 :]),
        )
        other = Reference(changed, tiny.tensors).logits(ids)
        assert distance(other, want).max() > 20 * EXACT, (layer, routed, shared)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, list[int], np.ndarray]:
    tiny = write_ling_gguf(tmp_path_factory.mktemp("long") / "model.gguf", ling_config(period=4, layers=5), seed=12)
    ids = ids_of(300, 12)
    return Bench(tiny.path), ids, Reference(tiny.config, tiny.tensors).logits(ids)


@pytest.mark.parametrize("count", [*range(1, 17), 63, 64, 65, 300])
def test_prompts_of_every_length(long: tuple[Bench, list[int], np.ndarray], count: int) -> None:
    """Prefill at once, and token by token; W is 8."""
    bench, ids, want = long
    assert distance(bench.prefill_logits(ids[:count], 512), want[count - 1]) < EXACT
    if count in (16, 65, 300):
        for width in (1, 8):
            assert distance(bench.verify_logits(ids[:count], width), want[:count]).max() < EXACT, width


@pytest.mark.parametrize("write", [write_ling_gguf, write_kimi_gguf])
def test_decays_from_nearly_none_to_beyond_any_exponent(tmp_path: Path, write: Callable[..., Tiny]) -> None:
    """Channels side by side that keep everything and that forget at once: a bounded gate sums to -320 a chunk, the
    unbounded one of Kimi-Linear to some -40,000. A chunk must not lose either kind."""
    config = kimi_config() if write is write_kimi_gguf else ling_config(period=4, layers=5)
    tensors = random_tensors(config, 16)
    rng = np.random.default_rng(16)
    for name, values in tensors.items():
        if name.endswith(".dt_bias"):
            values.copy_(torch.from_numpy(rng.choice([-20.0, -8.0, 0.0, 12.0, 40.0], values.shape)))
        elif name.endswith(".A"):
            values.copy_(torch.from_numpy(rng.choice([0.001, 1.0, 16.0], values.shape)))
    tiny = write(tmp_path / "model.gguf", config, tensors=tensors)
    ids = ids_of(130, 16)
    want = Reference(tiny.config, tiny.tensors).logits(ids)
    bench = Bench(tiny.path)
    assert distance(bench.verify_logits(ids, 8), want).max() < EXACT
    for chunk in (64, 65, 130):
        assert distance(bench.prefill_logits(ids, chunk), want[-1]) < EXACT, chunk


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_smaller_weights_stay_close(ling_case: Cases, dtype: str) -> None:
    case = ling_case("period-6-off-limits", "Q8_0")
    off = distance(Bench(case.tiny.path, dtype).verify_logits(case.ids, 8), case.fp64)
    assert 1e-4 < np.median(off) < 0.1


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
@pytest.mark.parametrize("qtype", ["F32", "Q4_0"])
def test_row_zero_has_the_bits_of_a_single_row(ling_case: Cases, qtype: str, dtype: str) -> None:
    case = ling_case("period-6-off-limits", qtype)
    bench = Bench(case.tiny.path, dtype, width=16)
    single = bench.verify_logits(case.ids[:32], 1)
    for width in (2, 3, 7, 8, 9, 16):
        assert torch.equal(bench.verify_logits(case.ids[:32], width), single), width


def test_a_kind_of_layer_comes_from_the_schedule(tmp_path: Path) -> None:
    """Both kinds have an `attention.g_proj.weight`, of different shapes."""
    tiny = write_ling_hf(tmp_path, ling_config(period=6, layers=8))
    assert tiny.config.kinds == ("kda",) * 5 + ("mla",) * 3
    weights = open_weights(tmp_path)
    assert weights.config.kinds == tiny.config.kinds
    assert weights.tensor("layers.4.kda.g_proj.weight").shape == (64, 64)
    assert weights.tensor("layers.5.mla.g_proj.weight").shape == (2, 64)
