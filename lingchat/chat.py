"""One chat: the glue of engine, session, trace and figures that every front end consumes.

A front end asks (`send`, `edit`, `regenerate`) and draws the events that come back; by the time it sees an event, the
event is in the trace, in the session and in `stats`. Nothing here draws, and nothing here knows which front end asks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Literal

import msgspec

from lingchat.config import Settings
from lingchat.engines.api import ChatRequest, Engine, Message, ModelInfo, Sampling, Spec, ToolCall
from lingchat.errors import ContextOverflow, DiskError, LingchatError, SessionError, UsageError
from lingchat.events import AnyEvent, Error, Reasoning, RunEnd, Stall, Text, TurnEnd, Warn, now_ns
from lingchat.events import ToolCall as Called
from lingchat.session import Node, Reply, Session
from lingchat.stats import RunStats, footer, summary
from lingchat.trace import TraceWriter

# What the demonstration model's authors recommend: it is small enough to ramble at everyone's default.
DEMO_SAMPLING = {"temperature": 0.2, "top_p": 0.9}
# Refused before anything was computed: such a message leaves no mark in the session.
REFUSED = (ContextOverflow.code, UsageError.code)
THINKING = {"auto": None, "on": True, "off": False}


class Chat:
    """`session` None: nothing is kept beyond this process. `trace` None: nothing is recorded."""

    def __init__(self, engine: Engine, session: Session | None, trace: TraceWriter | None, settings: Settings) -> None:
        self.engine = engine
        self.session = session
        self.trace = trace
        self.sampling = self._default_sampling = self._suited = Sampling(**settings.sampling_fields())
        self._origins = settings.origins
        self.spec: Spec = settings.spec  # type: ignore[assignment]  # config.py has checked it
        self.thinking = THINKING[settings.thinking]  # whether replies reason first; None: the model's own way
        self.info: ModelInfo | None = None
        self.stats = trace.stats if trace is not None else RunStats()
        self._turn = 0
        self._reply: Reply | None = None  # the one that streams
        self._disk_problem = ""  # what could not be written, until it could
        self._stalled = False
        self._untold: list[Warn] = []  # problems of the disk that the reader of events has yet to hear of
        self._system = ""
        self._spoken: list[Message] = []  # the conversation where no session keeps it
        # The user's default is for new conversations; a flag is meant for this one.
        kept = session is not None and len(session) > 0
        if settings.system and (not kept or settings.origins.get("system", "").startswith("flag")):
            self.system = settings.system

    @property
    def title(self) -> str:
        return self.session.title if self.session is not None else ""

    @property
    def system(self) -> str:
        """The system prompt of this conversation, empty for none."""
        return self.session.system if self.session is not None else self._system

    @system.setter
    def system(self, text: str) -> None:
        if self.session is not None:
            self.session.set_system(text)
        self._system = text

    # the engine

    async def start(self, model: str | None = None) -> AsyncIterator[AnyEvent]:
        """Engine events until it is ready; `model` names another one. Raises the `LingchatError` that prevents it."""
        try:
            async with aclosing(self.engine.start(model)) as events:  # type: ignore[type-var]  # a generator
                async for event in events:
                    self.note(event)
                    yield event
        except LingchatError as problem:
            self.note(Error(t_ns=now_ns(), code=problem.code, message=str(problem)))
            raise
        self.info = await self.engine.info()
        self._suit(self.info)
        told = self.thinking_problem
        if told:
            warning = Warn(t_ns=now_ns(), code="thinking", message=told)
            self.note(warning)
            yield warning

    def _suit(self, info: ModelInfo) -> None:
        """Sample as the model's publisher suggests, in what nobody has asked for: neither a setting nor `/sampling`."""
        advice = {**info.suggested_sampling, **(DEMO_SAMPLING if info.demo else {})}
        changes = {}
        for name in self.sampling.__struct_fields__:
            by_hand = getattr(self.sampling, name) != getattr(self._suited, name)
            if self._origins.get(name) == "default" and not by_hand:
                changes[name] = advice.get(name, getattr(self._default_sampling, name))
        self._suited = msgspec.structs.replace(self._suited, **changes)
        self.sampling = msgspec.structs.replace(self.sampling, **changes)

    @property
    def thinking_problem(self) -> str:
        """Why the wish for thinking has no effect on this model, to tell the user; empty when it has, or is none."""
        if self.thinking is None or self.info is None or self.info.thinking_switch is not False:
            return ""
        wish = "on" if self.thinking else "off"
        return f"{self.info.name} has no switch for thinking in its template: {wish} changes nothing"

    async def restart(self, model: str | None = None) -> AsyncIterator[AnyEvent]:
        """End the engine, whatever it does, and start it again, with another model if one is named."""
        await self.engine.close()
        async with aclosing(self.start(model)) as events:
            async for event in events:
                yield event

    def cancel(self) -> None:
        """Stop the running reply after at most one round."""
        self.engine.cancel()

    async def count(self, text: str) -> int:
        """Prompt tokens that sending `text` now would make, the conversation so far included."""
        return await self.engine.count(self._request([*self._past(None), Message("user", text)]))

    async def close(self, status: int = 0) -> None:
        """End engine, trace and session; `status` is the exit code. Idempotent."""
        await self.engine.close()
        if self.trace is not None and self.stats.end is None:
            ended: Literal["ok", "cancel", "error"] = "ok" if status == 0 else "cancel" if status == 130 else "error"
            self.trace.write(RunEnd(t_ns=now_ns(), status=ended, exit=status))
            self.trace.close()
        if self.session is not None:
            try:
                self.session.close()
            except DiskError:
                self.session.discard()
                raise

    def use(self, session: Session) -> None:
        """Go on in another session; the one before is closed. A new one takes this chat's system prompt."""
        if self.session is not None:
            self.session.close()
        self.session = session
        if not len(session) and self._system:
            session.set_system(self._system)

    def note(self, event: AnyEvent) -> None:
        """Record an event: trace and figures. Front ends pass their own here (UI lag, stalls)."""
        if self.trace is None:
            self.stats.add(event)
        else:
            trace = self.trace
            self._keep(lambda: trace.write(event))

    def tick(self, now_ns: int) -> Stall | None:
        """To be called a few times a second while a reply streams: writes what waits, notes a silence too long.

        Gives that silence, as long as it lasts.
        """
        trace, reply = self.trace, self._reply
        if trace is not None:
            self._keep(lambda: trace.tick(now_ns))
        if reply is not None:
            self._keep(lambda: reply.tick(now_ns))
        turn = self.stats.current
        stall = turn.stalled(now_ns) if turn is not None else None
        if stall is not None and not self._stalled:
            self.note(stall)  # once a silence
        self._stalled = stall is not None
        return stall

    def _keep(self, write: Callable[[], object]) -> None:
        """Write to a file. A full disk costs the record, not the reply: what is unwritten stays in memory, the next
        write tries again, and the reader of events is told once."""
        try:
            write()
        except DiskError as problem:
            if not self._disk_problem:
                self._untold.append(Warn(t_ns=now_ns(), code=problem.code, message=str(problem), turn=self._turn))
            self._disk_problem = str(problem)
        else:
            self._disk_problem = ""

    # turns

    def send(self, text: str) -> AsyncIterator[AnyEvent]:
        """Ask `text` at the end of the conversation."""
        return self._ask(text, None if self.session is None or self.session.leaf is None else self.session.leaf.id)

    def edit(self, node: Node, text: str) -> AsyncIterator[AnyEvent]:
        """Ask `text` instead of the user message `node`, as its sibling; nothing is overwritten."""
        if node.role != "user":
            raise SessionError("Only a message of your own can be edited.")
        return self._ask(text, node.parent)

    def regenerate(self, node: Node) -> AsyncIterator[AnyEvent]:
        """Answer again what the reply `node` answered, as its sibling."""
        if node.role != "assistant" or not node.parent:
            raise SessionError("Only a reply can be regenerated.")
        return self._ask(None, node.parent)

    async def _ask(self, text: str | None, parent: int | None) -> AsyncIterator[AnyEvent]:
        """The reply to the branch that ends at `parent`, and to a new user message `text` after it if there is one."""
        said = [] if text is None else [Message("user", text)]
        self._turn += 1
        request = self._request([*self._past(parent), *said])
        written = _Written()
        accepted: bool | None = None
        async with aclosing(self.engine.chat(request)) as events:  # type: ignore[type-var]  # a generator
            try:
                async for event in events:
                    if accepted is None:
                        # The first word of the engine: what it refuses was never said.
                        accepted = not (isinstance(event, Error) and event.code in REFUSED)
                        if accepted:
                            self._begin_reply(text, parent)
                    self.note(event)
                    self._write(event)
                    written.add(event)
                    yield event
                    while self._untold:
                        yield self._untold.pop(0)
            finally:
                self._finish("cancel")  # without effect when it has ended
        if self.session is None and accepted:
            self._spoken += [*said, written.message(self._turn)]

    def _begin_reply(self, text: str | None, parent: int | None) -> None:
        session = self.session
        if session is None:
            return

        def ask() -> None:
            self._reply = session.begin_reply(session.add("user", text, parent) if text is not None else parent)

        self._keep(ask)
        if self._reply is None:  # the message is in the tree, though not yet in the file
            self._reply = session.begin_reply(session.leaf)

    def _write(self, event: AnyEvent) -> None:
        """What the event adds to the kept reply."""
        reply = self._reply
        if reply is None:
            return
        match event:
            case Text(delta=delta):
                self._keep(lambda: reply.delta(delta, event.t_ns))
            case Reasoning(delta=delta):
                self._keep(lambda: reply.reasoning(delta, event.t_ns))
            case Called(name=name, arguments=arguments, id=call_id):
                self._keep(lambda: reply.call(name, arguments, call_id, event.t_ns))
            case TurnEnd(stop=stop):
                self._finish(stop)

    def _finish(self, stop: str) -> None:
        """End the kept reply; its figures stay with it."""
        reply, self._reply = self._reply, None
        if reply is None:
            return
        turn = self.stats.turns.get(self._turn)
        self._keep(
            lambda: reply.finish(
                stop,
                run=self.trace.id if self.trace is not None else "",
                turn=self._turn,
                footer=footer(turn) if turn is not None else "",
                stats=summary(turn) if turn is not None else None,
            )
        )

    def _past(self, leaf: int | None) -> list[Message]:
        """The branch that ends at `leaf` (None: the active one), the system prompt first."""
        if self.session is not None:
            return list(self.session.messages(leaf))
        return [Message("system", self._system), *self._spoken] if self._system else list(self._spoken)

    def _request(self, messages: list[Message]) -> ChatRequest:
        return ChatRequest(
            messages=tuple(messages),
            thinking=self.thinking,
            sampling=self.sampling,
            spec=self.spec,
            turn=max(self._turn, 1),
        )


class _Written:
    """A reply as it comes, where no session keeps it."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[Called] = []

    def add(self, event: AnyEvent) -> None:
        match event:
            case Text():
                self._text.append(event.delta)
            case Reasoning():
                self._reasoning.append(event.delta)
            case Called():
                self._calls.append(event)

    def message(self, turn: int) -> Message:
        calls = (ToolCall(call.name, call.arguments, call.id or f"call_{turn}_{call.index}") for call in self._calls)
        return Message("assistant", "".join(self._text), "".join(self._reasoning), tuple(calls))
