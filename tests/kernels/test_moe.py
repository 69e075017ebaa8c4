"""Experts of every packing against dense products, and what a device runs against a guard that refuses host reads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from lingchat.errors import ModelFileError
from lingchat.kernels import kda, mla, moe, packed, quant
from lingchat.kernels.norm import swiglu_limited
from lingchat.kernels.random_weights import matrix
from lingchat.kernels.rows import MAX_WIDTH

E, CHOSEN = 8, 3
D, INNER = 64, 160  # whole blocks of 32 either way round, and no whole block of 128


@dataclass(frozen=True)
class Shape:
    chosen: int = CHOSEN
    groups: int = 4
    chosen_groups: int = 2
    scale: float = 2.5
    renormalize: bool = True


@pytest.fixture(autouse=True)
def no_grad():
    with torch.inference_mode():
        yield


@dataclass(frozen=True)
class Made:
    """A raw tensor in memory, as a file has it."""

    name: str
    type: str
    shape: tuple[int, ...]
    data: memoryview | torch.Tensor
    scales: Made | None = None


def plain(type: str, shape: tuple[int, ...]) -> Made:
    values = (torch.randn(shape) * shape[-1] ** -0.5).to(packed.FLOATS[type])
    return Made("w", type, shape, memoryview(values.view(torch.uint8).flatten().numpy()))


def ggml(type: str, shape: tuple[int, ...]) -> Made:
    import gguf

    values = (np.random.default_rng(len(shape)).standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)
    if type == "Q4_K":  # the package reads these only: blocks of any bytes, with small scales in front
        data = np.random.default_rng(1).integers(0, 256, (values.size // 256, 144), dtype=np.uint8)
        data[:, :4] = np.array([1e-3, 5e-3], dtype=np.float16).view(np.uint8)
    else:
        data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[type])
    return Made("w", type, shape, memoryview(np.ascontiguousarray(data).reshape(-1)))


def drawn(type: str, shape: tuple[int, ...]) -> Made:
    seed = int(torch.randint(1 << 30, ()))
    raw = matrix("w", type, shape, shape[-1] ** -0.5, seed=seed, device="cpu")
    assert raw.scales is not None
    scales = Made("w.scales", raw.scales.type, raw.scales.shape, memoryview(raw.scales.data.numpy()))
    return Made("w", raw.type, raw.shape, memoryview(raw.data.numpy()), scales)


TYPES: dict[str, Callable[[str, tuple[int, ...]], Made]] = {
    **dict.fromkeys(("F32", "F16", "BF16"), plain),
    **dict.fromkeys(("Q4_0", "Q8_0", "Q4_K"), ggml),
    **dict.fromkeys(("F8_E4M3", "I4"), drawn),
}


@dataclass(frozen=True)
class Layer:
    """Experts of one type, stacked or apart, and their numbers in fp64: gate and up [I, D], down [D, I]."""

    parts: tuple[list[Made], list[Made], list[Made]]
    numbers: tuple[torch.Tensor, ...]
    width: int

    @classmethod
    @functools.cache
    def made(cls, type: str, stacked: bool) -> Layer:
        torch.manual_seed(4)
        wide, inner = (256, 256) if type == "Q4_K" else (D, INNER)
        shapes = (inner, wide), (inner, wide), (wide, inner)
        make = TYPES[type]
        if stacked:
            parts = tuple([make(type, (E, *shape))] for shape in shapes)
        else:
            parts = tuple([make(type, shape) for _ in range(E)] for shape in shapes)
        numbers = tuple(
            torch.cat([quant.to_torch(part).view(-1, *shape) for part in each]).double()
            for each, shape in zip(parts, shapes, strict=True)
        )
        return cls(parts, numbers, wide)

    def pass_of(self, rows: int, spread: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows, the experts chosen for them and their weights."""
        torch.manual_seed(5)
        x = torch.randn(rows, self.width) * spread
        return x, *moe.route(torch.randn(rows, E), torch.zeros(E), Shape())

    def output(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, limit: float) -> torch.Tensor:
        gate, up, down = self.numbers
        out = torch.zeros(len(x), self.width, dtype=torch.float64)
        for r, row in enumerate(x.double()):
            for e, w in zip(ids[r].tolist(), weights[r].tolist(), strict=True):
                active, wide = F.silu(gate[e] @ row), up[e] @ row
                if limit:
                    active, wide = active.clamp(max=limit), wide.clamp(-limit, limit)
                out[r] += w * (down[e] @ (active * wide))
        return out


def run(experts: moe.Experts, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, limit: float = 0.0):
    hidden = moe.experts_up(x, ids, experts, limit)
    assert hidden.shape[:2] == ids.shape and hidden.dtype == torch.float32
    return moe.experts_down(hidden, ids, weights, experts)


STACKINGS = [(type, stacked) for type in TYPES for stacked in (False, True)]


@pytest.mark.parametrize(("type", "stacked"), STACKINGS)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_experts_of_every_packing_are_dense_products(type: str, stacked: bool, rows: int) -> None:
    layer = Layer.made(type, stacked)
    experts = moe.Experts.pack(*layer.parts, "fp32")
    x, ids, weights = layer.pass_of(rows)
    out = run(experts, x, ids, weights)
    assert out.dtype == torch.float32 and out.shape == x.shape
    want = layer.output(x, ids, weights, 0.0)
    torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))


@pytest.mark.parametrize(("type", "stacked"), STACKINGS)
def test_chosen_by_index_they_are_the_same(type: str, stacked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The form for devices, on the CPU."""
    layer = Layer.made(type, stacked)
    experts = moe.Experts.pack(*layer.parts, "fp32")
    x, ids, weights = layer.pass_of(5)
    monkeypatch.setattr(moe, "_by_index", lambda x: True)
    want = layer.output(x, ids, weights, 2.0)
    out = run(experts, x, ids, weights, 2.0)
    torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize(
    ("dtype", "type", "bound"), [("bf16", "F32", 0.02), ("fp8", "BF16", 0.02), ("int8", "F32", 0.03)]
)
@pytest.mark.parametrize("stacked", [True, False])
def test_unquantised_experts_take_the_type_asked_for(
    dtype: str, type: str, bound: float, rows: int, stacked: bool
) -> None:
    layer = Layer.made(type, stacked)
    experts = moe.Experts.pack(*layer.parts, dtype)
    values = 3 * E * INNER * D
    assert experts.nbytes == (values + 2 * E * (2 * INNER + D) if dtype == "int8" else 2 * values)
    x, ids, weights = layer.pass_of(rows)
    want = layer.output(x, ids, weights, 0.0)
    error = (run(experts, x, ids, weights).double() - want).norm() / want.norm()
    assert 0 < error < bound


@pytest.mark.parametrize("type", ["BF16", "Q4_0", "F8_E4M3", "I4"])
@pytest.mark.parametrize("stacked", [True, False])
def test_on_the_cpu_the_bytes_of_the_file_are_used_in_place(type: str, stacked: bool) -> None:
    layer = Layer.made(type, stacked)
    experts = moe.Experts.pack(*layer.parts, "fp32")
    places = {torch.frombuffer(part.data, dtype=torch.uint8).data_ptr() for part in layer.parts[0]}
    held = experts.gate.blocks.data if isinstance(experts.gate, moe.PackedStack) else experts.gate.parts
    starts = {held.data_ptr()} if isinstance(held, torch.Tensor) else {part.data_ptr() for part in held}
    assert starts == places
    assert experts.nbytes == sum(
        len(part.data) + (0 if part.scales is None else len(part.scales.data)) for each in layer.parts for part in each
    )


def test_each_expert_is_decoded_once_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer.made("Q4_0", True)
    experts = moe.Experts.pack(*layer.parts, "fp32")
    decoded: list[tuple[int, ...]] = []

    def counted(data: torch.Tensor, type: str, shape: tuple[int, ...], *rest: object) -> torch.Tensor:
        decoded.append(tuple(shape))
        return quant.decode(data, type, shape, *rest)

    monkeypatch.setattr(packed, "decode", counted)
    x, _, weights = layer.pass_of(6)
    ids = torch.tensor([[0, 1, 2], [2, 1, 0], [1, 2, 7], [0, 1, 7], [7, 1, 2], [0, 2, 1]])
    run(experts, x, ids, weights)
    assert sorted(decoded) == sorted([(INNER, D)] * 8 + [(D, INNER)] * 4)  # four experts in use


@pytest.mark.parametrize(("type", "dtype"), [*((type, "fp32") for type in TYPES), ("F32", "bf16"), ("F32", "int8")])
def test_rows_are_the_same_bits_for_every_width(type: str, dtype: str) -> None:
    layer = Layer.made(type, False)
    experts = moe.Experts.pack(*layer.parts, dtype)
    x, ids, weights = layer.pass_of(MAX_WIDTH, spread=3.0)
    singles = [run(experts, *(y[r : r + 1] for y in (x, ids, weights)), 2.0) for r in range(MAX_WIDTH)]
    for rows in (2, 7, MAX_WIDTH):
        assert torch.equal(run(experts, x[:rows], ids[:rows], weights[:rows], 2.0), torch.cat(singles[:rows])), rows


@pytest.mark.parametrize("rows", [2, 40])
def test_limits_bound_what_they_should(rows: int) -> None:
    layer = Layer.made("F32", True)
    experts = moe.Experts.pack(*layer.parts, "fp32")
    x, ids, weights = layer.pass_of(rows, spread=6.0)
    off, on = (moe.experts_up(x, ids, experts, limit) for limit in (0.0, 4.0))
    assert off.abs().max() > 16 and on.abs().max() <= 16
    for limit in (0.0, 4.0, 7.0):
        want = layer.output(x, ids, weights, limit)
        out = run(experts, x, ids, weights, limit)
        torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))


def test_the_gate_is_bounded_after_its_silu_and_from_above_only() -> None:
    gate = torch.tensor([[-100.0, -1.0, 3.9, 4.1, 50.0]])
    up = torch.tensor([[9.0, -9.0, 3.0, 1.0, -1.0]])
    active = F.silu(gate)
    torch.testing.assert_close(swiglu_limited(gate, up, 0.0), active * up)
    want = torch.stack((active[0, 0] * 4, active[0, 1] * -4, active[0, 2] * 3, torch.tensor(4.0), torch.tensor(-4.0)))
    assert active[0, 3] > 4  # silu(4.1) is 4.03
    torch.testing.assert_close(swiglu_limited(gate, up, 4.0)[0], want)


def test_experts_of_mixed_types_are_refused() -> None:
    mixed = [plain("F32", (INNER, D)), plain("BF16", (INNER, D))]
    with pytest.raises(ModelFileError, match=r"differ in type or shape \(BF16, F32\)"):
        moe.Experts.pack(mixed, mixed, mixed, "fp32")


# nothing read by the host


# What `.item()`, `bool()`, `int()` and a result of unknown size come down to, in inference mode and without it.
READS = {
    "item",
    "is_nonzero",
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique_dim",
    "_unique2",
    "bincount",
    "equal",
}


class NoReads(TorchDispatchMode):
    """Refuses every operation whose result the host has to wait for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in READS:
            raise AssertionError(f"{name} waits for the device")
        return func(*args, **(kwargs or {}))


def test_the_guard_sees_reads() -> None:
    with NoReads():
        for read in (lambda x: x[0].item(), lambda x: x.nonzero(), lambda x: bool(x.any())):
            with pytest.raises(AssertionError, match="waits for the device"):
                read(torch.ones(2))


@pytest.mark.parametrize(("type", "dtype"), [*((type, "fp32") for type in TYPES), ("F32", "bf16"), ("F32", "int8")])
@pytest.mark.parametrize("rows", [1, 5, MAX_WIDTH])
def test_on_a_device_no_expert_is_chosen_by_the_host(type: str, dtype: str, rows: int) -> None:
    """On torch's device without memory: there is nothing that could be read."""
    layer = Layer.made(type, True)
    experts = moe.Experts.pack(*layer.parts, dtype, "meta")
    x, logits = torch.empty(rows, layer.width, device="meta"), torch.empty(rows, E, device="meta")
    with NoReads():
        ids, weights = moe.route(logits, torch.empty(E, device="meta"), Shape())
        assert run(experts, x, ids, weights, 4.0).shape == x.shape


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_pass_of_kda_and_latent_attention_reads_nothing(device: str) -> None:
    heads, width, taps, w, rows = 2, 8, 4, 4, 3
    new = lambda *shape: torch.zeros(shape, device=device)  # noqa: E731
    state, window = new(heads, width, width), new(taps - 1, 3 * heads * width)
    staged_states, staged_inputs = new(w, heads, width, width), new(w + taps - 1, 3 * heads * width)
    uk, uv = new(heads, 4, 6), new(heads, 5, 6)
    with NoReads():
        inputs = torch.cat((window, new(rows, 3 * heads * width)))
        q, k, v = kda.conv_silu(inputs, new(3 * heads * width, taps)).view(rows, 3, heads, width).unbind(1)
        for gate in ("bounded", "softplus"):
            g = kda.log_decay(new(rows, heads * width), new(heads), new(heads * width), gate, -5.0)
        out, states = kda.recurrent(kda.l2_normalize(q), kda.l2_normalize(k), v, g, new(rows, heads), state)
        kda.chunked(q, k, v, g, new(rows, heads), state)
        kda.gated_norm(out, new(width), 1e-6, new(rows, heads * width))
        kda.stage(staged_states, staged_inputs, states, inputs)
        count = torch.ones(1, dtype=torch.int32, device=device)
        kda.commit(state, window, staged_states, staged_inputs, count)
        z = mla.attend_masked(new(rows, heads, 9), new(20, 9), torch.arange(rows, device=device), 0.1, 6)
        assert mla.expand(z, uv).shape == (rows, heads, 5)
        assert mla.absorb(new(rows, heads, 4), uk).shape == (rows, heads, 6)
