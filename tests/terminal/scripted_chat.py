"""Runs the real app on a scripted engine, for tests that drive a terminal: `python scripted_chat.py SCRIPT.json`.

Prints the exit code of `run_app` after the terminal is back, and whether the engine was closed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import ClassVar

from textual.binding import Binding

from lingchat.chat import Chat
from lingchat.config import load_settings, paths
from lingchat.engines.scripted import Script, ScriptedEngine
from lingchat.session import SessionStore
from lingchat.ui import app as ui
from lingchat.ui.screens.chat import ChatScreen


class Trouble(ChatScreen):
    """F4 raises, F7 blocks the event loop."""

    BINDINGS: ClassVar = [Binding("f4", "fail"), Binding("f7", "block")]

    def action_fail(self) -> None:
        raise RuntimeError("planned failure")

    def action_block(self) -> None:
        os.write(2, b"blocking now")
        time.sleep(600)


def main() -> int:
    ui.ChatScreen = Trouble  # type: ignore[misc]
    engine = ScriptedEngine(Script.read(Path(sys.argv[1])))
    chat = Chat(engine, SessionStore(paths().sessions).create(), None, load_settings({}))
    code = ui.run_app(chat, load_settings({}))
    with contextlib.suppress(OSError):  # the terminal may be gone, which is what a test wants
        os.write(1, f"code={code} engine={engine._state}\n".encode())
    return code


if __name__ == "__main__":
    sys.exit(main())
