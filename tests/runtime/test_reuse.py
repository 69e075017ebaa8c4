"""A new turn computes only what is new, an edit only what follows it, and a cancelled prefill leaves nothing wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from make_models import write_gguf

from lingchat.architectures.usual import PREFILL_CHUNK
from lingchat.engines.api import ChatRequest, Message, Sampling
from lingchat.errors import ContextOverflow
from lingchat.events import AnyEvent, Decode, Prefill, Text, TurnEnd, TurnFirst, TurnStart, now_ns
from lingchat.runtime.engine import Runtime
from lingchat.runtime.loading import Loading


@pytest.fixture(scope="module", params=["fp32", "int8"])
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    """By torch and by native code."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, "qwen3", "Q8_0", context=4096)
    made = Runtime(path, Loading(dtype=request.param))
    assert made.info.backend.startswith("native" if request.param == "int8" else "torch")
    return made


class Talk:
    """A conversation with the bare runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def ask(
        self, *said: str, cancel_after: int | None = None, tokens: int = 12
    ) -> tuple[str, TurnStart, list[AnyEvent]]:
        """`said` alternates user and assistant; the reply, how it began, and all events."""
        messages = tuple(Message("assistant" if i % 2 else "user", text) for i, text in enumerate(said))
        request = ChatRequest(messages=messages, sampling=Sampling(temperature=0.0, max_tokens=tokens), keep_ids=True)
        events: list[AnyEvent] = []
        chunks = 0

        def cancelled() -> bool:
            nonlocal chunks
            chunks += 1
            return cancel_after is not None and chunks >= cancel_after

        self.runtime.chat(request, now_ns(), events.append, cancelled)
        start = events[0]
        assert isinstance(start, TurnStart)
        return "".join(event.delta for event in events if isinstance(event, Text)), start, events


def fresh(runtime: Runtime, *said: str) -> str:
    runtime.forget()
    return Talk(runtime).ask(*said)[0]


def test_a_new_turn_prefills_only_what_is_new(runtime: Runtime) -> None:
    talk = Talk(runtime)
    runtime.forget()
    first, start, _ = talk.ask("the cat sat on the mat")
    assert start.reused == 0
    second, again, events = talk.ask("the cat sat on the mat", first, "and then")
    prompt = runtime.prompt(ChatRequest(messages=(Message("user", "the cat sat on the mat"),))).ids
    assert again.reused >= len(prompt)  # all of the first prompt, and as much of the reply as reads back the same
    done = [event for event in events if isinstance(event, Prefill)][-1]
    assert done.total == again.prompt_tokens - again.reused
    assert second == fresh(runtime, "the cat sat on the mat", first, "and then")


def test_the_reply_itself_is_reused_where_it_reads_back_the_same(runtime: Runtime) -> None:
    talk = Talk(runtime)
    runtime.forget()
    first, start, events = talk.ask("aaaa")
    ids = [i for event in events if isinstance(event, Decode) for i in event.ids]
    again = talk.ask("aaaa", first, "b")[1]
    prompt = runtime.prompt(
        ChatRequest(messages=(Message("user", "aaaa"), Message("assistant", first), Message("user", "b")))
    ).ids
    computed = [*runtime.prompt(ChatRequest(messages=(Message("user", "aaaa"),))).ids, *ids[:-1]]
    shared = next((i for i, (a, b) in enumerate(zip(computed, prompt, strict=False)) if a != b), len(computed))
    assert again.reused == shared > start.prompt_tokens - 1


def test_an_edit_reuses_the_common_prefix(runtime: Runtime) -> None:
    talk = Talk(runtime)
    runtime.forget()
    first = talk.ask("tell me about the cat")[0]
    talk.ask("tell me about the cat", first, "go on")
    edited, start, _ = talk.ask("tell me about the hat")
    assert 0 < start.reused < start.prompt_tokens - 1
    assert edited == fresh(runtime, "tell me about the hat")


def test_a_cancelled_prefill_keeps_its_chunks_and_spoils_nothing(runtime: Runtime) -> None:
    long = "the cat and the hat and the mat " * 120
    talk = Talk(runtime)
    runtime.forget()
    text, start, events = talk.ask(long, cancel_after=2)
    assert start.prompt_tokens > 3 * PREFILL_CHUNK["cpu"]
    assert text == "" and not any(isinstance(event, TurnFirst) for event in events)
    assert isinstance(events[-1], TurnEnd) and events[-1].stop == "cancel"
    reply, again, _ = talk.ask(long)
    assert again.reused == 2 * PREFILL_CHUNK["cpu"]
    assert reply == fresh(runtime, long)


@pytest.mark.parametrize("kind", [TurnStart, Prefill, Decode])
def test_a_stopped_reply_is_a_cancelled_one(runtime: Runtime, kind: type[AnyEvent]) -> None:
    """Native code leaves its operation; torch is asked after each pass."""
    long = "the cat and the hat and the mat " * 120
    fine = fresh(runtime, long)
    runtime.forget()
    events: list[AnyEvent] = []

    def emit(event: AnyEvent) -> None:
        events.append(event)
        if isinstance(event, kind):
            runtime.stop()

    def cancelled() -> bool:
        return any(isinstance(event, kind) for event in events)

    sampling = Sampling(temperature=0.0, max_tokens=500)
    runtime.chat(ChatRequest(messages=(Message("user", long),), sampling=sampling), now_ns(), emit, cancelled)
    runtime.go_on()
    assert isinstance(events[-1], TurnEnd) and events[-1].stop == "cancel"
    assert sum(sum(event.k) for event in events if isinstance(event, Decode)) < 100
    reply, again, _ = Talk(runtime).ask(long)
    assert reply == fine
    # A chunk that was left is not there, one that was done is.
    assert (again.reused > 0) == (kind is not TurnStart or not runtime.info.backend.startswith("native"))


def test_a_cancelled_reply_can_be_continued(runtime: Runtime) -> None:
    talk = Talk(runtime)
    runtime.forget()
    part, _, events = talk.ask("the cat", cancel_after=4, tokens=40)
    assert isinstance(events[-1], TurnEnd) and events[-1].stop == "cancel"
    assert fresh(runtime, "the cat").startswith(part[:2])
    runtime.forget()
    talk.ask("the cat", cancel_after=4, tokens=40)
    assert talk.ask("the cat", part, "more")[0] == fresh(runtime, "the cat", part, "more")


def test_the_smallest_context_refuses_and_answers(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "llama", "Q8_0")
    runtime = Runtime(tmp_path / "tiny.gguf", Loading(context=12))
    request = ChatRequest(ids=tuple(range(3, 13)), sampling=Sampling(temperature=0.0))
    events: list[AnyEvent] = []
    runtime.chat(request, now_ns(), events.append, lambda: False)
    assert sum(sum(event.k) for event in events if isinstance(event, Decode)) == 2
    with pytest.raises(ContextOverflow, match="12"):
        runtime.chat(ChatRequest(ids=tuple(range(3, 15))), now_ns(), events.append, lambda: False)
