"""Packing the bytes of weight files: what panels stand for against the torch decoders, and where each byte lies."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from kernels.cpu import native, packing
from kernels.cpu.packing import KINDS, TYPES, Raw, as_raw, random_raw

from lingchat.kernels.blocks import BLOCKS
from lingchat.kernels.cpu import structs

EXACT = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "I4")  # types whose scales are fp16, or exact in it
FLOATING = ("F32", "F16", "BF16", "F8_E4M3")
WISHES = {"f32": structs.F32, "f16": structs.F16}


@pytest.mark.parametrize("type", TYPES)
def test_a_type_becomes_its_kind(type: str) -> None:
    assert packing.kind_of(type) == KINDS[type]
    assert {wish: packing.kind_of(type, wish) for wish in WISHES} == WISHES


def test_unknown_types_and_wishes_have_no_kind() -> None:
    assert packing.kind_of("Q3_K") == packing.kind_of("") == packing.kind_of("F32", "int4") == -1
    assert native.library().lib.lc_kind(None, None) == -1


@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (15, 64), (16, 96), (37, 1056), (33, 2080)])
@pytest.mark.parametrize("type", EXACT)
def test_quantised_blocks_keep_their_numbers(type: str, rows: int, columns: int) -> None:
    raw = random_raw(type, rows, columns, seed=rows)
    panels = packing.pack(raw, KINDS[type])
    want = packing.numbers(raw)
    assert packing.same_bits(packing.described(KINDS[type], panels, rows, columns), want)
    assert packing.same_bits(packing.decode(KINDS[type], panels, rows, columns), want)


@pytest.mark.parametrize("columns", [256, 1024, 1280])
@pytest.mark.parametrize("type", ["Q4_K", "Q5_K", "Q6_K"])
def test_k_blocks_keep_their_numbers_up_to_the_rounding_of_scales(type: str, columns: int) -> None:
    rows, kind = 37, KINDS[type]
    raw = random_raw(type, rows, columns, seed=columns)
    panels = packing.pack(raw, kind)
    got = packing.described(kind, panels, rows, columns)
    u, d, m = packing.fields(kind, panels, columns)
    size = ((u - packing.ZERO[kind]).abs() * d.abs().repeat_interleave(16, dim=-1)).flatten(1)[:rows]
    if m is not None:
        size += m.abs().repeat_interleave(32, dim=-1)[:rows]
    steps = (got - packing.numbers(raw)).abs() - size * 2.0**-11
    # A scale below fp16's normal numbers is off by half of its last place, times at most 63.
    assert (steps <= 64 * 2.0**-25).all()
    assert packing.same_bits(packing.decode(kind, panels, rows, columns), got)


@pytest.mark.parametrize("scales", ["BF16", "F16", "F32"])
@pytest.mark.parametrize(("columns", "group"), [(128, 32), (128, 64), (384, 128), (1056, 1056), (2560, 1280)])
def test_nibbles_with_scales_beside_take_groups_and_scale_types(columns: int, group: int, scales: str) -> None:
    raw = random_raw("I4", 21, columns, group=group, scales=scales)
    assert raw.scales is not None
    rounded = as_raw("F16", packing.numbers(raw.scales))
    want = packing.numbers(Raw("I4", raw.shape, raw.data, rounded))
    panels = packing.pack(raw, structs.W4Z)
    assert packing.same_bits(packing.described(structs.W4Z, panels, 21, columns), want)
    assert packing.same_bits(packing.decode(structs.W4Z, panels, 21, columns), want)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (16, 32), (17, 33), (130, 200), (257, 127), (20, 1061)])
@pytest.mark.parametrize("type", FLOATING)
def test_floats_are_quantised_in_blocks_of_a_row(type: str, rows: int, columns: int) -> None:
    raw = random_raw(type, rows, columns, seed=columns)
    panels = packing.pack(raw, structs.W8)
    want = packing.quantized(packing.numbers(raw))
    assert packing.same_bits(packing.described(structs.W8, panels, rows, columns), want)
    assert packing.same_bits(packing.decode(structs.W8, panels, rows, columns), want)


@pytest.mark.parametrize("scales", ["BF16", "F16", "F32"])
def test_fp8_takes_scales_of_any_float_type(scales: str) -> None:
    raw = random_raw("F8_E4M3", 140, 300, scales=scales)
    assert packing.same_bits(
        packing.decode(structs.W8, packing.pack(raw, structs.W8), 140, 300), packing.quantized(packing.numbers(raw))
    )


@pytest.mark.parametrize("type", TYPES)
def test_any_type_can_be_quantised_again(type: str) -> None:
    columns = 4 * packing.smallest(type)
    raw = random_raw(type, 19, columns)
    panels = packing.pack(raw, structs.W8)
    want = packing.numbers(raw) if type == "Q8_0" else packing.quantized(packing.numbers(raw))
    assert packing.same_bits(packing.decode(structs.W8, panels, 19, columns), want)


@pytest.mark.parametrize("rows", [1, 16, 35])
@pytest.mark.parametrize("wish", ["f32", "f16"])
@pytest.mark.parametrize("type", TYPES)
def test_numbers_of_every_type(type: str, wish: str, rows: int) -> None:
    columns = 1280 if packing.smallest(type) > 1 else 1101
    raw, kind = random_raw(type, rows, columns, seed=rows), WISHES[wish]
    panels = packing.pack(raw, kind)
    want = packing.numbers(raw) if wish == "f32" else packing.numbers(raw).half().float()
    assert packing.same_bits(packing.described(kind, panels, rows, columns), want)
    assert packing.same_bits(packing.decode(kind, panels, rows, columns), want)


@pytest.mark.parametrize("wish", ["f32", "f16"])
@pytest.mark.parametrize("type", TYPES)
def test_a_transposed_source_gives_the_panels_of_its_transpose(type: str, wish: str) -> None:
    kind = WISHES[wish]
    for rows in {"F32": (1, 16, 17, 1100)}.get(type, (512, 1280) if BLOCKS[type].values == 256 else (288, 1120)):
        for columns in (1, 40):
            raw = random_raw(type, columns, rows, seed=rows)
            straight = as_raw("F32", packing.numbers(raw).T)
            want = packing.pack(straight, kind)
            for threads in (0, 3):
                assert torch.equal(packing.pack(raw, kind, transposed=True, threads=threads), want), (rows, columns)


@pytest.mark.parametrize("type", TYPES)
def test_panels_are_the_same_bytes_on_every_number_of_threads(type: str) -> None:
    block = BLOCKS[type]
    raw = random_raw(type, 1003, 4096 // block.nbytes * block.values // 256 * 256)
    assert len(raw.data) > 3 << 20, "enough for every thread to take some"
    for kind in (KINDS[type], structs.F16):
        alone = packing.pack(raw, kind)
        for threads in (1, 2, 3):
            assert torch.equal(packing.pack(raw, kind, threads=threads), alone)


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("wish", ["int8", "f32", "f16"])
def test_every_byte_of_the_panels_is_written(type: str, wish: str) -> None:
    columns = packing.smallest(type) * (1 if packing.smallest(type) > 1 else 41)
    raw, kind = random_raw(type, 21, columns), packing.kind_of(type, wish)
    panels = packing.pack(raw, kind, before=0xA5)
    assert torch.equal(panels, packing.pack(raw, kind, before=0x5A))


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("wish", ["int8", "f32", "f16"])
def test_rows_and_columns_beyond_the_matrix_weigh_nothing(type: str, wish: str) -> None:
    columns = packing.smallest(type) if packing.smallest(type) > 1 else 41
    raw, kind = random_raw(type, 21, columns), packing.kind_of(type, wish)
    whole = columns if kind in WISHES.values() else -(-columns // 32) * 32
    numbers = packing.described(kind, packing.pack(raw, kind), 32, whole)
    assert (numbers[21:] == 0).all()
    assert (numbers[:, columns:] == 0).all()
    if kind in (structs.W4M, structs.W5M):
        m = packing.fields(kind, packing.pack(raw, kind), columns)[2]
        assert m is not None and (m[21:] == 0).all()


@pytest.mark.parametrize("type", TYPES)
def test_a_source_may_lie_at_any_address(type: str) -> None:
    raw = random_raw(type, 18, 512)
    odd = torch.empty(len(raw.data) + 1, dtype=torch.uint8)[1:]
    odd[:] = raw.data
    for kind in (KINDS[type], structs.F32):
        assert torch.equal(packing.pack(Raw(type, raw.shape, odd, raw.scales), kind), packing.pack(raw, kind))


def test_the_most_negative_byte_of_q8_0_is_kept() -> None:
    block = np.zeros(34, dtype=np.uint8)
    block[:2] = np.array([0.5], dtype=np.float16).view(np.uint8)
    block[2:] = 0x80
    raw = Raw("Q8_0", (1, 32), torch.from_numpy(block))
    assert (packing.decode(structs.W8, packing.pack(raw, structs.W8), 1, 32) == -64).all()


@pytest.mark.parametrize(
    "row",
    [
        [0.0, 0.0, 0.0],
        [1e-42, -1e-45, 0.0],  # subnormal: no scale is small enough
        [3.7e-6, -3.7e-6, 1e-7],  # 127 times half of the smallest scale, and less
        [3.9e-6, -3.8e-6, 1e-7],  # more than half of it: the smallest scale
        [1.1e-5, -1.0e-5, 1e-7],  # a scale rounded down so far that q would be 184 and -168
        [1e-3, -5e-4, 3e-6],
        [127.0, -127.0, 63.5],  # ties
        [-0.0, 2.5, -127.0],
        [8.3e6, -8.3e6, 1.0],  # the largest scale
    ],
)
@pytest.mark.parametrize("type", ["F32", "BF16"])
def test_weights_of_extreme_size_are_quantised_by_the_same_rule(type: str, row: list[float]) -> None:
    raw = as_raw(type, torch.tensor([row]))
    panels = packing.pack(raw, structs.W8)
    got = packing.decode(structs.W8, panels, 1, len(row))
    assert packing.same_bits(got, packing.quantized(packing.numbers(raw)))
    assert got.isfinite().all()
    q, d, _ = packing.fields(structs.W8, panels, len(row))
    assert (q[(d[:, :, :1] == 0).expand_as(q)] == 0).all()


def test_quotients_at_ties_and_beside_them_round_to_even() -> None:
    d = torch.linspace(0.9, 1.1, 200).half().float()[:, None]
    q = torch.arange(-127, 128).float()[None] + 0.5
    exact = (q * d).clamp(-127 * d, 127 * d)
    w = torch.cat([torch.nextafter(exact, torch.tensor(sign * 1e9)) for sign in (-1, 1)] + [exact], dim=1)
    w = torch.cat([w, 127 * d.expand(-1, 3)], dim=1)
    blocks = w.reshape(200, -1, 32)
    blocks[:, :, 0] = 127 * d  # so that each block has the scale d
    raw = as_raw("F32", blocks.flatten(1))
    got = packing.decode(structs.W8, packing.pack(raw, structs.W8), *raw.shape)
    assert packing.same_bits(got, packing.quantized(blocks.flatten(1)))


def test_every_half_becomes_its_number_and_comes_back() -> None:
    halves = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    values = halves[halves.isfinite()].view(16, -1)
    wide = packing.pack(as_raw("F16", values), structs.F32)
    assert torch.equal(
        packing.described(structs.F32, wide, *values.shape).view(torch.int32), values.float().view(torch.int32)
    )
    narrow = packing.pack(as_raw("F32", values.float()), structs.F16)
    back = narrow.view(torch.int16).view(-1, 16).T
    assert torch.equal(back, values.view(torch.int16))
    decoded = packing.decode(structs.F16, narrow, *values.shape)
    assert torch.equal(decoded.view(torch.int32), values.float().view(torch.int32))


def test_numbers_between_halves_round_to_the_nearest_and_to_even() -> None:
    halves = torch.arange(0x7BFF, dtype=torch.int32).to(torch.int16).view(torch.float16).double()
    following = torch.arange(1, 0x7C00, dtype=torch.int32).to(torch.int16).view(torch.float16).double()
    middle = ((halves + following) / 2).float()
    values = torch.cat([middle, torch.nextafter(middle, torch.zeros(())), torch.nextafter(middle, torch.full((), 1e9))])
    values = torch.cat([values, -values, torch.tensor([65519.0, 1e-40])])[None]
    got = packing.pack(as_raw("F32", values), structs.F16).view(torch.int16).view(-1, 16)[:, 0]
    assert torch.equal(got, values[0].half().view(torch.int16))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), -8.4e6])
@pytest.mark.parametrize("at", [0, 40, 1100])
@pytest.mark.parametrize("type", ["F32", "BF16"])
def test_weights_that_no_scale_holds_are_refused(type: str, at: int, bad: float) -> None:
    w = torch.ones(20, 1101)
    w[18, at] = bad
    assert packing.pack_status(as_raw(type, w), structs.W8) == 2
    assert packing.pack_status(as_raw(type, w), structs.F16) == 2
    assert packing.pack_status(as_raw(type, w), structs.F32) == (0 if bad == -8.4e6 else 2)
    w[18, at] = 2
    assert packing.pack_status(as_raw(type, w), structs.W8) == 0


@pytest.mark.parametrize("type", ["Q8_0", "Q4_1", "Q5_1", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("half", [0x7C00, 0x7E00, 0xFC00])
def test_blocks_with_a_scale_that_is_not_finite_are_refused(type: str, half: int) -> None:
    raw = random_raw(type, 40, 512)
    size = BLOCKS[type].nbytes
    places = {"Q8_0": (0,), "Q6_K": (208,)}.get(type, (0, 2))
    for place in places:
        data = raw.data.clone()
        data[(len(data) // size - 1) * size + place :][:2] = torch.tensor([half & 255, half >> 8], dtype=torch.uint8)
        assert packing.pack_status(Raw(type, raw.shape, data), KINDS[type]) == 2
    assert packing.pack_status(raw, KINDS[type]) == 0


def test_nan_in_fp8_and_scales_too_large_for_fp16_are_refused() -> None:
    eight = random_raw("F8_E4M3", 20, 130)
    data = eight.data.clone()
    data[-1] = 0xFF
    assert packing.pack_status(Raw("F8_E4M3", eight.shape, data, eight.scales), structs.W8) == 2
    four = random_raw("I4", 20, 128)
    scales = torch.full((20, 4), 1.0)
    scales[19, 3] = 7e4
    assert packing.pack_status(Raw("I4", four.shape, four.data, as_raw("BF16", scales)), structs.W4Z) == 2


def test_arguments_that_do_not_belong_together_are_refused() -> None:
    floats, blocks, four = random_raw("F32", 4, 96), random_raw("Q4_0", 4, 96), random_raw("I4", 4, 96)
    assert packing.pack_status(floats, structs.W4Z) == 1
    assert packing.pack_status(blocks, structs.W4M) == 1
    assert packing.pack_status(blocks, structs.W4Z, transposed=True) == 1
    assert packing.pack_status(floats, structs.W8, transposed=True) == 1
    assert packing.pack_status(Raw("Q3_K", (4, 256), blocks.data), structs.W8) == 1
    assert packing.pack_status(Raw("Q4_0", (4, 80), blocks.data), structs.W4Z) == 1
    assert packing.pack_status(Raw("Q4_K", (4, 96), blocks.data), structs.W4M) == 1
    assert packing.pack_status(Raw("Q4_0", (4, 40), blocks.data), structs.F32, transposed=True) == 1
    assert packing.pack_status(Raw("I4", (4, 80), four.data, four.scales), structs.W4Z) == 1
    assert packing.pack_status(Raw("I4", (4, 96), four.data), structs.W4Z) == 1
    assert packing.pack_status(Raw("F8_E4M3", (4, 96), four.data), structs.W8) == 1
    assert packing.pack_status(Raw("I4", (4, 96), four.data, Raw("Q8_0", (4, 3), four.data)), structs.W4Z) == 1
    assert packing.pack_status(Raw("I4", (4, 96), four.data, random_raw("BF16", 4, 6)), structs.W4Z) == 1, "group 16"
    assert packing.pack_status(Raw("I4", (4, 96), four.data, random_raw("BF16", 4, 2)), structs.W4Z) == 1, "group 48"
    assert packing.pack_status(random_raw("F32", 4, 96), structs.W8) == 0
    lib = native.library().lib
    told, room = packing.source(floats), torch.empty(1 << 14, dtype=torch.uint8)
    assert lib.lc_pack(None, None, structs.W8, room.data_ptr()) == 1
    assert lib.lc_pack(None, ctypes.addressof(told), structs.W8, None) == 1
    for field, bad in (("rows", 0), ("columns", 0), ("data", None), ("type", None)):
        wrong = packing.source(floats)
        setattr(wrong, field, bad)
        assert lib.lc_pack(None, ctypes.addressof(wrong), structs.W8, room.data_ptr()) == 1, field
    assert lib.lc_decode(8, room.data_ptr(), 1, 32, room.data_ptr()) == 1
    assert lib.lc_decode(-1, room.data_ptr(), 1, 32, room.data_ptr()) == 1


@pytest.mark.parametrize("type", ["Q8_0", "BF16", "I4"])
def test_a_stack_of_whole_panels_is_packed_as_one_matrix(type: str) -> None:
    raw = random_raw(type, 3 * 32, 128)
    kind, size = KINDS[type], packing.panels_bytes(KINDS[type], 32, 128)
    together = packing.pack(raw, kind).view(3, size)
    for e in range(3):
        bytes_ = len(raw.data) // 3
        scales = None
        if raw.scales is not None:
            some = len(raw.scales.data) // 3
            scales = Raw(raw.scales.type, (32, raw.scales.shape[1]), raw.scales.data[e * some : (e + 1) * some])
        one = Raw(type, (32, 128), raw.data[e * bytes_ : (e + 1) * bytes_], scales)
        assert torch.equal(packing.pack(one, kind), together[e])
