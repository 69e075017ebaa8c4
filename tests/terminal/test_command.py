"""The installed command on a terminal, whole: `python -m lingchat` with a scripted engine, and with a real one that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from make_endless import write_endless_dense
from terminal.emulated import Emulated

from lingchat.session import Node, SessionStore

COMMAND = [sys.executable, "-m", "lingchat"]
LINUX = pytest.mark.skipif(not Path("/proc").exists(), reason="finds the worker in /proc")
SIZES = [(120, 40), (40, 12), (20, 5), (200, 60), (60, 15), (21, 6), (80, 24)]
MODES = {"mouse": "1000", "bracketed paste": "2004", "alternate screen": "1049"}


@pytest.fixture
def endless(tmp_path: Path) -> str:
    """The variable's value for an engine whose reply goes on for a long time."""
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"turns": [{"tokens": [f"word{i} " for i in range(9000)], "round_ms": 5}]}))
    return f"scripted:{path}"


@pytest.fixture
def brief(tmp_path: Path) -> str:
    path = tmp_path / "brief.json"
    path.write_text(json.dumps({"turns": [{"text": "A short answer."}, {"text": "Another one."}]}))
    return f"scripted:{path}"


@pytest.fixture
def start(lingchat_home: Path) -> Iterator[Callable[..., Emulated]]:
    made: list[Emulated] = []

    def begin(*arguments: str, size: tuple[int, int] = (80, 24), **env: str) -> Emulated:
        made.append(Emulated(["-m", "lingchat", *arguments], lingchat_home, size, **env))
        made[-1].until(lambda: made[-1].shows("Ask anything"))
        return made[-1]

    yield begin
    for terminal in made:
        terminal.child.close(force=True)


def messages(home: Path) -> list[Node]:
    """The last session's branch, as it is on the disk."""
    store = SessionStore(home / "data" / "sessions")
    last = store.last_id()
    return store.open(last, readonly=True).path() if last is not None else []


def wait_for(holds: Callable[[], object], what: Callable[[], str], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)  # between two looks


# ---------------------------------------------------------------------- scripted


def test_typing_sends_and_the_session_keeps_it(start: Callable[..., Emulated], brief: str, lingchat_home: Path) -> None:
    terminal = start(LINGCHAT_ENGINE=brief)
    terminal.send("hello there\r")
    terminal.until(lambda: terminal.shows("A short answer.") and terminal.shows("TTFT"))
    terminal.send("more\r")
    terminal.until(lambda: terminal.shows("Another one."))
    terminal.send("/quit\r")
    assert terminal.finish() == 0
    assert [node.content for node in messages(lingchat_home)] == [
        "hello there",
        "A short answer.",
        "more",
        "Another one.",
    ]


def test_a_paste_never_submits(start: Callable[..., Emulated], brief: str, lingchat_home: Path) -> None:
    terminal = start(LINGCHAT_ENGINE=brief)
    terminal.send("\x1b[200~first\rsecond\r\x1b[201~")
    terminal.until(lambda: terminal.shows("second"))
    terminal.send("\x1b[200~" + "".join(f"line {i}\r" for i in range(40)) + "\x1b[201~")
    terminal.until(lambda: terminal.shows("[pasted 4"))
    terminal.send("typed after")
    terminal.until(lambda: terminal.shows("typed after"))
    assert not messages(lingchat_home)
    terminal.send("\r")
    terminal.until(lambda: terminal.shows("A short answer."))
    terminal.send("/quit\r")
    assert terminal.finish() == 0
    text = messages(lingchat_home)[0].content
    assert text.startswith("first\nsecond\n") and "line 39" in text and text.endswith("typed after")


def test_resizing_down_to_nothing_and_back_while_it_streams(start: Callable[..., Emulated], endless: str) -> None:
    terminal = start(LINGCHAT_ENGINE=endless)
    terminal.send("go\r")
    terminal.until(lambda: terminal.shows("word2"))
    for columns, rows in SIZES * 2:
        terminal.resize(columns, rows)
        terminal.until(lambda rows=rows: "›" in terminal.screen.display[rows - 2])
    terminal.send("still typing")
    terminal.until(lambda: terminal.shows("still typing"))
    terminal.send("\x1b")
    terminal.until(lambda: terminal.shows("ready"))


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131), (signal.SIGINT, 130)],
)
def test_a_signal_while_it_streams_keeps_the_text_and_the_terminal(
    start: Callable[..., Emulated], endless: str, lingchat_home: Path, number: signal.Signals, code: int
) -> None:
    terminal = start(LINGCHAT_ENGINE=endless)
    terminal.send("go\r")
    terminal.until(lambda: terminal.shows("word9"))
    terminal.child.kill(number)
    assert terminal.finish() == code
    raw = bytes(terminal.raw)
    for name, mode in MODES.items():
        assert raw.rfind(f"\x1b[?{mode}l".encode()) > raw.rfind(f"\x1b[?{mode}h".encode()), f"{name} is still on"
    assert raw.rfind(b"\x1b[?25h") > raw.rfind(b"\x1b[?25l"), "the cursor is off"
    reply = messages(lingchat_home)[1]
    assert reply.content.startswith("word0 word1 ") and reply.stop == "cancel"


class Tmux:
    """A tmux server of this test's own, with one window of a shell that runs the command."""

    def __init__(self, tmux: str, folder: Path, command: str) -> None:
        self._base = [tmux, "-L", f"lingchat-test-{os.getpid()}", "-f", os.devnull]
        self.run("new-session", "-d", "-x", "100", "-y", "30", "-c", str(folder), f"{command}; echo code=$?; cat")
        self.run("set-option", "-g", "status", "off")
        self.run("resize-window", "-x", "100", "-y", "30")

    def run(self, *words: str, stdin: str = "") -> str:
        env = dict(os.environ)  # not the C library's, into which readline has put the size of no terminal
        command = [*self._base, *words]
        return subprocess.run(command, env=env, input=stdin, capture_output=True, text=True, check=True).stdout

    def text(self) -> str:
        return self.run("capture-pane", "-p")

    def until(self, text: str) -> None:
        wait_for(lambda: text in self.text(), lambda: f"{text} is not on the screen:\n{self.text()}")

    def close(self) -> None:
        subprocess.run([*self._base, "kill-server"], capture_output=True, check=False)


def test_in_tmux_it_types_pastes_resizes_and_leaves_the_pane_sane(
    need_tool: Callable[[str], str], lingchat_home: Path, endless: str, tmp_path: Path
) -> None:
    command = f"env LINGCHAT_HOME={lingchat_home} LINGCHAT_ENGINE={endless} {' '.join(COMMAND)}"
    tmux = Tmux(need_tool("tmux"), tmp_path, command)
    try:
        tmux.until("Ask anything")
        tmux.run("load-buffer", "-", stdin="pasted one\npasted two\n")
        tmux.run("paste-buffer", "-p")
        tmux.until("pasted two")
        tmux.run("send-keys", "and typed")
        tmux.until("and typed")
        assert "word1" not in tmux.text()
        tmux.run("send-keys", "Enter")
        tmux.until("word9")
        for columns, rows in ((40, 12), (20, 5), (120, 40), (100, 30)):
            tmux.run("resize-window", "-x", str(columns), "-y", str(rows))
            wait_for(lambda rows=rows: "›" in (tmux.text().splitlines() + [""] * rows)[rows - 2], tmux.text)
        tmux.run("send-keys", "Escape")
        tmux.until("ready")
        tmux.run("send-keys", "C-d")
        tmux.until("code=0")
        flags = tmux.run("display-message", "-p", "#{alternate_on} #{mouse_any_flag} #{cursor_flag}").split()
        assert flags == ["0", "0", "1"], "alternate screen, mouse, cursor"
        assert messages(lingchat_home)[0].content == "pasted one\npasted two\nand typed"
    finally:
        tmux.close()


# ---------------------------------------------------------------------- a real engine


@pytest.fixture(scope="module")
def model(native_library: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Many thin layers: it babbles for a second or more, so that it can be killed meanwhile."""
    return str(write_endless_dense(tmp_path_factory.mktemp("model") / "endless", layers=24, context=2560))


def options(model: str) -> list[str]:
    return ["-m", model, "--temperature", "0", "--spec", "off", "--threads", "1"]


def worker_of(terminal: Emulated) -> int:
    (worker,) = [
        int(child)
        for task in Path(f"/proc/{terminal.child.pid}/task").glob("*/children")
        for child in task.read_text().split()
    ]
    return worker


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def begin_reply(terminal: Emulated, text: str = "hello") -> int:
    """Ask, and wait until tokens come; the worker's process."""
    terminal.until(lambda: terminal.shows("ready"))
    terminal.send(f"{text}\r")
    terminal.until(lambda: terminal.shows("decoding"))
    return worker_of(terminal)


@LINUX
def test_a_killed_worker_is_an_error_and_restart_brings_it_back(
    start: Callable[..., Emulated], model: str, lingchat_home: Path
) -> None:
    terminal = start(*options(model))
    worker = begin_reply(terminal)
    os.kill(worker, signal.SIGKILL)
    terminal.until(lambda: terminal.shows("SIGKILL") and terminal.shows("engine stopped"))
    reply = messages(lingchat_home)[1]
    assert reply.stop == "error" and reply.content, "the partial reply is lost"
    terminal.send("/restart\r")
    terminal.until(lambda: terminal.shows("ready"))
    assert worker_of(terminal) != worker and gone(worker)
    terminal.send("hi again\r")
    terminal.until(lambda: len(messages(lingchat_home)) == 4 and messages(lingchat_home)[3].stop in ("eos", "length"))
    terminal.until(lambda: terminal.shows("ready"))
    terminal.send("/quit\r")
    assert terminal.finish() == 0


@LINUX
def test_a_hung_worker_is_ended_by_restart(start: Callable[..., Emulated], model: str, lingchat_home: Path) -> None:
    terminal = start(*options(model))
    worker = begin_reply(terminal)
    os.kill(worker, signal.SIGSTOP)
    try:
        terminal.send("\x1b")
        terminal.until(lambda: terminal.shows("stopping"))
        terminal.send("/restart\r")
        terminal.until(lambda: gone(worker))
        terminal.until(lambda: terminal.shows("ready"))
        terminal.send("hi again\r")
        terminal.until(
            lambda: len(messages(lingchat_home)) == 4 and messages(lingchat_home)[3].stop in ("eos", "length")
        )
    finally:
        if not gone(worker):
            os.kill(worker, signal.SIGKILL)


@LINUX
def test_the_worker_ends_with_a_front_end_that_is_killed(
    start: Callable[..., Emulated], model: str, lingchat_home: Path
) -> None:
    terminal = start(*options(model))
    worker = begin_reply(terminal)
    terminal.child.kill(signal.SIGKILL)
    wait_for(lambda: gone(worker), lambda: "the worker outlived its front end")
    assert messages(lingchat_home)[1].stop == "interrupted"
