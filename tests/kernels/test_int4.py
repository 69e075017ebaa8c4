"""Four-bit experts in torch's packing: the very nibbles, products close to exact ones, and no bits that depend on T."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from lingchat.kernels import int4, moe, quant
from lingchat.kernels.int4 import GROUP, Int4Stack
from lingchat.kernels.packed import Blocks
from lingchat.kernels.random_weights import matrix
from lingchat.kernels.rows import MAX_WIDTH

TYPES = {"Q4_0": 18, "Q4_1": 20, "Q4_K": 144, "I4": 0}  # bytes of a block
E, CHOSEN = 6, 3
ROWS, COLUMNS = 128, 256  # whole blocks of every processor, and of every type

fast = pytest.mark.skipif(int4._block() is None, reason="torch has no fast int4 product on this processor")


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.inference_mode():
        yield


@dataclass(frozen=True)
class Made:
    """A raw tensor in memory, as a file has it."""

    type: str
    shape: tuple[int, ...]
    data: memoryview | torch.Tensor
    scales: Made | None = None
    name: str = "w"


def made(type: str, shape: tuple[int, ...], seed: int, group: int = GROUP) -> Made:
    """Blocks of any nibbles, with scales and minima about as large as those of real weights."""
    if type == "I4":
        raw = matrix("w", "I4", shape, shape[-1] ** -0.5, seed=seed, device="cpu")
        scales = torch.rand(*shape[:-1], shape[-1] // group).mul_(0.01).bfloat16()
        return Made("I4", shape, memoryview(raw.data.numpy()), Made("BF16", scales.shape, bytes_of(scales)))
    random = np.random.default_rng(seed)
    nbytes = TYPES[type]
    count = int(np.prod(shape)) // (256 if type == "Q4_K" else 32)
    data = random.integers(0, 256, (count, nbytes), dtype=np.uint8)
    heads = {"Q4_0": (0.01,), "Q4_1": (0.01, -0.08), "Q4_K": (2e-4, 1e-3)}[type]
    values = (random.uniform(0.5, 1.5, (count, len(heads))) * heads).astype(np.float16)
    data[:, : 2 * len(heads)] = values.view(np.uint8)
    if type == "Q4_K":
        data[:, 4:8] |= 0xA0  # every group's own scale at least half of the largest
    return Made(type, shape, memoryview(data.reshape(-1)))


def bytes_of(x: torch.Tensor) -> memoryview:
    return memoryview(x.view(torch.uint8).flatten().numpy())


def layer(type: str, stacked: bool = True) -> tuple[list[Made], list[Made], list[Made]]:
    """gate and up [E, 128, 256], down [E, 256, 128] (of Q4_K, whose blocks are of 256 values: square ones)."""
    inner = COLUMNS if type == "Q4_K" else ROWS
    shapes = (inner, COLUMNS), (inner, COLUMNS), (COLUMNS, inner)
    torch.manual_seed(6)
    if stacked:
        gate, up, down = ([made(type, (E, *shape), seed)] for seed, shape in enumerate(shapes))
    else:
        gate, up, down = ([made(type, shape, 10 * seed + e) for e in range(E)] for seed, shape in enumerate(shapes))
    return gate, up, down


def blocks_of(type: str, **more: int) -> Blocks:
    torch.manual_seed(7)
    return Blocks.stack([made(type, (E, ROWS, COLUMNS), 3, **more)], torch.device("cpu"))


def run(experts: moe.Experts, rows: int, first: int = 0) -> torch.Tensor:
    """The last `rows` of a pass of `first + rows`, by themselves."""
    torch.manual_seed(5)
    x = torch.randn(200, COLUMNS)[first : first + rows]
    ids = torch.stack([torch.randperm(E)[:CHOSEN] for _ in range(200)])[first : first + rows]
    weights = torch.rand(200, CHOSEN)[first : first + rows]
    return moe.experts_down(moe.experts_up(x, ids, experts, 2.0), ids, weights, experts)


@fast
@pytest.mark.parametrize("type", TYPES)
def test_packed_nibbles_are_those_that_torch_itself_packs(type: str) -> None:
    blocks = blocks_of(type)
    stack = Int4Stack.pack(blocks)
    assert stack.nbytes == E * ROWS * COLUMNS * 5 // 8
    for expert in (0, E - 1):
        weight = stack.one(expert)
        scale, offset = weight.scales.float().transpose(0, 1)[..., None].unbind(2)
        # What the file says a value is, taken back to the nibble that it came from.
        q = ((blocks.one(expert, torch.float32).view(ROWS, -1, GROUP) - offset) / scale).round().int() + 8
        theirs = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q.view(ROWS, -1), 1)
        assert torch.equal(weight.q, theirs)


@fast
@pytest.mark.parametrize("type", TYPES)
def test_only_scales_and_offsets_are_rounded(type: str) -> None:
    blocks = blocks_of(type)
    stack = Int4Stack.pack(blocks)
    for expert in range(E):
        exact, got = blocks.one(expert, torch.float32), stack.dense(expert)
        scale, offset = stack.one(expert).scales.float().abs().transpose(0, 1)[..., None].unbind(2)
        bound = (8 * scale + offset).expand(-1, -1, GROUP).reshape(ROWS, -1) * 2**-8  # half a step of bf16
        assert (got - exact).abs().le(bound).all()
        assert type == "I4" or not torch.equal(got, exact)  # published scales of I4 are bf16
    assert torch.equal(stack.gather(torch.tensor([4, 1])), torch.stack((stack.dense(4), stack.dense(1))))


@fast
def test_scales_of_wider_groups_count_for_each_of_theirs() -> None:
    blocks = blocks_of("I4", group=64)
    assert Int4Stack.takes(blocks)
    assert torch.equal(Int4Stack.pack(blocks).dense(2), blocks.one(2, torch.float32))
    assert not Int4Stack.takes(blocks_of("I4", group=16))


@fast
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("rows", [1, 3, 40, 200])
def test_experts_are_as_close_as_int8_is(type: str, rows: int) -> None:
    """Up to MAX_WIDTH rows; for more int8 rounds no activations, this packing does up to 32 that share an expert."""
    parts = layer(type)
    exact, packed = run(moe.Experts.pack(*parts, "fp32"), rows), moe.Experts.pack(*parts, "int8")
    assert all(isinstance(stack, Int4Stack) for stack in (packed.gate, packed.up, packed.down))
    as_int8 = [[decoded(part) for part in each] for each in parts]
    errors = [
        float((run(experts, rows) - exact).norm() / exact.norm())
        for experts in (packed, moe.Experts.pack(*as_int8, "int8"))
    ]
    assert errors[0] < errors[1] * (1 if rows <= MAX_WIDTH else 2) < 0.02, errors


def decoded(part: Made) -> Made:
    return Made("F32", part.shape, bytes_of(quant.to_torch(part)))


@fast
@pytest.mark.parametrize("type", TYPES)
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(type: str) -> None:
    experts = moe.Experts.pack(*layer(type), "int8")
    singles = torch.cat([run(experts, 1, r) for r in range(MAX_WIDTH)])
    for rows in (2, 3, 7, MAX_WIDTH):
        assert torch.equal(run(experts, rows), singles[:rows]), rows


@fast
@pytest.mark.parametrize("type", ["Q4_0", "I4"])
def test_experts_that_lie_apart_are_packed_alike(type: str) -> None:
    apart = layer(type, stacked=False)[0]
    stack = moe.Experts.pack(apart, apart, apart, "int8").gate
    assert isinstance(stack, Int4Stack)
    exact = torch.stack([quant.to_torch(part) for part in apart])
    torch.testing.assert_close(stack.gather(torch.arange(E)), exact, rtol=0.01, atol=2e-3)


@fast
@pytest.mark.parametrize("type", TYPES)
def test_many_rows_are_multiplied_by_numbers(type: str) -> None:
    weight = Int4Stack.pack(blocks_of(type)).one(1)
    x = torch.randn(33, COLUMNS)
    exact = x.double() @ weight.dequantize().double().t()
    many, few = ((weight.product(x[:rows]).double() - exact[:rows]).norm() / exact.norm() for rows in (33, 32))
    assert many < 1e-6 and 1e-4 < few < 5e-3  # fp32; bf16 activations and results


@fast
def test_all_cores_are_there_again_after_packing() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        two = Int4Stack.pack(blocks_of("Q4_0"))
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        one = Int4Stack.pack(blocks_of("Q4_0"))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one.q, two.q) and torch.equal(one.scales, two.scales)


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_other_dtypes_decode_as_before(type: str, dtype: str) -> None:
    parts = layer(type)
    experts = moe.Experts.pack(*parts, dtype)
    assert all(isinstance(stack, moe.PackedStack) for stack in (experts.gate, experts.up, experts.down))
    want = quant.to_torch(parts[0][0], torch.float32 if dtype == "fp32" else torch.bfloat16)
    assert torch.equal(experts.gate.dense(1), want[1])


def test_what_does_not_fit_stays_as_its_file_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def stack(type: str, rows: int) -> moe.Stack:
        raw = [made(type, (E, rows, 64), 1)]
        return moe.Experts.pack(raw, raw, raw, "int8").gate

    assert isinstance(stack("Q4_0", 96), moe.PackedStack)  # one and a half blocks of AVX-512
    monkeypatch.setattr(int4, "_block", lambda: None)
    assert isinstance(stack("Q4_0", 128), moe.PackedStack)


def test_without_vectors_there_is_no_fast_product() -> None:
    """As on a processor that has none, where torch's scalar form takes longer than decoding."""
    program = "from lingchat.kernels import int4; print(int4._block())"
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "default"}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "None"
