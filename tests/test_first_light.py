"""The main job on real input: the installed command and the default model, from a question to its figures."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lingchat import events as ev
from lingchat.config import paths
from lingchat.session import SessionStore
from lingchat.stats import format_ms, timings
from lingchat.trace import list_runs, read_trace

SECONDS = 120.0
QUESTION = "Name the capital of France."  # the small model is sure of it, however it is computed
TIMINGS = [
    "ttft_ms",
    "prompt_ms",
    "reused",
    "tpot_p50_ms",
    "tpot_p95_ms",
    "tpot_p99_ms",
    "tok_s",
    "rounds",
    "drafter",
    "draft_n",
    "draft_n_accepted",
    "accept_len",
    "accept_rate",
    "accept_hist",
]

pytestmark = pytest.mark.usefixtures("home_with_model")


def lingchat(*argv: str, typed: str | None = None) -> tuple[str, str]:
    """Standard output and error of a command that ends well."""
    done = subprocess.run(
        [sys.executable, "-m", "lingchat", *argv],
        input=typed,
        stdin=subprocess.DEVNULL if typed is None else None,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_question_is_answered_and_its_figures_are_those_of_the_trace() -> None:
    out, err = lingchat("-p", QUESTION, "--temperature", "0", "--output", "json")
    result = json.loads(out)
    assert (result["status"], result["error"]) == ("ok", None) and "Paris" in result["text"], err
    assert list(result["timings"]) == TIMINGS
    run = list_runs()[0]
    assert run.id == result["run"]
    turn = read_trace(run.path).fold().turns[1]
    assert result["timings"] == json.loads(json.dumps(timings(turn)))
    assert turn.ttft_ms is not None and 0 < result["timings"]["prompt_ms"] <= result["timings"]["ttft_ms"]
    assert result["usage"]["completion_tokens"] == turn.tokens > 3

    printed = {" ".join(line.split()) for line in lingchat("stats", "last")[0].splitlines()}
    assert {
        f"tokens {turn.tokens}",
        f"TTFT ms {format_ms(turn.ttft_ms)}",
        f"TPOT p50 ms {format_ms(turn.tpot(0.5))}",
        f"p99 {format_ms(turn.tpot(0.99))}",
        f"rounds {turn.rounds}",
    } <= printed

    out, _ = lingchat("-p", "And of Italy?", "--temperature", "0", "-c")
    assert "Rome" in out  # which only the question before tells
    session = SessionStore(paths().sessions).open("last", readonly=True)
    assert session.id == result["session"]
    assert [node.content for node in session.path()] == [QUESTION, result["text"], "And of Italy?", out.rstrip("\n")]


def test_line_mode_answers_through_a_pipe_and_a_second_turn_keeps_the_first() -> None:
    out, err = lingchat("--plain", "--temperature", "0", typed=f"{QUESTION}\nAnd of Italy?\n")
    first, second = out.split("> And of Italy?\n")
    assert err == "" and "Paris" in first and "Rome" in second
    starts = [event for event in read_trace(list_runs()[0].path) if isinstance(event, ev.TurnStart)]
    one, two = starts
    assert one.reused == 0 and one.prompt_tokens <= two.reused < two.prompt_tokens
