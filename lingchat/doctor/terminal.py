"""What the terminal is and can do: by its own answers where it can be asked, by its name where it cannot.

A question is written to the terminal itself, never to standard output, and ends with one that every terminal answers,
so that no answer means no terminal rather than a guess. Knows nothing of screens.
"""

from __future__ import annotations

import locale
import os
import re
import select
import shutil
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Mapping
from typing import Any

ANSWER_S = 1.0  # over a slow link; a local terminal answers in a millisecond
SMALLEST = (40, 12)  # columns and lines of the smallest chat screen

# Kitty's keyboard protocol, synchronised output, and last the question every terminal answers (device attributes).
_QUESTION = b"\x1b[?u\x1b[?2026$p\x1b[c"
_LAST_ANSWER = re.compile(rb"\x1b\[\?[\d;]*c")

# Terminals that take a clipboard text by OSC 52 as they come, that want a setting first, and that do not at all.
_OSC52 = {
    "kitty": "yes",
    "WezTerm": "yes",
    "ghostty": "yes",
    "foot": "yes",
    "alacritty": "yes",
    "WindowsTerminal": "yes",
    "vscode": "yes",
    "iTerm.app": "after allowing it in its settings (General, Selection)",
    "xterm": "after allowing it (resource disallowedWindowOps)",
    "Apple_Terminal": "no",
    "vte": "no",
}


def facts(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Terminal facts by name. `keyboard_protocol` and `synchronized_output` are None where nobody could be asked."""
    inside = "tmux" if environment.get("TMUX") else "screen" if environment.get("STY") else ""
    program = _program(environment)
    size = _size()
    answers = ask() if sys.stdout is not None and sys.stdout.isatty() else None
    return {
        "stdin": _is_terminal(0),
        "stdout": _is_terminal(1),
        "TERM": environment.get("TERM", ""),
        "COLORTERM": environment.get("COLORTERM", ""),
        "program": program,
        "version": environment.get("TERM_PROGRAM_VERSION", ""),
        "colors": colors(environment),
        "inside": inside,
        "ssh": bool(environment.get("SSH_TTY") or environment.get("SSH_CONNECTION")),
        "columns": size[0],
        "lines": size[1],
        "encoding": getattr(sys.stdout, "encoding", "") or "",
        "locale": locale.setlocale(locale.LC_CTYPE),
        "keyboard_protocol": None if answers is None else bool(re.search(rb"\x1b\[\?\d+u", answers)),
        "synchronized_output": None if answers is None else bool(re.search(rb"\x1b\[\?2026;[1-3]\$y", answers)),
        "osc52": tmux_clipboard() if inside == "tmux" else _OSC52.get(program, "unknown"),
        "escape_time_ms": tmux_escape_time() if inside == "tmux" else 0,
    }


def colors(environment: Mapping[str, str]) -> str:
    if environment.get("NO_COLOR"):
        return "none (NO_COLOR)"
    term = environment.get("TERM", "")
    if term in ("", "dumb"):
        return "none"
    if environment.get("COLORTERM", "").lower() in ("truecolor", "24bit") or term.endswith("-direct"):
        return "16 million"
    return "256" if "256color" in term or "kitty" in term else "16"


def _program(environment: Mapping[str, str]) -> str:
    """The terminal's name; inside a multiplexer that of the terminal it was started from, where it is told."""
    said = environment.get("TERM_PROGRAM", "")
    for variable, name in (
        ("KITTY_WINDOW_ID", "kitty"),
        ("WEZTERM_PANE", "WezTerm"),
        ("GHOSTTY_RESOURCES_DIR", "ghostty"),
        ("ALACRITTY_WINDOW_ID", "alacritty"),
        ("WT_SESSION", "WindowsTerminal"),
        ("VTE_VERSION", "vte"),
    ):
        if environment.get(variable) and said in ("", "tmux", name):
            return name
    if said:
        return said
    term = environment.get("TERM", "")
    return next((name for name in ("kitty", "foot", "alacritty", "xterm") if term.startswith(name)), term)


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def _size() -> tuple[int, int]:
    for fd in (1, 2, 0):
        try:
            columns, lines = os.get_terminal_size(fd)
            return columns, lines
        except OSError:
            continue  # this one is no terminal
    return 0, 0


def ask(answer_s: float = ANSWER_S) -> bytes | None:
    """The terminal's answers; None when there is none to ask, or it does not answer in time. Restores its modes."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None  # no terminal is attached to this process
    try:
        modes = termios.tcgetattr(terminal)
        try:
            tty.setcbreak(terminal, termios.TCSANOW)
            os.write(terminal, _QUESTION)
            return _answers(terminal, time.monotonic() + answer_s)
        finally:
            termios.tcsetattr(terminal, termios.TCSAFLUSH, modes)  # drops what came too late, too
    except (OSError, termios.error):
        return None  # a background job may not speak to its terminal
    finally:
        os.close(terminal)


def _answers(terminal: int, end: float, clock: Callable[[], float] = time.monotonic) -> bytes | None:
    said = b""
    while not _LAST_ANSWER.search(said):
        left = end - clock()
        if left <= 0 or not select.select([terminal], [], [], left)[0]:
            return None
        data = os.read(terminal, 4096)
        if not data:
            return None
        said += data
    return said


def tmux_clipboard() -> str:
    """tmux passes OSC 52 of its programs on only when `set-clipboard` is on."""
    said = _tmux("show-options", "-gv", "set-clipboard") or _tmux("show-options", "-sv", "set-clipboard")
    if said in ("on", ""):
        return "yes, through tmux" if said else "unknown"
    return f"no: tmux has set-clipboard {said}"


def tmux_escape_time() -> int:
    """How long tmux holds back Esc, in milliseconds."""
    said = _tmux("show-options", "-sv", "escape-time")
    return int(said) if said.isdigit() else 0


def _tmux(*arguments: str) -> str:
    tool = shutil.which("tmux")
    if tool is None:
        return ""
    try:
        result = subprocess.run((tool, *arguments), capture_output=True, text=True, timeout=5, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""
