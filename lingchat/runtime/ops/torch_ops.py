"""The torch back end: every operation at once, in plain torch. The oracle, and the CPU path until native code serves.

On the CPU the host is the device, so reading a length costs nothing and rows are cut to size. Elsewhere lengths stay
on the device and the cache is masked instead.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from lingchat.kernels import attention as attn
from lingchat.kernels import gemv, kda, mla, moe, norm, quant
from lingchat.kernels import lookup as lookup_kernel
from lingchat.kernels import rounds as round_kernel
from lingchat.kernels.sample import NEG_INF, Filters
from lingchat.runtime.ops import torch_mixers as mixers
from lingchat.runtime.ops.protocol import (
    AttentionShape,
    BufferSpec,
    Cursor,
    DraftBuffer,
    KDACache,
    KDAShape,
    KDAWeights,
    KVCache,
    LatentCache,
    LatentShape,
    LatentWeights,
    RawTensor,
    Rotation,
    RoundRecord,
    RouteShape,
    SamplerSpec,
)
from lingchat.runtime.ops.torch_mixers import Rows

Weight = gemv.DenseWeight | gemv.Int8Weight | gemv.PackedWeight


@dataclass
class _Residual:
    x: torch.Tensor  # fp32 [T, d]
    waiting: list[torch.Tensor] = field(default_factory=list)

    def settle(self) -> torch.Tensor:
        for part in self.waiting:
            self.x = self.x + part
        self.waiting.clear()
        return self.x


@dataclass(frozen=True)
class _Route:
    x: torch.Tensor  # normed rows, fp32 [T, d]
    ids: torch.Tensor  # int64 [T, k]
    weights: torch.Tensor  # fp32 [T, k]


class TorchOps:
    """`dtype` is of the matrices: "fp32", "bf16", "int8", "fp8" or "int4"; all else is fp32: sums, norms, softmax, the
    recurrence, the residual. With fp8 and int4 the weights that a file holds so stay so and the others are bf16.

    `fp32_gate`: routers keep fp32 weights, so that no expert is chosen otherwise than in fp32.
    """

    max_width = gemv.MAX_WIDTH

    def __init__(self, dtype: str, device: str = "cpu", *, fp32_gate: bool = True) -> None:
        self.dtype = dtype
        self._compute = torch.float32 if dtype in ("fp32", "int8") else torch.bfloat16
        self._router = torch.float32 if fp32_gate else self._compute
        self.device = torch.device(device)
        self.on_host = self.device.type == "cpu"
        # The chunked delta rule has a Triton kernel of its own in fla-core; elsewhere, and without it, ours serves.
        self._fla = not self.on_host and kda.fla_available()
        self.name = f"torch {device}" + (", fla" if self._fla else "")
        self.compiles = "fla-core's prefill kernels (minutes the first time on a machine)" if self._fla else ""
        self._weights: list[Weight | moe.Experts | torch.Tensor] = []
        self._vocabulary = 0
        self._tables: dict[Rotation, torch.Tensor] = {}

    def session(self) -> AbstractContextManager[Any]:
        return torch.inference_mode()

    def use_threads(self, count: int) -> None:
        torch.set_num_threads(count)

    def stop(self) -> None:
        """An operation ends when it ends; whoever drives them looks after each pass whether to go on."""

    def go_on(self) -> None:
        pass

    # memory and weights

    @torch.inference_mode()
    def allocate(self, spec: BufferSpec) -> torch.Tensor:
        if spec.dtype == "i32":
            return torch.zeros(spec.shape, dtype=torch.int32, device=self.device)
        # Zeroed lazily by the system: a long cache costs memory only as far as it is written.
        dtype = torch.float32 if spec.dtype == "f32" or self.on_host else torch.bfloat16
        return torch.zeros(spec.shape, dtype=dtype, device=self.device)

    @torch.inference_mode()
    def fill(self, buffer: torch.Tensor, values: Sequence[int], offset: int = 0) -> None:
        buffer[offset : offset + len(values)] = torch.tensor(values, dtype=torch.int32)

    def matrix(self, parts: Sequence[RawTensor], bias: Sequence[RawTensor] | None = None) -> Weight:
        offsets = None if bias is None else torch.cat([quant.to_torch(part) for part in bias]).to(self.device)
        weight: Weight
        if self.dtype == "int8":
            weight = gemv.Int8Weight.pack(parts, offsets)
        elif self.dtype in ("fp8", "int4") and any(part.type in ("F8_E4M3", "I4") for part in parts):
            weight = gemv.PackedWeight.pack(parts, self._compute, self.device, offsets)
        else:
            weight = gemv.DenseWeight(self._stacked(parts, self._compute), offsets)
        self._weights.append(weight)
        return weight

    def _stacked(self, parts: Sequence[RawTensor], dtype: torch.dtype) -> torch.Tensor:
        """Row blocks as one matrix: never more than one of several twice in memory, and a single one never."""
        if len(parts) == 1:
            return quant.to_torch(parts[0], dtype, self.device)
        whole = torch.empty(sum(part.shape[0] for part in parts), *parts[0].shape[1:], dtype=dtype, device=self.device)
        at = 0
        for part in parts:
            whole[at : at + part.shape[0]] = quant.to_torch(part, dtype, self.device)
            at += part.shape[0]
        return whole

    def vector(self, part: RawTensor) -> torch.Tensor:
        return self._kept(quant.to_torch(part, torch.float32, self.device))

    def router(self, part: RawTensor) -> gemv.DenseWeight:
        weight = gemv.DenseWeight(quant.to_torch(part, self._router, self.device))
        self._weights.append(weight)
        return weight

    def convolution(self, parts: Sequence[RawTensor]) -> torch.Tensor:
        return self._kept(self._stacked(parts, torch.float32))

    def latent_up(self, parts: Sequence[RawTensor], shape: LatentShape) -> tuple[torch.Tensor, torch.Tensor]:
        # The absorbed products go through fp32 on a CPU, whatever the matrices are: they are small.
        dtype = torch.float32 if self.on_host else self._compute
        if len(parts) == 1:
            whole = quant.to_torch(parts[0], dtype, self.device)
            keys, values = mla.split_up(whole, shape.heads, shape.nope, shape.value)
        else:
            keys, values = (quant.to_torch(part, dtype, self.device) for part in parts)
            keys = keys.transpose(1, 2)
        return self._kept(keys.contiguous()), self._kept(values.contiguous())

    def experts(self, gate: Sequence[RawTensor], up: Sequence[RawTensor], down: Sequence[RawTensor]) -> moe.Experts:
        packed = moe.Experts.pack(gate, up, down, self.dtype, self.device)
        self._weights.append(packed)
        return packed

    def _kept(self, weight: torch.Tensor) -> torch.Tensor:
        self._weights.append(weight)
        return weight

    def weight_bytes(self) -> int:
        return sum(weight.nbytes for weight in self._weights)

    def wait(self) -> None:
        if not self.on_host:
            torch.cuda.synchronize(self.device)

    def read(self, buffer: torch.Tensor) -> bytes:
        held = buffer.cpu().contiguous()
        return ctypes.string_at(held.data_ptr(), held.nbytes)

    # the model

    def rows(self, ids: torch.Tensor, count: int, length: torch.Tensor, rotation: Rotation | None) -> Rows:
        positions = length + torch.arange(count, device=self.device)
        start = int(length) if self.on_host else -1
        if rotation is None:
            return Rows(ids[:count], positions, start, None, False)
        return Rows(ids[:count], positions, start, self._rotations(rotation, positions, start), rotation.adjacent)

    def _rotations(self, rotation: Rotation, positions: torch.Tensor, start: int) -> torch.Tensor:
        if start < 0:
            return attn.rotation_table(positions, rotation.dim, rotation.base, rotation.factors)
        end = start + positions.shape[0]
        table = self._tables.get(rotation)
        if table is None or table.shape[0] < end:
            size = max(1024, 2 * end)
            table = attn.rotation_table(torch.arange(size), rotation.dim, rotation.base, rotation.factors)
            self._tables[rotation] = table
        return table[start:end]

    def embed(self, table: Weight, rows: Rows) -> _Residual:
        return _Residual(table.table(rows.ids))

    def norm_project(self, x: _Residual, weight_norm: torch.Tensor, eps: float, weight: Weight) -> torch.Tensor:
        return gemv.project(norm.rms_norm(x.settle(), weight_norm, eps), weight)

    def attention(
        self,
        qkv: torch.Tensor,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        shape: AttentionShape,
        cache: KVCache,
        rows: Rows,
    ) -> torch.Tensor:
        return mixers.attention(qkv, q_norm, k_norm, shape, cache, rows)

    def latent_attention(
        self, projected: torch.Tensor, weights: LatentWeights, shape: LatentShape, cache: LatentCache, rows: Rows
    ) -> torch.Tensor:
        return mixers.latent_attention(projected, weights, shape, cache, rows)

    def kda(self, projected: torch.Tensor, weights: KDAWeights, shape: KDAShape, cache: KDACache) -> torch.Tensor:
        return mixers.delta_attention(projected, weights, shape, cache, kda.chunked_fla if self._fla else kda.chunked)

    def project_out(self, x: _Residual, mixed: torch.Tensor, weight: Weight) -> None:
        x.waiting.append(gemv.project(mixed, weight))

    def ffn_up(self, x: _Residual, weight_norm: torch.Tensor, eps: float, weight: Weight) -> torch.Tensor:
        return norm.swiglu(gemv.project(norm.rms_norm(x.settle(), weight_norm, eps), weight))

    def ffn_down(self, x: _Residual, hidden: torch.Tensor, weight: Weight) -> None:
        x.waiting.append(gemv.project(hidden, weight))

    def route(
        self,
        x: _Residual,
        weight_norm: torch.Tensor,
        eps: float,
        router: Weight,
        bias: torch.Tensor,
        shape: RouteShape,
    ) -> _Route:
        normed = norm.rms_norm(x.settle(), weight_norm, eps)
        ids, weights = moe.route(gemv.project(normed, router), bias, shape)
        return _Route(normed, ids, weights)

    def experts_up(
        self, route: _Route, experts: moe.Experts, shared: Weight, limit: float, shared_limit: float
    ) -> tuple[Any, torch.Tensor]:
        gate, up = gemv.project(route.x, shared).chunk(2, dim=1)
        return moe.experts_up(route.x, route.ids, experts, limit), norm.swiglu_limited(gate, up, shared_limit)

    def experts_down(
        self,
        x: _Residual,
        route: _Route,
        hidden: tuple[Any, torch.Tensor],
        experts: moe.Experts,
        shared: Weight,
    ) -> None:
        routed, beside = hidden
        x.waiting.append(moe.experts_down(routed, route.ids, route.weights, experts))
        x.waiting.append(gemv.project(beside, shared))

    def concat_project(
        self,
        a: torch.Tensor,
        a_norm: torch.Tensor,
        b: torch.Tensor,
        b_norm: torch.Tensor,
        eps: float,
        weight: Weight,
    ) -> _Residual:
        halves = norm.rms_norm(a, a_norm, eps), norm.rms_norm(b, b_norm, eps)
        return _Residual(gemv.project(torch.cat(halves, dim=1), weight))

    def lookup_rows(self, table: Weight, ids: torch.Tensor, count: int) -> torch.Tensor:
        return table.table(ids[:count])

    def final_norm(self, x: _Residual, weight_norm: torch.Tensor, eps: float) -> torch.Tensor:
        return norm.rms_norm(x.settle(), weight_norm, eps)

    def vocabulary(self, hidden: torch.Tensor, weight: Weight) -> torch.Tensor:
        logits = gemv.project_vocabulary(hidden, weight)
        if 0 < self._vocabulary < logits.shape[1]:
            logits[:, self._vocabulary :] = NEG_INF
        return logits

    def tap(self, x: _Residual) -> torch.Tensor:
        return x.settle().clone()

    def head(
        self, x: _Residual, weight_norm: torch.Tensor, eps: float, weight: Weight, rows: Rows, last_only: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole = x.settle()
        hidden = norm.rms_norm(whole[-1:] if last_only else whole, weight_norm, eps)
        return self.vocabulary(hidden, weight), hidden

    def set_vocabulary(self, size: int) -> None:
        self._vocabulary = size

    # drafting

    def lookup(self, cursor: Cursor, out: DraftBuffer, longest: int, limit: int) -> None:
        history = cursor.history
        if self.on_host:
            history = history[: int(cursor.length) + 1]
        ids, n = lookup_kernel.lookup(history, cursor.length, longest, limit)
        out.ids[:limit] = ids
        out.n.copy_(torch.minimum(n, (cursor.left - 1).clamp_min(0)))

    def no_draft(self, out: DraftBuffer) -> None:
        out.n.zero_()

    def draft_rows(self, cursor: Cursor, draft: DraftBuffer, ids: torch.Tensor) -> int:
        ids[0] = cursor.history[(cursor.length - 1).long()]
        ids[1:] = draft.ids[: ids.shape[0] - 1]
        return 1 + int(draft.n) if self.on_host else ids.shape[0]

    # the round

    def sampler(self, spec: SamplerSpec, seed: int, end_ids: Sequence[int]) -> Filters:
        return Filters(
            temperature=spec.temperature,
            top_p=spec.top_p,
            top_k=spec.top_k,
            min_p=spec.min_p,
            repetition_penalty=spec.repetition_penalty,
            seed=seed,
            end_ids=torch.tensor(sorted(end_ids), dtype=torch.int64, device=self.device),
        )

    def accept(
        self, logits: torch.Tensor, ids: torch.Tensor, draft: DraftBuffer, sampler: Filters, cursor: Cursor
    ) -> None:
        if draft.logits is not None:
            raise TypeError("this back end accepts one-hot drafts only")
        history = cursor.history[: int(cursor.length)] if self.on_host else cursor.history
        emitted, count, accepted, done = round_kernel.accept(
            logits, ids[: logits.shape[0]], draft.n, sampler, history, cursor.length, cursor.left
        )
        rows = emitted.shape[0]
        place = cursor.length.long() + torch.arange(rows, device=self.device)
        # Slots beyond `count` keep what they hold: unused, but a later lookup must not see stray tokens.
        kept = torch.arange(rows, device=self.device) < count
        cursor.history[place] = torch.where(kept, emitted, cursor.history[place])
        cursor.emitted[:rows] = emitted
        cursor.count.copy_(count)
        cursor.accepted.copy_(accepted)
        cursor.drafted.copy_(draft.n)
        cursor.done.copy_(done)
        cursor.length.add_(count)
        cursor.left.sub_(count)

    def advance(self, length: torch.Tensor, count: torch.Tensor) -> None:
        length.add_(count)

    def commit_kda(self, cache: KDACache, count: torch.Tensor) -> None:
        kda.commit(
            cache.state, cache.window, cache.staged_states, cache.staged_inputs, int(count) if self.on_host else count
        )

    @torch.inference_mode()
    def zero(self, buffer: torch.Tensor) -> None:
        buffer.zero_()

    @torch.inference_mode()
    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source)

    def ring(self) -> deque[RoundRecord]:
        return deque()

    def emit(self, cursor: Cursor, ring: deque[RoundRecord]) -> None:
        count, drafted, accepted, done = torch.cat(
            (cursor.count, cursor.drafted, cursor.accepted, cursor.done)
        ).tolist()
        ring.append(RoundRecord(tuple(cursor.emitted[:count].tolist()), drafted, accepted, done))

    def take(self, ring: deque[RoundRecord]) -> list[RoundRecord]:
        taken = list(ring)
        ring.clear()
        return taken
