"""The main screen: header, conversation, latency, prompt, status line. It lays out, routes keys, and says what goes on.

Turns run in `turns`, commands in `slash`, sizes come from `layout`; this file connects them with widgets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events, on
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import TextArea

from lingchat import events as ev
from lingchat.config import Settings
from lingchat.errors import DiskError
from lingchat.ui import saying, tree
from lingchat.ui.commands import Call, Command, Say, Unknown, parse
from lingchat.ui.compositor import PartialCompositor
from lingchat.ui.counter import Counter
from lingchat.ui.first_prompts import FIRST_PROMPTS
from lingchat.ui.history import Draft, History
from lingchat.ui.keys import CHAT_KEYS
from lingchat.ui.later import later
from lingchat.ui.layout import Latency, Layout, after, layout
from lingchat.ui.screens.frame import Frame
from lingchat.ui.slash import Slash
from lingchat.ui.turns import Turns, Waiting
from lingchat.ui.widgets.conversation import Conversation
from lingchat.ui.widgets.prompt import Prompt, Typed

if TYPE_CHECKING:
    from lingchat.chat import Chat
    from lingchat.session import Node, SessionStore

TICK_S = 0.1  # as often as what was said is written; only while a reply runs
QUIT_AGAIN_S = 1.5
DRAFT_S = 0.5


class ChatScreen(Screen[None], inherit_bindings=False):
    """One chat on a terminal of any size."""

    AUTO_FOCUS = "#prompt"
    BINDINGS: ClassVar[list[BindingType]] = CHAT_KEYS

    def __init__(
        self,
        chat: Chat,
        settings: Settings,
        store: SessionStore | None,
        history: History,
        draft: Draft,
        *,
        prompts: Sequence[str] = (),
        provenance: str = "live",
        read_only: bool = False,
        clock_ns: Callable[[], int] = ev.now_ns,
    ) -> None:
        """`prompts` are sent first, one after the other; `clock_ns` is the clock of the engine's events."""
        super().__init__()
        self._compositor = PartialCompositor()
        self.chat = chat
        self.settings = settings
        self.store = store
        self.history = history
        self.history.private = settings.private
        self.draft = draft
        self._prompts = prompts
        self._clock_ns = clock_ns
        self.provenance = provenance
        self.read_only = read_only
        self.editing: Node | None = None  # the user message that the prompt's text will replace
        self.turns = Turns(self, chat, lambda work: self.run_worker(work, group="chat"), clock_ns)
        self.slash = Slash(self)
        self.counter = Counter(chat, self.changed, lambda work: self.run_worker(work, group="count", exclusive=True))
        self._wish: Latency | None = None if settings.origins.get("panel", "default") == "default" else settings.panel  # type: ignore[assignment]
        self._quit_until = 0.0
        self._tick: asyncio.TimerHandle | None = None
        self._draft_timer: Timer | None = None

    # ------------------------------------------------------------------ widgets

    def compose(self) -> ComposeResult:
        self._wear(self._shape())  # before there are widgets: each change of a class styles all of them again
        self.frame = Frame(self.history, self._take_back, self.provenance, self._clock_ns, read_only=self.read_only)
        yield from self.frame.compose()

    @property
    def conversation(self) -> Conversation:
        return self.frame.conversation

    @property
    def prompt(self) -> Prompt:
        return self.frame.prompt

    async def on_mount(self) -> None:
        await self.reload()
        text = self.draft.load()
        if text:
            self.prompt.put_text(text)
        self._arrange()
        self.turns.start()
        for prompt in self._prompts:
            self.turns.submit(Typed(prompt, {}))

    def on_unmount(self) -> None:
        self._keep_draft()

    def on_resize(self, event: events.Resize) -> None:
        self._arrange()

    def _shape(self) -> Layout:
        return layout(self.app.size.width, self.app.size.height, self._wish)

    def _wear(self, shape: Layout) -> None:
        self.set_class(shape.tiny, "-tiny")
        self.set_class(shape.flat, "-flat")
        self.set_class(shape.latency == "panel", "-dock")

    def _arrange(self) -> None:
        shape = self._shape()
        self._wear(shape)
        self.frame.arrange(shape)
        self.changed()

    # ------------------------------------------------------------------ what turns ask for

    async def reload(self) -> None:
        """Show the session's active branch."""
        session = self.chat.session
        shown = tree.views(session) if session is not None else []
        await self.conversation.show_turns(shown)
        self.changed()

    def engine_event(self, event: ev.AnyEvent) -> None:
        self.frame.fold(self.chat.stats, event)

    def turn_event(self, event: ev.AnyEvent) -> None:
        self.engine_event(event)
        if isinstance(event, ev.TurnEnd) and self.chat.session is not None:
            tree.name_messages(self.conversation, self.chat.session)

    def asked(self, at_ns: int) -> None:
        self.frame.asked(at_ns)

    def streaming(self, on: bool) -> None:
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        if on:
            self._tick = later(self, TICK_S, self._ticked)
        else:
            self.frame.asked(None)
            if self.chat.session is not None:
                tree.name_messages(self.conversation, self.chat.session)

    def _ticked(self) -> None:
        self._tick = later(self, TICK_S, self._ticked)
        self.turns.tick()

    def note(self, text: str, error: bool = False) -> None:
        """Say something above the prompt until the next thing is sent or esc is pressed; empty text says nothing."""
        if self.is_mounted:
            self.frame.note(text, error)

    def give_back(self, waiting: Waiting) -> None:
        self.prompt.prepend(waiting.typed)
        if waiting.replaces is not None and waiting.session is self.chat.session:
            self.editing = waiting.replaces
            self.changed()

    def _take_back(self) -> Typed | None:
        """The newest text that waits; an edit is an edit again."""
        waiting = self.turns.take_back()
        if waiting is None:
            return None
        if waiting.replaces is not None and waiting.session is self.chat.session:
            self.editing = waiting.replaces
            self.changed()
        return waiting.typed

    def changed(self) -> None:
        """Draw what depends on state: header, status, queue, stall line, welcome. Cheap; equal content repaints nothing."""
        if not self.is_mounted:
            return
        turns = self.turns
        self.frame.draw(turns, self.model_name, self.chat.title)
        activity = saying.activity(
            turns,
            self._clock_ns(),
            editing=self.editing is not None,
            quitting=time.monotonic() < self._quit_until,
            alone=self.frame.shape.tiny,
        )
        hints = saying.hints(turns, private=self.history.private)
        self.frame.say_status(activity, self.counter.text(turns.context), hints)

    @property
    def model_name(self) -> str:
        """The best name known so far."""
        turns = self.turns
        if turns.info is not None:
            return turns.info.name
        return (turns.engine.model if turns.engine is not None else "") or self.settings.model or "default model"

    # ------------------------------------------------------------------ the prompt

    @on(TextArea.Changed, "#prompt")
    def _typed(self) -> None:
        self.counter.changed(self.prompt.typed, self.turns.ready)
        if self._draft_timer is not None:
            self._draft_timer.stop()
        self._draft_timer = self.set_timer(DRAFT_S, self._keep_draft)

    def _keep_draft(self) -> None:
        try:
            self.draft.save(self.prompt.typed.full if not self.history.private else "")
        except DiskError as error:
            self.note(str(error), error=True)

    @on(Prompt.Submitted)
    def _submitted(self, message: Prompt.Submitted) -> None:
        typed = message.typed
        self.note("")
        if not typed.shown.strip():
            self.turns.resume()
            return
        what = parse(typed.full)
        if isinstance(what, Unknown):
            self.note(what.message, error=True)
            self.prompt.prepend(typed)
        elif isinstance(what, Say):
            self._remember(typed)
            full = Typed(what.text, {}) if what.text != typed.full else typed
            editing, self.editing = self.editing, None
            self.turns.submit(full, editing)
        elif self.turns.busy and not what.command.while_busy:
            self.note(f"/{what.command.name} waits for the reply: esc stops it", error=True)
            self.prompt.prepend(typed)
        else:
            self._remember(typed)
            self.slash.run(what)

    def _remember(self, typed: Typed) -> None:
        try:
            self.history.add(typed.full)
        except DiskError as error:
            self.note(str(error), error=True)

    def run_from_palette(self, command: Command) -> None:
        """Run a command picked by name; one that must be told something waits in the prompt."""
        if command.hint and not command.hint.startswith("["):
            self.prompt.put(Typed(f"/{command.name} ", {}))
            self.prompt.focus()
        else:
            self.action_slash(command.name)

    @on(Prompt.EditorWanted)
    def _editor(self) -> None:
        self.slash.run(cast("Call", parse("/editor")))

    # ------------------------------------------------------------------ keys

    def action_escape(self) -> None:
        """List, then message cursor, then editing, then what was said, then the reply."""
        if self.prompt.close_popup():
            return
        if self.conversation.cursor is not None:
            self.conversation.action_leave_cursor()
        elif self.editing is not None:
            self.editing = None
            self.prompt.clear_all()
            self.changed()
        elif self.turns.busy:
            self.turns.stop()
        else:
            self.note("")
            self.clear_selection()

    def action_interrupt(self) -> None:
        """Copy what is selected; else stop; else clear; else quit when pressed again within 1.5 s."""
        selected = self.get_selected_text() or self.prompt.selected_text
        if selected:
            self.app.copy_to_clipboard(selected)
            self.clear_selection()
            self.prompt.move_cursor(self.prompt.cursor_location)
            self.note("copied")
        elif self.turns.busy and not self.turns.stopping:
            self.turns.stop()
        elif self.prompt.text:
            self.prompt.close_popup()
            self.prompt.clear_all()
        elif time.monotonic() < self._quit_until:
            self.app.exit()
        else:
            self._quit_until = time.monotonic() + QUIT_AGAIN_S
            self.set_timer(QUIT_AGAIN_S, self.changed)
            self.changed()

    def action_quit_empty(self) -> None:
        if self.prompt.text:
            self.prompt.action_delete_right()
        else:
            self.app.exit()

    def action_help(self) -> None:
        from lingchat.ui.screens.help import HelpScreen

        self.app.push_screen(HelpScreen([("keys", self), ("prompt", self.prompt), ("app", self.app)]))

    def action_help_empty(self) -> None:
        if self.prompt.text or not self.prompt.has_focus:
            raise SkipAction
        self.action_help()

    def action_latency(self) -> None:
        self._wish = after(self.frame.shape.latency, self.app.size.width)
        self._arrange()
        self.frame.fold(self.chat.stats, None)

    def action_reasoning(self) -> None:
        self.conversation.action_toggle_reasoning()

    def action_cursor(self, step: int) -> None:
        self.conversation.action_cursor(step)

    def action_page(self, pages: int) -> None:
        height = max(1, self.conversation.size.height - 2)
        self.conversation.scroll_relative(y=pages * height, animate=False)

    def action_top(self) -> None:
        self.conversation.scroll_home(animate=False)

    def action_bottom(self) -> None:
        self.conversation.scroll_to_end()

    def action_slash(self, name: str) -> None:
        what = parse(f"/{name}")
        assert isinstance(what, Call)
        if self.turns.busy and not what.command.while_busy:
            self.note(f"/{name} waits for the reply: esc stops it", error=True)
        else:
            self.slash.run(what)

    def action_first_empty(self, number: int) -> None:
        """Ask one of the prompts that an empty chat offers."""
        if self.prompt.text or self.turns.waiting or not self.prompt.has_focus or self.conversation.messages:
            raise SkipAction
        self.turns.submit(Typed(FIRST_PROMPTS[number - 1][1], {}))

    # ------------------------------------------------------------------ messages of the conversation

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """The keyboard is the prompt's, except while the message cursor walks: a click must not take it away."""
        if event.widget is not self.prompt and self.conversation.cursor is None and not self.read_only:
            self.call_later(self.prompt.focus)

    @on(Conversation.CursorLeft)
    def _back_to_prompt(self) -> None:
        self.prompt.focus()

    @on(Conversation.Copy)
    def _copy(self, message: Conversation.Copy) -> None:
        self.app.copy_to_clipboard(message.text)
        self.note(f"copied code block {message.code}" if message.code else "copied")

    @on(Conversation.Open)
    def _open(self, message: Conversation.Open) -> None:
        from lingchat.ui.screens.notice import TextScreen

        self.app.push_screen(TextScreen(message.view.name or message.view.role, message.text))

    @on(Conversation.OpenLink)
    def _link(self, message: Conversation.OpenLink) -> None:
        """A link of the model's is shown and copied, never followed by itself."""
        self.app.copy_to_clipboard(message.href)
        self.note(f"copied the link {message.href}")

    @on(Conversation.Edit)
    def _edit(self, message: Conversation.Edit) -> None:
        self.slash.begin_edit(message.view.node_id)

    @on(Conversation.Regenerate)
    def _regenerate(self, message: Conversation.Regenerate) -> None:
        self.slash.regenerate(message.view.node_id)

    @on(Conversation.Branch)
    async def _branch(self, message: Conversation.Branch) -> None:
        await self.slash.branch(message.view.node_id)

    @on(Conversation.Sibling)
    async def _sibling(self, message: Conversation.Sibling) -> None:
        await self.slash.step_sibling(message.view.node_id, message.step)

    def work(self, work: Coroutine[Any, Any, None]) -> None:
        self.run_worker(work, group="command")

    @property
    def reasoning_shown(self) -> bool:
        """Whether reasoning is open, in every reply to come."""
        return self.conversation.reasoning_open

    @reasoning_shown.setter
    def reasoning_shown(self, on: bool) -> None:
        self.conversation.open_reasoning(on)
