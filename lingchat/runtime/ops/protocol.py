"""The operation set: what a model, a drafter and a round may ask of a back end.

Models know operations; operations know no models. One operation is one kernel of the decode budget, for T rows, so
fusing is a matter of the operation and never of the model. Three back ends carry the set out: torch at once
(`torch_ops`, the twin and oracle), a recorder for native CPU code, and Triton under a CUDA graph.

Buffers belong to the back end: `Buffer`, `Matrix`, `Vector` and `Residual` are opaque handles here. No caller branches
on a device value; lengths, counts and stop flags stay in buffers. Imports neither torch nor numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Buffer = Any  # device memory of one tensor
Matrix = Any  # a weight [N, K] in the back end's own packing, perhaps with a bias [N]
Vector = Any  # a weight [N], fp32
Residual = Any  # the residual stream [T, d] and the partial sums that wait to be added to it
Rows = Any  # the rows of one forward pass: ids [T], their positions, their rotations

DType = Literal["f32", "i32", "cache"]  # `cache`: what the back end keeps KV rows in


class RawTensor(Protocol):
    """Undecoded bytes of a weight as the file has them; `type` is a GGUF type name ("Q4_1", "BF16", "F32")."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def data(self) -> memoryview: ...


@dataclass(frozen=True)
class BufferSpec:
    """Shape and type of one buffer; `name` is for error messages and memory reports."""

    name: str
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True)
class Rotation:
    """Rotary embedding of the first `dim` of each head's dimensions.

    Frequency i is `base ** (-2 i / dim) / factors[i]`. `adjacent`: pairs are (2i, 2i + 1), else (i, i + dim / 2).
    """

    dim: int
    base: float
    adjacent: bool
    factors: tuple[float, ...] | None = None


@dataclass(frozen=True)
class AttentionShape:
    heads: int
    kv_heads: int
    head_dim: int
    rotation: Rotation
    eps: float  # of the optional q/k norm


@dataclass(frozen=True)
class KVCache:
    """One layer's cache: keys and values, each [kv_heads, capacity, head_dim]."""

    keys: Buffer
    values: Buffer


@dataclass(frozen=True)
class DraftBuffer:
    """What a drafter proposes: `ids` int32 [K], `n` int32 [1] of them valid.

    A one-hot drafter (`logits` is None) is certain of every proposal; `accept` then needs no draft distribution.
    """

    ids: Buffer
    n: Buffer
    logits: Buffer | None = None
    survival: Buffer | None = None


@dataclass(frozen=True)
class Cursor:
    """Where a reply stands, all on the device, int32.

    `history` [capacity] holds every token so far and `length` [1] how many; the last one is the anchor, whose own
    row is not yet in the cache. `left` [1] counts tokens that may still be emitted, `done` [1] is 0 while running,
    1 after an end token, 2 when `left` ran out. `count` [1] is the last round's rows to commit, `accepted` [1] its
    accepted drafts, `drafted` [1] its drafts, `emitted` [W] its tokens of which `count` are valid.
    """

    history: Buffer
    length: Buffer
    left: Buffer
    done: Buffer
    count: Buffer
    accepted: Buffer
    drafted: Buffer
    emitted: Buffer


@dataclass(frozen=True)
class RoundRecord:
    """One round as it reaches the host through the ring."""

    ids: tuple[int, ...]  # k tokens
    drafted: int  # m: draft rows verified beyond the anchor
    accepted: int  # a
    done: int  # 0 running, 1 end token, 2 length


class SamplerSpec(Protocol):
    """What the sampler reads; `engines.api.Sampling` has this shape."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def min_p(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...


class Ops(Protocol):
    """A back end. T is the number of rows of a pass: a prefill chunk, or anchor and drafts of a round.

    For T up to `max_width`, row r of a pass gives the same bits whatever T is; drafting rests on it.
    """

    name: str
    max_width: int

    # memory and weights
    def allocate(self, spec: BufferSpec) -> Buffer: ...
    def fill(self, buffer: Buffer, values: Sequence[int], offset: int = 0) -> None:
        """Write host integers into an int32 buffer. Only between requests and before a round is queued."""

    def matrix(self, parts: Sequence[RawTensor], bias: Sequence[RawTensor] | None = None) -> Matrix:
        """Stack row blocks [N_i, K] into one weight."""

    def vector(self, part: RawTensor) -> Vector: ...
    def weight_bytes(self) -> int: ...

    # the model
    def rows(self, ids: Buffer, count: int, length: Buffer, rotation: Rotation) -> Rows:
        """`count` tokens of `ids` standing at positions `length`, `length` + 1, ..."""

    def embed(self, table: Matrix, rows: Rows) -> Residual: ...
    def norm_project(self, x: Residual, norm: Vector, eps: float, weight: Matrix) -> Buffer:
        """Add the waiting partial sums once, RMSNorm, all in-projections of a block: [T, N]."""

    def attention(
        self,
        qkv: Buffer,
        q_norm: Vector | None,
        k_norm: Vector | None,
        shape: AttentionShape,
        cache: KVCache,
        rows: Rows,
    ) -> Buffer:
        """q/k norm, rotation, cache rows at `rows`' positions, causal attention over cache and rows: [T, heads * head_dim].

        Writes only rows at and beyond the committed length.
        """

    def project_out(self, x: Residual, mixed: Buffer, weight: Matrix) -> None:
        """Out-projection; leaves partial sums for the next reader of `x`."""

    def ffn_up(self, x: Residual, norm: Vector, eps: float, weight: Matrix) -> Buffer:
        """Residual sum, RMSNorm, gate and up as one weight [2 F, d], SiLU(gate) * up: [T, F]."""

    def ffn_down(self, x: Residual, hidden: Buffer, weight: Matrix) -> None: ...
    def tap(self, x: Residual) -> Buffer:
        """The raw residual [T, d] as it stands."""

    def head(
        self, x: Residual, norm: Vector, eps: float, weight: Matrix, rows: Rows, last_only: bool
    ) -> tuple[Buffer, Buffer]:
        """Final norm and vocabulary rows: logits fp32 [T or 1, V] and the normed hidden [T or 1, d].

        Rows of the vocabulary beyond `set_vocabulary` are -inf.
        """

    def set_vocabulary(self, size: int) -> None: ...

    # drafting
    def lookup(self, cursor: Cursor, out: DraftBuffer, longest: int, limit: int) -> None:
        """Prompt lookup: the tokens that followed the latest earlier occurrence of the current suffix."""

    def no_draft(self, out: DraftBuffer) -> None: ...
    def draft_rows(self, cursor: Cursor, draft: DraftBuffer, ids: Buffer) -> int:
        """Anchor and drafts into `ids` [W]; the number of rows to compute.

        Where the host is the device this is 1 + n; elsewhere the full width, the surplus rows masked by `accept`.
        """

    # the round
    def sampler(self, spec: SamplerSpec, seed: int, end_ids: Sequence[int]) -> Any: ...
    def accept(self, logits: Buffer, ids: Buffer, draft: DraftBuffer, sampler: Any, cursor: Cursor) -> None:
        """Exact accept test, next tokens, stop clip; advances `cursor`. Row 0 of `ids` is the anchor."""

    def advance(self, length: Buffer, count: Buffer) -> None:
        """`length` += `count`: the rows become permanent. A count of 0 changes nothing."""

    def emit(self, cursor: Cursor, ring: Any) -> None: ...
    def ring(self) -> Any: ...
    def take(self, ring: Any) -> list[RoundRecord]:
        """Rounds that have reached the host, oldest first."""
