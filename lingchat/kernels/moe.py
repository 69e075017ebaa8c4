"""Mixture of experts: grouped sigmoid routing, and the chosen experts over weights in any packing.

Experts stay as their file has them where it quantised them: blocks are decoded as they are used, one expert at a time
on the CPU, the chosen ones by index elsewhere. With int8 on the CPU those of four bits are packed for a product that
needs no decoding (`int4.py`). Knows tensors, no models. Shapes: T rows of width d, E experts of inner
width I, k of them chosen a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from lingchat.errors import ModelFileError
from lingchat.kernels.gemv import DenseWeight, Int8Weight, project
from lingchat.kernels.int4 import Int4Stack, Int4Weight
from lingchat.kernels.norm import swiglu_limited
from lingchat.kernels.packed import Blocks, float_view
from lingchat.kernels.quant import FLOATS, Raw, to_torch
from lingchat.kernels.rows import MAX_WIDTH, sigmoid


class RouteShape(Protocol):
    """As `runtime.ops.protocol.RouteShape`."""

    @property
    def chosen(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def chosen_groups(self) -> int: ...
    @property
    def scale(self) -> float: ...
    @property
    def renormalize(self) -> bool: ...


def route(logits: torch.Tensor, bias: torch.Tensor, shape: RouteShape) -> tuple[torch.Tensor, torch.Tensor]:
    """logits fp32 [T, E], bias fp32 [E] -> ids int64 [T, k], best first, and weights fp32 [T, k] (DeepSeek-V3, 2024).

    The bias takes part in choosing only. A group counts the sum of its two largest biased scores; among equals, groups
    and experts alike, the lower index comes first.
    """
    scores = sigmoid(logits)
    biased = scores + bias
    if shape.groups > 1:
        grouped = biased.view(biased.shape[0], shape.groups, -1)
        ranks = _best_first(grouped.topk(2).values.sum(-1))
        kept = torch.zeros_like(ranks, dtype=torch.bool).scatter_(1, ranks[:, : shape.chosen_groups], True)
        biased = torch.where(kept[:, :, None], grouped, float("-inf")).flatten(1)
    ids = _best_first(biased)[:, : shape.chosen]
    weights = scores.gather(1, ids)
    if shape.renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return ids, weights * shape.scale


def _best_first(scores: torch.Tensor) -> torch.Tensor:
    return scores.sort(dim=-1, descending=True, stable=True).indices


class Stack(Protocol):
    """One of the three matrices of every expert, [E, N, K]."""

    @property
    def nbytes(self) -> int: ...
    def one(self, expert: int) -> DenseWeight | Int8Weight | Int4Weight:
        """A weight [N, K] for a pass of few rows."""

    def dense(self, expert: int) -> torch.Tensor:
        """[N, K] in the type that products are computed in."""

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """ids int64 [k] on the weights' device -> [k, N, K], without a host read."""


@dataclass(frozen=True)
class DenseStack:
    """Numbers: one tensor [E, N, K], or one [N, K] an expert where they lie apart in a file that is used in place.

    `compute`: what they are widened to as they are used.
    """

    parts: torch.Tensor | tuple[torch.Tensor, ...]
    compute: torch.dtype

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def one(self, expert: int) -> DenseWeight:
        return DenseWeight(self.dense(expert))

    def dense(self, expert: int) -> torch.Tensor:
        return self.parts[expert].to(self.compute)

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        parts = self.parts
        stacked = parts if isinstance(parts, torch.Tensor) else torch.stack(parts)
        return stacked.index_select(0, ids).to(self.compute)


@dataclass(frozen=True)
class Int8Stack:
    """int8 rows with a scale a row, as `Int8Weight`: q [E, N, K padded], scale bf16 [E, N]."""

    q: torch.Tensor
    scale: torch.Tensor
    columns: int

    @property
    def nbytes(self) -> int:
        return self.q.nbytes + self.scale.nbytes

    def one(self, expert: int) -> Int8Weight:
        return Int8Weight(self.q[expert], self.scale[expert], self.columns)

    def dense(self, expert: int) -> torch.Tensor:
        return self.one(expert).dequantize()

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        wide = self.q.index_select(0, ids).float() * self.scale.index_select(0, ids).float()[:, :, None]
        return wide[:, :, : self.columns]


@dataclass(frozen=True)
class PackedStack:
    """Blocks as the file has them, decoded to `compute` as they are used."""

    blocks: Blocks
    compute: torch.dtype

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes

    def one(self, expert: int) -> DenseWeight:
        return DenseWeight(self.dense(expert))

    def dense(self, expert: int) -> torch.Tensor:
        return self.blocks.one(expert, self.compute)

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        return self.blocks.gather(ids, self.compute)


@dataclass(frozen=True)
class Experts:
    """gate and up [E, I, d], down [E, d, I]."""

    gate: Stack
    up: Stack
    down: Stack

    @classmethod
    def pack(
        cls,
        gate: Sequence[Raw],
        up: Sequence[Raw],
        down: Sequence[Raw],
        dtype: str,
        device: torch.device | str = "cpu",
    ) -> Experts:
        """Each a single stacked tensor [E, N, K], or one [N, K] an expert. Quantised types stay as they are, but for
        those that "int8" packs at four bits.

        Unquantised ones: "fp32" leaves them as stored and widens them as they are used, "int8" makes int8 rows, every
        other `dtype` bf16. On the CPU what need not be converted is used in place, in the mapped file.
        """
        device = torch.device(device)
        return cls(_stack(gate, dtype, device), _stack(up, dtype, device), _stack(down, dtype, device))

    @property
    def nbytes(self) -> int:
        return self.gate.nbytes + self.up.nbytes + self.down.nbytes


def _stack(parts: Sequence[Raw], dtype: str, device: torch.device) -> Stack:
    if len({(part.type, tuple(part.shape)) for part in parts}) > 1:
        what = ", ".join(sorted({part.type for part in parts}))
        raise ModelFileError(
            f"{parts[0].name}: the experts of a layer differ in type or shape ({what}). Fetch the model again."
        )
    compute = torch.float32 if dtype in ("fp32", "int8") else torch.bfloat16
    if parts[0].type not in FLOATS:
        blocks = Blocks.stack(parts, device)
        if dtype == "int8" and device.type == "cpu" and Int4Stack.takes(blocks):
            return Int4Stack.pack(blocks)
        return PackedStack(blocks, compute)
    if dtype == "int8":
        pairs = [Int8Weight.pack([part]) for part in _apart(parts)]
        scales = torch.stack([w.scale for w in pairs]).to(device)
        return Int8Stack(torch.stack([w.q for w in pairs]).to(device), scales, pairs[0].columns)
    stored = FLOATS[parts[0].type] if dtype == "fp32" else torch.bfloat16
    if device.type == "cpu" and FLOATS[parts[0].type] == stored:
        views = tuple(float_view(part) for part in parts)
        return DenseStack(views[0] if len(views) == 1 else views, compute)
    if len(parts) == 1:
        return DenseStack(to_torch(parts[0], stored, device), compute)
    # Part after part: the host never holds more of the mapped files than one of them.
    whole = torch.empty(len(parts), *parts[0].shape, dtype=stored, device=device)
    for place, part in zip(whole, parts, strict=True):
        place.copy_(to_torch(part, stored, device))
    return DenseStack(whole, compute)


def _apart(parts: Sequence[Raw]) -> list[Raw]:
    """Every expert as a raw tensor of its own."""
    if len(parts) > 1 or len(parts[0].shape) == 2:
        return list(parts)
    whole = parts[0]
    count, *shape = whole.shape
    size = len(whole.data) // count
    return [_Slice(whole.name, whole.type, tuple(shape), whole.data[e * size : (e + 1) * size]) for e in range(count)]


@dataclass(frozen=True)
class _Slice:
    name: str
    type: str
    shape: tuple[int, ...]
    data: Any
    scales: None = None


def experts_up(x: torch.Tensor, ids: torch.Tensor, experts: Experts, limit: float) -> torch.Tensor:
    """Gate and up of each row's chosen experts, activated: x fp32 [T, d], ids int64 [T, k] -> fp32 [T, k, I].

    `limit` as in `norm.swiglu_limited`. Up to MAX_WIDTH rows a row's bits do not depend on T, and on a device other
    than the CPU nothing is read by the host; more rows are sorted by expert, so that each is decoded once.
    """
    rows, chosen = ids.shape
    if _by_index(x):
        gate, up = (_gathered(x[:, None].expand(-1, chosen, -1), ids, stack) for stack in (experts.gate, experts.up))
        return swiglu_limited(gate, up, limit)
    out: torch.Tensor | None = None
    product = _product(rows)
    for expert, places in _by_expert(ids):
        some = x[places // chosen]
        hidden = swiglu_limited(product(some, experts.gate, expert), product(some, experts.up, expert), limit)
        if out is None:
            out = hidden.new_empty(rows * chosen, hidden.shape[1])
        out[places] = hidden
    assert out is not None
    return out.view(rows, chosen, -1)


def experts_down(hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, experts: Experts) -> torch.Tensor:
    """Down-projections, weighted and summed in fp32: hidden [T, k, I], ids and weights [T, k] -> fp32 [T, d]."""
    rows, chosen, _ = hidden.shape
    if _by_index(hidden):
        parts = _gathered(hidden, ids, experts.down)
    else:
        flat = hidden.flatten(0, 1)
        product = _product(rows)
        found = [(places, product(flat[places], experts.down, expert)) for expert, places in _by_expert(ids)]
        parts = hidden.new_empty(rows * chosen, found[0][1].shape[1])
        for places, part in found:
            parts[places] = part
        parts = parts.view(rows, chosen, -1)
    out = parts[:, 0] * weights[:, :1]
    for place in range(1, chosen):  # one after the other: the sum's order, and so its bits, is the same for every T
        out += parts[:, place] * weights[:, place : place + 1]
    return out


def _by_index(x: torch.Tensor) -> bool:
    return x.device.type != "cpu" and x.shape[0] <= MAX_WIDTH


def _gathered(x: torch.Tensor, ids: torch.Tensor, stack: Stack) -> torch.Tensor:
    """x [T, k, K] each times its own expert -> fp32 [T, k, N]; the weights of one row at a time."""
    out = []
    for r in range(x.shape[0]):
        weight = stack.gather(ids[r])
        out.append(torch.bmm(weight, x[r, :, :, None].to(weight.dtype))[:, :, 0].float())
    return torch.stack(out)


def _by_expert(ids: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Each expert in use and its places in ids.flatten(), ascending. Reads the counts."""
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat).tolist()
    at = 0
    for expert, count in enumerate(counts):
        if count:
            yield expert, order[at : at + count]
        at += count


def _product(rows: int) -> Callable[[torch.Tensor, Stack, int], torch.Tensor]:
    """x [n, K] times an expert -> fp32 [n, N]: row by row in a pass of few rows, at once in a pass of many."""

    def by_rows(x: torch.Tensor, stack: Stack, expert: int) -> torch.Tensor:
        weight = stack.one(expert)
        return weight.product(x) if isinstance(weight, Int4Weight) else project(x, weight)

    def at_once(x: torch.Tensor, stack: Stack, expert: int) -> torch.Tensor:
        if isinstance(stack, Int4Stack):  # which sees for itself whether numbers pay
            return stack.one(expert).product(x)
        weight = stack.dense(expert)
        return F.linear(x.to(weight.dtype), weight).float()

    return by_rows if rows <= MAX_WIDTH else at_once
