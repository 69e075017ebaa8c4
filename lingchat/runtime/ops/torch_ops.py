"""The torch back end: every operation at once, in plain torch. The oracle, and the CPU path until native code serves.

On the CPU the host is the device, so reading a length costs nothing and rows are cut to size. Elsewhere lengths stay
on the device and the cache is masked instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from lingchat.kernels import attention as attn
from lingchat.kernels import gemv, norm, quant
from lingchat.kernels import lookup as lookup_kernel
from lingchat.kernels import rounds as round_kernel
from lingchat.kernels.sample import NEG_INF, Filters
from lingchat.runtime.ops.protocol import (
    AttentionShape,
    BufferSpec,
    Cursor,
    DraftBuffer,
    KVCache,
    RawTensor,
    Rotation,
    RoundRecord,
    SamplerSpec,
)

Weight = gemv.DenseWeight | gemv.Int8Weight


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
class _Rows:
    ids: torch.Tensor  # int32 [T]
    positions: torch.Tensor  # int64 [T]
    start: int  # first position; -1 where the host does not know it
    table: torch.Tensor  # rotations, complex64 [T, 1, dim / 2]
    adjacent: bool


class TorchOps:
    """`dtype` is of the matrices: "fp32", "bf16" or "int8"; sums, norms, softmax and the residual are fp32."""

    max_width = gemv.MAX_WIDTH

    def __init__(self, dtype: str, device: str = "cpu") -> None:
        self.name = f"torch {device}"
        self.dtype = dtype
        self.device = torch.device(device)
        self.on_host = self.device.type == "cpu"
        self._weights: list[Weight | torch.Tensor] = []
        self._vocabulary = 0
        self._tables: dict[Rotation, torch.Tensor] = {}

    # memory and weights

    @torch.inference_mode()
    def allocate(self, spec: BufferSpec) -> torch.Tensor:
        if spec.dtype == "i32":
            return torch.zeros(spec.shape, dtype=torch.int32, device=self.device)
        # Zeroed lazily by the system: a long cache costs memory only as far as it is written.
        dtype = torch.bfloat16 if spec.dtype == "cache" and not self.on_host else torch.float32
        return torch.zeros(spec.shape, dtype=dtype, device=self.device)

    @torch.inference_mode()
    def fill(self, buffer: torch.Tensor, values: Sequence[int], offset: int = 0) -> None:
        buffer[offset : offset + len(values)] = torch.tensor(values, dtype=torch.int32)

    def matrix(self, parts: Sequence[RawTensor], bias: Sequence[RawTensor] | None = None) -> Weight:
        offsets = None if bias is None else torch.cat([quant.to_torch(part) for part in bias]).to(self.device)
        weight: Weight
        if self.dtype == "int8":
            weight = gemv.Int8Weight.pack(parts, offsets)
        else:
            dtype = torch.bfloat16 if self.dtype == "bf16" else torch.float32
            whole = torch.cat([quant.to_torch(part, dtype).to(self.device) for part in parts])
            weight = gemv.DenseWeight(whole, offsets)
        self._weights.append(weight)
        return weight

    def vector(self, part: RawTensor) -> torch.Tensor:
        weight = quant.to_torch(part).to(self.device)
        self._weights.append(weight)
        return weight

    def weight_bytes(self) -> int:
        return sum(weight.nbytes for weight in self._weights)

    # the model

    def rows(self, ids: torch.Tensor, count: int, length: torch.Tensor, rotation: Rotation) -> _Rows:
        positions = length + torch.arange(count, device=self.device)
        start = int(length) if self.on_host else -1
        return _Rows(ids[:count], positions, start, self._rotations(rotation, positions, start), rotation.adjacent)

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

    def embed(self, table: Weight, rows: _Rows) -> _Residual:
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
        rows: _Rows,
    ) -> torch.Tensor:
        count = qkv.shape[0]
        heads, groups, width = shape.heads, shape.kv_heads, shape.head_dim
        q, k, v = qkv.view(count, heads + 2 * groups, width).split((heads, groups, groups), dim=1)
        if q_norm is not None and k_norm is not None:
            q, k = norm.rms_norm(q, q_norm, shape.eps), norm.rms_norm(k, k_norm, shape.eps)
        q, k = (attn.rotate(part, rows.table, rows.adjacent) for part in (q, k))
        if rows.start < 0:
            cache.keys.index_copy_(1, rows.positions, k.transpose(0, 1).to(cache.keys.dtype))
            cache.values.index_copy_(1, rows.positions, v.transpose(0, 1).to(cache.values.dtype))
            return attn.attend_masked(q, cache.keys, cache.values, rows.positions)
        end = rows.start + count
        cache.keys[:, rows.start : end] = k.transpose(0, 1)
        cache.values[:, rows.start : end] = v.transpose(0, 1)
        attend = attn.attend_rows if count <= self.max_width else attn.attend_chunk
        return attend(q, cache.keys, cache.values, rows.start)

    def project_out(self, x: _Residual, mixed: torch.Tensor, weight: Weight) -> None:
        x.waiting.append(gemv.project(mixed, weight))

    def ffn_up(self, x: _Residual, weight_norm: torch.Tensor, eps: float, weight: Weight) -> torch.Tensor:
        return norm.swiglu(gemv.project(norm.rms_norm(x.settle(), weight_norm, eps), weight))

    def ffn_down(self, x: _Residual, hidden: torch.Tensor, weight: Weight) -> None:
        x.waiting.append(gemv.project(hidden, weight))

    def tap(self, x: _Residual) -> torch.Tensor:
        return x.settle().clone()

    def head(
        self, x: _Residual, weight_norm: torch.Tensor, eps: float, weight: Weight, rows: _Rows, last_only: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole = x.settle()
        hidden = norm.rms_norm(whole[-1:] if last_only else whole, weight_norm, eps)
        logits = gemv.project_vocabulary(hidden, weight)
        if 0 < self._vocabulary < logits.shape[1]:
            logits[:, self._vocabulary :] = NEG_INF
        return logits, hidden

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
