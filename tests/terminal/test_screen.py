"""The app on an emulated terminal: caret, resizing, silence while idle, no colour when none is wanted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from terminal.emulated import HERE, Emulated


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"turns": [{"tokens": ["word "] * 400, "round_ms": 5}]}))
    return path


@pytest.fixture
def start(script: Path, lingchat_home: Path) -> Iterator[Callable[..., Emulated]]:
    made: list[Emulated] = []

    def begin(size: tuple[int, int] = (80, 24), **env: str) -> Emulated:
        made.append(Emulated([str(HERE / "scripted_chat.py"), str(script)], lingchat_home, size, **env))
        made[-1].until(lambda: made[-1].shows("Ask anything"))
        return made[-1]

    yield begin
    for terminal in made:
        terminal.child.close(force=True)


def test_the_terminals_cursor_stands_on_the_caret(start: Callable[..., Emulated]) -> None:
    terminal = start()
    terminal.child.send("ab日本c")
    terminal.until(lambda: terminal.shows("c"))
    terminal.until(lambda: (terminal.screen.cursor.x, terminal.screen.cursor.y) == (3 + 7, 22))
    terminal.child.send("\x1b[D\x1b[D")
    terminal.until(lambda: terminal.screen.cursor.x == 3 + 4)
    terminal.child.send("\n\n")  # ctrl+j: the prompt grows upwards
    terminal.until(lambda: (terminal.screen.cursor.x, terminal.screen.cursor.y) == (3, 22))


def test_resizing_keeps_the_prompt_on_the_screen(start: Callable[..., Emulated]) -> None:
    terminal = start()
    terminal.child.send("hello\r")
    terminal.until(lambda: terminal.shows("word word"))
    for columns, rows in [(120, 40), (40, 12), (20, 5), (200, 60), (60, 15), (21, 6), (100, 30)] * 2:
        terminal.resize(columns, rows)
        terminal.until(lambda rows=rows: "›" in terminal.screen.display[rows - 2])
    terminal.until(lambda: terminal.shows("ready"))


def test_an_idle_app_writes_nothing(start: Callable[..., Emulated]) -> None:
    terminal = start()
    while terminal.read(0.5):
        pass
    assert terminal.read(2.0) == 0


def test_no_colour_means_none(start: Callable[..., Emulated]) -> None:
    terminal = start(NO_COLOR="1")
    terminal.child.send("hello\r")
    terminal.until(lambda: terminal.shows("ready") and terminal.shows("tok/s"))
    parameters = {int(p) for sgr in re.findall(rb"\x1b\[([\d;]*)m", bytes(terminal.raw)) for p in sgr.split(b";") if p}
    default = {39, 49}
    assert not {p for p in parameters - default if 30 <= p <= 49 or 90 <= p <= 107}, parameters
