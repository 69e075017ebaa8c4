"""What goes on in a chat: the engine's life, the queue, and the reply that runs. It feeds the screen, one event at a time.

One thing runs at a time. What is typed before the model is ready, or while a reply streams, waits here and goes out in
order; after an interrupt or an error it is held until the user sends it on. A prompt that does not fit the context
is given back before anything is sent.

It knows the chat (which knows engine, session and trace) and the few methods of `Stage`; it draws nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from lingchat import events as ev
from lingchat.engines.api import ModelInfo
from lingchat.errors import ContextOverflow, EngineCrashed, LingchatError
from lingchat.stats import TurnStats, footer, format_count
from lingchat.ui import tree
from lingchat.ui.lag import LagMeter
from lingchat.ui.widgets.conversation import Conversation
from lingchat.ui.widgets.prompt import Typed
from lingchat.ui.widgets.reply import Reply

if TYPE_CHECKING:
    from lingchat.chat import Chat
    from lingchat.session import Node

DEMO_NOTE = "a small demonstration model; your own: lingchat -m PATH, or /model"
LAG_EVENT_NS = 1_000_000_000  # the lag goes into the trace once a second


def wall_clock() -> str:
    """The time of day beside a message: `09:41`."""
    return datetime.now().strftime("%H:%M")


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

    def note(self, text: str, error: bool = False) -> None: ...

    def give_back(self, typed: Typed) -> None:
        """A text was refused: it returns to the prompt."""

    async def reload(self, upto: Node | None = None) -> None:
        """Show the session's path again, as far as the message before `upto`."""


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
        self.waiting: list[Typed] = []
        self.held = False  # what waits goes out only when the user says so
        self.engine: ev.Engine | None = None
        self.info: ModelInfo | None = None
        self.failure = ""
        self.ready = False
        self.busy = False
        self.stopping = False
        self.stall: ev.Stall | None = None
        self.lag = LagMeter()
        self._reply: Reply | None = None
        self._replies = 0
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
        self._stage.changed()
        try:
            async for event in stream:
                self._stage.engine_event(event)
                if isinstance(event, ev.Engine):
                    self.engine = event
                    self._stage.changed()
                elif isinstance(event, ev.Warn):
                    self._stage.note(event.message)
            self.info = self._chat.info
        except LingchatError as error:
            self.failure = str(error)
            self.held = bool(self.waiting)
            self._stage.changed()
            return
        self.ready = True
        self._stage.changed()
        self.pump()

    @property
    def context(self) -> int:
        """Tokens of context, 0 while unknown."""
        return self.info.context if self.info is not None else 0

    # ------------------------------------------------------------------ queue

    def submit(self, typed: Typed) -> None:
        """Send when it is this text's turn."""
        self.waiting.append(typed)
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

    def take_back(self) -> Typed | None:
        """The newest waiting text, for editing."""
        if not self.waiting:
            return None
        typed = self.waiting.pop()
        self._stage.changed()
        return typed

    def pump(self) -> None:
        if self.ready and not self.busy and not self.held and self.waiting:
            typed = self.waiting.pop(0)
            self._begin(self._send(typed))

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
            self.lag.stop()
            self._stage.streaming(False)
            self._stage.changed()
        self.pump()

    # ------------------------------------------------------------------ turns

    async def _send(self, typed: Typed) -> None:
        try:
            await self._check_fits(typed.full)
        except LingchatError as error:
            self._refuse(typed, error)
            return
        self._stage.conversation.add_user(typed.full, wall_clock())
        await self._stream(self._chat.send(typed.full))
        if self._error is not None and self._error.code == ContextOverflow.code:
            self._stage.give_back(typed)

    async def _check_fits(self, text: str) -> None:
        """Raises ContextOverflow when prompt and history leave no room for a reply."""
        used = await self._chat.count(text)
        if self.context and used >= self.context:
            raise ContextOverflow(
                f"This prompt makes {used:,} tokens, the context holds {self.context:,}. Nothing was sent: "
                "shorten it, or /new starts without the history."
            )

    def _refuse(self, typed: Typed, error: LingchatError) -> None:
        self._stage.give_back(typed)
        self._stage.note(str(error), error=True)
        self.held = bool(self.waiting)
        if isinstance(error, EngineCrashed):
            self._engine_died(str(error))

    def regenerate(self, node: Node) -> None:
        """Answer again what `node` (a reply) answered."""
        self._begin(self._again(node, self._chat.regenerate(node), None))

    def edit(self, node: Node, typed: Typed) -> None:
        """Ask `typed` instead of the user message `node`."""
        self._begin(self._again(node, self._chat.edit(node, typed.full), typed))

    async def _again(self, node: Node, stream: AsyncIterator[ev.AnyEvent], typed: Typed | None) -> None:
        await self._stage.reload(upto=node)
        if typed is not None:
            self._stage.conversation.add_user(typed.full, wall_clock())
        await self._stream(stream)

    def stop(self) -> bool:
        """Stop the running reply after this round; False when none runs. What waits is held."""
        if not self.busy:
            return False
        self.stopping = True
        self.held = bool(self.waiting)
        self._chat.cancel()
        self._stage.changed()
        return True

    async def _stream(self, stream: AsyncIterator[ev.AnyEvent]) -> None:
        self._error = None
        self._replies += 1
        self._reply = self._stage.conversation.begin_reply(f"#{self._replies}")
        self._stage.streaming(True)
        self._stage.changed()
        self.lag.start()
        ended = False
        try:
            async for event in stream:
                self._take(event)
                ended = ended or isinstance(event, ev.TurnEnd)
        except LingchatError as error:
            self._error = ev.Error(t_ns=self._clock_ns(), code=error.code, message=str(error))
            if isinstance(error, EngineCrashed):
                self._engine_died(str(error))
        finally:
            if not ended:
                self._finish("error" if self._error is not None else "cancel")
        await self._settle()

    def _take(self, event: ev.AnyEvent) -> None:
        reply = self._reply
        assert reply is not None
        reply.observe(event)
        match event:
            case ev.Text(delta=delta):
                reply.append(delta)
            case ev.Reasoning(delta=delta):
                reply.append_reasoning(delta)
            case ev.Prefill(done=done, total=total) if done < total:
                reply.set_status(f"reading {format_count(done)} of {format_count(total)} tokens")
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
        turn = self._chat.stats.current
        text = footer(turn) if turn is not None else ""
        if self._replies == 1 and self.info is not None and self.info.demo:
            text = f"{text} · {DEMO_NOTE}" if text else DEMO_NOTE
        if self._error is not None:
            reply.finish(text, "error", self._error.message)
        else:
            reply.finish(text, stop)
        if turn is not None:
            reply.set_view(replace(reply.view, header=tree.reply_header(reply.view.header, turn.tpot(0.5))))
        if stop != "eos" and self.waiting:
            self.held = True

    async def _settle(self) -> None:
        self._stage.changed()
        await asyncio.sleep(0)

    def _engine_died(self, message: str) -> None:
        self.ready = False
        self.failure = message
        self.held = bool(self.waiting)

    # ------------------------------------------------------------------ ticking

    def tick(self) -> None:
        """Called a few times a second while a reply runs: notices a stall, reports the lag."""
        now = self._clock_ns()
        turn: TurnStats | None = self._chat.stats.current
        stall = turn.stalled(now) if turn is not None else None
        if stall is not None or self.stall is not None:
            self.stall = stall
            self._stage.changed()
        lag = self.lag.p95_ms
        if lag is not None and now - self._lag_told_ns >= LAG_EVENT_NS:
            self._lag_told_ns = now
            self._chat.note(ev.Ui(t_ns=now, lag_p95_ms=lag))
