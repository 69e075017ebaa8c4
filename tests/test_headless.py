"""`lingchat -p`: the installed command with a scripted engine. Streams, forms, exit codes, and every kind of ending."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lingchat import events as ev
from lingchat.config import paths
from lingchat.errors import UsageError
from lingchat.headless.job import message
from lingchat.headless.stdin import read_stdin
from lingchat.notes import Notes
from lingchat.session import SessionStore
from lingchat.stats import timings
from lingchat.trace import list_runs, read_trace

SECONDS = 30.0  # more than any of this takes on a busy machine

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(script, *arguments, **streams)` starts the command; standard input is empty unless given."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(
        script: dict[str, Any], *arguments: str, env: dict[str, str] | None = None, **streams: Any
    ) -> subprocess.Popen[bytes]:
        file = tmp_path / f"script{len(running)}.json"
        file.write_text(json.dumps(script))
        streams.setdefault("stdin", subprocess.DEVNULL)
        streams.setdefault("bufsize", 0)  # what a test has not read stays in the pipe, for `communicate`
        streams.setdefault("stdout", subprocess.PIPE)
        streams.setdefault("stderr", subprocess.PIPE)
        environ = {**os.environ, "LINGCHAT_ENGINE": f"scripted:{file}", **(env or {})}
        running.append(subprocess.Popen([sys.executable, "-m", "lingchat", *arguments], env=environ, **streams))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def run(start: Start) -> Callable[..., tuple[int, str, str]]:
    """`run(script, *arguments, data=None)` gives exit code, standard output and standard error."""

    def whole(script: dict[str, Any], *arguments: str, data: bytes | None = None, **rest: Any) -> tuple[int, str, str]:
        if data is not None:
            rest["stdin"] = subprocess.PIPE
        process = start(script, *arguments, **rest)
        out, err = process.communicate(data, timeout=SECONDS)
        return process.returncode, (out or b"").decode(), (err or b"").decode()

    return whole


def says(text: str, **rest: Any) -> dict[str, Any]:
    return {"turns": [{"text": text, "round_ms": 1, "prefill_ms": 1, **rest}]}


ECHO = says("", echo=True)
HANGS = says("some words and no end", pause={"at": 2, "ms": None})


# ---------------------------------------------------------------- the result


def test_text_goes_to_standard_output_and_nothing_else_does(run) -> None:
    code, out, err = run(says("The answer.\nIn two lines"), "-p", "question")
    assert (code, out, err) == (0, "The answer.\nIn two lines\n", "")


def test_figures_go_to_standard_error(run) -> None:
    code, out, err = run(says("four words are here", m=[2], a=[1]), "-p", "x", "--stats")
    assert (code, out) == (0, "four words are here\n")
    assert "TTFT" in err and "acceptance" in err.lower()


def test_json_is_one_object_whose_timings_are_those_of_the_trace(run) -> None:
    script = says("A reply.", reasoning="Think first.", m=[3], a=[2, 0])
    code, out, _ = run(script, "-p", "x", "--output", "json")
    result = json.loads(out)
    assert code == 0
    assert list(result) == [
        "schema_version", "status", "text", "reasoning", "tool_calls", "stop", "usage", "timings", "session", "run", "error",
    ]  # fmt: skip
    assert (result["status"], result["text"], result["reasoning"]) == ("ok", "A reply.", "Think first.")
    assert result["error"] is None and result["tool_calls"] == [] and result["stop"] == "eos"
    usage = result["usage"]
    assert 0 < usage["reasoning_tokens"] < usage["completion_tokens"]
    assert (
        usage["completion_tokens"] > 0 and usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    )
    (stored,) = list_runs()
    assert stored.id == result["run"]
    fold = read_trace(stored.path).fold()
    assert result["timings"] == json.loads(json.dumps(timings(fold.turns[1])))
    assert result["timings"]["accept_len"] > 1 and result["timings"]["drafter"] == "script"


def test_jsonl_is_the_trace_live(run) -> None:
    code, out, _ = run(says("Some text."), "-p", "x", "--output", "jsonl")
    (stored,) = list_runs()
    lines, kept = out.splitlines(), stored.path.read_text().splitlines()
    assert code == 0
    assert lines[:-1] == kept[:-1]  # the run's end is written twice, at two instants
    last, ended = json.loads(lines[-1]), json.loads(kept[-1])
    assert last["type"] == ended["type"] == "run.end" and last["stats"] == ended["stats"] and last["exit"] == 0
    assert [json.loads(line)["seq"] for line in lines] == list(range(len(lines)))


def test_text_streams_as_it_comes(start) -> None:
    process = start(HANGS, "-p", "x")
    assert process.stdout.read(4) == b"some"  # though the reply never ends
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 143


def test_a_file_appears_whole_and_keeps_its_mode(run, tmp_path: Path) -> None:
    target = tmp_path / "answer.txt"
    target.write_text("old")
    target.chmod(0o640)
    code, out, _ = run(says("new text"), "-p", "x", "-o", str(target))
    assert (code, out, target.read_text()) == (0, "", "new text\n")
    assert target.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.glob(".answer*")] == []


def test_a_failed_reply_leaves_the_file_as_it_was(run, tmp_path: Path) -> None:
    target = tmp_path / "answer.txt"
    target.write_text("old")
    broken = says("half a reply", failure={"code": "template", "message": "broke", "at": 1})
    code, out, err = run(broken, "-p", "x", "-o", str(target))
    assert (code, out, target.read_text()) == (4, "", "old")
    assert "broke" in err and "left as it was" in err
    code, _, _ = run(broken, "-p", "x", "-o", str(target), "--output", "json")  # an object is whole also then
    assert (code, json.loads(target.read_text())["status"]) == (4, "error")


def test_a_file_that_cannot_be_written_is_told_before_the_model_runs(run, tmp_path: Path) -> None:
    code, out, err = run(says("x"), "-p", "x", "-o", str(tmp_path / "nowhere" / "file"))
    assert (code, out) == (1, "")
    assert "nowhere/file" in err
    code, out, _ = run(says("to a device"), "-p", "x", "-o", "/dev/null")
    assert (code, out) == (0, "") and Path("/dev/null").is_char_device()


# ---------------------------------------------------------------- the prompt


def test_a_file_as_standard_input_follows_the_prompt(run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_text("the data\n")
    with data.open("rb") as stream:
        assert run(ECHO, "-p", "Explain", stdin=stream)[:2] == (0, "Explain\n\nthe data\n")
    with data.open("rb") as stream:
        assert run(ECHO, "-p", "Explain", "--no-stdin", stdin=stream)[:2] == (0, "Explain\n")


def test_a_pipe_that_speaks_follows_the_prompt(run) -> None:
    assert run(ECHO, "-p", "Explain", data="späte daten".encode())[:2] == (0, "Explain\n\nspäte daten\n")
    assert run(ECHO, "-p", "Explain", data=b"")[:2] == (0, "Explain\n")


def test_a_dash_reads_the_prompt_to_its_end(run) -> None:
    assert run(ECHO, "-p", "-", data=b"all of\nit\n")[:2] == (0, "all of\nit\n")
    code, _, err = run(ECHO, "-p", "-", data=b"\n")
    assert code == 2 and "empty" in err
    assert run(ECHO, "-p", "-")[0] == 2  # the null device


def test_a_closed_descriptor_is_no_error(run) -> None:
    def close() -> None:
        os.close(0)

    assert run(ECHO, "-p", "Explain", stdin=None, preexec_fn=close)[:2] == (0, "Explain\n")


def test_a_silent_pipe_is_named_with_the_way_out(start) -> None:
    process = start(ECHO, "-p", "Explain", stdin=subprocess.PIPE)
    note = process.stderr.readline().decode()  # within the ten seconds, while the pipe stays open
    assert "nothing arrives" in note and "</dev/null" in note and "--no-stdin" in note
    out, _ = process.communicate(b"late", timeout=SECONDS)
    assert (process.returncode, out) == (0, b"Explain\n\nlate\n")


async def test_a_silent_pipe_is_left_alone_in_the_end() -> None:
    reader, writer = os.pipe()
    said: list[str] = []
    try:
        text = await read_stdin(said.append, whole=False, fd=reader, warn_after_s=0.01, give_up_after_s=0.02)
        assert text == "" and len(said) == 2 and "going on" in said[1]
        assert os.get_blocking(reader)  # others may share it
    finally:
        os.close(reader)
        os.close(writer)


async def test_a_pipe_that_has_spoken_is_read_to_its_end() -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b"one ")
        reading = asyncio.create_task(read_stdin(pytest.fail, whole=False, fd=reader, warn_after_s=5.0))
        await asyncio.sleep(0)
        os.write(writer, b"two")
        os.close(writer)
        assert await reading == "one two"
    finally:
        os.close(reader)


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"a\0b"])
def test_data_that_is_no_text_is_refused(run, data: bytes) -> None:
    code, out, err = run(ECHO, "-p", "x", data=data)
    assert (code, out) == (2, "") and "text" in err


def test_attachments_stand_under_their_names(run, tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.md"
    one.write_text("x = 1\n")
    two.write_text("```\ncode\n```\n")
    code, out, _ = run(ECHO, "-p", "Read", "-a", str(one), str(two))
    assert code == 0
    assert out == f"Read\n\n{one}:\n```\nx = 1\n```\n\n{two}:\n````\n```\ncode\n```\n````\n"
    code, _, err = run(ECHO, "-p", "Read", "-a", str(tmp_path / "none"))
    assert code == 2 and "none" in err


def test_the_parts_of_a_message() -> None:
    assert message("p", [], "") == "p"
    assert message("", [], "data\n") == "data"
    with pytest.raises(UsageError):
        message(" ", [], "\n")


def test_options_reach_the_engine(run) -> None:
    _, out, _ = run(
        says("a b c d e f", m=[4], a=[3]), "-p", "x", "--output", "jsonl", "--seed", "5", "--max-tokens", "3",
        "--temperature", "0", "--sampling", "top_k=7", "top_p=0.5", "--spec", "2", "-s", "Be brief.",
    )  # fmt: skip
    events = [json.loads(line) for line in out.splitlines()]
    start = next(event for event in events if event["type"] == "turn.start")
    sampling = start["sampling"]
    assert (sampling["seed"], sampling["max_tokens"], sampling["temperature"]) == (5, 3, 0.0)
    assert (sampling["top_k"], sampling["top_p"], start["spec"]) == (7, 0.5, "2")
    assert max(m for event in events if event["type"] == "decode" for m in event["m"]) == 2
    assert next(event for event in events if event["type"] == "turn.end")["stop"] == "length"
    assert SessionStore_messages()[0] == ("system", "Be brief.")


def SessionStore_messages() -> list[tuple[str, str]]:
    session = SessionStore(paths().sessions).open("last", readonly=True)
    return [(part.role, part.content) for part in session.messages()]


def test_a_session_goes_on(run) -> None:
    code, out, _ = run(says("first reply"), "-p", "first", "--output", "json")
    session = json.loads(out)["session"]
    assert run(says("second reply"), "-p", "second", "-c")[0] == 0
    assert run(says("third reply"), "-p", "third", "-r", session)[0] == 0
    said = [content for _, content in SessionStore_messages()]
    assert said == ["first", "first reply", "second", "second reply", "third", "third reply"]
    code, out, err = run(says("x"), "-p", "x", "-r", "nothing-like-it", "--output", "json")
    assert code == 3 and "nothing-like-it" in err
    assert json.loads(out)["error"]["code"] == "session"


def test_private_leaves_nothing(run, lingchat_home: Path) -> None:
    code, out, _ = run(says("secret"), "-p", "x", "--output", "json", env={"LINGCHAT_PRIVATE": "1"})
    assert (code, json.loads(out)["session"], json.loads(out)["run"]) == (0, None, None)
    assert [path for path in lingchat_home.rglob("*.jsonl")] == []


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        ({"code": "context_overflow", "message": "too long by 7", "at": -1}, 9),
        ({"code": "template", "message": "template broke", "at": 0}, 4),
        ({"code": "disk", "message": "disk full", "at": 1}, 1),
    ],
)
def test_failures_have_their_exit_code_and_json_says_what(run, failure: dict[str, Any], expected: int) -> None:
    code, out, err = run(says("some words", failure=failure), "-p", "x", "--output", "json")
    result = json.loads(out)
    assert code == expected
    assert result["status"] == "error" and result["error"] == {"code": failure["code"], "message": failure["message"]}
    assert failure["message"] in err
    assert bool(result["text"]) == (failure["at"] > 0)


def test_a_model_that_cannot_be_had_is_told_at_once_though_a_pipe_is_silent(start) -> None:
    script = {"load_failure": {"code": "fetch", "message": "no network", "at": 0}}
    process = start(script, "-p", "x", "--output", "json", stdin=subprocess.PIPE)
    result = json.loads(process.stdout.read())
    assert process.wait(SECONDS) == 4
    assert result["error"] == {"code": "fetch", "message": "no network"} and result["timings"] is None


def test_a_crash_keeps_what_was_said(run) -> None:
    code, out, err = run(says("some words and more", crash=2), "-p", "x")
    assert code == 4 and out.startswith("some") and "died" in err
    assert SessionStore_messages()[-1][1].startswith("some")


def test_jsonl_ends_with_the_error_and_the_runs_end(run) -> None:
    _, out, _ = run(
        {"load_failure": {"code": "fetch", "message": "no network", "at": 0}}, "-p", "x", "--output", "jsonl"
    )
    error, end = (json.loads(line) for line in out.splitlines()[-2:])
    assert (error["type"], error["code"]) == ("error", "fetch")
    assert (end["type"], end["status"], end["exit"]) == ("run.end", "error", 4)


def test_the_time_limit(run) -> None:
    code, out, err = run(HANGS, "-p", "x", "--timeout", "0.5", "--output", "json")
    result = json.loads(out)
    assert code == 124 and result["error"]["code"] == "timeout" and result["text"].startswith("some")
    assert "0.5 s" in err


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)],
)
def test_signals_keep_the_partial_text(start, number: signal.Signals, expected: int) -> None:
    process = start(HANGS, "-p", "x")
    assert process.stdout.read(4) == b"some"
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == expected and b"Traceback" not in err
    role, content = SessionStore_messages()[-1]
    assert role == "assistant" and content == "some" + out.decode().rstrip("\n")
    (stored,) = list_runs()
    events = list(read_trace(stored.path))
    assert [event.stop for event in events if isinstance(event, ev.TurnEnd)] == ["cancel"]
    assert isinstance(events[-1], ev.RunEnd) and events[-1].exit == expected


def test_a_signal_while_the_model_loads(start) -> None:
    process = start({"load": [{"phase": "download", "ms": 3_600_000, "total_bytes": 98_000_000}]}, "-p", "x")
    assert b"downloading" in process.stderr.readline()  # one plain line, since this is no terminal
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == 130


def test_a_reader_that_leaves_ends_it_quietly(start) -> None:
    process = start(says("word " * 4000), "-p", "x")
    assert process.stdout.read(4) == b"word"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(SECONDS) == 141


def test_a_reader_that_has_stopped_does_not_hold_up_signals(start) -> None:
    process = start({"turns": [{"text": "word " * 40_000, "round_ms": 0, "rounds_an_event": 500}]}, "-p", "x")
    assert process.stdout.read(1) == b"w"
    deadline = time.monotonic() + SECONDS
    (folder,) = {run.path for run in wait_for(list_runs, deadline)}
    wait_for(lambda: [event for event in read_trace(folder) if isinstance(event, ev.TurnEnd)], deadline)
    process.send_signal(signal.SIGINT)  # the reply is over; its text still fills the pipe
    assert process.wait(SECONDS) == 130


def wait_for(condition: Callable[[], Any], deadline: float) -> Any:
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition never came true"
        os.sched_yield()
    return found


def test_what_was_said_before_a_silence_is_on_the_disk_though_nothing_follows(start) -> None:
    process = start(HANGS, "-p", "x", "--output", "jsonl")
    deadline = time.monotonic() + SECONDS

    def in_trace() -> bool:
        return any(isinstance(event, ev.Text) and event.delta for run in list_runs() for event in read_trace(run.path))

    def in_session() -> bool:
        return any(b"some" in file.read_bytes() for file in paths().sessions.glob("*.jsonl"))

    wait_for(in_trace, deadline)
    wait_for(in_session, deadline)
    # The silence itself is an event, in the trace and in the lines alike.
    lines = iter(process.stdout.readline, b"")
    assert next(line for line in lines if json.loads(line)["type"] == "stall")
    wait_for(
        lambda: any(isinstance(event, ev.Stall) for run in list_runs() for event in read_trace(run.path)), deadline
    )
    process.kill()
    role, content = SessionStore_messages()[-1]
    assert (role, content) == ("assistant", "some words")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error(run) -> None:
    with open("/dev/full", "wb") as full:
        code, _, err = run(says("text"), "-p", "x", stdout=full)
    assert code == 1 and "No space left" in err


# ---------------------------------------------------------------- terminals


def on_terminal(start: Start, script: dict[str, Any], *arguments: str, **env: str) -> tuple[int, str]:
    """Run with standard output and error on a terminal; the exit code and everything written there."""
    outer, inner = pty.openpty()
    process = start(script, *arguments, stdout=inner, stderr=inner, env={"TERM": "xterm-256color", **env})
    os.close(inner)
    seen = b""
    try:
        while block := os.read(outer, 4096):
            seen += block
    except OSError:
        pass  # the other end is closed
    os.close(outer)
    return process.wait(SECONDS), seen.decode()


def test_control_characters_of_the_model_do_not_reach_a_terminal(start, run) -> None:
    script = says("a\x1b]0;title\x07b")
    code, seen = on_terminal(start, script, "-p", "x")
    assert code == 0 and "\x1b" not in seen and "\x07" not in seen
    assert run(script, "-p", "x")[1] == "a\x1b]0;title\x07b\n"  # a file gets what the model wrote


def test_errors_are_coloured_on_a_terminal_unless_told_otherwise(start) -> None:
    script = {"load_failure": {"code": "fetch", "message": "no network", "at": 0}}
    assert "\x1b[31m" in on_terminal(start, script, "-p", "x")[1]
    assert "\x1b" not in on_terminal(start, script, "-p", "x", NO_COLOR="1")[1]
    assert "\x1b" not in on_terminal(start, script, "-p", "x", TERM="dumb")[1]
    assert "\x1b" not in on_terminal(start, script, "-p", "x", "--color", "never")[1]


class Screen:
    def __init__(self, terminal: bool) -> None:
        self.text = ""
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def fileno(self) -> int:
        raise ValueError

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def test_progress_redraws_on_a_terminal_and_is_one_line_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    fetch = [ev.Engine(t_ns=n, phase="download", model="m", done_bytes=n, total_bytes=10**7) for n in (0, 10**6, 10**7)]
    ready = ev.Engine(t_ns=10**9, phase="ready")
    terminal, log = Screen(True), Screen(False)
    for screen in (terminal, log):
        notes = Notes("auto", screen)
        for event in (*fetch, ready):
            notes.engine(event)
    assert terminal.text.count("\n") == 0 and "1.0 of 10.0 MB" in terminal.text
    assert terminal.text.endswith("\r") and terminal.text.rstrip("\r").endswith(" ")  # the line is taken away
    assert log.text == "lingchat: downloading m (10 MB)\n"
