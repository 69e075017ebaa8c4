"""The lag meter, and the external editor's file."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_app import running, script

from lingchat.engines.clocks import VirtualClock
from lingchat.engines.scripted import Pause, ScriptTurn
from lingchat.errors import UsageError
from lingchat.ui import lag
from lingchat.ui.editor import edit_text, editor_command
from lingchat.ui.lag import LagMeter


class Loop:
    """An event loop's clock and timers, moved by hand."""

    def __init__(self) -> None:
        self.now = 50.0
        self.timers: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[..., None], *args: object) -> asyncio.TimerHandle:
        self.timers.append(asyncio.TimerHandle(when, call, args, self))  # type: ignore[arg-type]
        return self.timers[-1]

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self.timers.remove(handle)

    def get_debug(self) -> bool:
        return False

    def run(self, late_s: float) -> None:
        """Fire the one timer that is set, so much too late."""
        (timer,) = self.timers
        self.timers.clear()
        self.now = timer.when() + late_s
        timer._run()


def test_a_blocked_loop_is_lag_and_a_free_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    monkeypatch.setattr(lag.asyncio, "get_running_loop", lambda: loop)
    meter = LagMeter()
    assert meter.p95_ms is None
    meter.start()
    meter.start()  # a second time is no second timer
    for _ in range(20):
        loop.run(0.001)
    assert meter.p95_ms == pytest.approx(1.0)
    for _ in range(3):
        loop.run(0.2)  # the loop was held
    assert meter.p95_ms == pytest.approx(200.0)
    for _ in range(lag.WINDOW):
        loop.run(0.0)
    assert meter.p95_ms == pytest.approx(0.0)  # the window forgets
    meter.stop()
    assert not meter.running and not loop.timers


async def test_lag_is_recorded_while_a_reply_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LagMeter, "p95_ms", property(lambda self: 12.5))
    slow = ScriptTurn(text="a b c", pause=Pause(at=1))
    async with running(script(slow), clock=VirtualClock(start_ns=10**12)) as bench:
        await bench.say("hi")
        await bench.until(lambda: bench.app.chat.stats.ui_lag_ms == 12.5)
        await bench.pilot.press("escape")
        await bench.idle()


def editor(folder: Path, body: str) -> list[str]:
    path = folder / "editor"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return [str(path)]


def test_the_editor_gets_the_text_and_a_private_file_that_goes_away(tmp_path: Path) -> None:
    command = editor(
        tmp_path,
        f'cp "$1" {tmp_path}/seen; stat -c %a "$1" > {tmp_path}/mode; echo "$1" > {tmp_path}/name\nprintf "new\\n" > "$1"',
    )
    assert edit_text("old é", command) == "new"
    assert (tmp_path / "seen").read_text() == "old é"
    assert (tmp_path / "mode").read_text().strip() == "600"
    assert not Path((tmp_path / "name").read_text().strip()).exists()


def test_a_failing_editor_changes_nothing(tmp_path: Path) -> None:
    assert edit_text("old", editor(tmp_path, 'echo broken > "$1"; exit 1')) is None


def test_which_editor(tmp_path: Path) -> None:
    editor(tmp_path, "true")
    path = str(tmp_path)
    assert editor_command({"EDITOR": "editor -w", "PATH": path}) == ["editor", "-w"]
    for environ in ({"EDITOR": "gone", "PATH": path}, {"VISUAL": "'", "PATH": path}, {"PATH": path}):
        with pytest.raises(UsageError):
            editor_command(environ)
