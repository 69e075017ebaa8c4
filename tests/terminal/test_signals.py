"""Every way out leaves a sane terminal: signals, an exception, a terminal that goes away, suspend and resume.

A pseudo terminal is driven with pexpect; what the app wrote is read back, and the line discipline is compared.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

HERE = Path(__file__).parent
ALT_ON, ALT_OFF = b"\x1b[?1049h", b"\x1b[?1049l"
# mode, how it is switched on
MODES = {"mouse": "1000", "any motion": "1003", "bracketed paste": "2004", "focus": "1004", "alternate screen": "1049"}


class Terminal:
    """The app on a pseudo terminal."""

    def __init__(self, script: Path, env: dict[str, str]) -> None:
        self.output = bytearray()
        self.gone = False  # the test took the terminal away and saw the process end
        self.child = pexpect.spawn(
            sys.executable, [str(HERE / "scripted_chat.py"), str(script)], env=env, dimensions=(24, 80), timeout=30
        )
        self.before = termios.tcgetattr(self.child.fileno())
        self.child.delaybeforesend = None

    def expect(self, pattern: str) -> None:
        self.child.expect(pattern)
        self.output += self.child.before + self.child.after

    def finish(self) -> int:
        """Wait for the end; the exit code."""
        self.child.expect(pexpect.EOF)
        self.output += self.child.before
        self.child.close()
        return self.child.exitstatus if self.child.exitstatus is not None else -(self.child.signalstatus or 0)

    def assert_sane(self) -> None:
        """Every mode that was switched on was switched off afterwards, and the cursor is on."""
        raw = bytes(self.output)
        assert ALT_ON in raw
        for name, number in MODES.items():
            on, off = raw.rfind(f"\x1b[?{number}h".encode()), raw.rfind(f"\x1b[?{number}l".encode())
            assert off > on, f"{name} is still on"
        assert raw.rfind(b"\x1b[?25h") > raw.rfind(b"\x1b[?25l"), "the cursor is off"
        assert raw.rfind(b"\x1b[<u") > raw.rfind(b"\x1b[>"), "the keyboard protocol is on"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A reply that goes on for a long time."""
    path = tmp_path / "script.json"
    words = [f"word{i} " for i in range(5000)]
    path.write_text(json.dumps({"turns": [{"tokens": words, "round_ms": 5}]}))
    return path


@pytest.fixture
def terminal(script: Path, lingchat_home: Path) -> Iterator[Terminal]:
    env = {**os.environ, "TERM": "xterm-256color", "LINGCHAT_HOME": str(lingchat_home)}
    env.pop("NO_COLOR", None)
    found = Terminal(script, env)
    yield found
    if not found.gone and found.child.isalive():
        found.child.terminate(force=True)


def begin(terminal: Terminal) -> None:
    """Until the reply streams."""
    terminal.expect("sk anything")
    terminal.child.send("hello\r")
    terminal.expect("word3")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGQUIT, 131), (signal.SIGINT, 130)])
@pytest.mark.parametrize("streaming", [False, True], ids=["idle", "streaming"])
def test_a_signal_leaves_a_sane_terminal_and_its_code(
    terminal: Terminal, number: signal.Signals, code: int, streaming: bool
) -> None:
    begin(terminal) if streaming else terminal.expect("sk anything")
    terminal.child.kill(number)
    assert terminal.finish() == code
    terminal.assert_sane()
    assert re.search(rb"code=%d engine=closed" % code, terminal.output)


def test_hangup_ends_the_app(terminal: Terminal) -> None:
    terminal.expect("sk anything")
    terminal.child.kill(signal.SIGHUP)
    assert terminal.finish() == 129
    terminal.assert_sane()


def test_a_terminal_that_goes_away_ends_the_app(terminal: Terminal) -> None:
    begin(terminal)
    pid = terminal.child.pid
    os.close(terminal.child.fileno())
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        time.sleep(0.02)
    else:
        pytest.fail("the app outlived its terminal")
    terminal.gone = True
    assert os.waitstatus_to_exitcode(status) == 129


def test_an_error_nobody_caught_leaves_a_sane_terminal(terminal: Terminal) -> None:
    terminal.expect("sk anything")
    terminal.child.send("\x1bOS")  # F4, which the script makes fail
    assert terminal.finish() == 1
    terminal.assert_sane()
    assert b"planned failure" in terminal.output[terminal.output.rfind(ALT_OFF) :]
    assert b"code=1 engine=closed" in terminal.output


def test_a_blocked_app_still_ends_on_a_signal(terminal: Terminal) -> None:
    terminal.expect("sk anything")
    terminal.child.send("\x1b[18~")  # F7, which the script makes block
    terminal.expect("blocking now")
    terminal.child.kill(signal.SIGTERM)
    assert terminal.finish() == 143
    terminal.assert_sane()


def test_line_discipline_is_restored(terminal: Terminal) -> None:
    terminal.expect("sk anything")
    assert termios.tcgetattr(terminal.child.fileno())[3] != terminal.before[3]
    terminal.child.kill(signal.SIGTERM)
    terminal.expect("code=143")
    assert termios.tcgetattr(terminal.child.fileno())[:4] == terminal.before[:4]
    terminal.finish()


def test_suspend_gives_the_terminal_back_and_takes_it_again(terminal: Terminal) -> None:
    terminal.expect("sk anything")
    terminal.child.send("\x1a")
    terminal.expect(re.escape("\x1b[?1049l"))
    deadline = time.monotonic() + 10
    while Path(f"/proc/{terminal.child.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
        assert time.monotonic() < deadline, "the process was not stopped"
        time.sleep(0.01)
    terminal.child.kill(signal.SIGCONT)
    terminal.expect(re.escape("\x1b[?1049h"))
    terminal.expect("sk anything")
    terminal.child.send("/quit\r")
    assert terminal.finish() == 0
    terminal.assert_sane()


def test_a_paste_with_escapes_and_line_ends_is_not_sent(terminal: Terminal) -> None:
    terminal.expect("sk anything")
    terminal.child.send("\x1b[200~one\r\x1b[31mtwo\r" + "x" * 50 + "\r\x1b[201~")
    terminal.expect("xxxx")
    terminal.child.send("\x03\x03\x03")
    assert terminal.finish() == 0
    assert b"word1" not in terminal.output


def test_two_ctrl_c_quit(terminal: Terminal) -> None:
    terminal.expect("sk anything")
    terminal.child.send("\x03")
    terminal.expect("again quits")
    terminal.child.send("\x03")
    assert terminal.finish() == 0
    terminal.assert_sane()
