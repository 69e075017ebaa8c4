"""The native delta rule against its torch twin, bit for bit over row counts, threads and instruction sets."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import pytest
import torch
from kernels.cpu import native

from lingchat.kernels import kda
from lingchat.kernels.gemv import DenseWeight
from lingchat.runtime.ops import torch_mixers
from lingchat.runtime.ops.protocol import KDACache, KDAShape, KDAWeights

NAN = float("nan")


@pytest.fixture(autouse=True)
def no_grad():
    with torch.inference_mode():
        yield


@dataclass
class Layer:
    shape: KDAShape
    weights: KDAWeights
    f_up: object = None  # native matrices
    g_up: object = None

    @property
    def inner(self) -> int:
        return self.shape.heads * self.shape.head_dim

    @property
    def width(self) -> int:
        return 3 * self.inner + 2 * (self.shape.rank or self.inner) + self.shape.heads


def layer(
    heads: int, head_dim: int, taps: int = 4, gate: str = "bounded", rank: int | None = None, packed: str = "f32"
) -> Layer:
    torch.manual_seed(heads * 1000 + head_dim)
    inner = heads * head_dim
    shape = KDAShape(heads, head_dim, taps, gate, -5.0, rank, 1e-5)  # type: ignore[arg-type]
    conv, rate = torch.randn(3 * inner, taps), torch.rand(heads) * 4
    vectors = torch.randn(inner), torch.rand(head_dim) + 0.5
    made = Layer(shape, KDAWeights(conv, rate, *vectors))
    if rank is not None:
        values = [torch.randn(inner, rank) * rank**-0.5 for _ in range(2)]
        biases = [torch.randn(inner), None]
        if packed == "f32":
            natives = [native.float_matrix(w, bias=b) for w, b in zip(values, biases, strict=True)]
        else:
            both = [native.w8_matrix(w, bias=b) for w, b in zip(values, biases, strict=True)]
            natives, values = [m for m, _ in both], [v[0] for _, v in both]
        made.f_up, made.g_up = natives
        made.weights = KDAWeights(
            conv, rate, *vectors, *(DenseWeight(w, b) for w, b in zip(values, biases, strict=True))
        )
    return made


class State:
    """Committed state and window, and the staging of up to `most` rows, filled with what must not matter."""

    def __init__(self, of: Layer, most: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        heads, width, channels = of.shape.heads, of.shape.head_dim, 3 * of.inner
        self.most, self.history = most, of.shape.taps - 1
        self.states = torch.full((1 + most, heads, width, width), NAN)
        self.states[0] = torch.randn(heads, width, width)
        self.window = torch.randn(self.history, channels).half()
        self.staged_inputs = torch.full((most + self.history, channels), NAN, dtype=torch.float16)
        self.state_cell = (ctypes.c_void_p * 1)(self.states[0].data_ptr())
        self.staged_cells = (ctypes.c_void_p * most)(*(s.data_ptr() for s in self.states[1:]))

    def at(self, cell: int) -> torch.Tensor:
        """The state whose address a cell holds."""
        (found,) = (s for s in self.states if s.data_ptr() == cell)
        return found

    @property
    def state(self) -> torch.Tensor:
        return self.at(self.state_cell[0])

    def staged(self, row: int) -> torch.Tensor:
        return self.at(self.staged_cells[row])

    def twin(self) -> KDACache:
        staged = torch.full_like(self.states[1:], NAN)
        return KDACache(self.state.clone(), self.window.clone(), staged, torch.full_like(self.staged_inputs, NAN))

    def commit(self, count: int, isa: str = "", threads: int = 1) -> None:
        counted = torch.tensor([count], dtype=torch.int32)
        native.run(
            "commit_kda",
            self.state_cell,
            self.staged_cells,
            self.most,
            self.window,
            self.staged_inputs,
            self.window.shape[1] * 2,
            self.history,
            counted,
            rows=1,
            isa=isa,
            threads=threads,
        )


def passed(of: Layer, state: State, projected: torch.Tensor, isa: str = "", threads: int = 1) -> torch.Tensor:
    """One pass: [T, P]. Its buffers hold what must not matter."""
    rows, inner, shape, weights = len(projected), of.inner, of.shape, of.weights
    out, mixed, gates = (torch.full((rows, n * inner), NAN) for n in (1, 3, 2))
    native.run(
        "kda",
        projected,
        of.width,
        *(weights.conv, weights.rate, weights.dt_bias, weights.norm, of.f_up, of.g_up),
        *(shape.heads, shape.head_dim, shape.taps, int(shape.gate == "bounded"), shape.rank or 0),
        *(shape.lower_bound, shape.eps, state.state_cell, state.staged_cells, state.most),
        *(state.window, state.staged_inputs, out, mixed, gates if shape.rank else None, None),
        rows=rows,
        isa=isa,
        threads=threads,
    )
    return out


def rows_of(of: Layer, count: int, seed: int = 1) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(count, of.width)


def close(got: torch.Tensor, want: torch.Tensor, bound: float = 2e-5) -> None:
    assert torch.isfinite(got).all()
    assert (got.double() - want.double()).abs().max() <= bound * want.abs().max().clamp_min(1e-3)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, NaN and signs of zero too."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


LAYERS = [
    dict(heads=2, head_dim=32),
    dict(heads=3, head_dim=16, gate="softplus", rank=16),
    dict(heads=1, head_dim=128),
    dict(heads=3, head_dim=20, taps=3),
    dict(heads=2, head_dim=5, taps=2, gate="softplus", rank=7),
    dict(heads=2, head_dim=72, taps=5, gate="softplus"),
    dict(heads=2, head_dim=36, taps=1),
]


@pytest.mark.parametrize("sizes", LAYERS, ids=str)
@pytest.mark.parametrize(("rows", "most"), [(1, 16), (2, 16), (7, 7), (16, 16), (17, 16), (40, 16), (2, 1), (5, 4)])
def test_a_pass_is_its_twin_and_so_is_every_commit(sizes: dict, rows: int, most: int, isa: str) -> None:
    of = layer(**sizes)
    state = State(of, most)
    before, twin = state.states[0].clone(), state.twin()
    projected = rows_of(of, rows)
    out = passed(of, state, projected, isa, threads=2)
    want = torch_mixers.delta_attention(projected, of.weights, of.shape, twin, kda.chunked)
    close(out, want)
    assert same(state.state, before)  # only read
    assert same(state.window, twin.window)
    assert same(state.staged_inputs, twin.staged_inputs)  # what is not staged is not touched, either
    for r in range(most):
        written = r == most - 1 if rows > most else r < rows
        if written:
            close(state.staged(r), twin.staged_states[r])
        else:
            assert torch.isnan(state.staged(r)).all()
    for count in [rows] if rows > most else range(rows + 1):
        state = State(of, most)
        passed(of, state, projected, isa)
        state.commit(count, isa, threads=3)
        kept, window = before.clone(), twin.window.clone()
        kda.commit(kept, window, twin.staged_states, twin.staged_inputs, count)
        close(state.state, kept)
        assert same(state.window, window)


@pytest.mark.parametrize("sizes", LAYERS, ids=str)
def test_bits_do_not_depend_on_rows_threads_or_instruction_set(sizes: dict) -> None:
    of = layer(**sizes)
    projected = rows_of(of, 16)
    first = State(of, 16)
    want = passed(of, first, projected, "plain")
    for isa in native.isas():
        for rows in range(1, 17):
            for threads in (1, 2, 3, 7) if rows in (1, 6, 16) else (1,):
                state = State(of, 16)
                assert same(passed(of, state, projected[:rows].clone(), isa, threads), want[:rows])
                assert all(same(state.staged(r), first.staged(r)) for r in range(rows))


def test_a_second_projection_of_bytes_has_the_same_bits_everywhere() -> None:
    of = layer(3, 16, gate="softplus", rank=32, packed="w8")
    projected = rows_of(of, 40)
    want = passed(of, State(of, 40), projected, "plain")
    close(want, torch_mixers.delta_attention(projected, of.weights, of.shape, State(of, 40).twin(), kda.chunked), 0.05)
    for isa in native.isas():
        for rows, threads in ((1, 2), (16, 3), (40, 2)):
            assert same(passed(of, State(of, 40), projected[:rows].clone(), isa, threads), want[:rows])


@pytest.mark.parametrize("sizes", [LAYERS[1], LAYERS[3]], ids=str)
def test_a_long_pass_is_many_rows_one_after_the_other(sizes: dict, isa: str) -> None:
    """More rows than can be staged, and more than a round has: the same bits as one row at a time."""
    of = layer(**sizes)
    projected = rows_of(of, 40)
    long, single = State(of, 4), State(of, 4)
    out = passed(of, long, projected, isa, threads=2)
    long.commit(40, isa)
    for r in range(40):
        assert same(passed(of, single, projected[r : r + 1].clone(), isa), out[r : r + 1])
        single.commit(1, isa)
    assert same(long.state, single.state)
    assert same(long.window, single.window)


def test_rounds_that_keep_some_rows_are_those_rows_alone(isa: str) -> None:
    of = layer(2, 24)
    drafted, single = State(of, 8), State(of, 8)
    for seed, (rows, count) in enumerate([(8, 3), (1, 1), (5, 0), (4, 4), (8, 8), (6, 2), (12, 12)]):
        projected = rows_of(of, rows, seed)
        out = passed(of, drafted, projected, isa, threads=2)
        drafted.commit(count, isa)
        for r in range(count):
            assert same(passed(of, single, projected[r : r + 1].clone(), isa), out[r : r + 1])
            single.commit(1, isa)
        assert same(drafted.state, single.state)
        assert same(drafted.window, single.window)


def test_a_commit_exchanges_memory_and_copies_no_state(isa: str) -> None:
    of = layer(2, 8)
    state = State(of, 4)
    passed(of, state, rows_of(of, 4), isa)
    cells = [state.state_cell[0], *state.staged_cells]
    state.commit(0, isa)
    assert [state.state_cell[0], *state.staged_cells] == cells
    state.commit(3, isa, threads=3)
    assert [state.state_cell[0], *state.staged_cells] == [cells[3], cells[1], cells[2], cells[0], cells[4]]


@pytest.mark.parametrize("gate", ["bounded", "softplus"])
def test_gates_far_out_are_the_twins(gate: str, isa: str) -> None:
    """Decay inputs from where everything is kept to where all is forgotten, and around the softplus' bend at 20."""
    of = layer(1, 64, gate=gate)
    projected = rows_of(of, 6)
    far = torch.tensor([0.0, 1e-6, 5, 19.9, 20.1, 60, 87, 88, 100, 1000, 1e6, 1e30])
    values = torch.cat((far, -far))
    projected[:, 3 * of.inner : 4 * of.inner] = values.repeat(3)[: of.inner]
    projected[4:, 4 * of.inner :] *= 1000  # output gate and write strength
    state = State(of, 16)
    twin = state.twin()
    want = torch_mixers.delta_attention(projected, of.weights, of.shape, twin, kda.chunked)
    close(passed(of, state, projected, isa), want)
    for r in range(6):
        close(state.staged(r), twin.staged_states[r])


def test_large_states_are_written_past_the_caches_to_the_same_bits() -> None:
    of = layer(4, 128)  # as many bytes as it takes
    projected = rows_of(of, 3)
    first = State(of, 3)
    want = passed(of, first, projected, "plain")
    for isa in native.isas():
        for offset in (0, 1):  # a state on no vector's boundary is written as others are
            state = State(of, 3)
            room = torch.full((state.states.numel() + 16,), NAN)
            begin = (-room.data_ptr() % 32) // 4 + offset
            moved = room[begin : begin + state.states.numel()].view_as(state.states)
            moved.copy_(state.states)
            state.states = moved
            state.state_cell[0] = moved[0].data_ptr()
            state.staged_cells[:] = [s.data_ptr() for s in moved[1:]]
            assert same(passed(of, state, projected, isa, threads=2), want)
            assert all(same(state.staged(r), first.staged(r)) for r in range(3))
