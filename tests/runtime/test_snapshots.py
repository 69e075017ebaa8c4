"""Hybrid models: a new turn, a regeneration and an edit compute only what is new, and find what a fresh prefill finds.

A KDA state can be resumed only where it stands or where a snapshot was kept; the conversation must not notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from make_ling import kimi_config, ling_config, write_kimi_gguf, write_ling_gguf

from lingchat.engines.api import ChatRequest, Message, Sampling
from lingchat.events import AnyEvent, Decode, Text, TurnStart, now_ns
from lingchat.runtime.drivers.eager import EagerDriver
from lingchat.runtime.engine import Runtime
from lingchat.runtime.loading import Loading
from lingchat.runtime.ops.protocol import KDACache, LatentCache
from lingchat.runtime.prefix import Prefix

LONG = "the cat and the hat and the mat, " * 12
GENERATION_PROMPT = 20  # tokens, at most


@pytest.fixture(scope="module", params=["ling torch", "kimi torch", "ling native", "kimi native"])
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    model, back_end = request.param.split()
    if model == "ling":
        write_ling_gguf(path, ling_config(period=4, layers=5, q_rank=32, limits=True), seed=3)
    else:
        write_kimi_gguf(path, kimi_config(layers=4), seed=3)
    made = Runtime(path, Loading(dtype="fp32" if back_end == "torch" else "int8", threads=1))
    assert made.info.backend.startswith(back_end)
    yield made
    made.formats.close()


def ask(runtime: Runtime, *said: str, tokens: int = 10, spec: str | int = "on", temperature: float = 0.0) -> Answer:
    """`said` alternates user and assistant."""
    messages = tuple(Message("assistant" if i % 2 else "user", text) for i, text in enumerate(said))
    sampling = Sampling(temperature=temperature, max_tokens=tokens, seed=11)
    request = ChatRequest(messages=messages, sampling=sampling, keep_ids=True, thinking=False, spec=spec)
    events: list[AnyEvent] = []
    runtime.chat(request, now_ns(), events.append, lambda: False)
    return Answer(events)


class Answer:
    def __init__(self, events: list[AnyEvent]) -> None:
        self.text = "".join(event.delta for event in events if isinstance(event, Text))
        self.ids = [i for event in events if isinstance(event, Decode) for i in event.ids]
        self.accepted = sum(sum(event.a) for event in events if isinstance(event, Decode))
        start = events[0]
        assert isinstance(start, TurnStart)
        self.prompt_tokens, self.reused = start.prompt_tokens, start.reused

    @property
    def computed(self) -> int:
        return self.prompt_tokens - self.reused


def fresh(runtime: Runtime, *said: str) -> tuple[list[int], list[torch.Tensor]]:
    """The reply's ids and the state after it, with nothing reused."""
    runtime.forget()
    answer = ask(runtime, *said)
    assert answer.reused == 0
    return answer.ids, committed(runtime)


def committed(runtime: Runtime) -> list[torch.Tensor]:
    """All that the state holds for good: recurrent states, windows, latent rows."""
    state = runtime._rounds.state
    cached = torch.float16 if runtime.info.backend.startswith("native") else torch.float32

    def numbers(buffer: Any, dtype: torch.dtype = cached) -> torch.Tensor:
        return torch.frombuffer(bytearray(runtime._ops.read(buffer)), dtype=dtype).view(tuple(buffer.shape))

    parts: list[torch.Tensor] = []
    for cache in state.caches:
        match cache:
            case KDACache():
                parts += [numbers(cache.state, torch.float32), numbers(cache.window)]
            case LatentCache():
                parts.append(numbers(cache.rows)[: int(state.length)])
    return parts


def same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        if a.dtype == torch.float16 or wanted[-1].dtype == torch.float16:
            assert torch.equal(a, b)  # native code has the same bits whatever a pass began with
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_new_turn_prefills_only_what_is_new(runtime: Runtime) -> None:
    runtime.forget()
    first = ask(runtime, LONG)
    second = ask(runtime, LONG, first.text, "and then")
    # What came before the first reply is there already; the rest is the reply, if it reads back otherwise, and the turn.
    assert second.reused >= first.prompt_tokens - GENERATION_PROMPT
    assert second.computed < 120
    found = committed(runtime)
    ids, wanted = fresh(runtime, LONG, first.text, "and then")
    assert second.ids == ids
    same(found, wanted)


def test_a_regeneration_begins_before_the_generation_prompt(runtime: Runtime) -> None:
    runtime.forget()
    first = ask(runtime, LONG)
    again = ask(runtime, LONG)
    assert 0 < again.computed < 16
    assert again.ids == first.ids


def test_an_edited_earlier_turn_begins_at_the_message_before_it(runtime: Runtime) -> None:
    runtime.forget()
    one = ask(runtime, LONG)
    two = ask(runtime, LONG, one.text, "tell me more")
    ask(runtime, LONG, one.text, "tell me more", two.text, "go on")
    edited = ask(runtime, LONG, one.text, "tell me less")
    assert edited.reused >= one.prompt_tokens - GENERATION_PROMPT
    found = committed(runtime)
    ids, wanted = fresh(runtime, LONG, one.text, "tell me less")
    assert edited.ids == ids
    same(found, wanted)


def test_what_follows_a_reply_can_be_edited_without_computing_the_reply_again(runtime: Runtime) -> None:
    """A place is kept where the reply ended too, though no token there ends a message. Ids, so that it reads back."""

    def reply(ids: list[int]) -> tuple[list[int], int]:
        events: list[AnyEvent] = []
        sampling = Sampling(temperature=0.0, max_tokens=40)
        request = ChatRequest(ids=tuple(ids), sampling=sampling, keep_ids=True)
        runtime.chat(request, now_ns(), events.append, lambda: False)
        answer = Answer(events)
        return answer.ids, answer.reused

    runtime.forget()
    prompt = runtime.prompt(ChatRequest(messages=(Message("user", LONG),), thinking=False)).ids
    said, reused = reply(prompt)
    assert reused == 0 and len(said) > 1
    question, other = ([*prompt, *said, *runtime.formats.text_ids(text)] for text in ("and then", "or else"))
    computed = len(prompt) + len(said) - 1  # the last token was drawn and never computed
    assert reply(question)[1] == computed
    edited, reused = reply(other)
    assert reused == computed + (said[-1] in runtime.formats.tokenizer.eos_ids)  # a message ended with it
    found = committed(runtime)
    runtime.forget()
    assert reply(other) == (edited, 0)
    same(found, committed(runtime))


def test_a_second_edit_still_finds_the_places_before_it(runtime: Runtime) -> None:
    runtime.forget()
    one = ask(runtime, LONG)
    for text in ("first", "second", "third"):
        edited = ask(runtime, LONG, one.text, text)
        assert edited.reused >= one.prompt_tokens - GENERATION_PROMPT
        found = committed(runtime)
        assert edited.ids == ask(runtime, LONG, one.text, text).ids
        same(found, committed(runtime))


def test_places_of_an_abandoned_branch_are_never_resumed(runtime: Runtime) -> None:
    """After an edit the latents beyond it are overwritten, so a snapshot from the old branch would be a chimera."""
    runtime.forget()
    one = ask(runtime, LONG)
    old = ask(runtime, LONG, one.text, "a question that is long enough to be a place of its own, " * 3)
    ask(runtime, LONG, one.text, "another question, also long enough to be a place of its own, " * 3)
    back = ask(runtime, LONG, one.text, "a question that is long enough to be a place of its own, " * 3)
    assert back.ids == old.ids
    found = committed(runtime)
    _, wanted = fresh(runtime, LONG, one.text, "a question that is long enough to be a place of its own, " * 3)
    same(found, wanted)


def test_a_conversation_of_several_messages_keeps_a_place_at_their_ends(runtime: Runtime) -> None:
    runtime.forget()
    said = [LONG, "yes " * 20, LONG + "again", "no " * 20, "last"]
    ask(runtime, *said)
    edited = ask(runtime, *said[:2], LONG + "otherwise")
    start = len(runtime.prompt(ChatRequest(messages=(Message("user", LONG), Message("assistant", said[1])))).ids)
    assert edited.reused >= start - 20


def test_what_the_state_takes_is_planned_and_told(runtime: Runtime) -> None:
    state, info, memory = runtime._rounds.state, runtime.info, runtime.memory
    assert info.snapshot_bytes == state.places * state.snapshot_bytes == memory.snapshots > 0
    assert info.state_bytes == state.state_bytes == memory.state > 0
    assert info.kv_bytes == state.cache_bytes == memory.kv > 0
    held = sum(
        buffer.nbytes
        for cache in state.caches
        if isinstance(cache, KDACache)
        for buffer in (cache.state, cache.window, cache.staged_states, cache.staged_inputs)
    )
    assert held == state.state_bytes


def test_the_bytes_of_snapshots_stay_within_their_cap(runtime: Runtime) -> None:
    runtime.forget()
    said: list[str] = []
    for turn in range(runtime._rounds.state.places + 3):
        said.append(f"question {turn}")
        said.append(ask(runtime, *said, tokens=2).text)
    state = runtime._rounds.state
    copies = [buffer for pair in state._copies.values() for buffers in pair for buffer in buffers]
    assert sum(buffer.nbytes for buffer in copies) <= state.places * state.snapshot_bytes


class Prophet:
    """A drafter that knows the reply and is wrong about every fifth token: all counts of a round occur."""

    name = "prophet"

    def __init__(self, ids: list[int], prompt_tokens: int, ops: Any) -> None:
        self._ids, self._start, self._ops = ids, prompt_tokens, ops

    def propose(self, cursor: Any, sampler: Any, limit: int, state: Any, out: Any) -> None:
        at = int(cursor.length) - self._start
        room = min(limit, int(cursor.left) - 1, len(self._ids) - at)
        told = [id + (place % 5 == 4) for place, id in enumerate(self._ids[at : at + room], start=at)]
        self._ops.fill(out.ids, told)
        self._ops.fill(out.n, [len(told)])

    def absorb(self, taps: Any, count: Any, state: Any) -> None:
        pass


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafting_leaves_the_text_as_it_is(
    runtime: Runtime, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime.forget()
    plain = ask(runtime, LONG, tokens=40, spec="off", temperature=temperature)
    state = committed(runtime)
    runtime.forget()
    prophet = Prophet(plain.ids, plain.prompt_tokens, runtime._ops)
    monkeypatch.setattr(runtime._rounds, "_drafter", prophet)
    monkeypatch.setattr(runtime, "_driver", EagerDriver(runtime._ops, runtime._rounds))  # it looks at the cursor
    drafted = ask(runtime, LONG, tokens=40, spec=7, temperature=temperature)
    assert drafted.ids == plain.ids
    assert drafted.accepted > len(plain.ids) // 2 > 8 and plain.accepted == 0
    for a, b in zip(committed(runtime), state, strict=True):
        assert torch.equal(a, b)  # the same bits, not only the same text


def test_places_lie_apart_except_the_last() -> None:
    class Appending:
        appends_only, places = True, 0

    class Recurring:
        appends_only, places = False, 3

    ends = [40, 50, 100, 200, 210]
    assert Prefix(Appending()).places(ends, 0) == []  # type: ignore[arg-type]
    assert Prefix(Recurring()).places(ends, 0) == [100, 200, 210]  # type: ignore[arg-type]
    assert Prefix(Recurring()).places(ends, 190) == [210]  # type: ignore[arg-type]
    assert Prefix(Recurring()).places([], 0) == []  # type: ignore[arg-type]
