"""Where line mode reads from: a terminal through prompt-toolkit, or anything else line by line.

Knows commands for completion and the history; knows nothing of chats.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Iterable
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import History as ToolkitHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.shortcuts import CompleteStyle

from lingchat.ui.commands import completions
from lingchat.ui.history import History

PROMPT = "> "


class Lines(Protocol):
    async def read(self, start: str = "") -> str | None:
        """The next text, edited from `start`; None at the end. Raises KeyboardInterrupt on ctrl-c."""
        ...


class _Commands(Completer):
    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        for offer in completions(text):
            yield Completion(offer.text, start_position=-len(text), display=offer.label, display_meta=offer.help)


class _Shared(ToolkitHistory):
    """The history of the chat screen: this project's prompts before those of others. The chat writes it."""

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    def load_history_strings(self) -> Iterable[str]:
        return self._history.starting_with("")

    async def load(self) -> AsyncGenerator[str, None]:
        for text in self._history.starting_with(""):  # read anew for each prompt: the chat has added to it
            yield text

    def store_string(self, string: str) -> None:
        pass  # written when the text is taken, since a text from a pipe is remembered too

    def append_string(self, string: str) -> None:
        pass


class TerminalLines:
    """Enter sends; alt+enter, or a backslash before enter, makes a new line; tab completes a command."""

    def __init__(self, history: History) -> None:
        self._history = history

    async def read(self, start: str = "") -> str | None:
        session: PromptSession[str] = PromptSession(
            history=_Shared(self._history),
            completer=_Commands(),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation="  ",
        )
        with patch_stdout(raw=True):
            try:
                return await session.prompt_async(PROMPT, default=start, handle_sigint=False)
            except EOFError:
                return None


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


class PipeLines:
    """Lines of a file or pipe, each printed as it is taken, so that the output reads as a conversation.

    A thread reads them: a pipe that is silent must not hold up signals.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        threading.Thread(target=self._run, name="stdin", daemon=True).start()

    def _run(self) -> None:
        # Not through `sys.stdin`: a thread that waits in it holds a lock that the interpreter needs to end.
        rest = b""
        while block := os.read(0, 1 << 16):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                self._put(line.decode("utf-8", "replace").rstrip("\r"))
        if rest:
            self._put(rest.decode("utf-8", "replace"))
        self._put(None)

    def _put(self, line: str | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    async def read(self, start: str = "") -> str | None:
        line = await self._lines.get()
        if line is not None:
            print(f"{PROMPT}{line}", flush=True)
        return line
