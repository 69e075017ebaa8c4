"""What the slash commands do on the chat screen: one method a command, found by its name.

A command answers with a note, a page, or a change the screen shows. What the words are stands in `commands`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from textual.app import SuspendNotSupported

from lingchat.catalog.models import list_models
from lingchat.config_fields import BY_NAME, Invalid
from lingchat.engines.api import Sampling
from lingchat.errors import LingchatError, SessionError, UsageError
from lingchat.stats import NO_DRAFT
from lingchat.ui import tree
from lingchat.ui.commands import Call
from lingchat.ui.editor import edit_text, editor_command
from lingchat.ui.screens.models import ModelsScreen
from lingchat.ui.screens.notice import TextScreen
from lingchat.ui.screens.sessions import SessionsScreen
from lingchat.ui.stats_table import table

if TYPE_CHECKING:
    from lingchat.session import Node, Session
    from lingchat.ui.screens.chat import ChatScreen


def read_sampling(sampling: Sampling, words: str) -> Sampling:
    """`sampling` with `k=v` words applied; `reset` alone gives the defaults. Raises UsageError naming key and value."""
    if words.strip() == "reset":
        return Sampling()
    changes: dict[str, Any] = {}
    known = Sampling.__struct_fields__
    for word in words.split():
        name, equals, value = word.partition("=")
        if not equals or name not in known or name not in BY_NAME:
            raise UsageError(f"{word} is not k=v with k one of {', '.join(known)}.")
        try:
            changes[name] = BY_NAME[name].check(value)
        except Invalid as cause:
            raise UsageError(f"{name}={value} cannot be: it takes {cause}.") from cause
    try:
        return msgspec.structs.replace(sampling, **changes)
    except ValueError as cause:
        raise UsageError(f"{cause}.") from cause


def sampling_text(sampling: Sampling) -> str:
    """`temperature=0.7 top_p=1.0 ...`, as `/sampling` takes it."""
    fields = msgspec.structs.asdict(sampling)
    return " ".join(f"{name}={value}" for name, value in fields.items() if value is not None and value != ())


class Slash:
    """Carries out commands for one chat screen."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._counted_from = 0  # turns up to this one are left out of /stats session

    def run(self, call: Call) -> None:
        """Start a command; its errors become notes."""
        handler: Callable[[str], Any] = getattr(self, f"do_{call.command.name}")
        self._screen.run_worker(self._guarded(handler, call.argument), group="command")

    async def _guarded(self, handler: Callable[[str], Any], argument: str) -> None:
        try:
            result = handler(argument)
            if asyncio.iscoroutine(result):
                await result
        except LingchatError as error:
            self._screen.note(str(error), error=True)
        self._screen.changed()

    # ------------------------------------------------------------------ sessions

    @property
    def _session(self) -> Session:
        session = self._screen.chat.session
        if session is None:
            raise SessionError("Nothing is kept of this chat (private, or a replay), so there is no session.")
        return session

    async def _use(self, session: Session) -> None:
        screen = self._screen
        screen.chat.use(session)
        screen.editing = None
        screen.conversation.clear()
        await screen.reload()
        screen.prompt.focus()

    async def do_new(self, argument: str) -> None:
        screen = self._screen
        if screen.store is None or screen.chat.session is None:
            raise SessionError("Nothing is kept of this chat, so there is no other session: leave and start again.")
        await self._use(screen.store.create())
        screen.note("a new session; /resume goes back")

    async def do_sessions(self, argument: str) -> None:
        screen = self._screen
        if screen.store is None:
            raise SessionError("Nothing is kept of this chat (private, or a replay), so there are no sessions.")

        def chosen(session_id: str | None) -> None:
            if session_id is not None:
                screen.run_worker(self._guarded(self.do_resume, session_id), group="command")

        await screen.app.push_screen(SessionsScreen(screen.store, screen.chat.session, argument), chosen)

    async def do_resume(self, argument: str) -> None:
        screen = self._screen
        if screen.store is None:
            raise SessionError("Nothing is kept of this chat (private, or a replay), so there are no sessions.")
        current = screen.chat.session.id if screen.chat.session is not None else ""
        wanted = argument or next((item.id for item in screen.store.list(20) if item.id != current), None)
        if wanted is None:
            raise SessionError("There is no other session yet.")
        if screen.store.find(wanted) != current:
            await self._use(screen.store.open(wanted))

    def do_rename(self, argument: str) -> None:
        if not argument:
            raise UsageError("/rename TITLE gives this session a title.")
        if self._screen.store is None:
            raise SessionError("Nothing is kept of this chat, so it has no title.")
        self._session.rename(" ".join(argument.split()))

    # ------------------------------------------------------------------ branches

    def _node(self, node_id: str) -> Node:
        node = tree.find(self._session, node_id)
        if node is None:
            raise SessionError("This message is not kept in the session.")
        return node

    def do_edit(self, argument: str) -> None:
        own = [node for node in self._session.path() if node.role == "user"]
        if not own:
            raise UsageError("There is no message of yours to edit yet.")
        try:
            node = own[int(argument) - 1] if argument else own[-1]
        except (ValueError, IndexError) as cause:
            raise UsageError(f"/edit [n]: n is 1 to {len(own)}, the number of your message.") from cause
        self.begin_edit(str(node.id))

    def begin_edit(self, node_id: str) -> None:
        """Put a user message into the prompt; sending it asks again, beside the old one."""
        screen = self._screen
        try:
            node = self._node(node_id)
        except LingchatError as error:
            screen.note(str(error), error=True)
            return
        screen.editing = node
        screen.conversation.action_leave_cursor()
        screen.prompt.put_text(node.content)
        screen.prompt.focus()
        screen.changed()

    def do_regen(self, argument: str) -> None:
        replies = [node for node in self._session.path() if node.role == "assistant"]
        if not replies:
            raise UsageError("There is no reply to write again yet.")
        self.regenerate(str(replies[-1].id))

    def regenerate(self, node_id: str) -> None:
        screen = self._screen
        if screen.turns.busy:
            screen.note("a reply runs: esc stops it", error=True)
        elif not screen.turns.ready:
            screen.note("the engine is not ready", error=True)
        else:
            try:
                node = self._node(node_id)
            except LingchatError as error:
                screen.note(str(error), error=True)
                return
            screen.conversation.action_leave_cursor()
            screen.turns.regenerate(node)

    async def branch(self, node_id: str) -> None:
        """Go on from a message: what came after it stays as another branch."""
        screen = self._screen
        if screen.turns.busy:
            screen.note("a reply runs: esc stops it", error=True)
            return
        try:
            node = self._node(node_id)
            if node.role == "user":
                self.begin_edit(node_id)
                return
            self._session.cut(node)
        except LingchatError as error:
            screen.note(str(error), error=True)
            return
        await screen.reload()
        screen.prompt.focus()
        screen.note("the next message goes on from here; the branch before is kept (‹ › on the message)")

    async def step_sibling(self, node_id: str, step: int) -> None:
        """Show the sibling to the left or right of a message, with what followed it."""
        screen = self._screen
        if screen.turns.busy:
            screen.note("a reply runs: esc stops it", error=True)
            return
        try:
            node = self._node(node_id)
            siblings = self._session.siblings(node)
            place = [sibling.id for sibling in siblings].index(node.id) + step
            if not 0 <= place < len(siblings):
                return
            self._session.select(siblings[place])
        except LingchatError as error:
            screen.note(str(error), error=True)
            return
        await screen.reload()

    # ------------------------------------------------------------------ text

    def do_copy(self, argument: str) -> None:
        screen = self._screen
        if argument:
            code = screen.conversation.code(int(argument)) if argument.isdigit() else None
            if code is None:
                raise UsageError(f"There is no code block {argument}.")
            screen.app.copy_to_clipboard(code)
            screen.note(f"copied code block {argument}")
            return
        replies = [message for message in screen.conversation.messages if message.view.role == "assistant"]
        if not replies:
            raise UsageError("There is no reply to copy yet.")
        screen.app.copy_to_clipboard(replies[-1].text)
        screen.note("copied the last reply")

    def do_editor(self, argument: str) -> None:
        screen = self._screen
        command = editor_command()
        try:
            with screen.app.suspend():
                edited = edit_text(screen.prompt.typed.full, command)
        except SuspendNotSupported as cause:
            raise UsageError("This terminal cannot be given to an editor.") from cause
        if edited is None:
            raise UsageError(f"{command[0]} ended with an error; the prompt is as it was.")
        screen.prompt.put_text(edited)
        screen.prompt.focus()

    def do_private(self, argument: str) -> None:
        history = self._screen.history
        if argument not in ("", "on", "off"):
            raise UsageError("/private [on|off]")
        history.private = argument == "on" if argument else not history.private
        said = "what you type is not written into the history" if history.private else "the history is written again"
        self._screen.note(said)

    # ------------------------------------------------------------------ model

    async def do_model(self, argument: str) -> None:
        screen = self._screen
        if argument:
            self._switch(argument)
            return
        rows = await asyncio.to_thread(list_models)

        def chosen(name: str | None) -> None:
            if name is not None:
                self._switch(name)

        await screen.app.push_screen(ModelsScreen(rows, screen.model_name), chosen)

    def _switch(self, name: str) -> None:
        self._screen.turns.restart(name)
        self._screen.note(f"the engine restarts with {name}")

    def do_system(self, argument: str) -> None:
        chat = self._screen.chat
        if argument:
            chat.system = "" if argument == "none" else argument
        self._screen.note(
            f"system message: {chat.system}" if chat.system else "no system message (/system TEXT sets one)"
        )

    def do_sampling(self, argument: str) -> None:
        chat = self._screen.chat
        if argument:
            chat.sampling = read_sampling(chat.sampling, argument)
        self._screen.note(sampling_text(chat.sampling))

    def do_think(self, argument: str) -> None:
        if argument not in ("", "on", "off"):
            raise UsageError("/think [on|off]")
        self._screen.show_reasoning(argument == "on" if argument else None)

    def do_spec(self, argument: str) -> None:
        chat = self._screen.chat
        if argument:
            try:
                chat.spec = BY_NAME["spec"].check(argument)
            except Invalid as cause:
                raise UsageError(f"/spec {argument}: it takes {cause}.") from cause
        said = {"off": NO_DRAFT, "on": "the engine chooses how deep"}
        self._screen.note(f"drafting {chat.spec} ({said.get(str(chat.spec), 'drafts a round, at most')})")

    def do_restart(self, argument: str) -> None:
        self._screen.turns.restart()

    # ------------------------------------------------------------------ figures and app

    def do_stats(self, argument: str) -> None:
        screen = self._screen
        stats = screen.chat.stats
        if argument not in ("", "turn", "session", "reset"):
            raise UsageError("/stats [turn|session|reset]")
        if argument == "reset":
            self._counted_from = max(stats.turns, default=0)
            screen.note("session figures count from here")
            return
        text = table(stats, argument, self._counted_from)
        screen.app.push_screen(TextScreen("latency", text))

    def do_theme(self, argument: str) -> None:
        app = self._screen.app
        name = argument or ("light" if app.current_theme.dark else "dark")
        if not app.set_theme(name):  # type: ignore[attr-defined]
            raise UsageError(f"There is no theme {name}; dark, light and ansi are there, and Textual's own.")
        self._screen.note(f"theme {name}")

    def do_help(self, argument: str) -> None:
        self._screen.action_help()

    def do_quit(self, argument: str) -> None:
        self._screen.app.exit()
