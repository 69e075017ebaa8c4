"""Line mode: the installed command through a pipe, and on terminals good and dumb."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from lingchat.config import paths
from lingchat.events import Decode, Text, TurnStart
from lingchat.session import SessionStore
from lingchat.stats import RunStats
from lingchat.trace import list_runs, read_trace
from lingchat.ui.commands import COMMANDS
from lingchat.ui.plain_commands import Commands
from lingchat.ui.plain_strip import ABOVE, BARS, Spark, strip_line

SECONDS = 20
READY = r"\x1b\[\?25h"  # the cursor is shown once the prompt is drawn
STRIP = re.compile(r"\[.*tok/s · TPOT [\d.]+/[\d.]+/[\d.]+ · TTFT [\d.]+ · .* · ctx .*\]")
# What a terminal of type "dumb" may be sent besides text.
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def script(folder: Path, *turns: dict[str, Any]) -> dict[str, str]:
    file = folder / "script.json"
    file.write_text(json.dumps({"turns": [{"round_ms": 1, "prefill_ms": 1, **turn} for turn in turns]}))
    return {**os.environ, "LINGCHAT_ENGINE": f"scripted:{file}"}


def piped(folder: Path, typed: str, *turns: dict[str, Any], arguments: tuple[str, ...] = ()) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "lingchat", "--plain", *arguments],
        input=typed.encode(),
        capture_output=True,
        timeout=SECONDS,
        env=script(folder, *turns),
    )
    assert b"Traceback" not in done.stderr
    return done.returncode, done.stdout.decode()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., pexpect.spawn]]:
    """`terminal(*turns, term="xterm")` starts line mode on a terminal and waits for its prompt."""
    running: list[pexpect.spawn] = []

    def begin(*turns: dict[str, Any], term: str = "xterm", arguments: tuple[str, ...] = ()) -> pexpect.spawn:
        environ = {**script(tmp_path, *turns), "TERM": term, "PROMPT_TOOLKIT_NO_CPR": "1"}
        command = ["-m", "lingchat", "--plain", *arguments]
        child = pexpect.spawn(
            sys.executable, command, env=environ, timeout=SECONDS, encoding="utf-8", dimensions=(24, 100)
        )
        running.append(child)
        child.expect("is ready")
        return child

    yield begin
    for child in running:
        child.close(force=True)


def said() -> list[tuple[str, str]]:
    session = SessionStore(paths().sessions).open("last", readonly=True)
    return [(node.role, node.content) for node in session.path()]


# ---------------------------------------------------------------- through a pipe


def test_a_conversation_through_a_pipe(tmp_path: Path) -> None:
    code, out = piped(
        tmp_path, "first\nsecond\n", {"text": "one or more"}, {"text": "two or three", "m": [2], "a": [1]}
    )
    assert code == 0
    assert re.search(
        r"> first\none or more\n\[.*no draft.*\]\n> second\ntwo or three\n\[.* · L [12]\.\d\d · .*\]\n", out
    )
    assert len(STRIP.findall(out)) == 2
    assert said() == [
        ("user", "first"),
        ("assistant", "one or more"),
        ("user", "second"),
        ("assistant", "two or three"),
    ]


def test_a_first_prompt_and_an_end_without_a_newline(tmp_path: Path) -> None:
    code, out = piped(tmp_path, "more", {"echo": True}, arguments=("hello",))
    assert code == 0 and "> hello\nhello\n" in out and "> more\nmore\n" in out


def test_control_characters_are_made_visible(tmp_path: Path) -> None:
    _, out = piped(tmp_path, "x\n", {"text": "a\x1b[2Jb"})
    assert "\x1b" not in out and "a␛[2Jb" in out


def test_an_error_is_told_and_is_the_exit_code(tmp_path: Path) -> None:
    broken = {"text": "half of it", "failure": {"code": "template", "message": "the template broke", "at": 1}}
    code, out = piped(tmp_path, "x\ny\n", broken, {"text": "fine"})
    assert code == 4 and "\nerror: the template broke\n" in out and "fine" in out


def test_reasoning_is_folded_until_asked_for(tmp_path: Path) -> None:
    turn = {"reasoning": "deep thought", "text": "42"}
    _, out = piped(tmp_path, "x\n/think show\nx\n", turn)
    folded, shown = out.split("/think show\n")
    note = r"0\.0 s · 3 tokens · [\d.]+ tok/s"
    assert "deep" not in folded
    assert re.search(rf"\[thinking; /think show shows it\]\n\[thought {note}\]\n42\n", folded)
    assert re.search(rf"\[thinking\]\ndeep thought\n\[/thinking {note}\]\n42\n", shown)


def test_thinking_and_its_display_are_two_things(tmp_path: Path) -> None:
    """`on` and `off` are for the model, `show` and `hide` for the reader; alone, the command says how both stand."""
    typed = "/think\n/think off\n/think show\n/think\n/think maybe\n/think auto\n"
    _, out = piped(tmp_path, typed, {"text": "42"})
    assert "the model reasons as it does by itself; reasoning is folded (/think show opens it)" in out
    assert "the model is told to answer at once\n" in out and "reasoning is shown (/think hide folds it)\n" in out
    assert "the model is told to answer at once; reasoning is shown (/think hide folds it)" in out
    assert "error: /think [on|off|auto|show|hide]" in out


def test_a_tool_call_is_a_line_and_nothing_runs_it(tmp_path: Path) -> None:
    calls = [{"name": "look\x1b[2J", "arguments": '{"where": "Paris\\u202e"}'}, {"name": "go"}]
    _, out = piped(tmp_path, "x\n", {"text": "Let me look.", "calls": calls})
    assert 'Let me look.\n[tool call, not run: look␛[2J {"where":"Paris⇄"}]\n[tool call, not run: go]\n[' in out
    session = SessionStore(paths().sessions).open("last", readonly=True)
    assert session.leaf is not None and [call.name for call in session.leaf.calls] == ["look\x1b[2J", "go"]


def test_a_reply_cut_inside_its_reasoning_says_so(tmp_path: Path) -> None:
    code, out = piped(
        tmp_path, "x\n", {"reasoning": "so many thoughts, and no end", "text": "42"}, arguments=("--max-tokens", "3")
    )
    assert code == 0 and "42" not in out
    assert re.search(r"\[thought .* tok/s\]\n\[no answer: the length limit was reached inside the reasoning\]\n", out)


def test_commands_answer(tmp_path: Path) -> None:
    typed = "question\n/system Be kind.\n/sampling top_k=4\n/spec 3\n/rename A title\n/stats\n/sessions\n/help\n/sesions\n//path\n"
    code, out = piped(tmp_path, typed, {"echo": True})
    assert code == 0
    assert "system message: Be kind." in out and "top_k=4" in out and "drafting 3" in out
    assert "TTFT ms" in out and "A title" in out
    assert "did you mean /sessions?" in out
    assert "> //path\n/path\n" in out  # sent as text
    assert ("user", "/sesions") not in said() and ("user", "/path") in said()


def test_new_resume_edit_and_regenerate_keep_everything(tmp_path: Path) -> None:
    typed = "one\n/edit\nuno\n/regen\n/new\nother\n/resume\n"
    code, out = piped(tmp_path, typed, *({"text": f"reply {n}"} for n in range(4)))
    assert code == 0
    store = SessionStore(paths().sessions)
    ids = [row.id for row in store.list()]
    assert len(ids) == 2 and "reply 2" in out.split("/resume\n")[1]
    first = next(s for s in (store.open(i, readonly=True) for i in ids) if s.path()[0].content == "uno")
    own = first.siblings(first.path()[0])
    assert [node.content for node in own] == ["one", "uno"]
    assert [node.content for node in first.children(own[1].id)] == ["reply 1", "reply 2"]


def test_every_command_is_there() -> None:
    assert [command.name for command in COMMANDS if not hasattr(Commands, f"do_{command.name}")] == []


def test_an_engine_that_cannot_start_leaves_a_prompt(tmp_path: Path) -> None:
    file = tmp_path / "script.json"
    file.write_text('{"load_failure": {"code": "fetch", "message": "no network", "at": 0}}')
    done = subprocess.run(
        [sys.executable, "-m", "lingchat", "--plain"],
        input=b"hello\n/restart\nagain\n/help\n",
        capture_output=True,
        timeout=SECONDS,
        env={**os.environ, "LINGCHAT_ENGINE": f"scripted:{file}"},
    )
    out = done.stdout.decode()
    assert done.returncode == 4 and out.count("error: no network") == 2 and "/restart" in out
    assert b"Traceback" not in done.stderr


def test_what_was_said_before_a_silence_is_on_the_disk_though_nothing_follows(terminal) -> None:
    child = terminal({"text": "word word word", "pause": {"at": 2, "ms": None}})
    child.sendline("go")
    child.expect("word")
    deadline = time.monotonic() + SECONDS

    def traced() -> str:
        events = [event for run in list_runs() for event in read_trace(run.path)]
        return "".join(event.delta for event in events if isinstance(event, Text))

    while traced() != "word word" or said()[-1] != ("assistant", "word word"):
        assert time.monotonic() < deadline, "the reply never reached the disk"
        os.sched_yield()
    child.kill(signal.SIGKILL)
    child.wait()


def test_a_closed_output_ends_it_quietly(tmp_path: Path) -> None:
    environ = script(tmp_path, {"text": "word " * 2000})
    command = f"yes | {sys.executable} -m lingchat --plain | head -n 3 >/dev/null; exit ${{PIPESTATUS[1]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=SECONDS, env=environ)
    assert done.returncode == 141 and b"Traceback" not in done.stderr


# ---------------------------------------------------------------- on a terminal


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_typing_and_an_answer(terminal, term: str) -> None:
    child = terminal({"text": "the answer"}, term=term)
    child.sendline("a question")
    child.expect("the answer")
    child.expect(r"tok/s · TPOT")
    if term == "dumb":
        child.sendline("/quit")
    else:
        child.expect(READY)
        child.sendeof()
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0 and said()[0] == ("user", "a question")


def test_a_dumb_terminal_gets_no_control_characters(terminal) -> None:
    child = terminal({"text": "the answer"}, term="dumb")
    child.logfile_read = log = _Log()
    child.sendline("hello")
    child.expect("ctx")
    child.sendline("/quit")
    child.expect(pexpect.EOF)
    assert CONTROL.findall(log.text.replace("\r", "")) == [] and not set(log.text) & set(BARS)


class _Log:
    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_ctrl_c_stops_a_reply_and_a_second_leaves(terminal) -> None:
    endless = {"text": "word word word", "pause": {"at": 2, "ms": None}}
    child = terminal(endless)
    child.sendline("go")
    child.expect("word")
    child.sendintr()
    child.expect("stopped")
    child.expect(READY)
    child.sendline("go on")
    child.expect("word")
    child.sendintr()
    child.expect(READY)
    child.sendintr()
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 130


def test_a_reply_stopped_before_its_first_token_says_so(terminal) -> None:
    child = terminal({"text": "word", "pause": {"at": 0, "ms": None}})
    child.sendline("go")
    deadline = time.monotonic() + SECONDS
    while not list_runs() or not any(isinstance(event, TurnStart) for event in read_trace(list_runs()[0].path)):
        assert time.monotonic() < deadline, "the turn never began"
        os.sched_yield()
    child.sendintr()
    child.expect(r"\[stopped\]")
    child.expect(READY)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("busy", [False, True])
def test_signals_leave_a_sane_terminal(terminal, number: signal.Signals, busy: bool) -> None:
    child = terminal({"text": "word word word", "pause": {"at": 2, "ms": None}})
    child.expect(READY)
    if busy:
        child.sendline("go")
        child.expect("word")
    child.kill(number)
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 128 + number
    if busy:
        assert said()[-1][1].startswith("word")


def test_tab_completes_a_command_and_history_is_shared(terminal) -> None:
    child = terminal({"echo": True})
    child.sendline("remember me")
    child.expect("ctx")
    child.expect(READY)
    child.send("/syst\t")
    child.expect("/system")
    child.send("\x15")  # clears the line
    child.send("\x1b[A")
    child.expect("remember me")
    child.send("\r")
    child.expect("ctx")
    assert "remember me" in paths().history.read_text()
    assert [content for role, content in said() if role == "user"] == ["remember me", "remember me"]


def test_a_backslash_before_enter_makes_a_new_line(terminal) -> None:
    child = terminal({"text": "fine"})
    child.expect(READY)
    child.send("one\\\rtwo\r")
    child.expect("fine")
    child.expect("ctx")
    assert said()[0] == ("user", "one\ntwo")


# ---------------------------------------------------------------- the strip


def test_the_strip_keeps_a_spike_and_stays_small() -> None:
    run, spark = RunStats(), Spark()
    for place in range(5000):
        dt = 400_000 if place == 2500 else 4_000
        decode = Decode(t_ns=0, turn=1, t0_ns=place * 10_000_000, dt_us=(dt,), k=(1,), m=(0,), a=(0,))
        run.add(decode)
        spark.add(decode)
    picture = spark.text(run.turns[1], width=24)
    assert len(picture) <= 24 and picture.count(ABOVE) == 1 and set(picture) <= {ABOVE, *BARS}
    assert len(spark._ms) < 2048
    assert re.match(r"[\d.]+ tok/s · TPOT 4\.\d+/.* · TTFT – · no draft · ctx –$", strip_line(run, run.turns[1], ""))
