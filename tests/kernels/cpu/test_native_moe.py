"""Native routing and experts against their torch twins, bit for bit over row counts, threads and instruction sets."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from kernels.cpu import native

from lingchat.kernels import moe
from lingchat.kernels.cpu import structs
from lingchat.kernels.norm import rms_norm, swiglu_limited

NAN = float("nan")
EPS = 1e-6


@pytest.fixture(autouse=True)
def no_grad():
    with torch.inference_mode():
        yield


@dataclass(frozen=True)
class Sizes:
    d: int = 64
    inner: int = 32
    shared: int = 32
    experts: int = 16
    chosen: int = 4
    groups: int = 4
    chosen_groups: int = 2
    scale: float = 2.5
    renormalize: bool = True


ODD = Sizes(d=52, inner=27, shared=41, experts=21, chosen=3, groups=3, chosen_groups=2, scale=0.7, renormalize=False)
WIDE = Sizes(d=224, inner=96, shared=160, experts=10, chosen=8, groups=1, chosen_groups=1)


class Room:
    """A pass's buffers, filled with what must not matter."""

    def __init__(self, sizes: Sizes, rows: int) -> None:
        s, pairs = sizes, rows * sizes.chosen
        self.normed = torch.full((rows, s.d), NAN)
        self.ids = torch.full((rows, s.chosen), 1 << 30, dtype=torch.int32)
        self.weights = torch.full((rows, s.chosen), NAN)
        self.scores = torch.full((rows, s.experts), NAN)
        self.order = torch.full((pairs,), 1 << 30, dtype=torch.int32)
        self.starts = torch.full((s.experts + 1,), 1 << 30, dtype=torch.int32)
        self.up = torch.full((pairs, s.inner), NAN)
        self.shared_up = torch.full((rows, s.shared), NAN)
        self.parts = torch.full((pairs, s.d), NAN)
        acts = [native.act(s.d, rows), native.act(s.inner, pairs), native.act(s.shared, rows)]
        a = native.address
        self.routes = native.keep(
            structs.Routes(
                *map(a, (self.normed, self.ids, self.weights, self.scores)),
                *(acts[0], a(self.order), a(self.starts), acts[1], acts[2]),
                *map(a, (self.up, self.shared_up, self.parts)),
            ),
            acts,
        )

    def everything(self) -> list[torch.Tensor]:
        return [self.normed, self.ids, self.weights, self.scores, self.up, self.shared_up, self.parts]


@dataclass
class Layer:
    sizes: Sizes
    norm: torch.Tensor
    router: torch.Tensor
    bias: torch.Tensor
    gate: torch.Tensor  # [E, I, d]
    up: torch.Tensor
    down: torch.Tensor  # [E, d, I]
    shared: list[torch.Tensor]  # gate, up, down
    packed: bool
    natives: SimpleNamespace


def layer(sizes: Sizes, packed: bool = False) -> Layer:
    """`packed`: matrices of int8 blocks, but for the shared gate."""
    torch.manual_seed(sizes.d)
    s = sizes
    gate, up = (torch.randn(s.experts, s.inner, s.d) * 2 * s.d**-0.5 for _ in range(2))
    down = torch.randn(s.experts, s.d, s.inner) * s.inner**-0.5
    shared = [torch.randn(s.shared, s.d) * 2 * s.d**-0.5 for _ in range(2)]
    shared.append(torch.randn(s.d, s.shared) * s.shared**-0.5)
    n = SimpleNamespace()
    if packed:
        (n.gate, gate), (n.up, up), (n.down, down) = map(native.w8_stack, (gate, up, down))
        whole, values = native.w8_matrix(shared[1])
        part = (structs.W8, s.shared, whole.kept[0][1])
        n.shared_up = native.matrix(
            (structs.F32, s.shared, native.float_panels(shared[0])), part, columns=s.d, bias=torch.zeros(2 * s.shared)
        )
        n.shared_down, last = native.w8_matrix(shared[2])
        shared = [shared[0], values[0], last[0]]
    else:
        n.gate, n.up, n.down = map(native.float_stack, (gate, up, down))
        n.shared_up = native.float_matrix(*shared[:2])
        n.shared_down = native.float_matrix(shared[2][:9], shared[2][9:])  # parts that end within a panel
    router = torch.randn(s.experts, s.d) * s.d**-0.5
    n.router = native.float_matrix(router)
    norm, bias = torch.rand(s.d) + 0.5, torch.randn(s.experts) * 0.1
    return Layer(s, norm, router, bias, gate, up, down, shared, packed, n)


def route(of: Layer, room: Room, x: torch.Tensor) -> structs.Instruction:
    s = of.sizes
    return native.instruction(
        "route",
        *(x, of.norm, EPS, of.natives.router, of.bias, room.routes),
        *(s.experts, s.chosen, s.groups, s.chosen_groups, int(s.renormalize), s.scale),
    )


def block(
    of: Layer, x: torch.Tensor, isa: str, threads: int = 1, limits: tuple[float, float] = (0.0, 0.0)
) -> tuple[Room, torch.Tensor]:
    """Route, up, down: the buffers, and the residual afterwards."""
    room, after, n = Room(of.sizes, len(x)), x.clone(), of.natives
    program = [
        route(of, room, after),
        native.instruction("experts_up", room.routes, n.gate, n.up, n.shared_up, of.sizes.chosen, *limits),
        native.instruction("experts_down", after, room.routes, n.down, n.shared_down, of.sizes.chosen),
    ]
    native.run_all(program, rows=len(x), isa=isa, threads=threads)
    return room, after


def experts(of: Layer) -> moe.Experts:
    return moe.Experts(*(moe.DenseStack(w, torch.float32) for w in (of.gate, of.up, of.down)))


def close(got: torch.Tensor, want: torch.Tensor, bound: float = 2e-6) -> None:
    assert torch.isfinite(got).all()
    assert (got.double() - want.double()).abs().max() <= bound * want.abs().max().clamp_min(1e-3)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize("sizes", [Sizes(), ODD, WIDE], ids=["usual", "odd", "wide"])
@pytest.mark.parametrize("rows", [1, 2, 7, 16, 40, 130])
def test_the_route_is_its_twin(sizes: Sizes, rows: int, isa: str) -> None:
    of, x = layer(sizes), torch.randn(rows, sizes.d) * 3
    room = Room(sizes, rows)
    before = x.clone()
    native.run_all([route(of, room, x)], rows=rows, isa=isa, threads=2)
    normed = rms_norm(x, of.norm, EPS)
    close(room.normed, normed)
    ids, weights = moe.route(normed.double() @ of.router.double().T, of.bias, sizes)
    assert torch.equal(room.ids.long(), ids)
    close(room.weights, weights)
    order = ids.flatten().argsort(stable=True)
    assert torch.equal(room.order.long(), order)
    counts = torch.bincount(ids.flatten(), minlength=sizes.experts)
    assert room.starts.tolist() == [0, *counts.cumsum(0).tolist()]
    assert same(x, before)


@pytest.mark.parametrize("groups", [1, 4])
def test_of_equal_scores_the_lower_index_comes_first(groups: int, isa: str) -> None:
    sizes = Sizes(groups=groups)
    of = layer(sizes)
    of.router[:] = of.router[0]
    of.router[11] *= 2
    of.bias[:] = 0
    of.natives.router = native.float_matrix(of.router)
    x = torch.cat((of.router[:1], -of.router[:1]))  # expert 11 stands out above, then below
    room = Room(sizes, 2)
    native.run_all([route(of, room, x)], rows=2, isa=isa)
    assert room.ids.tolist() == [[11, 0, 1, 2], [0, 1, 2, 3]]
    # Equal scores are so in the twin, too: with groups it keeps that of 11 and of the others the first one.
    assert torch.equal(moe.route(room.scores.logit(), of.bias, sizes)[0], room.ids.long())


def test_more_experts_than_the_groups_hold(isa: str) -> None:
    """Whoever is outside comes after all inside, the lower index first."""
    sizes = Sizes(experts=8, groups=4, chosen_groups=1, chosen=5)
    of, x = layer(sizes), torch.randn(9, sizes.d)
    room = Room(sizes, 9)
    native.run_all([route(of, room, x)], rows=9, isa=isa, threads=3)
    ids, weights = moe.route(rms_norm(x, of.norm, EPS) @ of.router.T, of.bias, sizes)
    assert torch.equal(room.ids.long(), ids)
    close(room.weights, weights)


@pytest.mark.parametrize("sizes", [Sizes(), ODD, WIDE], ids=["usual", "odd", "wide"])
@pytest.mark.parametrize("rows", [1, 3, 16, 40, 130])
@pytest.mark.parametrize("limits", [(0.0, 0.0), (0.5, 0.4)])
def test_experts_are_their_twins(sizes: Sizes, rows: int, limits: tuple[float, float], isa: str) -> None:
    of, x = layer(sizes), torch.randn(rows, sizes.d) * 3
    room, after = block(of, x, isa, 2, limits)
    ids, normed = room.ids.long(), room.normed
    hidden = moe.experts_up(normed, ids, experts(of), limits[0])
    close(room.up.view_as(hidden), hidden, 2e-5)
    gate, up, down = of.shared
    beside = swiglu_limited(normed @ gate.T, normed @ up.T, limits[1])
    close(room.shared_up, beside, 2e-5)
    close(after, x + moe.experts_down(hidden, ids, room.weights, experts(of)) + beside @ down.T, 2e-5)


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_packed_experts_are_products_of_quantised_rows(rows: int, isa: str) -> None:
    """Matrices of different kinds side by side; what each operation quantises is taken as it left it."""
    of = layer(WIDE, packed=True)
    x = torch.randn(rows, WIDE.d) * 3
    room, after = block(of, x, isa, 2, (0.5, 0.4))
    ids, normed = room.ids.long(), room.normed
    hidden = moe.experts_up(native.rounded(normed).float(), ids, experts(of), 0.5)
    close(room.up.view_as(hidden), hidden, 1e-5)
    gate, up, down = of.shared
    close(room.shared_up, swiglu_limited(normed @ gate.T, native.rounded(normed).float() @ up.T, 0.4), 1e-5)
    routed = moe.experts_down(native.rounded(room.up).float().view_as(hidden), ids, room.weights, experts(of))
    close(after, x + routed + native.rounded(room.shared_up).float() @ down.T, 1e-5)


@pytest.mark.parametrize(("sizes", "packed"), [(Sizes(), False), (ODD, False), (WIDE, True)], ids=str)
def test_bits_do_not_depend_on_rows_threads_or_instruction_set(sizes: Sizes, packed: bool) -> None:
    of, x = layer(sizes, packed), torch.randn(80, sizes.d)
    first, want = block(of, x, "plain", limits=(0.5, 0.4))
    for isa in native.isas():
        for rows in (*range(1, 17), 65, 80):
            for threads in (1, 2, 3, 7) if rows in (1, 6, 16, 80) else (2,):
                room, after = block(of, x[:rows].clone(), isa, threads, (0.5, 0.4))
                assert same(after, want[:rows])
                for got, all_ in zip(room.everything(), first.everything(), strict=True):
                    assert same(got, all_[: len(got)])


@pytest.mark.parametrize("packed", [False, True])
def test_what_no_row_chose_is_not_read_into_any(packed: bool, isa: str) -> None:
    """Unchosen experts hold NaN, and one expert meets every row."""
    of = layer(WIDE if packed else Sizes(), packed)
    x = torch.randn(70, of.sizes.d)
    of.bias[:] = torch.linspace(0, 40, of.sizes.experts)
    of.bias[-1] = 100
    want_room, want = block(of, x, isa)
    used = want_room.ids.unique().tolist()
    assert of.sizes.experts - 1 in used and (want_room.ids == of.sizes.experts - 1).sum() == 70
    assert len(used) < of.sizes.experts
    for stack in (of.natives.gate, of.natives.up, of.natives.down):
        whole = stack.kept[0].view(of.sizes.experts, -1)
        for e in range(of.sizes.experts):
            if e not in used:
                whole[e] = 255  # a NaN in every format
    room, after = block(of, x, isa, 2)
    assert same(after, want)
    assert torch.isfinite(after).all()
    assert same(room.ids, want_room.ids)


def test_more_threads_than_there_is_work(isa: str) -> None:
    sizes = Sizes(d=16, inner=8, shared=8, experts=4, chosen=1, groups=1, chosen_groups=1)
    of, x = layer(sizes), torch.randn(1, 16)
    _, want = block(of, x, isa, 1)
    assert same(block(of, x, isa, 8)[1], want)


def test_a_row_of_zeros_and_one_that_is_huge(isa: str) -> None:
    of = layer(WIDE, packed=True)
    x = torch.zeros(2, WIDE.d)
    x[1] = 1e15
    _, after = block(of, x, isa)
    assert torch.isfinite(after).all()
    assert (after[0] == 0).all()
