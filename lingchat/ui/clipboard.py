"""Copying: OSC 52 through the terminal (also inside tmux and screen), and the system's own tool where there is one.

Text is made visible first, so that a pasted reply cannot act on the terminal it lands in.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
from collections.abc import Mapping

from lingchat.visible import visible

MAX_OSC52 = 100_000  # base64 bytes; several terminals drop longer sequences, xterm's limit is near this
TOOL_TIMEOUT_S = 2.0

_TOOLS: tuple[tuple[tuple[str, ...], str | None], ...] = (
    (("pbcopy",), None),
    (("wl-copy",), "WAYLAND_DISPLAY"),
    (("xclip", "-selection", "clipboard"), "DISPLAY"),
    (("xsel", "--clipboard", "--input"), "DISPLAY"),
)


def osc52(text: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The sequence that asks the terminal to keep `text`, wrapped for a multiplexer; None when it would be too long."""
    payload = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")
    if len(payload) > MAX_OSC52:
        return None
    sequence = f"\x1b]52;c;{payload}\x07"
    if environ.get("TMUX"):
        return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    if environ.get("TERM", "").startswith("screen"):
        return "".join(f"\x1bP{sequence[at : at + 250]}\x1b\\" for at in range(0, len(sequence), 250))
    return sequence


def system_tool(environ: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """The command that fills the system clipboard, if one is installed and its display is there."""
    for command, needs in _TOOLS:
        if (needs is None or environ.get(needs)) and shutil.which(command[0], path=environ.get("PATH")):
            return command
    return None


async def run_tool(command: tuple[str, ...], text: str) -> bool:
    """Hand `text` to the tool; False when it fails or takes too long."""
    null = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=null, stderr=null
        )
    except OSError:
        return False
    try:
        await asyncio.wait_for(process.communicate(text.encode("utf-8", "replace")), TOOL_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return False
    return process.returncode == 0


def clean(text: str) -> str:
    """What is really copied."""
    return visible(text)
