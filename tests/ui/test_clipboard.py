"""Copying: the sequence a terminal gets, wrapped for multiplexers, and what is never copied as it is."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

from lingchat.ui.clipboard import clean, osc52, run_tool, system_tool


def test_plain_and_wrapped_sequences() -> None:
    payload = base64.b64encode("grüße".encode()).decode()
    assert osc52("grüße", {}) == f"\x1b]52;c;{payload}\x07"
    assert osc52("grüße", {"TMUX": "/tmp/x"}) == f"\x1bPtmux;\x1b\x1b]52;c;{payload}\x07\x1b\\"
    screen = osc52("x" * 600, {"TERM": "screen-256color"})
    assert screen is not None
    assert all(part.startswith("\x1bP") and len(part) <= 254 for part in screen.split("\x1b\\") if part)


def test_too_long_for_terminals_is_left_to_the_tool() -> None:
    assert osc52("x" * 100_000, {}) is None


def test_copied_text_cannot_act_on_a_terminal() -> None:
    assert "\x1b" not in clean("a\x1b]0;title\x07b\u202e")
    assert clean("a\tb\nc") == "a\tb\nc"


def test_the_tool_needs_its_display(tmp_path: Path) -> None:
    tool = tmp_path / "xclip"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    assert system_tool({"PATH": str(tmp_path)}) is None
    assert system_tool({"PATH": str(tmp_path), "DISPLAY": ":0"}) == ("xclip", "-selection", "clipboard")


async def test_the_tool_gets_the_text(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert await run_tool(("sh", "-c", f"cat > {out}"), "copied é")
    assert out.read_text() == "copied é"
    assert not await run_tool(("sh", "-c", "exit 3"), "x")
    assert not await run_tool((str(tmp_path / "missing"),), "x")
