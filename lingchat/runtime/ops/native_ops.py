"""The native CPU back end: every operation is an instruction, carried out at once or recorded and replayed by one call.

It works like a stream: at once an operation is computed for the rows of the last `rows` or `draft_rows`; inside `record`
it is noted, and the program computes it for the rows it is run with. The arithmetic is that of kernels/cpu: weights stay
in the precision of their file (8 bits where it has floats), activations are quantised to 8 bits a block of 32 before a
product, keys to 12 and values to 8, other rows that are kept are fp16, all else is fp32; every number is the same for every row count, thread count and machine.

Memory is allocated when an operation is first called, at once or while it is recorded, and never while a program runs.
No torch and no numpy here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from lingchat.kernels.cpu import structs
from lingchat.kernels.cpu.native import Native
from lingchat.runtime.ops.native_memory import Buffer, Memory, Result
from lingchat.runtime.ops.native_program import Machine, NativeProgram
from lingchat.runtime.ops.native_room import Room, Route, Routes
from lingchat.runtime.ops.native_rotations import NativeRows, Table
from lingchat.runtime.ops.native_rounds import Ring, cursor_struct, sampler_struct
from lingchat.runtime.ops.native_weights import Experts, Packed, Packer, Vector
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

SCRATCH = 4 << 20  # bytes of a thread's own


class NativeOps:
    """`threads` is the most that `use_threads` can ask for, `isa` an instruction set other than the best that is here."""

    max_width = structs.MAX_WIDTH
    compiles = ""

    def __init__(self, native: Native, threads: int = 1, isa: str = "") -> None:
        self._native = native
        self._pool: int = native.lib.lc_pool_new(threads, SCRATCH)
        if not self._pool:
            raise MemoryError("the system gave no memory for the decoding threads: alloc failed")
        isa = isa or native.isa
        self.name = f"native {isa}"
        self._machine = Machine(native, self._pool, isa)
        self._recording: NativeProgram | None = None
        self._packer = Packer(native, self._pool)
        self._room = Room(native)
        self._vocabulary = 0
        self._tables: dict[Rotation, Table] = {}
        self._rows: dict[tuple[Buffer, Buffer, Rotation | None], NativeRows] = {}
        self._routes: dict[tuple[int, RouteShape], Routes] = {}
        self._cursors: dict[Cursor, structs.CursorArgs] = {}
        self._sampler = structs.Sampler()
        self._end_ids: Any = None
        self._count = 1  # rows that results have room for: of the pass that is computed or recorded

    def __del__(self) -> None:
        if getattr(self, "_pool", 0):
            self._native.lib.lc_pool_free(self._pool)

    def session(self) -> AbstractContextManager[None]:
        return nullcontext()

    def use_threads(self, count: int) -> None:
        self._native.lib.lc_pool_threads(self._pool, count)

    def stop(self) -> None:
        self._machine.told.stop = 1

    def go_on(self) -> None:
        self._machine.told.stop = 0

    @contextmanager
    def record(self) -> Iterator[NativeProgram]:
        if self._recording is not None:
            raise RuntimeError("a program is being recorded already")
        self._recording = program = NativeProgram(self._machine)
        try:
            yield program
        finally:
            self._recording = None
        program.close()

    def _do(self, name: str, *arguments: Any) -> None:
        if self._recording is not None:
            self._recording.note(name, arguments)
        else:
            self._machine.run(name, arguments)

    # memory and weights

    def allocate(self, spec: BufferSpec) -> Buffer:
        return Buffer(self._native, spec)

    def fill(self, buffer: Buffer, values: Sequence[int], offset: int = 0) -> None:
        buffer.fill(values, offset)

    def matrix(self, parts: Sequence[RawTensor], bias: Sequence[RawTensor] | None = None) -> Packed:
        return self._packer.matrix(parts, bias)

    def vector(self, part: RawTensor) -> Vector:
        return self._packer.vector([part])

    def router(self, part: RawTensor) -> Packed:
        return self._packer.matrix([part], wish="f32")

    def convolution(self, parts: Sequence[RawTensor]) -> Vector:
        return self._packer.vector(parts)

    def latent_up(self, parts: Sequence[RawTensor], shape: LatentShape) -> tuple[Packed, Packed]:
        return self._packer.latent_up(parts, shape)

    def experts(self, gate: Sequence[RawTensor], up: Sequence[RawTensor], down: Sequence[RawTensor]) -> Experts:
        return self._packer.experts(gate, up, down)

    def weight_bytes(self) -> int:
        return self._packer.nbytes

    def workspace_bytes(self) -> int:
        """Results and room within operations: what `architectures.workspace` plans."""
        return self._room.nbytes + sum(routes.nbytes for routes in self._routes.values())

    def wait(self) -> None:
        pass

    def read(self, buffer: Buffer | Result) -> bytes:
        return buffer.read()

    # the model

    def rows(self, ids: Buffer, count: int, length: Buffer, rotation: Rotation | None) -> NativeRows:
        self._begin(count)
        key = ids, length, rotation
        rows = self._rows.get(key)
        if rows is None:
            table = None
            if rotation is not None:
                table = self._tables.setdefault(rotation, Table(self._native, rotation))
            rows = self._rows[key] = NativeRows(ids, length, table, rotation)
        if self._recording is not None:
            self._recording.needs(rows)
        else:
            rows.reach(count)
        return rows

    def _begin(self, count: int) -> None:
        self._count = count
        if self._recording is None:
            self._machine.rows = count

    def embed(self, table: Packed, rows: NativeRows) -> Result:
        out = self._result("embed", table.struct.columns)
        self._do("embed", table, rows.ids, out, 0)
        return out

    def lookup_rows(self, table: Packed, ids: Buffer, count: int) -> Result:
        out = self._room.result("lookup_rows", max(count, self._count), table.struct.columns)
        self._do("embed", table, ids, out, 0 if count == self._count else count)
        return out

    def norm_project(self, x: Result, norm: Vector, eps: float, weight: Packed) -> Result:
        out = self._result("norm_project", weight.struct.rows)
        self._do("norm_project", x, norm, eps, weight, out, self._act(weight))
        return out

    def attention(
        self,
        qkv: Result,
        q_norm: Vector | None,
        k_norm: Vector | None,
        shape: AttentionShape,
        cache: KVCache,
        rows: NativeRows,
    ) -> Result:
        heads, width = shape.heads, shape.head_dim
        capacity = cache.keys.shape[1]
        out = self._result("attention", heads * width)
        self._do(
            "attention",
            *(qkv, q_norm, k_norm, shape.eps, heads, shape.kv_heads, width),
            *(cache.keys, cache.values, cache.values.scales, capacity, rows, out),
            self._room.scratch("attention.partial", partial_values(heads, width, capacity)),
        )
        return out

    def latent_attention(
        self, projected: Result, weights: LatentWeights, shape: LatentShape, cache: LatentCache, rows: NativeRows
    ) -> Result:
        heads, wide = shape.heads, shape.nope + shape.rope
        capacity = cache.rows.shape[0]
        keys, values = weights.up
        out = self._result("latent_attention", heads * shape.value)
        self._do(
            "latent_attention",
            *(projected, projected.columns, weights.kv_norm, weights.q_norm, weights.q_up, keys, values),
            *(heads, shape.nope, shape.rope, shape.value, shape.rank, shape.q_rank or 0, int(shape.gated)),
            *(shape.eps, shape.scale, cache.rows, capacity, rows, out),
            self._scratch("latent.queries", heads * wide),
            self._scratch("latent.absorbed", heads * (shape.rank + shape.rope)),
            self._room.scratch("latent.partial", partial_values(heads, shape.rank, capacity)),
            None if weights.q_up is None else self._act(weights.q_up),
        )
        return out

    def kda(self, projected: Result, weights: KDAWeights, shape: KDAShape, cache: KDACache) -> Result:
        width = shape.heads * shape.head_dim
        out = self._result("kda", width)
        self._do(
            "kda",
            *(projected, projected.columns, weights.conv, weights.rate, weights.dt_bias, weights.norm),
            *(weights.f_up, weights.g_up, shape.heads, shape.head_dim, shape.taps, int(shape.gate == "bounded")),
            *(shape.rank or 0, float(shape.lower_bound), shape.eps),
            *(cache.state.cells, cache.staged_states.cells, len(cache.staged_states.cells)),
            *(cache.window, cache.staged_inputs, out),
            self._scratch("kda.mixed", 3 * width),
            self._scratch("kda.gates", 2 * width),
            None if weights.f_up is None else self._act(weights.f_up),
        )
        return out

    def project_out(self, x: Result, mixed: Result, weight: Packed) -> None:
        self._do("project_out", x, mixed, weight, self._act(weight))

    def ffn_up(self, x: Result, norm: Vector, eps: float, weight: Packed) -> Result:
        out = self._result("ffn_up", weight.struct.rows // 2)
        self._do("ffn_up", x, norm, eps, weight, out, self._act(weight))
        return out

    def ffn_down(self, x: Result, hidden: Result, weight: Packed) -> None:
        self._do("project_out", x, hidden, weight, self._act(weight))

    def route(self, x: Result, norm: Vector, eps: float, router: Packed, bias: Vector, shape: RouteShape) -> Route:
        columns = router.struct.columns
        routes = self._routes.get((columns, shape))
        if routes is None:
            routes = self._routes[columns, shape] = Routes(self._native, columns, shape)
        routes.reserve(self._count)
        self._do(
            "route",
            *(x, norm, eps, router, bias, routes, shape.experts, shape.chosen, shape.groups, shape.chosen_groups),
            *(int(shape.renormalize), float(shape.scale)),
        )
        return Route(routes, self._room.result("route", 1, 1), self._count)

    def experts_up(self, route: Route, experts: Experts, shared: Packed, limit: float, shared_limit: float) -> Route:
        inner, shared_inner = experts.gate.struct.rows, shared.struct.rows // 2
        route.routes.reserve_hidden(route.rows, inner, shared_inner)
        self._do(
            "experts_up",
            *(route, experts.gate, experts.up, shared, route.routes.shape.chosen, float(limit), float(shared_limit)),
        )
        return route

    def experts_down(self, x: Result, route: Route, hidden: Route, experts: Experts, shared: Packed) -> None:
        assert hidden is route
        self._do("experts_down", x, route, experts.down, shared, route.routes.shape.chosen)

    def concat_project(
        self, a: Result, a_norm: Vector, b: Result, b_norm: Vector, eps: float, weight: Packed
    ) -> Result:
        out = self._result("concat_project", weight.struct.rows)
        joined = self._scratch("concat_project.joined", weight.struct.columns)
        self._do("concat_project", a, a_norm, b, b_norm, eps, weight, out, joined, self._act(weight))
        return out

    def final_norm(self, x: Result, norm: Vector, eps: float) -> Result:
        out = self._result("final_norm", x.columns)
        self._do("final_norm", x, norm, eps, out, x.columns, 0)
        return out

    def vocabulary(self, hidden: Result, weight: Packed) -> Result:
        size = weight.struct.rows
        out = self._room.result("vocabulary", hidden.rows, size, single=hidden.single)
        limit = min(size, self._vocabulary or size)
        self._do("vocabulary", hidden, weight, out, limit, int(hidden.single), self._act(weight))
        return out

    def tap(self, x: Result) -> Buffer:
        out = Buffer(self._native, BufferSpec("tap", (self._count, x.columns), "f32"))
        self._do("copy_rows", x, out, x.columns)
        return out

    def head(
        self, x: Result, norm: Vector, eps: float, weight: Packed, rows: NativeRows, last_only: bool
    ) -> tuple[Result, Result]:
        if not last_only:
            hidden = self.final_norm(x, norm, eps)
        else:
            hidden = self._room.result("final_norm", 1, x.columns, single=True)
            self._do("final_norm", x, norm, eps, hidden, x.columns, 1)
        return self.vocabulary(hidden, weight), hidden

    def set_vocabulary(self, size: int) -> None:
        self._vocabulary = size

    def _result(self, name: str, columns: int) -> Result:
        return self._room.result(name, self._count, columns)

    def _scratch(self, name: str, columns: int) -> Memory:
        return self._room.scratch(name, self._count * columns)

    def _act(self, weight: Packed) -> Any:
        return self._room.act(weight.struct.columns, self._count)

    # drafting

    def lookup(self, cursor: Cursor, out: DraftBuffer, longest: int, limit: int) -> None:
        self._do("lookup", self._cursor(cursor), out.ids, out.n, longest, limit)

    def no_draft(self, out: DraftBuffer) -> None:
        self._do("no_draft", out.n)

    def draft_rows(self, cursor: Cursor, draft: DraftBuffer, ids: Buffer) -> int:
        width = ids.shape[0]
        self._do("draft_rows", self._cursor(cursor), draft.ids, draft.n, ids, width)
        return width if self._recording is not None else self._machine.rows

    # the round

    def sampler(self, spec: SamplerSpec, seed: int, end_ids: Sequence[int]) -> Any:
        """One for all replies: programs were recorded with it. Filling it anew ends the one before."""
        self._end_ids = sampler_struct(self._sampler, spec, seed, end_ids)
        return self._sampler

    def accept(self, logits: Result, ids: Buffer, draft: DraftBuffer, sampler: Any, cursor: Cursor) -> None:
        if draft.logits is not None:
            raise TypeError("this back end accepts one-hot drafts only")
        noise = self._room.scratch("accept.noise", 2 * logits.columns)
        self._do(
            "accept",
            *(logits, logits.columns, logits.columns, ids, draft.n, sampler, self._cursor(cursor), noise),
            int(logits.single),
        )

    def advance(self, length: Buffer, count: Buffer) -> None:
        self._do("advance", length, count)

    def commit_kda(self, cache: KDACache, count: Buffer) -> None:
        history, channels = cache.window.shape
        self._do(
            "commit_kda",
            *(cache.state.cells, cache.staged_states.cells, len(cache.staged_states.cells)),
            *(cache.window, cache.staged_inputs, 2 * channels, history, count),
        )

    def zero(self, buffer: Buffer) -> None:
        self._do("zero", buffer.cells, buffer.each)

    def copy(self, source: Buffer, target: Buffer) -> None:
        self._do("copy", source.cells, target.cells, source.each)

    def ring(self) -> Ring:
        return Ring(self._native)

    def emit(self, cursor: Cursor, ring: Ring) -> None:
        self._do("emit", self._cursor(cursor), ring)

    def take(self, ring: Ring) -> list[RoundRecord]:
        return ring.take()

    def _cursor(self, cursor: Cursor) -> structs.CursorArgs:
        struct = self._cursors.get(cursor)
        if struct is None:
            struct = self._cursors[cursor] = cursor_struct(cursor)
        return struct


def partial_values(heads: int, width: int, capacity: int) -> int:
    """Values of the partial sums of attention over a cache of `capacity` rows."""
    segments = -(-capacity // structs.SEGMENT)
    return structs.PARTIAL_ROWS * heads * segments * (width + 2)
