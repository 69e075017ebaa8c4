"""The native back end by itself: recording, results that go stale, memory, and being stopped."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import pytest
import torch
from kernels.cpu import native
from ling_cases import ids_of
from make_ling import kimi_config, ling_config, write_kimi_gguf, write_ling_gguf
from make_models import write_gguf
from runtime.helpers import NATIVE, Bench

from lingchat.engines.api import Sampling
from lingchat.errors import ModelFileError
from lingchat.runtime.drafts.width import Width
from lingchat.runtime.drivers.recorded import RecordedDriver
from lingchat.runtime.ops.native_memory import StaleResult
from lingchat.runtime.ops.native_ops import NativeOps
from lingchat.runtime.ops.protocol import BufferSpec, KDACache, Recorder, Stopped
from lingchat.runtime.weights.raw import RawTensor

PROMPT = [5, 6, 7, 8, 9, 10, 11, 5, 6, 7, 8, 9, 12, 13, 5, 6]


@pytest.fixture(scope="module", params=["llama", "ling", "kimi"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model") / "model.gguf"
    if request.param == "llama":
        write_gguf(found, "llama", "Q8_0")
    elif request.param == "ling":
        write_ling_gguf(found, ling_config(period=4, layers=5, q_rank=32, limits=True), seed=21)
    else:
        write_kimi_gguf(found, kimi_config(layers=5), seed=21)
    return found


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(temperature=0.9, top_p=0.9)])
def test_recorded_rounds_say_what_single_operations_say(path: Path, sampling: Sampling) -> None:
    """Whatever the depth, and with the same state behind it."""
    eager, recorded = Bench(path, NATIVE, eager=True), Bench(path, NATIVE, threads=2)
    assert isinstance(recorded.ops, Recorder) and isinstance(recorded.driver, RecordedDriver)
    for drafts in (0, 3, 7):
        want, _ = eager.reply(PROMPT, 40, drafts, sampling)
        got, rounds = recorded.reply(PROMPT, 40, drafts, sampling)
        assert got == want
        assert int(recorded.state.length) == int(eager.state.length)
        assert state_bytes(recorded) == state_bytes(eager)
        assert all(timed.draft_ns >= 0 and timed.verify_ns > 0 for timed in rounds[1:])


def state_bytes(bench: Bench) -> list[bytes]:
    return [
        bench.ops.read(part)
        for cache in bench.state.caches
        if isinstance(cache, KDACache)
        for part in (cache.state, cache.window)
    ]


def test_a_chunk_and_a_prompt_across_many_give_the_same_state(path: Path) -> None:
    one, many = Bench(path, NATIVE), Bench(path, NATIVE, chunk=5)
    assert one.reply(ids_of(64, 1), 12, 7)[0] == many.reply(ids_of(64, 1), 12, 7)[0]
    assert state_bytes(one) == state_bytes(many)


def test_depths_alternate_within_a_reply(path: Path) -> None:
    bench = Bench(path, NATIVE)
    want, _ = bench.reply(PROMPT, 30, 0)

    class Swinging(Width):
        def depth(self) -> int:
            self.deepest = 7 - self.deepest
            return self.deepest

    bench.reset()
    bench.rounds.begin(PROMPT, 30, Sampling(temperature=0.0), 1, ())
    for _ in bench.driver.prefill(PROMPT):
        pass
    rounds = [bench.driver.first(), *bench.driver.decode(Swinging(7, adaptive=False))]
    assert [i for timed in rounds for i in timed.record.ids] == want


# ---------------------------------------------------------------------------------------------------------- stopping


def test_a_stopped_chunk_commits_nothing(path: Path) -> None:
    bench = Bench(path, NATIVE, chunk=16)
    want, _ = bench.reply(PROMPT, 20, 3)
    after = state_bytes(bench)
    bench.reset()
    bench.rounds.begin(PROMPT, 20, Sampling(temperature=0.0), 1, ())
    before = state_bytes(bench)
    bench.ops.stop()
    with pytest.raises(Stopped):
        list(bench.driver.prefill(PROMPT))
    assert int(bench.state.length) == 0 and state_bytes(bench) == before
    bench.ops.go_on()
    assert bench.reply(PROMPT, 20, 3)[0] == want
    assert state_bytes(bench) == after


def test_a_stop_in_the_middle_of_a_round_leaves_it_whole_or_undone(path: Path) -> None:
    """From another thread, whenever it comes: what was emitted is what was committed, and the text goes on from there."""
    bench = Bench(path, NATIVE, threads=2)
    want, _ = bench.reply(PROMPT, 200, 7)
    bench.reset()
    bench.rounds.begin(PROMPT, 200, Sampling(temperature=0.0), 1, ())
    for _ in bench.driver.prefill(PROMPT):
        pass
    got = [*bench.driver.first().record.ids]
    over = threading.Event()

    def interrupt() -> None:
        while not over.is_set():
            bench.ops.stop()

    thread = threading.Thread(target=interrupt)
    thread.start()
    stopped = 0
    try:
        while len(got) < 200:
            bench.ops.go_on()
            try:
                for timed in bench.driver.decode(Width(7, adaptive=False)):
                    got += timed.record.ids
                    bench.ops.go_on()
            except Stopped:
                stopped += 1
            assert int(bench.state.length) == len(PROMPT) + len(got) - 1
    finally:
        over.set()
        thread.join()
        bench.ops.go_on()
    assert got == want and stopped > 0


def test_between_requests_a_stop_changes_nothing(path: Path) -> None:
    """Going back and keeping snapshots are no passes: nobody waits for them."""
    bench = Bench(path, NATIVE)
    bench.prefill_logits(PROMPT, 16)
    kept = state_bytes(bench)
    bench.ops.stop()
    snapshot = bench.state.snapshot(len(PROMPT))
    bench.state.restore(snapshot, current=len(PROMPT))
    assert state_bytes(bench) == kept
    bench.state.forget()
    bench.ops.go_on()


# ------------------------------------------------------------------------------------------------------------ results


def small(native_ops: NativeOps, rows: int = 3) -> tuple[object, object, object]:
    """A table, ids and the rows of a pass."""
    values = torch.arange(20 * 64, dtype=torch.float32).view(20, 64).div(1000)
    table = native_ops.matrix([RawTensor("table", "F32", (20, 64), memoryview(values.numpy().tobytes()))])
    ids = native_ops.allocate(BufferSpec("ids", (rows,), "i32"))
    length = native_ops.allocate(BufferSpec("length", (1,), "i32"))
    native_ops.fill(ids, range(1, rows + 1))
    return table, ids, native_ops.rows(ids, rows, length, None)


def test_a_result_is_stale_once_its_operation_is_called_again() -> None:
    ops = NativeOps(native.library())
    table, _, rows = small(ops)
    x = ops.embed(table, rows)
    tap = ops.tap(x)
    first = ops.read(x)
    assert len(first) == 3 * 64 * 4 and ops.read(tap) == first
    again = ops.embed(table, rows)
    with pytest.raises(StaleResult, match="result of embed is read after embed was called again"):
        ops.tap(x)
    with pytest.raises(StaleResult):
        ops.read(x)
    assert ops.read(again) == first
    with ops.record(), pytest.raises(StaleResult):
        ops.tap(x)


def test_a_tap_is_a_copy_of_its_own() -> None:
    ops = NativeOps(native.library())
    table, ids, rows = small(ops)
    tap = ops.tap(ops.embed(table, rows))
    kept = ops.read(tap)
    ops.fill(ids, [7, 8, 9])
    other = ops.tap(ops.embed(table, rows))
    assert ops.read(tap) == kept != ops.read(other)


def test_what_is_recorded_is_not_carried_out_until_it_runs_and_for_any_rows() -> None:
    ops = NativeOps(native.library())
    table, ids, rows = small(ops)
    with ops.record() as program:
        x = ops.embed(table, rows)
    assert ops.read(x) == bytes(3 * 64 * 4)
    program.run(2)
    whole = ops.read(x)
    assert any(whole[: 2 * 256]) and not any(whole[2 * 256 :])
    ops.fill(ids, [4, 4, 4])
    program.run(3)
    assert ops.read(x)[:256] == ops.read(x)[512:] != whole[:256]


def test_a_larger_pass_leaves_programs_recorded_before_it_alone(path: Path) -> None:
    bench = Bench(path, NATIVE, width=4, chunk=8)
    want, _ = bench.reply(PROMPT, 20, 3)
    bench.verify_logits(ids_of(100, 3), 100)
    assert bench.reply(PROMPT, 20, 3)[0] == want


def test_rows_beyond_the_vocabulary_are_never_chosen() -> None:
    ops = NativeOps(native.library())
    table, _, rows = small(ops)
    ops.set_vocabulary(13)
    hidden = ops.embed(table, rows)
    logits = torch.frombuffer(bytearray(ops.read(ops.vocabulary(hidden, table))), dtype=torch.float32).view(3, 20)
    assert torch.isfinite(logits[:, :13]).all() and (logits[:, 13:] == float("-inf")).all()


def test_arguments_are_counted() -> None:
    ops = NativeOps(native.library())
    with pytest.raises(TypeError, match="no_draft takes 1 arguments, not 2"):
        ops._do("no_draft", 0, 0)
    with pytest.raises(KeyError, match="unheard_of"):
        ops._do("unheard_of")


def test_a_matrix_of_too_many_blocks_and_a_damaged_weight_are_refused() -> None:
    ops = NativeOps(native.library())
    row = RawTensor("w", "F32", (1, 32), memoryview(bytes(128)))
    with pytest.raises(ValueError, match="at most 8 row blocks, not 9"):
        ops.matrix([row] * 9)
    nan = torch.full((1, 32), float("nan")).numpy().tobytes()
    with pytest.raises(ModelFileError, match="w: a weight is not a finite number"):
        ops.matrix([RawTensor("w", "F32", (1, 32), memoryview(nan))])
    with pytest.raises(ModelFileError, match="differ in type or shape"):
        ops.experts([row, RawTensor("v", "F32", (2, 32), memoryview(bytes(256)))], [row], [row])


def test_vectors_are_read_from_every_float_type() -> None:
    ops = NativeOps(native.library())
    values = torch.tensor([1.0, -2.5, 0.15625, 1e-3])
    for type_, dtype in (("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)):
        stored = values.to(dtype)
        raw = RawTensor("v", type_, (4,), memoryview(stored.view(torch.uint8).numpy().tobytes()))
        vector = ops.vector(raw)
        got = torch.frombuffer(bytearray(ctypes.string_at(vector.address, 16)), dtype=torch.float32)
        assert torch.equal(got, stored.float())
    with pytest.raises(ModelFileError, match="Q8_0"):
        ops.vector(RawTensor("v", "Q8_0", (32,), memoryview(bytes(34))))
