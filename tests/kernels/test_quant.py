"""Decoding of weight formats against the gguf package's own, and the int8 rows against their definition."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
import pytest
import torch
from make_models import QUANTIZABLE, random_blocks

from lingchat.errors import ModelFileError
from lingchat.kernels import quant
from lingchat.kernels.blocks import BLOCKS, DECODABLE, GGML_TYPES


@dataclass
class Raw:
    type: str
    shape: tuple[int, ...]
    data: memoryview


def oracle(data: np.ndarray, kind: str) -> torch.Tensor:
    return torch.from_numpy(np.array(gguf.dequantize(data, gguf.GGMLQuantizationType[kind])))


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    # Q8_1 is a type of activations, never in a file; the package still counts its scales as fp32.
    ours = {number: (name, tuple(block)) for number, (name, block) in GGML_TYPES.items() if name != "Q8_1"}
    theirs = {int(kind): (kind.name, size) for kind, size in gguf.GGML_QUANT_SIZES.items() if kind.name != "Q8_1"}
    assert ours == theirs


def test_every_decodable_type_has_a_decoder() -> None:
    assert set(DECODABLE) == set(quant._DECODERS)


@pytest.mark.parametrize("kind", DECODABLE)
def test_random_blocks_decode_bit_equal_to_the_gguf_package(kind: str) -> None:
    blocks = random_blocks(kind, (37, 512), np.random.default_rng(7))
    got = quant.decode(torch.from_numpy(blocks).flatten(), kind, (37, 512))
    assert got.dtype == torch.float32
    assert torch.equal(got.view(torch.int32), oracle(blocks, kind).view(37, 512).view(torch.int32))


@pytest.mark.parametrize("kind", QUANTIZABLE)
def test_quantized_weights_decode_bit_equal_and_near_the_original(kind: str) -> None:
    w = np.random.default_rng(3).standard_normal((12, 256), dtype=np.float32)
    w[5] = 0
    data = gguf.quantize(w, gguf.GGMLQuantizationType[kind])
    got = quant.decode(torch.from_numpy(data.view(np.uint8)).flatten(), kind, w.shape)
    assert torch.equal(got.view(torch.int32), oracle(data, kind).view(torch.int32))
    assert (got - torch.from_numpy(w)).abs().max() < 0.5


@pytest.mark.parametrize("kind", DECODABLE)
def test_a_tensor_of_many_chunks_decodes_as_in_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = torch.from_numpy(random_blocks(kind, (9, 768), np.random.default_rng(1))).flatten()
    whole = quant.decode(blocks, kind, (9, 768))
    monkeypatch.setattr(quant, "_CHUNK", 1000)
    assert torch.equal(quant.decode(blocks, kind, (9, 768)), whole)


def test_another_dtype_is_the_fp32_value_rounded_once() -> None:
    blocks = torch.from_numpy(random_blocks("Q4_K", (4, 512), np.random.default_rng(2))).flatten()
    exact = quant.decode(blocks, "Q4_K", (4, 512))
    assert torch.equal(quant.decode(blocks, "Q4_K", (4, 512), torch.bfloat16), exact.to(torch.bfloat16))


def test_a_read_only_unaligned_view_decodes_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    values = np.arange(8, dtype=np.float32)
    data = memoryview(b"x" + values.tobytes())[1:]
    got = quant.to_torch(Raw("F32", (2, 4), data))
    got += 1  # its own memory: writing must not touch the file's map
    assert got.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert not recwarn.list


@pytest.mark.parametrize(("kind", "nbytes"), [("Q4_0", 17), ("Q4_0", 36), ("F32", 127)])
def test_bytes_that_do_not_belong_to_the_shape_are_refused(kind: str, nbytes: int) -> None:
    with pytest.raises(ValueError, match=kind):
        quant.decode(torch.zeros(nbytes, dtype=torch.uint8), kind, (1, 32))


def test_a_type_without_decoder_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="Q3_K"):
        quant.decode(torch.zeros(BLOCKS["Q3_K"].nbytes, dtype=torch.uint8), "Q3_K", (1, 256))


def test_int8_rows_divide_by_the_rounded_scale() -> None:
    w = torch.randn(300, 96, generator=torch.Generator().manual_seed(5)) * torch.logspace(-6, 3, 300)[:, None]
    q, scale = quant.quantize_rows_int8(w)
    assert (q.dtype, scale.dtype, scale.shape) == (torch.int8, torch.bfloat16, (300,))
    exact = w.abs().amax(1) / 127
    assert (scale.float() >= exact).all(), "a scale rounded down would need more than 127"
    assert (scale.float() <= exact * (1 + 2**-7)).all(), "the next bf16 above, not further"
    assert torch.equal(q, torch.round(w / scale.float()[:, None]).to(torch.int8))
    assert ((q.float() * scale.float()[:, None] - w).abs() <= scale.float()[:, None] / 2 * 1.0001).all()


def test_int8_product_on_bf16_activations_is_near_the_exact_one() -> None:
    generator = torch.Generator().manual_seed(6)
    w, x = torch.randn(64, 128, generator=generator), torch.randn(3, 128, generator=generator).bfloat16()
    q, scale = quant.quantize_rows_int8(w)
    got, exact = torch._weight_int8pack_mm(x, q, scale).float(), x.float() @ w.T
    assert (got - exact).norm() / exact.norm() < 0.02


@pytest.mark.parametrize("row", [[0.0, 0.0], [1e-42, 0.0], [3e38, -3e38], [127.0, -127.0]])
def test_int8_rows_of_extreme_size(row: list[float]) -> None:
    q, scale = quant.quantize_rows_int8(torch.tensor([row]))
    assert scale.isfinite().all()
    assert (scale > 0).all()
    assert torch.allclose(q.float() * scale.float()[:, None], torch.tensor([row]), rtol=0.01, atol=1e-37)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_int8_rows_refuse_what_is_not_finite(bad: float) -> None:
    with pytest.raises(ModelFileError, match="not a finite number"):
        quant.quantize_rows_int8(torch.tensor([[1.0, bad]]))


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_1", "Q6_K"])
def test_int8_rows_of_a_raw_matrix_are_those_of_its_values(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quant, "_CHUNK", 4 * 768)
    blocks = random_blocks(kind, (11, 768), np.random.default_rng(8))
    raw = Raw(kind, (11, 768), memoryview(blocks.tobytes()))
    q, scale = quant.int8_rows(raw)
    want_q, want_scale = quant.quantize_rows_int8(quant.to_torch(raw))
    assert torch.equal(q, want_q)
    assert torch.equal(scale, want_scale)
