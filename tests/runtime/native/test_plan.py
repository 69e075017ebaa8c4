"""The plan before loading is what the native back end then takes, for every weight type and architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kernels.cpu import native
from make_ling import kimi_config, ling_config, write_kimi_gguf, write_ling_gguf, write_ling_hf
from make_models import FAMILIES, tiny_config, write_gguf, write_hf

from lingchat.architectures.plan import plan
from lingchat.architectures.resident import NATIVE_KINDS
from lingchat.architectures.usual import NATIVE_CACHE_BYTES, usual_plan
from lingchat.engines.api import ChatRequest, Sampling
from lingchat.events import AnyEvent, Warn, now_ns
from lingchat.runtime.engine import Runtime
from lingchat.runtime.loading import Loading, load
from lingchat.runtime.ops.native_ops import NativeOps
from lingchat.runtime.ops.protocol import KDACache, KVCache, LatentCache
from lingchat.runtime.weights.load import open_weights

Make = Callable[[Path], Path]


def gguf(family: str, qtype: str, **sizes: int) -> Make:
    def make(folder: Path) -> Path:
        return write_gguf(folder / "model.gguf", family, qtype, **sizes).path

    return make


def hf(family: str) -> Make:
    def make(folder: Path) -> Path:
        write_hf(folder, family, dtype=torch.bfloat16)
        return folder

    return make


def ling_folder(quantized: str | None) -> Make:
    def make(folder: Path) -> Path:
        config = ling_config(period=4, layers=5, hidden=160, q_rank=32, mtp=1)
        return write_ling_hf(folder, config, dtype=torch.bfloat16, quantized=quantized).path  # type: ignore[arg-type]

    return make


CASES: dict[str, Make] = {
    **{f"qwen3-{qtype}": gguf("qwen3", qtype) for qtype in NATIVE_KINDS if qtype not in ("F8_E4M3", "I4")},
    **{f"{family}-hf": hf(family) for family in FAMILIES},
    "odd": gguf("llama", "BF16", hidden=100, ffn=160, heads=3, kv_heads=1, head_dim=40, vocab=331),
    **{f"ling-{name}": ling_folder(name) for name in ("fp8", "int4")},
    "ling-bf16": ling_folder(None),
    "ling-gguf": lambda folder: write_ling_gguf(folder / "m.gguf", ling_config(q_rank=32), qtype="Q4_0").path,
    "ling-heads": lambda folder: (
        write_ling_gguf(folder / "m.gguf", ling_config(period=4, layers=4, published_heads=True), qtype="Q5_1").path
    ),
    "kimi-gguf": lambda folder: write_kimi_gguf(folder / "m.gguf", kimi_config(layers=5), qtype="Q8_0").path,
}


@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_what_is_taken(name: str, tmp_path: Path) -> None:
    runtime = Runtime(CASES[name](tmp_path), Loading(context=300, threads=2))
    try:
        info, memory, state = runtime.info, runtime.memory, runtime._rounds.state
        assert info.backend == f"native {native.library().isa}, 2 threads" and info.dtype == "int8"
        assert info.weights_bytes == memory.weights
        assert info.kv_bytes == memory.kv == sum(kept(cache) for cache in state.caches)
        assert info.state_bytes == memory.state == sum(recurrent(cache) for cache in state.caches)
        assert info.snapshot_bytes == memory.snapshots
        # All operations of a prompt, of a round and of the choice have their room now.
        request = ChatRequest(ids=tuple(range(3, 43)), sampling=Sampling(temperature=0.7, max_tokens=12), spec=7)
        runtime.chat(request, now_ns(), lambda event: None, lambda: False)
        ops = runtime._ops
        assert isinstance(ops, NativeOps)
        assert ops.workspace_bytes() == pytest.approx(memory.workspace, rel=0.02)
    finally:
        runtime.formats.close()


def kept(cache: object) -> int:
    match cache:
        case KVCache(keys=keys, values=values):
            return int(keys.nbytes + values.nbytes)
        case LatentCache(rows=rows):
            return int(rows.nbytes)
    return 0


def recurrent(cache: object) -> int:
    if not isinstance(cache, KDACache):
        return 0
    return sum(part.nbytes for part in (cache.state, cache.window, cache.staged_states, cache.staged_inputs))


def test_kinds_are_those_of_the_packer() -> None:
    lib = native.library().lib
    assert {type_: lib.lc_kind(type_.encode(), b"int8") for type_ in NATIVE_KINDS} == NATIVE_KINDS


def test_the_usual_plan_asks_for_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lingchat.kernels.cpu import library

    config = tiny_config("qwen3")
    free = 10**10
    assert usual_plan(config, "cpu", free).asked.kv_bytes == NATIVE_CACHE_BYTES  # type: ignore[union-attr]
    monkeypatch.setattr(library, "find", lambda: None)
    assert usual_plan(config, "cpu", free).asked.kv_bytes == 4  # type: ignore[union-attr]


def test_without_a_file_weights_are_taken_for_floats() -> None:
    config = tiny_config("qwen3")
    types = dict.fromkeys(plan_names(config), "BF16")
    assert plan(config, "int8", 16, native=True).weights == plan(config, "int8", 16, native=True, types=types).weights


def plan_names(config: object) -> list[str]:
    from lingchat.architectures.read import expected_shapes

    return list(expected_shapes(config))  # type: ignore[arg-type]


def test_heads_that_native_code_does_not_have_are_left_to_torch(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "llama", "BF16", head_dim=20)
    events: list[AnyEvent] = []
    loaded = load(tmp_path / "model.gguf", Loading(threads=1), events.append)
    loaded.formats.close()
    assert loaded.ops.name == "torch cpu"
    (warned,) = [event for event in events if isinstance(event, Warn)]
    assert (
        warned.message
        == "Native CPU code has no attention heads of 20 dimensions; torch computes instead, more slowly."
    )
    assert (
        usual_plan(loaded.weights.config, "cpu", 10**10, loaded.weights.stored_bytes, loaded.weights.stored_types).asked
        == loaded.memory.asked
    )


@pytest.mark.parametrize("compiler", [True, False])
def test_without_the_library_torch_serves_and_one_line_says_so(
    compiler: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lingchat.kernels.cpu import library

    write_gguf(tmp_path / "model.gguf", "llama", "Q8_0")
    why = "it is not built yet" if compiler else "there is no C++ compiler"
    built: list[object] = []
    monkeypatch.setattr(library, "status", lambda: library.Status(None, why, compiler=compiler))
    monkeypatch.setattr(library, "build_in_background", built.append)
    events: list[AnyEvent] = []
    loaded = load(tmp_path / "model.gguf", Loading(threads=1), events.append)
    loaded.formats.close()
    assert loaded.ops.name == "torch cpu" and loaded.dtype == "int8"
    (warned,) = [event for event in events if isinstance(event, Warn)]
    assert warned.code == "native" and f"({why}); torch computes instead" in warned.message
    assert ("is being built in the background, for the next start" in warned.message) == compiler == bool(built)


def test_other_precisions_are_torch_s_and_so_is_whatever_is_compared(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", "llama", "Q8_0").path
    for loading in (Loading(dtype="fp32"), Loading(dtype="bf16"), Loading(native=False)):
        events: list[AnyEvent] = []
        loaded = load(path, loading, events.append)
        loaded.formats.close()
        assert loaded.ops.name == "torch cpu"
        assert not [event for event in events if isinstance(event, Warn)]
    assert open_weights(path).stored_types["embed_tokens.weight"] == "Q8_0"
