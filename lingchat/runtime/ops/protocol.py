"""The operation set: what a model, a drafter and a round may ask of a back end.

Models know operations; operations know no models. One operation is one kernel of the decode budget, for T rows, so
fusing is a matter of the operation and never of the model. Three back ends carry the set out: torch at once
(`torch_ops`, the twin and oracle), a recorder for native CPU code, and Triton under a CUDA graph.

Buffers belong to the back end: `Buffer`, `Matrix`, `Vector` and `Residual` are opaque handles here. No caller branches
on a device value; lengths, counts and stop flags stay in buffers. Imports neither torch nor numpy.

What `allocate` gives is the caller's for good. What an operation gives lives until the same operation is called again:
a back end may keep one place for the results of each. Whoever needs one longer copies it; a `tap` is such a copy.

A back end that records (`Recorder`) works like a stream that is captured: inside `record` operations are noted, not
carried out, and the program can be run for any number of rows up to the one it was recorded with. Whatever the host
does between operations, such as `fill`, happens once, while it is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

Buffer = Any  # device memory of one tensor
Matrix = Any  # a weight [N, K] in the back end's own packing, perhaps with a bias [N]
Vector = Any  # a weight [N], fp32
Residual = Any  # the residual stream [T, d] and the partial sums that wait to be added to it
Rows = Any  # the rows of one forward pass: ids [T], their positions, their rotations

# `keys` and `values` are rows [kv_heads, capacity, head_dim] in the back end's own form, `cache` other rows that are kept.
DType = Literal["f32", "i32", "keys", "values", "cache"]


class RawTensor(Protocol):
    """Undecoded bytes of a weight as the file has them; `type` is a GGUF type name ("Q4_1", "BF16", "F32").

    Two types keep their scales in a tensor beside them: "F8_E4M3" [N, K], one scale a block of 128 x 128, and "I4"
    [N, K], eight values an int32 (the first lowest, each stored as q + 8), one scale a group of a row's values.
    """

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def data(self) -> Any: ...  # a memoryview, or a uint8 buffer where the bytes were made on the device
    @property
    def scales(self) -> RawTensor | None: ...


class BufferSpec(msgspec.Struct, frozen=True):
    """Shape and type of one buffer; `name` is for error messages and memory reports."""

    name: str
    shape: tuple[int, ...]
    dtype: DType


class Rotation(msgspec.Struct, frozen=True):
    """Rotary embedding of the first `dim` of each head's dimensions.

    Frequency i is `base ** (-2 i / dim) / factors[i]`. `adjacent`: pairs are (2i, 2i + 1), else (i, i + dim / 2).
    """

    dim: int
    base: float
    adjacent: bool
    factors: tuple[float, ...] | None = None


class AttentionShape(msgspec.Struct, frozen=True):
    heads: int
    kv_heads: int
    head_dim: int
    rotation: Rotation
    eps: float  # of the optional q/k norm


class KVCache(msgspec.Struct, frozen=True):
    """One layer's cache: keys and values, each [kv_heads, capacity, head_dim]."""

    keys: Buffer
    values: Buffer


class LatentShape(msgspec.Struct, frozen=True):
    """Multi-head latent attention. A projected row holds, side by side, the queries [heads * (nope + rope)] or their
    compressed form [q_rank], then the latent [rank] and the shared key [rope], then, where `gated`, the gate [heads].
    """

    heads: int
    nope: int
    rope: int
    value: int
    rank: int
    q_rank: int | None
    rotation: Rotation | None  # of the `rope` dimensions; None: they stay as they are
    eps: float
    scale: float
    gated: bool


class LatentWeights(msgspec.Struct, frozen=True):
    """`up` from `Ops.latent_up`; the query's norm and second projection only with `q_rank`."""

    kv_norm: Vector
    up: Any
    q_norm: Vector | None = None
    q_up: Matrix | None = None


class LatentCache(msgspec.Struct, frozen=True):
    """One layer's rows [capacity, rank + rope]: the normed latent and the rotated key."""

    rows: Buffer


class KDAShape(msgspec.Struct, frozen=True):
    """Kimi Delta Attention, P = heads * head_dim. A projected row holds q, k, v [P each], then decay input f and
    output gate u [P each, or `rank` each where they come in pairs], then the write strength b [heads].
    """

    heads: int
    head_dim: int
    taps: int
    gate: Literal["bounded", "softplus"]
    lower_bound: float
    rank: int | None
    eps: float


class KDAWeights(msgspec.Struct, frozen=True):
    """`conv` the taps of q, k and v stacked [3 P, taps]; `rate` exp(A_log) [heads]; `f_up`, `g_up` only with `rank`."""

    conv: Buffer
    rate: Vector
    dt_bias: Vector
    norm: Vector
    f_up: Matrix | None = None
    g_up: Matrix | None = None


class KDACache(msgspec.Struct, frozen=True):
    """One layer's committed `state` fp32 [heads, key, value] and `window` [taps - 1, 3 P], the last convolution inputs;
    and what a pass stages for the commit: the state after each of up to W rows, and the inputs after the window.
    """

    state: Buffer
    window: Buffer
    staged_states: Buffer  # [W, heads, key, value]
    staged_inputs: Buffer  # [W + taps - 1, 3 P]


class RouteShape(msgspec.Struct, frozen=True):
    """Grouped sigmoid routing: `chosen` of `experts`, from the `chosen_groups` best of `groups` contiguous groups."""

    experts: int
    chosen: int
    groups: int
    chosen_groups: int
    scale: float
    renormalize: bool


Experts = Any  # gate, up and down of a layer's experts, in the back end's own packing
Route = Any  # a pass's normed rows, the experts chosen for each and their weights


class DraftBuffer(msgspec.Struct, frozen=True):
    """What a drafter proposes: `ids` int32 [K], `n` int32 [1] of them valid.

    A one-hot drafter (`logits` is None) is certain of every proposal; `accept` then needs no draft distribution.
    """

    ids: Buffer
    n: Buffer
    logits: Buffer | None = None
    survival: Buffer | None = None


class Cursor(msgspec.Struct, frozen=True):
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


class RoundRecord(msgspec.Struct, frozen=True):
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
    compiles: str  # what a process's first pass has to build, for a person who waits; empty when there is nothing

    def session(self) -> AbstractContextManager[Any]:
        """Operations are called inside of one."""

    def use_threads(self, count: int) -> None:
        """So many threads of the host carry out what follows, no more than the back end was made with."""

    def stop(self) -> None:
        """From any thread: leave what is being computed as soon as possible, where the back end can; see `Stopped`."""

    def go_on(self) -> None:
        """Forget a `stop`."""

    # memory and weights
    def allocate(self, spec: BufferSpec) -> Buffer: ...
    def fill(self, buffer: Buffer, values: Sequence[int], offset: int = 0) -> None:
        """Write host integers into an int32 buffer. Only between requests and before a round is queued."""

    def matrix(self, parts: Sequence[RawTensor], bias: Sequence[RawTensor] | None = None) -> Matrix:
        """Stack row blocks [N_i, K] into one weight."""

    def vector(self, part: RawTensor) -> Vector: ...
    def router(self, part: RawTensor) -> Matrix:
        """A router's weight, fp32 unless the back end was told otherwise: one flipped expert changes the text."""

    def convolution(self, parts: Sequence[RawTensor]) -> Buffer:
        """Taps [N_i, taps] of q, k and v, stacked, fp32."""

    def latent_up(self, parts: Sequence[RawTensor], shape: LatentShape) -> Any:
        """The latent's up-projections: one [heads * (nope + value), rank], or keys [heads, rank, nope] and values
        [heads, value, rank]."""

    def experts(self, gate: Sequence[RawTensor], up: Sequence[RawTensor], down: Sequence[RawTensor]) -> Experts:
        """A layer's experts: one tensor with the experts in front, or one a expert. Quantised ones stay as they are."""

    def weight_bytes(self) -> int: ...
    def wait(self) -> None:
        """Until all queued work is done. For measurements at load only: nothing on the decode path waits."""

    def read(self, buffer: Buffer) -> bytes:
        """A buffer's bytes on the host, row by row; i32 or fp32. For tools and tests: waits like `wait`."""

    # the model
    def rows(self, ids: Buffer, count: int, length: Buffer, rotation: Rotation | None) -> Rows:
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

    def latent_attention(
        self, projected: Buffer, weights: LatentWeights, shape: LatentShape, cache: LatentCache, rows: Rows
    ) -> Buffer:
        """MLA in its absorbed form: cache rows at `rows`' positions, attention over cache and rows, gate:
        [T, heads * value]. Writes only rows at and beyond the committed length."""

    def kda(self, projected: Buffer, weights: KDAWeights, shape: KDAShape, cache: KDACache) -> Buffer:
        """Convolution, SiLU, l2norm, gate, delta rule, gated norm: [T, P]. Reads the committed state and window,
        stages what `commit_kda` needs. With more than W rows only all of them or none can be committed."""

    def project_out(self, x: Residual, mixed: Buffer, weight: Matrix) -> None:
        """Out-projection; leaves partial sums for the next reader of `x`."""

    def ffn_up(self, x: Residual, norm: Vector, eps: float, weight: Matrix) -> Buffer:
        """Residual sum, RMSNorm, gate and up as one weight [2 F, d], SiLU(gate) * up: [T, F]."""

    def ffn_down(self, x: Residual, hidden: Buffer, weight: Matrix) -> None: ...
    def route(self, x: Residual, norm: Vector, eps: float, router: Matrix, bias: Vector, shape: RouteShape) -> Route:
        """Residual sum, RMSNorm, router logits, sigmoid, grouped top-k."""

    def experts_up(self, route: Route, experts: Experts, shared: Matrix, limit: float, shared_limit: float) -> Any:
        """Gate and up of the chosen experts and of the shared one (`shared` [2 I, d], gate first), activated:
        min(SiLU(gate), limit) * clamp(up, -limit, limit), without the clamps where a limit is 0."""

    def experts_down(self, x: Residual, route: Route, hidden: Any, experts: Experts, shared: Matrix) -> None:
        """Down-projections, the routed ones weighted, as partial sums."""

    def concat_project(
        self, a: Buffer, a_norm: Vector, b: Buffer, b_norm: Vector, eps: float, weight: Matrix
    ) -> Residual:
        """Two normed halves side by side through one projection: a fresh residual (the input of an MTP layer)."""

    def lookup_rows(self, table: Matrix, ids: Buffer, count: int) -> Buffer:
        """Embedding rows fp32 [count, d]."""

    def final_norm(self, x: Residual, norm: Vector, eps: float) -> Buffer:
        """The residual with its partial sums, normed: [T, d]."""

    def vocabulary(self, hidden: Buffer, weight: Matrix) -> Buffer:
        """Logits fp32 [T, V] of normed hidden rows; rows of the vocabulary beyond `set_vocabulary` are -inf."""

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

    def commit_kda(self, cache: KDACache, count: Buffer) -> None:
        """State and window after `count` of the last pass's rows. A count of 0 changes nothing."""

    def zero(self, buffer: Buffer) -> None: ...
    def copy(self, source: Buffer, target: Buffer) -> None:
        """`target` becomes equal to `source`, of the same shape and type."""

    def emit(self, cursor: Cursor, ring: Any) -> None: ...
    def ring(self) -> Any: ...
    def take(self, ring: Any) -> list[RoundRecord]:
        """Rounds that have reached the host, oldest first."""


class Stopped(Exception):
    """A program was left before its end, because `Ops.stop` was called. Nothing of it is permanent."""


class Program(Protocol):
    """Operations noted down, to be carried out as one."""

    def run(self, rows: int) -> None:
        """For `rows` rows, which `draft_rows` may set anew. Raises Stopped; then nothing was committed or emitted."""

    @property
    def drafted_ns(self) -> int:
        """The monotonic clock when the last run's `draft_rows` was done."""


@runtime_checkable
class Recorder(Protocol):
    """A back end that can note operations down."""

    def record(self) -> AbstractContextManager[Program]:
        """Operations in this block are noted and not carried out; the program can be run once it ends."""
