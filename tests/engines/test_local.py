"""The built-in engine as a front end meets it: a process that answers, stops at a word, dies loudly, and never outlives."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from make_endless import CONTEXT, write_endless_dense
from make_ling import ling_config, random_tensors, tokens, write_ling_hf
from make_models import write_gguf

from lingchat.engines.api import ChatRequest, Message, Sampling
from lingchat.engines.local import LocalEngine
from lingchat.errors import (
    DiskError,
    EngineCrashed,
    LingchatError,
    ModelFileError,
    ModelNotFound,
    NoDevice,
    UsageError,
)
from lingchat.events import AnyEvent, Decode, Engine, Error, Reasoning, Text, TurnEnd, TurnFirst, TurnStart

pytestmark = pytest.mark.usefixtures("native_library")

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two small layers: it babbles, but it babbles like a real one."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, "llama", "Q8_0", seed=1)
    return path


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It says abcabc... until its context is full, which takes it some seconds."""
    return write_endless_dense(tmp_path_factory.mktemp("endless"))


@pytest.fixture(scope="module")
def ling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Ling-3.0 that counts: 1 after a marker, then 2, 3 and 1 again, whatever was said before."""
    folder = tmp_path_factory.mktemp("ling")
    config, ids = ling_config(layers=4, heads=1), {token: id for id, token in enumerate(tokens())}
    values = random_tensors(config)
    for name in values:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            values[name] *= 0  # the residual stays the token's embedding
    head, embedding = values["lm_head.weight"], values["embed_tokens.weight"]
    head *= 0
    for before, after in (("<think>", "1"), ("</think>", "1"), ("1", "2"), ("2", "3"), ("3", "1")):
        head[ids[after]] += embedding[ids[before]]
    write_ling_hf(folder, config, tensors=values)
    (folder / "chat_template.jinja").unlink()  # ours stands in, and keeps earlier reasoning
    return folder


@asynccontextmanager
async def running(model: Path | str, **options: object) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(str(model), **options)  # type: ignore[arg-type]
    try:
        async for _ in engine.start():
            pass
        yield engine
    finally:
        await engine.close()


def ask(text: str = "the cat", *, tokens: int = 30, turn: int = 1, **sampling: object) -> ChatRequest:
    values = {"temperature": 0.0, "max_tokens": tokens, **sampling}
    return ChatRequest(messages=(Message("user", text),), sampling=Sampling(**values), turn=turn)  # type: ignore[arg-type]


async def collect(engine: LocalEngine, request: ChatRequest) -> list[AnyEvent]:
    return [event async for event in engine.chat(request)]


def tokens_of(events: list[AnyEvent]) -> int:
    return sum(sum(event.k) for event in events if isinstance(event, Decode))


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return (
        Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    )


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"waited {DEADLINE_S} s for: {what}"
        os.sched_yield()


async def test_a_conversation(tiny: Path) -> None:
    async with running(tiny, context=200) as engine:
        info = await engine.info()
        assert (info.architecture, info.quantization, info.context) == ("LlamaForCausalLM", "Q8_0", 200)
        assert info.weights_bytes > 0 and info.kv_bytes > 0
        engine.cancel()  # nothing runs: no effect

        events = await collect(engine, ask())
        kinds = [type(event) for event in events]
        assert kinds[0] is TurnStart and kinds[-1] is TurnEnd
        assert kinds.index(TurnFirst) < kinds.index(Decode)
        first = next(event for event in events if isinstance(event, TurnFirst))
        assert (
            first.accepted
            <= first.started
            <= first.tokenized
            <= first.prefill_start
            <= first.prefill_end
            <= first.first_token
        )
        assert 1 <= tokens_of(events) <= 30
        text = "".join(event.delta for event in events if isinstance(event, Text))

        # The same prompt again reuses all of it but the last token, and says the same.
        again = await collect(engine, ask(turn=2))
        start = again[0]
        assert isinstance(start, TurnStart) and start.reused == start.prompt_tokens - 1 > 0 and start.turn == 2
        assert "".join(event.delta for event in again if isinstance(event, Text)) == text

        # Two requests at once are answered in order.
        one, two = await asyncio.gather(collect(engine, ask(turn=3)), collect(engine, ask("other", turn=4)))
        assert one[-1].t_ns <= two[0].t_ns

        # A prompt that does not fit is refused in a sentence, and the engine goes on.
        refused = await collect(engine, ask("word " * 400, turn=5))
        assert isinstance(refused[0], Error) and refused[0].code == "context_overflow"
        assert isinstance(refused[-1], TurnEnd) and refused[-1].stop == "error"
        with pytest.raises(UsageError, match="vocabulary"):
            await engine.count(ChatRequest(ids=(10**6,)))
        assert isinstance((await collect(engine, ask(turn=6)))[-1], TurnEnd)


async def test_counts_are_answered_and_cancel_is_heard_while_decoding(endless: Path) -> None:
    async with running(endless, context=CONTEXT) as engine:
        seen: list[AnyEvent] = []
        counted = 0
        async for event in engine.chat(ask(tokens=16000)):
            seen.append(event)
            if isinstance(event, Decode) and not counted:
                counted = await engine.count("the cat and the hat")
                assert not any(isinstance(event, TurnEnd) for event in seen)
                engine.cancel()
        assert counted > 2
        assert isinstance(seen[-1], TurnEnd) and seen[-1].stop == "cancel"
        assert tokens_of(seen) < 8000

        # Whoever stops listening has cancelled: the next request does not wait for 16,000 tokens.
        stream = engine.chat(ask(tokens=16000, turn=2))
        async for event in stream:
            if isinstance(event, Decode):
                break
        await stream.aclose()  # type: ignore[attr-defined]
        assert (await collect(engine, ask(turn=3, tokens=3)))[-1].stop in ("length", "eos")  # type: ignore[union-attr]


async def test_stop_strings_and_drafting_leave_the_text_alone(tiny: Path) -> None:
    async with running(tiny) as engine:

        async def text(**changes: object) -> str:
            request = ask(tokens=60)
            spec = changes.pop("spec", "on")
            sampling = Sampling(temperature=0.0, max_tokens=60, **changes)  # type: ignore[arg-type]
            request = ChatRequest(messages=request.messages, sampling=sampling, spec=spec)  # type: ignore[arg-type]
            events = await collect(engine, request)
            return "".join(event.delta for event in events if isinstance(event, Text))

        whole = await text(spec="off")
        assert len(whole) > 10
        assert await text(spec="on") == await text(spec=5) == whole
        mark = whole[6:9]
        assert await text(stop=(mark,)) == whole[: whole.index(mark)]


async def test_a_killed_worker_is_an_error_and_start_brings_it_back(endless: Path) -> None:
    async with running(endless, context=CONTEXT) as engine:
        seen: list[AnyEvent] = []
        async for event in engine.chat(ask(tokens=16000)):
            seen.append(event)
            if isinstance(event, Text) and engine.pid is not None:
                os.kill(engine.pid, signal.SIGKILL)
        error, end = seen[-2:]
        assert isinstance(error, Error) and error.code == "engine_crashed" and "SIGKILL" in error.message
        assert isinstance(end, TurnEnd) and end.stop == "error"
        assert any(isinstance(event, Text) for event in seen)
        with pytest.raises(EngineCrashed, match="/restart"):
            await engine.count("hello")
        dead = await collect(engine, ask(turn=2))
        assert [type(event) for event in dead] == [Error, TurnEnd]
        async for _ in engine.start():
            pass
        assert tokens_of(await collect(engine, ask(turn=3))) > 0
        pid = engine.pid
    assert engine.pid is None and pid is not None and gone(pid)
    await engine.close()


async def test_close_ends_whatever_waits(endless: Path) -> None:
    """A reply, a count and a start that wait all hear of it; the engine starts again."""
    engine = LocalEngine(str(endless), context=CONTEXT)
    async for _ in engine.start():
        pass
    seen: list[AnyEvent] = []
    async for event in engine.chat(ask(tokens=16000)):
        seen.append(event)
        if isinstance(event, Decode) and engine.pid is not None:
            os.kill(engine.pid, signal.SIGSTOP)  # it hangs: only a kill ends it
            counting = asyncio.ensure_future(engine.count("x"))
            await asyncio.sleep(0)
            await engine.close()
    error, end = seen[-2:]
    assert isinstance(error, Error) and "/restart" in error.message
    assert isinstance(end, TurnEnd) and end.stop == "error"
    with pytest.raises(EngineCrashed):
        await counting

    loading = engine.start()
    await anext(loading)
    waiting = asyncio.ensure_future(drain(loading))
    await asyncio.sleep(0)
    await engine.close()
    with pytest.raises(EngineCrashed):
        await waiting
    async for _ in engine.start():
        pass
    assert tokens_of(await collect(engine, ask(turn=3))) > 0
    await engine.close()


async def drain(events: AsyncIterator[AnyEvent]) -> None:
    async for _ in events:
        pass


FRONT_END = """
import asyncio, sys
from lingchat.engines.api import ChatRequest, Message, Sampling
from lingchat.engines.local import LocalEngine
from lingchat.events import Decode

async def main():
    engine = LocalEngine(sys.argv[1], context=16384)
    engine.spawn()
    if sys.argv[2] == "loading":
        print(engine.pid, flush=True)
    async for _ in engine.start():
        pass
    said = False
    async for event in engine.chat(ChatRequest(messages=(Message("user", "the"),), sampling=Sampling(temperature=0.0))):
        if isinstance(event, Decode) and not said:
            said = True
            print(engine.pid, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("while_it_is", ["loading", "decoding"])
def test_a_worker_never_outlives_its_front_end(endless: Path, while_it_is: str) -> None:
    front = subprocess.Popen(
        [sys.executable, "-c", FRONT_END, str(endless), while_it_is], stdout=subprocess.PIPE, text=True
    )
    assert front.stdout is not None
    worker = int(front.stdout.readline())
    assert not gone(worker)
    family = children(worker)
    front.kill()
    front.wait()
    wait_for(lambda: gone(worker), "the worker's end")
    for child in family:
        wait_for(lambda child=child: gone(child), "the end of the worker's own children")


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children") if Path("/proc").exists() else []
    return [int(child) for task in tasks for child in task.read_text().split()]


async def fails_to_start(model: object, error: type[LingchatError], match: str, **options: object) -> None:
    engine = LocalEngine(str(model), **options)  # type: ignore[arg-type]
    try:
        with pytest.raises(error, match=match):
            async for _ in engine.start():
                pass
    finally:
        await engine.close()


async def test_a_death_before_anyone_listens_is_told_once(tmp_path: Path) -> None:
    engine = LocalEngine(str(tmp_path / "nowhere.gguf"))
    engine.spawn()
    assert engine._process is not None
    engine._process.wait()
    with pytest.raises(ModelNotFound):
        await drain(engine.start())
    await engine.close()


async def test_a_log_that_cannot_be_written_is_named(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LINGCHAT_HOME", str(tmp_path / "file"))
    with pytest.raises(DiskError, match="worker-"):
        LocalEngine(str(tiny)).spawn()


async def test_a_reply_s_reasoning_comes_back_as_the_prefix_that_the_state_holds(ling: Path) -> None:
    """Of a second question only what is new is computed: the reasoning before it is there to the token."""
    engine = LocalEngine(str(ling), dtype="fp32", device="cpu", context=512)
    try:
        started = [event async for event in engine.start()]
        info = await engine.info()
        ready = next(event for event in started if isinstance(event, Engine) and event.phase == "ready")
        assert info.thinking_switch is True and info.state_bytes > 0 and info.snapshot_bytes >= 2 * info.state_bytes
        assert (ready.state, ready.snapshots) == (info.state_bytes, info.snapshot_bytes)

        first = await collect(engine, ask("hi", tokens=8))
        thought = "".join(event.delta for event in first if isinstance(event, Reasoning))
        assert thought == "12312312" and not any(isinstance(event, Text) for event in first)
        assert first[-1] == TurnEnd(t_ns=first[-1].t_ns, turn=1, stop="length")
        prompt = next(event for event in first if isinstance(event, TurnStart)).prompt_tokens

        history = (Message("user", "hi"), Message("assistant", "", thought), Message("user", "and?"))
        sampling = Sampling(temperature=0.0, max_tokens=4)
        second = await collect(engine, ChatRequest(messages=history, sampling=sampling, turn=2))
        start = next(event for event in second if isinstance(event, TurnStart))
        assert start.reused == prompt + 7  # the eighth token was drawn and never computed

        answered = await collect(engine, ChatRequest(messages=history, thinking=False, sampling=sampling, turn=3))
        assert "".join(event.delta for event in answered if isinstance(event, Text)) == "1231"
        assert not any(isinstance(event, Reasoning) for event in answered)
    finally:
        await engine.close()


async def test_what_cannot_be_loaded_is_named(tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny.read_bytes()[:5000])
    await fails_to_start(broken, ModelFileError, "broken.gguf")
    await fails_to_start(tmp_path / "nowhere.gguf", ModelNotFound, "nowhere.gguf")
    await fails_to_start(tiny, UsageError, "int4", dtype="int4")
    if not torch.cuda.is_available():
        await fails_to_start(tiny, NoDevice, "--device cuda", device="cuda")
