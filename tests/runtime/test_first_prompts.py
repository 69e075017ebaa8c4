"""The three prompts of an empty chat are ones that the default model answers well, and the third one shows drafting."""

from __future__ import annotations

from pathlib import Path

import pytest

from lingchat.chat import DEMO_SAMPLING
from lingchat.engines.api import ChatRequest, Message, Sampling, Spec
from lingchat.events import AnyEvent, Text, now_ns
from lingchat.runtime.engine import Runtime
from lingchat.runtime.loading import Loading
from lingchat.stats import TurnStats
from lingchat.ui.first_prompts import FIRST_PROMPTS

EXPECTED = (
    ("water", "Earth"),
    ("Paris", "Eiffel"),
    ("home through the green forest", "old oak tree", "looks for its friends"),
)


@pytest.fixture(scope="module")
def runtime(default_model: Path) -> Runtime:
    return Runtime(default_model, Loading(context=512))


def ask(runtime: Runtime, prompt: str, spec: Spec = "on", **sampling: object) -> tuple[str, TurnStats]:
    said: list[str] = []
    turn = TurnStats(1)

    def take(event: AnyEvent) -> None:
        turn.add(event)
        if isinstance(event, Text):
            said.append(event.delta)

    chosen = Sampling(max_tokens=200, **sampling)  # type: ignore[arg-type]
    request = ChatRequest(messages=(Message("user", prompt),), sampling=chosen, spec=spec)
    runtime.forget()
    runtime.chat(request, now_ns(), take, lambda: False)
    return "".join(said), turn


@pytest.mark.parametrize("number", range(3))
def test_each_is_answered_and_comes_to_an_end(runtime: Runtime, number: int) -> None:
    text, turn = ask(runtime, FIRST_PROMPTS[number][1], temperature=0.0)
    assert turn.stop == "eos"
    assert all(word in text for word in EXPECTED[number]), text
    good = 0
    for seed in (1, 2, 3):
        text, turn = ask(runtime, FIRST_PROMPTS[number][1], seed=seed, **DEMO_SAMPLING)
        good += turn.stop == "eos" and EXPECTED[number][0] in text
    assert good >= 2  # as a person meets it: sampled


def test_the_repeat_task_shows_drafting(runtime: Runtime) -> None:
    # A fixed depth: the adaptive one depends on how busy this machine is.
    _, turn = ask(runtime, FIRST_PROMPTS[2][1], spec=7, temperature=0.0)
    assert turn.accept_len is not None and turn.accept_len > 4
    assert turn.tokens > 3 * turn.rounds
