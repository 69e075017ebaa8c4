"""What goes on in a chat: the engine's life, the queue, and the reply that runs. It feeds the screen, one event at a time.

One thing runs at a time. What is typed before the model is ready, or while a reply streams, waits here and goes out in
order; after an interrupt or an error it is held until the user sends it on. A text that the engine refuses before any
work, such as one that does not fit the context, is given back and leaves no trace on the screen.

It knows the chat (which knows engine, session and trace) and the few methods of `Stage`; it draws nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

from lingchat import events as ev
from lingchat.chat import REFUSED, Chat
from lingchat.engines.api import ModelInfo, ToolCall
from lingchat.errors import EngineCrashed, LingchatError
from lingchat.stats import TurnStats, footer, format_count
from lingchat.ui import tree
from lingchat.ui.lag import LagMeter
from lingchat.ui.unanswered import silence
from lingchat.ui.widgets.conversation import Conversation, MessageView, TurnView
from lingchat.ui.widgets.prompt import Typed
from lingchat.ui.widgets.reply import Reply

if TYPE_CHECKING:
    from lingchat.session import Node, Session

DEMO_NOTE = "a small demonstration model; your own: lingchat -m PATH, or /model"
LAG_EVENT_NS = 1_000_000_000  # the lag goes into the trace once a second


def wall_clock() -> str:
    """The time of day beside a message: `09:41`."""
    return datetime.now().strftime("%H:%M")


class Waiting(msgspec.Struct, frozen=True):
    """A text on its way to the model. `replaces` is the user message, of `session`, beside which it is asked."""

    typed: Typed
    replaces: Node | None = None
    session: Session | None = None


class Opening(msgspec.Struct, frozen=True):
    """What the screen shows when a reply begins: the user's text if one is new, under the messages `above` it.

    `above` None: under what is there.
    """

    text: str | None
    above: list[TurnView] | None


class Stage(Protocol):
    """What a turn needs of the screen."""

    @property
    def conversation(self) -> Conversation: ...

    def engine_event(self, event: ev.AnyEvent) -> None:
        """An event of the loading engine, already folded into the chat's figures."""

    def turn_event(self, event: ev.AnyEvent) -> None:
        """An event of the running turn, already folded into the chat's figures."""

    def changed(self) -> None:
        """State, queue or progress changed: header, status and queue draw themselves again."""

    def streaming(self, on: bool) -> None:
        """A reply starts or has ended: what ticks only while one runs."""

    def asked(self, at_ns: int) -> None:
        """A request went to the engine; its first event will follow."""

    def note(self, text: str, error: bool = False) -> None: ...

    def give_back(self, waiting: Waiting) -> None:
        """A text was refused: it returns to the prompt, as the edit it was."""


class Turns:
    """Owns the queue and the one running task."""

    def __init__(
        self,
        stage: Stage,
        chat: Chat,
        spawn: Callable[[Awaitable[None]], object],
        clock_ns: Callable[[], int] = ev.now_ns,
    ) -> None:
        """`clock_ns` is the clock of the engine's events."""
        self._stage = stage
        self._clock_ns = clock_ns
        self._chat = chat
        self._spawn = spawn
        self.waiting: list[Waiting] = []
        self.held = False  # what waits goes out only when the user says so
        self.engine: ev.Engine | None = None
        self.info: ModelInfo | None = None
        self.failure = ""
        self.ready = False
        self._starts = 0
        self._starting = False  # a start of the engine is under way, and tells itself how it ends
        self.busy = False
        self.stopping = False
        self.stall: ev.Stall | None = None
        self.lag = LagMeter()
        self.asked_ns: int | None = None  # when the request went out that the engine has said nothing about yet
        self._reply: Reply | None = None
        self._opened: list[MessageView] = []  # what the running turn put on the screen
        self._turn_before: TurnStats | None = None
        self._tell_demo = True  # under the first reply of this process, if it begins a conversation
        self._error: ev.Error | None = None
        self._lag_told_ns = 0

    # ------------------------------------------------------------------ engine

    def start(self) -> None:
        self._spawn(self._start(self._chat.start()))

    def restart(self, model: str | None = None) -> None:
        """Start the engine again, with another model if one is named. A running reply ends as interrupted."""
        self.ready = False
        self.failure = ""
        self.engine = None
        self._spawn(self._start(self._chat.restart(model)))

    async def _start(self, stream: AsyncIterator[ev.AnyEvent]) -> None:
        self._starts += 1
        mine = self._starts
        self._starting = True
        self._stage.changed()
        try:
            async for event in stream:
                self._stage.engine_event(event)
                if isinstance(event, ev.Engine):
                    self.engine = event
                    self._stage.changed()
                elif isinstance(event, ev.Warn):
                    self._stage.note(event.message)
        except LingchatError as error:
            if mine == self._starts:  # else a later start ended this one, and tells how it goes on
                self._starting = False
                self.failure = str(error)
                self.held = bool(self.waiting)
                self._stage.engine_event(ev.Error(t_ns=self._clock_ns(), code=error.code, message=self.failure))
                self._stage.changed()
                if self._stage.conversation.messages:  # they hide the welcome, which says why otherwise
                    self._stage.note(self.failure, error=True)
            return
        if mine == self._starts:
            self.info = self._chat.info
            self._starting = False
            self.ready = True
            self._stage.changed()
            self.pump()

    @property
    def context(self) -> int:
        """Tokens of context, 0 while unknown."""
        return self.info.context if self.info is not None else 0

    # ------------------------------------------------------------------ queue

    def submit(self, typed: Typed, replaces: Node | None = None) -> None:
        """Send when it is this text's turn, instead of the user message `replaces` if one is given."""
        self.waiting.append(Waiting(typed, replaces, self._chat.session if replaces is not None else None))
        self.held = False
        self._stage.changed()
        self.pump()

    def resume(self) -> bool:
        """Send on what is held; False when nothing waits."""
        if not self.waiting:
            return False
        self.held = False
        self._stage.changed()
        self.pump()
        return True

    def take_back(self) -> Waiting | None:
        """The newest waiting text, for editing."""
        if not self.waiting:
            return None
        waiting = self.waiting.pop()
        self._stage.changed()
        return waiting

    def pump(self) -> None:
        if self.ready and not self.busy and not self.held and self.waiting:
            self._begin(self._send(self.waiting.pop(0)))

    def _begin(self, work: Awaitable[None]) -> None:
        self.busy = True
        self.stopping = False
        self._stage.changed()
        self._spawn(self._guarded(work))

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        finally:
            self.busy = False
            self.stopping = False
            self.stall = None
            self.asked_ns = None
            self.lag.stop()
            self._stage.streaming(False)
            self._stage.changed()
        self.pump()

    # ------------------------------------------------------------------ turns

    def regenerate(self, node: Node) -> None:
        """Answer again what `node` (a reply) answered."""
        self._begin(self._regenerate(node))

    async def _regenerate(self, node: Node) -> None:
        refusal = await self._answer(lambda: self._chat.regenerate(node), Opening(None, self._before(node)))
        if refusal:
            self._stage.note(refusal, error=True)

    async def _send(self, waiting: Waiting) -> None:
        text, node = waiting.typed.full, waiting.replaces
        if node is not None and self._chat.session is not waiting.session:
            refusal = "The message that this text replaces is in another session. Nothing was sent."
        elif node is None:
            refusal = await self._answer(lambda: self._chat.send(text), Opening(text, None))
        else:
            refusal = await self._answer(lambda: self._chat.edit(node, text), Opening(text, self._before(node)))
        if refusal:
            self.held = bool(self.waiting)
            self._stage.give_back(waiting)
            self._stage.note(refusal, error=True)

    def _before(self, node: Node) -> list[TurnView]:
        """The messages above `node`, as they are before its sibling is made."""
        return tree.views(self._chat.session, node) if self._chat.session is not None else []

    def stop(self) -> bool:
        """Stop the running reply after this round; False when none runs. What waits is held."""
        if not self.busy:
            return False
        self.stopping = True
        self.held = bool(self.waiting)
        self._chat.cancel()
        self._stage.changed()
        return True

    @property
    def turn(self) -> TurnStats | None:
        """The figures of the newest request; None before the engine has said anything about it."""
        current = self._chat.stats.current
        return None if current is self._turn_before else current

    async def _answer(self, ask: Callable[[], AsyncIterator[ev.AnyEvent]], opening: Opening) -> str:
        """Show a reply from its first event to its last. What the engine refused leaves the screen as it was; gives
        the reason then, else nothing."""
        self._error = None
        self._opened = []
        self._turn_before = self._chat.stats.current
        self.asked_ns = self._clock_ns()
        self._stage.asked(self.asked_ns)
        self._stage.streaming(True)
        self.lag.start()
        if opening.above is None:  # what is typed shows at once; a branch is left only when the engine takes the text
            await self._open(opening)
        self._stage.changed()
        refusal, heard, ended = "", False, False
        try:
            async with aclosing(ask()) as stream:  # type: ignore[type-var]  # a generator
                async for event in stream:
                    if not heard:
                        heard, self.asked_ns = True, None
                        if isinstance(event, ev.Error) and event.code in REFUSED:
                            refusal = event.message
                        elif opening.above is not None:
                            await self._open(opening)
                    if refusal:
                        self._stage.turn_event(event)
                    else:
                        self._take(event)
                    ended = ended or isinstance(event, ev.TurnEnd)
        except LingchatError as error:
            if not heard:
                refusal = str(error)
            self._error = ev.Error(t_ns=self._clock_ns(), code=error.code, message=str(error))
            if isinstance(error, EngineCrashed):
                self._engine_died(str(error))
        finally:
            if refusal:
                self._withdraw()
            elif not ended:
                self._finish("error" if self._error is not None else "cancel")
        self._stage.changed()
        return refusal

    async def _open(self, opening: Opening) -> None:
        """Put question and empty reply on the screen."""
        conversation = self._stage.conversation
        if opening.above is not None:
            await conversation.show_turns(opening.above)
        if opening.text is not None:
            self._opened.append(conversation.add_user(opening.text, wall_clock()))
        number = 1 + sum(message.view.role == "assistant" for message in conversation.messages)
        self._tell_demo = self._tell_demo and number == 1
        self._reply = conversation.begin_reply(f"#{number}")
        self._opened.append(self._reply)

    def _withdraw(self) -> None:
        """Take back what `_open` showed: the engine refused it, so it was never said."""
        self._reply = None
        self._stage.conversation.withdraw(self._opened)

    def _take(self, event: ev.AnyEvent) -> None:
        reply = self._reply
        if reply is not None:
            reply.observe(event)
            match event:
                case ev.Text(delta=delta):
                    reply.append(delta)
                case ev.Reasoning(delta=delta):
                    reply.append_reasoning(delta)
                case ev.ToolCall(name=name, arguments=arguments):
                    reply.call(ToolCall(name, arguments))
                case ev.Prefill(done=done, total=total):
                    part = f"{format_count(done)}/{format_count(total)}"
                    reply.set_status(f"reading the prompt {part}" if done < total else "…")
        match event:
            case ev.Error():
                self._error = event
                if event.code == EngineCrashed.code:
                    self._engine_died(event.message)
            case ev.Warn():
                self._stage.note(event.message)
            case ev.Engine():
                self.engine = event
            case ev.TurnEnd():
                self._finish(event.stop)
        stalled, self.stall = self.stall, event if isinstance(event, ev.Stall) else None
        self._stage.turn_event(event)
        if stalled is not None or isinstance(event, (ev.TurnStart, ev.TurnFirst, ev.Stall)):
            self._stage.changed()

    def _finish(self, stop: str) -> None:
        """Put the figures under the reply, and the cause if it broke off."""
        reply, self._reply = self._reply, None
        if reply is None:
            return
        turn = self.turn
        text = footer(turn) if turn is not None else ""
        if self._tell_demo and self.info is not None and self.info.demo:
            self._tell_demo = False
            text = f"{text}\n{DEMO_NOTE}" if text else DEMO_NOTE
        if self._error is not None:
            reply.finish(text, "error", self._error.message)
        else:
            reply.finish(text, stop)
        if turn is not None:
            reply.set_view(
                msgspec.structs.replace(reply.view, header=tree.reply_header(reply.view.header, turn.tpot(0.5)))
            )
        if stop != "eos" and self.waiting:
            self.held = True

    def _engine_died(self, message: str) -> None:
        if self._starting:  # a restart ended the one before, under the reply that ran
            return
        self.ready = False
        self.failure = message
        self.held = bool(self.waiting)

    # ------------------------------------------------------------------ ticking

    def tick(self) -> None:
        """Called a few times a second while a reply runs: what waits reaches the disk, a silence and the lag are told."""
        now = self._clock_ns()
        before, self.stall = self.stall, self._chat.tick(now)
        if self.asked_ns is not None:
            self.stall = silence(self.asked_ns, now)
            if self.stall is not None and before is None:
                self._chat.note(self.stall)  # once; it belongs to no turn yet
        if self.asked_ns is not None or self.stall is not None or before is not None:
            self._stage.changed()
        if now - self._lag_told_ns >= LAG_EVENT_NS and (lag := self.lag.p95_ms) is not None:
            self._lag_told_ns = now
            self._chat.note(ev.Ui(t_ns=now, lag_p95_ms=lag))
