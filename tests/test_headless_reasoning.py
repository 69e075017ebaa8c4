"""`lingchat -p` with models that reason and call tools, and the settings that go with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lingchat import events as ev
from lingchat.trace import list_runs, read_trace

SECONDS = 30.0  # more than any of this takes on a busy machine


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """`run(script, *arguments)` gives exit code, standard output and standard error."""

    def whole(script: dict[str, Any], *arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
        (tmp_path / "script.json").write_text(json.dumps(script))
        done = subprocess.run(
            [sys.executable, "-m", "lingchat", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            env={**os.environ, "LINGCHAT_ENGINE": f"scripted:{tmp_path / 'script.json'}", **(env or {})},
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    return whole


def says(text: str, **rest: Any) -> dict[str, Any]:
    return {"turns": [{"text": text, "round_ms": 1, "prefill_ms": 1, **rest}]}


ECHO = says("", echo=True)
CALLS = says(
    "Let me look.",
    reasoning="hm",
    calls=[{"name": "look", "arguments": '{"where":"Paris\\u001b[2J"}'}, {"name": "go", "id": "functions.go:1"}],
)


def test_tool_calls_are_in_the_json_and_in_the_lines(run) -> None:
    code, out, err = run(CALLS, "-p", "x", "--output", "json")
    result = json.loads(out)
    assert (code, err, result["status"]) == (0, "", "ok")
    assert result["tool_calls"] == [
        {"name": "look", "arguments": '{"where":"Paris\\u001b[2J"}', "id": ""},
        {"name": "go", "arguments": "{}", "id": "functions.go:1"},
    ]
    code, out, _ = run(CALLS, "-p", "x", "--output", "jsonl")
    events = [json.loads(line) for line in out.splitlines()]
    calls = [event for event in events if event["type"] == "tool.call"]
    assert [(call["index"], call["name"], call["turn"]) for call in calls] == [(0, "look", 1), (1, "go", 1)]
    kinds = [event["type"] for event in events if event["type"] in ("reasoning", "text", "tool.call", "turn.end")]
    assert list(dict.fromkeys(kinds)) == ["reasoning", "text", "tool.call", "turn.end"]


def test_a_tool_call_is_no_result_but_it_is_told(run) -> None:
    code, out, err = run(CALLS, "-p", "x")
    assert (code, out) == (0, "Let me look.\n")
    assert 'lingchat: the model calls look {"where":"Paris\\u001b[2J"}; nothing runs it here\n' in err
    assert "\x1b" not in err


ENDLESS = says("42", reasoning="so many thoughts, and no end to them")


def test_a_reply_that_ends_inside_its_reasoning_is_an_error_that_keeps_it(run, tmp_path: Path) -> None:
    target = tmp_path / "answer.txt"
    target.write_text("old")
    limit = ("--max-tokens", "3")
    code, out, err = run(ENDLESS, "-p", "x", *limit, "-o", str(target))
    assert (code, out, target.read_text()) == (7, "", "old")
    assert "no answer: the length limit was reached inside the reasoning. Give it more room (--max-tokens" in err
    assert "--thinking off" in err and "--output json holds the reasoning" in err
    code, out, _ = run(ENDLESS, "-p", "x", *limit, "--output", "json")
    result = json.loads(out)
    assert (code, result["status"], result["error"]["code"]) == (7, "error", "no_answer")
    assert (result["text"], result["stop"], result["timings"]["rounds"]) == ("", "length", 3)
    assert result["reasoning"].startswith("so many") and result["usage"]["reasoning_tokens"] == 3
    code, out, _ = run(ENDLESS, "-p", "x", *limit, "--output", "jsonl")
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["code"] for event in events if event["type"] == "error"] == ["no_answer"]
    assert (events[-1]["status"], events[-1]["exit"]) == ("error", 7)
    stored = read_trace(list_runs()[0].path)
    assert [event.code for event in stored if isinstance(event, ev.Error)] == ["no_answer"]


def test_a_reply_that_stops_by_itself_inside_its_reasoning_has_no_answer_either(run) -> None:
    plain = {"info": {"name": "plain model", "thinking_switch": False}}
    code, out, err = run({**says("", reasoning="hm"), **plain}, "-p", "x")
    assert (code, out) == (7, "")
    assert "no answer: the reply ended inside its reasoning" in err and "--thinking" not in err


def test_a_call_after_the_reasoning_is_an_answer(run) -> None:
    code, _, _ = run(says("", reasoning="hm", calls=[{"name": "go"}]), "-p", "x")
    assert code == 0


def test_thinking_and_device_are_checked_before_anything_starts(run) -> None:
    code, out, err = run(ECHO, "-p", "x", "--thinking", "maybe")
    assert (code, out) == (2, "") and "--thinking is 'maybe', but must be auto, on or off" in err
    code, _, err = run(ECHO, "-p", "x", "--device", "gpu")
    assert code == 2 and "--device is 'gpu', but must be one of auto, cpu, cuda" in err
    code, _, err = run(ECHO, "-p", "x", env={"LINGCHAT_DEVICE": "gpu"})
    assert code == 3 and "LINGCHAT_DEVICE" in err
    plain = {**ECHO, "info": {"name": "plain model", "thinking_switch": False}}
    code, out, err = run(plain, "-p", "x", "--thinking", "off")
    assert (code, out) == (0, "x\n") and "plain model has no switch for thinking in its template: off" in err
