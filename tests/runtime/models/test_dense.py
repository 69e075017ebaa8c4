"""Every dense family gives transformers' logits, from safetensors and from GGUF, by every way through the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from make_models import FAMILIES, write_gguf, write_hf
from runtime.helpers import NATIVE, Bench

IDS = [int(i) for i in torch.randint(3, 300, (70,), generator=torch.Generator().manual_seed(9))]


def reference(model: object, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float()  # type: ignore[operator]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_safetensors_logits_equal_transformers(family: str, tied: bool, tmp_path: Path) -> None:
    want = reference(write_hf(tmp_path, family, tied=tied), IDS)
    bench = Bench(tmp_path)
    for width in (1, 3, 8, 16):
        torch.testing.assert_close(bench.verify_logits(IDS, width), want, rtol=1e-4, atol=1e-4)
    for chunk in (1, 7, 17, 64, 70):
        torch.testing.assert_close(bench.prefill_logits(IDS, chunk), want[-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("qtype", ["F32", "BF16", "Q8_0", "Q4_1", "Q6_K"])
def test_gguf_logits_equal_transformers(family: str, qtype: str, tmp_path: Path) -> None:
    tiny = write_gguf(tmp_path / "model.gguf", family, qtype)
    want = reference(tiny.transformers(), IDS)
    bench = Bench(tmp_path / "model.gguf")
    torch.testing.assert_close(bench.verify_logits(IDS, 5), want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(bench.prefill_logits(IDS, 64), want[-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["fp32", "int8", NATIVE])
def test_row_zero_has_the_bits_of_a_single_row(family: str, dtype: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", family, "Q8_0")
    bench = Bench(tmp_path / "model.gguf", dtype)
    single = bench.verify_logits(IDS, 1)
    for width in range(2, 17):
        assert torch.equal(bench.verify_logits(IDS, width), single), width


def test_int8_stays_close_to_fp32(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "qwen3", "Q8_0")
    exact = Bench(tmp_path / "model.gguf").verify_logits(IDS, 8)
    close = Bench(tmp_path / "model.gguf", "int8").verify_logits(IDS, 8)
    assert (close - exact).abs().max() < 0.1 * exact.abs().max()
    assert not torch.equal(close, exact)
