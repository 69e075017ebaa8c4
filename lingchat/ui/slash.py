"""What the slash commands do on the chat screen: one method a command, found by its name.

A command answers with a note, a page, or a change the screen shows. What the words are stands in `commands`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from textual.app import App, SuspendNotSupported

from lingchat.chat import Chat
from lingchat.errors import LingchatError, SessionError, UsageError
from lingchat.session import Node, Session, SessionStore
from lingchat.ui import command_words as words
from lingchat.ui import tree
from lingchat.ui.commands import Call
from lingchat.ui.editor import edit_text, editor_command
from lingchat.ui.history import History
from lingchat.ui.sampling_words import read_sampling, read_spec, sampling_text, spec_text
from lingchat.ui.stats_table import table
from lingchat.ui.turns import Turns
from lingchat.ui.widgets.conversation import Conversation
from lingchat.ui.widgets.prompt import Prompt


class Host(Protocol):
    """What commands need of the screen they act on."""

    chat: Chat
    store: SessionStore | None
    history: History
    turns: Turns
    editing: Node | None
    reasoning_shown: bool  # all reasoning is open, now and in replies to come

    @property
    def app(self) -> App[Any]: ...

    @property
    def conversation(self) -> Conversation: ...

    @property
    def prompt(self) -> Prompt: ...

    @property
    def model_name(self) -> str: ...

    def work(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a command's work while the screen goes on."""

    def note(self, text: str, error: bool = False) -> None:
        """Say something above the prompt."""

    def changed(self) -> None:
        """State changed: what shows it draws itself again."""

    async def reload(self) -> None:
        """Show the session's active branch."""

    def action_help(self) -> None: ...


class Slash:
    """Carries out commands for one chat screen."""

    def __init__(self, screen: Host) -> None:
        self._screen = screen
        self._counted_from = 0  # turns up to this one are left out of /stats session

    def run(self, call: Call) -> None:
        """Start a command; its errors become notes."""
        handler: Callable[[str], Any] = getattr(self, f"do_{call.command.name}")
        self._screen.work(self._guarded(handler, call.argument))

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
                screen.work(self._guarded(self.do_resume, session_id))

        from lingchat.ui.screens.sessions import SessionsScreen

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
        title = words.read_title(argument)
        if self._screen.store is None:
            raise SessionError("Nothing is kept of this chat, so it has no title.")
        self._session.rename(title)

    # ------------------------------------------------------------------ branches

    def _node(self, node_id: str) -> Node:
        node = tree.find(self._session, node_id)
        if node is None:
            raise SessionError("This message is not kept in the session.")
        return node

    def do_edit(self, argument: str) -> None:
        self.begin_edit(str(words.message_to_edit(self._session, argument).id))

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
        self.regenerate(str(words.last_reply(self._session, "write again").id))

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
        history.private = words.read_switch(argument, history.private, "/private [on|off]")
        self._screen.note(words.private_text(history.private))

    # ------------------------------------------------------------------ model

    async def do_model(self, argument: str) -> None:
        screen = self._screen
        if argument:
            self._switch(argument)
            return
        from lingchat.catalog.models import list_models
        from lingchat.ui.screens.models import ModelsScreen

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
            chat.system = words.read_system(argument)
        self._screen.note(words.system_text(chat.system))

    def do_sampling(self, argument: str) -> None:
        chat = self._screen.chat
        if argument:
            chat.sampling = read_sampling(chat.sampling, argument)
        self._screen.note(sampling_text(chat.sampling))

    def do_think(self, argument: str) -> None:
        self._screen.note(words.think(self._screen, argument))

    def do_spec(self, argument: str) -> None:
        chat = self._screen.chat
        if argument:
            chat.spec = read_spec(argument)
        self._screen.note(spec_text(chat.spec))

    def do_restart(self, argument: str) -> None:
        self._screen.turns.restart()

    # ------------------------------------------------------------------ figures and app

    def do_stats(self, argument: str) -> None:
        screen = self._screen
        stats = screen.chat.stats
        self._counted_from = words.counted_from(stats, argument, self._counted_from)
        if argument == "reset":
            screen.note(words.RESET_TEXT)
        else:
            from lingchat.ui.screens.notice import TextScreen

            screen.app.push_screen(TextScreen("latency", table(stats, argument, self._counted_from)))

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
