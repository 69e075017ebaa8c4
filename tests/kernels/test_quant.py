"""Decoding of weight formats against the gguf package's own and against formulas written out here, the int8 rows
against their definition, and the way of bytes to a device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import gguf
import numpy as np
import pytest
import torch
from make_models import QUANTIZABLE, random_blocks

from lingchat.errors import ModelFileError
from lingchat.kernels import quant
from lingchat.kernels.blocks import BLOCKS, DECODABLE, GGML_TYPES, SCALED
from lingchat.kernels.staging import Staging


@dataclass
class Raw:
    type: str
    shape: tuple[int, ...]
    data: memoryview | torch.Tensor
    scales: Raw | None = None


def oracle(data: np.ndarray, kind: str) -> torch.Tensor:
    return torch.from_numpy(np.array(gguf.dequantize(data, gguf.GGMLQuantizationType[kind])))


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    # Q8_1 is a type of activations, never in a file; the package still counts its scales as fp32.
    ours = {number: (name, tuple(block)) for number, (name, block) in GGML_TYPES.items() if name != "Q8_1"}
    theirs = {int(kind): (kind.name, size) for kind, size in gguf.GGML_QUANT_SIZES.items() if kind.name != "Q8_1"}
    assert ours == theirs


def test_every_decodable_type_has_a_decoder() -> None:
    assert set(DECODABLE) == set(quant._DECODERS)
    assert set(SCALED) == set(quant._SCALED_DECODERS)


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


# -------------------------------------------------------------------------------------- scales in a tensor beside


def e4m3(byte: int) -> float:
    """The number of an E4M3 byte from its fields: sign, four bits of exponent with bias 7, three of fraction."""
    sign, exponent, fraction = -1.0 if byte >> 7 else 1.0, byte >> 3 & 15, byte & 7
    if exponent == 15 and fraction == 7:
        return math.nan
    return sign * (math.ldexp(fraction, -9) if exponent == 0 else math.ldexp(8 + fraction, exponent - 10))


def fp8(shape: tuple[int, ...], seed: int, kind: str = "F32") -> tuple[Raw, np.ndarray]:
    """A random tensor in blocks of 128 x 128 with scales, and its values by the formula, one after the other."""
    rng = np.random.default_rng(seed)
    *front, n, k = shape
    data = rng.integers(0, 256, shape, dtype=np.uint8)
    data[(data & 127) == 127] = 0  # no NaN
    scales = rng.uniform(1e-3, 1e-2, (*front, -(-n // 128), -(-k // 128))).astype(np.float32)
    if kind == "BF16":
        scales = (scales.view(np.uint32) & 0xFFFF0000).view(np.float32)
        raw_scales = Raw("BF16", scales.shape, memoryview((scales.view(np.uint32) >> 16).astype(np.uint16).tobytes()))
    else:
        raw_scales = Raw("F32", scales.shape, memoryview(scales.tobytes()))
    want = np.empty(shape, dtype=np.float32)
    for place in np.ndindex(*shape):
        *e, i, j = place
        want[place] = np.float32(e4m3(int(data[place]))) * scales[(*e, i // 128, j // 128)]
    return Raw("F8_E4M3", shape, memoryview(data.tobytes()), raw_scales), want


def int4(shape: tuple[int, ...], seed: int, group: int = 32) -> tuple[Raw, np.ndarray]:
    """A random packed tensor: eight values an int32, the first in its lowest nibble, each stored as q + 8."""
    rng = np.random.default_rng(seed)
    q = rng.integers(-8, 8, shape)
    scales = rng.uniform(1e-3, 1e-2, (*shape[:-1], shape[-1] // group)).astype(np.float32)
    scales = (scales.view(np.uint32) & 0xFFFF0000).view(np.float32)
    words = np.zeros((*shape[:-1], shape[-1] // 8), dtype=np.uint32)
    for i in range(8):
        words |= (q[..., i::8] + 8).astype(np.uint32) << np.uint32(4 * i)
    raw_scales = Raw("BF16", scales.shape, memoryview((scales.view(np.uint32) >> 16).astype(np.uint16).tobytes()))
    want = q.astype(np.float32) * np.repeat(scales, group, axis=-1)
    return Raw("I4", shape, memoryview(words.astype("<i4").tobytes()), raw_scales), want


def test_every_byte_of_e4m3_is_the_number_of_its_fields() -> None:
    got = quant.decode(torch.arange(256, dtype=torch.uint8), "F8_E4M3", (1, 256), scales=torch.ones(1, 2))[0].tolist()
    for byte, value in enumerate(got):
        assert value == e4m3(byte) or (math.isnan(value) and math.isnan(e4m3(byte))), byte
    assert (
        quant._fp8(torch.arange(256, dtype=torch.uint8))
        .nan_to_num(9e9)
        .equal(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(9e9))
    ), "the table and torch's conversion, which a device uses, are the same numbers"


@pytest.mark.parametrize("scales", ["F32", "BF16"])
@pytest.mark.parametrize("shape", [(128, 128), (256, 384), (130, 200), (1, 5), (127, 129), (3, 130, 72)])
def test_fp8_blocks_decode_bit_equal_to_the_formula(shape: tuple[int, ...], scales: str) -> None:
    raw, want = fp8(shape, 11, scales)
    got = quant.to_torch(raw)
    assert torch.equal(got.view(torch.int32), torch.from_numpy(want).view(torch.int32))
    assert torch.equal(quant.to_torch(raw, torch.bfloat16), torch.from_numpy(want).to(torch.bfloat16))


@pytest.mark.parametrize(("shape", "group"), [((5, 64), 32), ((33, 96), 32), ((2, 3, 64), 32), ((4, 48), 16)])
def test_packed_nibbles_decode_bit_equal_to_the_formula(shape: tuple[int, ...], group: int) -> None:
    raw, want = int4(shape, 12, group)
    got = quant.to_torch(raw)
    assert torch.equal(got.view(torch.int32), torch.from_numpy(want).view(torch.int32))


@pytest.mark.parametrize("chunk", [1, 500, 20_000])
def test_types_with_scales_decode_alike_in_chunks_of_any_size(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    eight, four = fp8((2, 150, 140), 13)[0], int4((2, 9, 64), 13)[0]
    whole = quant.to_torch(eight), quant.to_torch(four)
    monkeypatch.setattr(quant, "_CHUNK", chunk)
    assert torch.equal(quant.to_torch(eight), whole[0])
    assert torch.equal(quant.to_torch(four), whole[1])


@pytest.mark.parametrize("make", [fp8, int4])
def test_one_expert_of_a_stack_decodes_as_within_it(make: object) -> None:
    raw, want = make((3, 130, 96), 14)  # type: ignore[operator]
    data, scales = quant.raw_bytes(raw.data), quant.to_torch(raw.scales)
    size = len(data) // 3
    one = quant.decode(data[size : 2 * size], raw.type, (130, 96), scales=scales[1])
    assert torch.equal(one, torch.from_numpy(want[1]))


@pytest.mark.parametrize("make", [fp8, int4])
def test_int8_rows_of_types_with_scales_are_those_of_their_values(
    make: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, want = make((70, 192), 15)  # type: ignore[operator]
    monkeypatch.setattr(quant, "_CHUNK", 4 * 192)
    q, scale = quant.int8_rows(raw)
    want_q, want_scale = quant.quantize_rows_int8(torch.from_numpy(want))
    assert torch.equal(q, want_q)
    assert torch.equal(scale, want_scale)


@pytest.mark.parametrize(
    ("kind", "shape", "scales"),
    [
        ("F8_E4M3", (130, 8), None),
        ("F8_E4M3", (130, 8), (1, 1)),
        ("F8_E4M3", (130, 8), (2, 2)),
        ("F8_E4M3", (2, 130, 8), (2, 1)),
        ("I4", (4, 64), None),
        ("I4", (4, 64), (4, 3)),
        ("I4", (4, 64), (2, 2)),
        ("I4", (4, 60), (4, 2)),
    ],
)
def test_scales_that_do_not_belong_to_the_shape_are_refused(
    kind: str, shape: tuple[int, ...], scales: tuple[int, ...] | None
) -> None:
    nbytes = math.prod(shape) // BLOCKS[kind].values * BLOCKS[kind].nbytes
    with pytest.raises(ValueError, match="do"):
        quant.decode(
            torch.zeros(nbytes, dtype=torch.uint8), kind, shape, scales=None if scales is None else torch.ones(scales)
        )


# ---------------------------------------------------------------------------------------------- to a device


class OtherDevice(Staging):
    """A device that can be looked into: what arrives there are copies of the buffer's memory."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(torch.device("cpu"), nbytes)
        self.arrived: list[torch.Tensor] = []

    def pieces(self, data: torch.Tensor, unit: int) -> Iterator[tuple[int, torch.Tensor]]:
        for start, piece in super().pieces(data, unit):
            self.arrived.append(piece)
            yield start, piece


def test_bytes_reach_a_device_in_whole_units_through_one_buffer() -> None:
    data = torch.randint(0, 256, (1000,), dtype=torch.uint8)
    way = Staging(torch.device("cpu"), 100)
    pieces = list(way.pieces(data, 18))
    assert [start for start, _ in pieces] == list(range(0, 1000, 90))
    assert torch.equal(torch.cat([piece for _, piece in pieces]), data), (
        "a piece must outlive the buffer's next filling"
    )
    assert all(len(piece) % 18 == 0 for _, piece in pieces[:-1])
    with pytest.raises(ValueError, match="101"):
        list(way.pieces(data, 101))


def any_raw(kind: str) -> Raw:
    if kind in SCALED:
        return (fp8 if kind == "F8_E4M3" else int4)((2, 140, 256), 16)[0]
    return Raw(kind, (37, 512), memoryview(random_blocks(kind, (37, 512), np.random.default_rng(9)).tobytes()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [*DECODABLE, *SCALED])
def test_a_gpu_decodes_to_the_bits_of_the_host(kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = any_raw(kind)
    monkeypatch.setattr(quant, "staging", lambda device: Staging(device, 3000))
    got = quant.to_torch(raw, dtype, "cuda")
    assert got.is_cuda
    assert torch.equal(got.cpu(), quant.to_torch(raw, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [*DECODABLE, *SCALED])
def test_what_is_decoded_on_a_device_is_what_is_decoded_on_the_host(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = any_raw(kind)
    want = quant.to_torch(raw, dtype)
    device = OtherDevice(3000)
    monkeypatch.setattr(quant, "staging", lambda target: device)
    monkeypatch.setattr(quant, "_CHUNK", 700)
    scales = None if raw.scales is None else quant.to_torch(raw.scales)
    got = quant._decode_staged(quant.raw_bytes(raw.data), kind, raw.shape, dtype, scales, device.device)
    assert torch.equal(got, want)
    assert len(device.arrived) > 2
    assert sum(piece.nbytes for piece in device.arrived) == len(raw.data), "undecoded bytes, each of them once"


def test_a_device_named_is_reached_through_its_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(quant, "staging", lambda target: asked.append(target) or OtherDevice(1 << 20))
    raw = Raw("F32", (2, 4), memoryview(np.arange(8, dtype=np.float32).tobytes()))
    assert quant.to_torch(raw, device="meta").device.type == "meta"
    assert asked == [torch.device("meta")]


def test_bytes_made_on_the_device_stay_there() -> None:
    raw = Raw("F32", (2, 4), torch.arange(8, dtype=torch.float32).view(torch.uint8))
    assert quant.to_torch(raw).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert quant.raw_bytes(raw.data) is raw.data


def test_undecoded_bytes_are_copied_through_the_buffer_of_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    data = torch.randint(0, 256, (1000,), dtype=torch.uint8)
    out = torch.zeros(1000, dtype=torch.uint8)
    quant.copy_bytes(memoryview(data.numpy()), out)
    assert torch.equal(out, data)
    device = OtherDevice(300)
    monkeypatch.setattr(quant, "staging", lambda target: device)
    quant.copy_bytes(memoryview(data.numpy()), torch.empty(1000, dtype=torch.uint8, device="meta"))
    assert torch.equal(torch.cat(device.arrived), data)
