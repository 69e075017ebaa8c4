"""What the slash commands do in line mode: one method a command, found by its name.

A command prints lines. What the words are stands in `commands`, and the chat screen's own versions in `slash`.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from lingchat.chat import Chat
from lingchat.errors import SessionError, UsageError
from lingchat.events import AnyEvent
from lingchat.session import Session, SessionStore
from lingchat.ui import clipboard
from lingchat.ui import command_words as words
from lingchat.ui.commands import COMMANDS, Call
from lingchat.ui.editor import edit_text, editor_command
from lingchat.ui.history import History
from lingchat.ui.sampling_words import read_sampling, read_spec, sampling_text, spec_text

_NOT_KEPT = "Nothing is kept of this chat (it is private), so there are no sessions."
_CODE = re.compile(r"^[ ]{0,3}(`{3,}|~{3,})[^\n]*\n(.*?)^[ ]{0,3}\1[`~]*[ ]*$", re.MULTILINE | re.DOTALL)


class Host(Protocol):
    """The line-mode chat, as far as commands need it."""

    chat: Chat
    history: History
    reasoning_shown: bool
    leaving: bool
    start_text: str  # what the next prompt starts with
    editing: int | None  # the user message that the next text replaces

    def say(self, text: str) -> None:
        """A line of ours."""
        ...

    def load(self, stream: AsyncIterator[AnyEvent]) -> object:
        """Follow an engine that starts."""
        ...

    async def reply(self, stream: AsyncIterator[AnyEvent]) -> None:
        """Print a reply as it comes."""
        ...


class Commands:
    """Carries out commands for one line-mode chat. They run between replies, so none of them meets a running one."""

    def __init__(self, host: Host, store: SessionStore | None) -> None:
        self._host = host
        self._store = store
        self._counted_from = 0  # turns up to this one are left out of /stats

    async def run(self, call: Call) -> None:
        """Raises the command's error."""
        handler: Callable[[str], Awaitable[None] | None] = getattr(self, f"do_{call.command.name}")
        result = handler(call.argument)
        if result is not None:
            await result

    # ------------------------------------------------------------------ sessions

    @property
    def _session(self) -> Session:
        session = self._host.chat.session
        if session is None:
            raise SessionError(_NOT_KEPT)
        return session

    @property
    def _sessions(self) -> SessionStore:
        if self._store is None:
            raise SessionError(_NOT_KEPT)
        return self._store

    def do_new(self, argument: str) -> None:
        self._host.chat.use(self._sessions.create())
        self._host.editing = None
        self._host.say("a new session")

    def do_sessions(self, argument: str) -> None:
        store = self._sessions
        if argument:
            for hit in store.search(argument):
                self._host.say(f"{hit.session}  {hit.title}: {one_line(hit.before + hit.match + hit.after)}")
            return
        for item in store.list(20):
            mark = "*" if item.id == self._session.id else " "
            self._host.say(f"{mark} {item.id}  {item.updated[:16]}  {item.title}")

    def do_resume(self, argument: str) -> None:
        store, current = self._sessions, self._session.id
        wanted = argument or next((item.id for item in store.list(20) if item.id != current), None)
        if wanted is None:
            raise SessionError("There is no other session yet.")
        if wanted != current:
            self._host.chat.use(store.open(wanted))
        self._host.editing = None
        for node in self._session.path()[-4:]:
            self._host.say(f"{node.role}: {node.said}")
        self._host.say(f"in session {self._session.id} {self._session.title}".rstrip())

    def do_rename(self, argument: str) -> None:
        self._session.rename(words.read_title(argument))

    # ------------------------------------------------------------------ branches

    def do_edit(self, argument: str) -> None:
        node = words.message_to_edit(self._session, argument)
        self._host.editing = node.id
        self._host.start_text = node.content
        self._host.say("the next text replaces this message, beside it:")
        if not sys.stdin.isatty():
            self._host.say(node.content)

    async def do_regen(self, argument: str) -> None:
        reply = words.last_reply(self._session, "write again")
        await self._host.reply(self._host.chat.regenerate(reply))

    # ------------------------------------------------------------------ text

    async def do_copy(self, argument: str) -> None:
        text = words.last_reply(self._session, "copy").content
        if argument:
            blocks = [match.group(2) for match in _CODE.finditer(text)]
            try:
                text = blocks[words.read_place(argument) - 1]
            except (ValueError, IndexError) as cause:
                raise UsageError(f"There is no code block {argument} in the last reply.") from cause
        text = clipboard.clean(text)
        tool = clipboard.system_tool()
        if tool is not None and await clipboard.run_tool(tool, text):
            self._host.say("copied")
            return
        sequence = clipboard.osc52(text)
        if sequence is None or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in ("", "dumb"):
            raise UsageError("There is no way to the clipboard here: no tool is installed, and the terminal has none.")
        sys.stdout.write(sequence)
        sys.stdout.flush()
        self._host.say("copied through the terminal")

    def do_editor(self, argument: str) -> None:
        if not sys.stdin.isatty():
            raise UsageError("An editor needs a terminal, and standard input is none.")
        command = editor_command()
        edited = edit_text(argument, command)
        if edited is None:
            raise UsageError(f"{command[0]} ended with an error; nothing was taken.")
        self._host.start_text = edited

    def do_private(self, argument: str) -> None:
        history = self._host.history
        history.private = words.read_switch(argument, history.private, "/private [on|off]")
        self._host.say(words.private_text(history.private))

    # ------------------------------------------------------------------ model

    async def do_model(self, argument: str) -> None:
        if argument:
            self._host.load(self._host.chat.restart(argument))
            return
        from lingchat.catalog.models import list_models

        for row in await asyncio.to_thread(list_models):
            note = f"  cannot run here: {row.why_not}" if row.why_not else ""
            self._host.say(f"{row.name}  ({row.source}){note}")

    def do_system(self, argument: str) -> None:
        chat = self._host.chat
        if argument:
            chat.system = words.read_system(argument)
        self._host.say(words.system_text(chat.system))

    def do_sampling(self, argument: str) -> None:
        chat = self._host.chat
        if argument:
            chat.sampling = read_sampling(chat.sampling, argument)
        self._host.say(sampling_text(chat.sampling))

    def do_think(self, argument: str) -> None:
        self._host.say(words.think(self._host, argument))

    def do_spec(self, argument: str) -> None:
        chat = self._host.chat
        if argument:
            chat.spec = read_spec(argument)
        self._host.say(spec_text(chat.spec))

    def do_restart(self, argument: str) -> None:
        self._host.load(self._host.chat.restart())

    # ------------------------------------------------------------------ figures and app

    def do_stats(self, argument: str) -> None:
        from lingchat.ui.stats_table import table

        stats = self._host.chat.stats
        self._counted_from = words.counted_from(stats, argument, self._counted_from)
        self._host.say(words.RESET_TEXT if argument == "reset" else table(stats, argument, self._counted_from))

    def do_theme(self, argument: str) -> None:
        self._host.say("line mode has no colours; the theme is of the chat screen")

    def do_help(self, argument: str) -> None:
        for command in COMMANDS:
            self._host.say(f"{command.usage:<24} {command.help}")
        self._host.say("enter sends; alt+enter, or a backslash before enter, makes a new line; tab completes a command")

    def do_quit(self, argument: str) -> None:
        self._host.leaving = True


def one_line(text: str) -> str:
    return " ".join(text.split())
