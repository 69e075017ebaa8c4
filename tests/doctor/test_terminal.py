"""What the terminal answers, with a pseudo-terminal whose other end is the test; and tmux's own settings."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

from lingchat.doctor import terminal

ASK = "import sys; from lingchat.doctor.terminal import ask; sys.stdout.write(f'<{ask(float(sys.argv[1]))!r}>')"


def asked(reply: bytes | None, answer_s: str) -> tuple[bytes, bool]:
    """What `ask` gives in a terminal that replies so, and whether the terminal echoes again afterwards."""
    child = pexpect.spawn(sys.executable, ["-c", ASK, answer_s], timeout=30)
    child.expect_exact("\x1b[?u\x1b[?2026$p\x1b[c")
    assert not child.getecho()
    if reply is not None:
        child.send(reply)
    child.expect(b"<(.*)>")
    said: bytes = child.match.group(1)
    echoes = child.getecho()
    child.close()
    return said, echoes


def test_a_terminal_that_answers() -> None:
    said, echoes = asked(b"\x1b[?0u\x1b[?2026;2$y\x1b[?62;4c", "30")
    assert said == repr(b"\x1b[?0u\x1b[?2026;2$y\x1b[?62;4c").encode() and echoes


def test_a_terminal_that_says_nothing() -> None:
    assert asked(None, "0.05") == (b"None", True)


def test_no_terminal_at_all() -> None:
    result = subprocess.run(
        [sys.executable, "-c", ASK, "1"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert result.stdout == "<None>"


@pytest.mark.parametrize(
    ("answers", "keyboard", "synchronized"),
    [(b"\x1b[?1u\x1b[?2026;1$y\x1b[?62c", True, True), (b"\x1b[?2026;0$y\x1b[?1;2c", False, False), (None, None, None)],
)
def test_answers_become_facts(
    monkeypatch: pytest.MonkeyPatch, answers: bytes | None, keyboard: bool | None, synchronized: bool | None
) -> None:
    monkeypatch.setattr(terminal, "ask", lambda: answers)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    found = terminal.facts({"TERM": "xterm-256color"})
    assert (found["keyboard_protocol"], found["synchronized_output"]) == (keyboard, synchronized)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "16 million"),
        ({"TERM": "xterm-256color"}, "256"),
        ({"TERM": "linux"}, "16"),
        ({"TERM": "dumb"}, "none"),
        ({}, "none"),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, "none (NO_COLOR)"),
    ],
)
def test_colors(environment: dict[str, str], expected: str) -> None:
    assert terminal.colors(environment) == expected


@pytest.mark.parametrize(
    ("environment", "program", "osc52"),
    [
        ({"TERM": "xterm-kitty", "KITTY_WINDOW_ID": "1"}, "kitty", "yes"),
        ({"TERM_PROGRAM": "Apple_Terminal", "TERM": "xterm-256color"}, "Apple_Terminal", "no"),
        ({"TERM": "xterm-256color", "VTE_VERSION": "7600"}, "vte", "no"),
        ({"TERM": "vt220"}, "vt220", "unknown"),
    ],
)
def test_programs(environment: dict[str, str], program: str, osc52: str) -> None:
    found = terminal.facts(environment)
    assert found["program"] == program and found["osc52"].startswith(osc52)


def test_in_tmux(tmp_path: Path, need_tool: Callable[[str], str], lingchat_home: Path) -> None:
    """The installed command inside a real tmux, which keeps the clipboard to itself and holds back Esc."""
    tmux = [need_tool("tmux"), "-f", os.devnull, "-S", str(tmp_path / "socket")]
    command = f"{sys.executable} -m lingchat doctor; cat"  # the last one keeps the screen
    environment = {name: value for name, value in os.environ.items() if name != "TMUX"}
    subprocess.run([*tmux, "new-session", "-d", "-x", "100", "-y", "90", "sh"], check=True, env=environment)
    try:
        subprocess.run([*tmux, "set", "-g", "set-clipboard", "off"], check=True)
        subprocess.run([*tmux, "set", "-s", "escape-time", "500"], check=True)
        subprocess.run([*tmux, "respawn-pane", "-k", command], check=True)
        end = time.monotonic() + 60
        screen = ""
        while "Nothing is wrong." not in screen and "Wrong:" not in screen:
            assert time.monotonic() < end, screen
            screen = subprocess.run(
                [*tmux, "capture-pane", "-p", "-J"], capture_output=True, text=True, check=True
            ).stdout
            time.sleep(0.05)
        assert "inside               tmux" in screen
        assert "holds back Esc for 500 ms" in screen
        assert "set-clipboard on" in screen
        assert "keyboard protocol    no" in screen or "keyboard protocol    yes" in screen
        assert "columns              100" in screen
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
