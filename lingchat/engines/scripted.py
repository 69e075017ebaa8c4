"""An engine without a model: it plays a declared script, or the turns of a trace, as the events a real engine sends.

Tests, `lingchat replay`, `lingchat demo` and the load benchmarks use it. A script and a trace both become cues (see
`engines.script`); one player emits them on a clock, stamped with their scheduled instants.

Knows nothing of the runtime, of sessions or of screens.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from lingchat import events as ev
from lingchat.engines.api import ChatRequest, Message, ModelInfo
from lingchat.engines.clocks import Clock, SpeedClock, VirtualClock
from lingchat.engines.script import (
    Cue,
    Failure,
    LoadPhase,
    Pause,
    Script,
    ScriptCall,
    ScriptTurn,
    error_cues,
    nanoseconds,
    pieces,
    script_cues,
)
from lingchat.errors import ContextOverflow, EngineCrashed, LingchatError, TraceError, from_code

__all__ = ["Failure", "LoadPhase", "Pause", "Script", "ScriptCall", "ScriptTurn", "ScriptedEngine", "Step", "pieces"]

Step = Callable[[], "asyncio.Future[None]"]
_MESSAGE_OVERHEAD = 4  # tokens a template writes around a message, about


def _one_round_each(decode: ev.Decode) -> Iterator[ev.Decode]:
    """A batch of rounds as one event a round, so that `--step` moves by rounds."""
    at, token = decode.t0_ns, 0
    for i, dt in enumerate(decode.dt_us):
        yield ev.Decode(
            t_ns=at + 1000 * dt,
            turn=decode.turn,
            t0_ns=at,
            dt_us=(dt,),
            k=decode.k[i : i + 1],
            m=decode.m[i : i + 1],
            a=decode.a[i : i + 1],
            drafter=decode.drafter[i : i + 1],
            draft_us=decode.draft_us[i : i + 1],
            verify_us=decode.verify_us[i : i + 1],
            ids=decode.ids[token : token + decode.k[i]],
        )
        at += 1000 * dt
        token += decode.k[i]


class RecordedTurn(NamedTuple):
    """A turn of a trace: its events in order, with clocks counted from the instant the request was accepted."""

    prompt: str
    events: tuple[ev.AnyEvent, ...]
    gap_ns: int = 0  # since the end of the turn before

    def cues(self, turn: int, *, rounds: bool) -> Iterator[Cue]:
        for event in self.events:
            if hasattr(event, "turn"):
                event = msgspec.structs.replace(event, turn=turn)
            parts = _one_round_each(event) if rounds and isinstance(event, ev.Decode) else (event,)
            for part in parts:
                yield Cue(part.t_ns, part, round=isinstance(part, ev.Decode))


def recorded_turns(trace: Iterable[ev.AnyEvent]) -> list[RecordedTurn]:
    """The turns of a trace, in order. A turn that was cut off ends in an error that says so."""
    turns: list[RecordedTurn] = []
    open_turn: list[ev.AnyEvent] = []
    last_end: int | None = None

    def close() -> None:
        nonlocal last_end
        if not open_turn:
            return
        start = next((event for event in open_turn if isinstance(event, ev.TurnStart)), None)
        first = next((event for event in open_turn if isinstance(event, ev.TurnFirst)), None)
        base = first.accepted if first is not None else open_turn[0].t_ns
        if not isinstance(open_turn[-1], ev.TurnEnd):
            last = open_turn[-1].t_ns
            number = start.turn if start is not None else 0
            open_turn.append(ev.Warn(t_ns=last, code="trace_cut", message="the trace ends here", turn=number))
            open_turn.append(ev.TurnEnd(t_ns=last, turn=number, stop="error"))
        text = start.text if start is not None else ""
        gap = max(0, base - last_end) if last_end is not None else 0
        last_end = open_turn[-1].t_ns
        turns.append(RecordedTurn(text, tuple(ev.rebase(event, base) for event in open_turn), gap))
        open_turn.clear()

    for event in trace:
        if isinstance(event, ev.TurnStart):
            close()
            open_turn.append(event)
        elif open_turn and not isinstance(event, (ev.RunStart, ev.RunEnd, ev.Ui)):
            open_turn.append(event)
            if isinstance(event, ev.TurnEnd):
                close()
    close()
    return turns


class ScriptedEngine:
    """Implements `engines.api.Engine`. `requests` keeps what was asked; `clock` is what its events are stamped with."""

    def __init__(self, script: Script | None = None, *, clock: Clock | None = None, step: Step | None = None) -> None:
        self.script = script if script is not None else Script()
        self.clock: Clock = clock if clock is not None else SpeedClock()
        self.requests: list[ChatRequest] = []
        self.recorded: list[RecordedTurn] | None = None
        self._step = step
        self._loading: tuple[ev.Engine, ...] = ()
        self._turn_lock = asyncio.Lock()
        self._timer: asyncio.Future[None] | None = None
        self._cancelled = False
        self._state: Literal["new", "ready", "dead", "closed"] = "new"
        self._played = 0

    @classmethod
    def from_trace(
        cls,
        trace: str | Path | Iterable[ev.AnyEvent],
        speed: float = 1.0,
        *,
        step: Step | None = None,
        clock: Clock | None = None,
    ) -> ScriptedEngine:
        """An engine that answers the n-th request with the n-th recorded turn, at `speed` times its pace.

        Events keep their recorded durations: `clock` runs at `speed`, so figures read as recorded. With `step`, each
        round waits for the future `step()` returns, and time stands still in between.
        """
        if isinstance(trace, (str, Path)):
            from lingchat.trace import read_trace  # a script needs no trace reader

            happened = list(read_trace(Path(trace)))
        else:
            happened = list(trace)
        turns = recorded_turns(happened)
        if not turns:
            raise TraceError("the trace holds no turn to replay")
        run = next((event for event in happened if isinstance(event, ev.RunStart)), None)
        engines = [event for event in happened if isinstance(event, ev.Engine)]
        last = engines[-1] if engines else ev.Engine(t_ns=0, phase="ready")
        info = ModelInfo(
            name=last.model or (run.model if run is not None else "") or "recorded model",
            backend=last.backend,
            context=last.context,
            weights_bytes=last.weights,
            kv_bytes=last.kv,
            state_bytes=last.state,
            snapshot_bytes=last.snapshots,
            provenance="replay",
        )
        if clock is None:
            clock = VirtualClock(ev.now_ns()) if step is not None else SpeedClock(speed)
        engine = cls(Script(info=info, once=True, turns=()), clock=clock, step=step)
        engine.recorded = turns
        engine._loading = tuple(event for event in engines if event.phase == "ready")[:1]
        return engine

    def prompts(self) -> tuple[str, ...]:
        """The user messages of a replayed trace, in order."""
        return tuple(turn.prompt for turn in self.recorded or ())

    async def start(self, model: str | None = None) -> AsyncIterator[ev.AnyEvent]:
        if model is not None:
            self.script = msgspec.structs.replace(
                self.script, info=msgspec.structs.replace(self.script.info, name=model)
            )
        script, at = self.script, self.clock.now_ns()
        for i, phase in enumerate(script.load):
            failure = script.load_failure
            if failure is not None and failure.at == i:
                raise from_code(failure.code, failure.message)
            for report in range(phase.reports + 1):
                share = report / max(phase.reports, 1)
                due = at + nanoseconds(phase.ms * share)
                await self.clock.at(due)
                done_bytes = round(phase.total_bytes * share)
                yield ev.Engine(
                    t_ns=due,
                    phase=phase.phase,
                    message=phase.message,
                    progress=share,
                    done_bytes=done_bytes,
                    total_bytes=phase.total_bytes,
                    model=script.info.name,
                )
            at += nanoseconds(phase.ms)
        if script.load_failure is not None:
            raise from_code(script.load_failure.code, script.load_failure.message)
        self._state = "ready"
        if self._loading:
            yield msgspec.structs.replace(self._loading[0], t_ns=self.clock.now_ns())
            return
        info = script.info
        yield ev.Engine(
            t_ns=self.clock.now_ns(),
            phase="ready",
            model=info.name,
            backend=info.backend,
            weights=info.weights_bytes,
            kv=info.kv_bytes,
            state=info.state_bytes,
            snapshots=info.snapshot_bytes,
            context=info.context,
        )

    async def chat(self, request: ChatRequest) -> AsyncIterator[ev.AnyEvent]:
        accepted = self.clock.now_ns()
        self.requests.append(request)
        async with self._turn_lock:
            self._cancelled = False
            started = self.clock.now_ns()
            for cue in self._cues(request, started - accepted):
                if cue.round and self._step is not None and not self._cancelled:
                    await self._hold(self._step())
                if not self._cancelled:
                    self._timer = self.clock.at(started + cue.at_ns)
                    await self._timer
                    self._timer = None
                if self._cancelled and not isinstance(cue.event, (ev.TurnEnd, ev.Error)):
                    yield ev.TurnEnd(t_ns=self.clock.now_ns(), turn=request.turn, stop="cancel")
                    return
                if self._cancelled and math.isinf(cue.at_ns):
                    yield ev.TurnEnd(t_ns=self.clock.now_ns(), turn=request.turn, stop="cancel")
                    return
                if isinstance(cue.event, ev.Error) and cue.event.code == EngineCrashed.code:
                    self._state = "dead"
                yield ev.rebase(cue.event, -started)

    async def _hold(self, timer: asyncio.Future[None]) -> None:
        """Wait for `timer`, which `cancel` may resolve early."""
        self._timer = timer
        try:
            await timer
        finally:
            self._timer = None

    def _cues(self, request: ChatRequest, queued_ns: int) -> Iterator[Cue]:
        if self._state in ("dead", "closed"):
            return error_cues(
                0, request.turn, EngineCrashed.code, f"the engine is {self._state}; /restart starts it again"
            )
        if self.recorded is not None:
            if self._played >= len(self.recorded):
                return error_cues(0, request.turn, TraceError.code, "the trace holds no further turn")
            turn = self.recorded[self._played]
            self._played += 1
            return turn.cues(request.turn, rounds=self._step is not None)
        turns = self.script.turns
        if not turns or (self.script.once and self._played >= len(turns)):
            return error_cues(0, request.turn, LingchatError.code, "the script holds no further turn")
        scripted = turns[self._played % len(turns)]
        self._played += 1
        prompt = _count(request)
        context = self.script.info.context
        if context and prompt >= context:
            text = f"the prompt has {prompt:,} tokens and the context {context:,}: shorten it or start a new session"
            return error_cues(0, request.turn, ContextOverflow.code, text)
        seed = request.sampling.seed if request.sampling.seed is not None else self._played
        return script_cues(scripted, request, prompt, queued_ns, seed)

    async def count(self, what: ChatRequest | str) -> int:
        """As recorded for the next turn of a trace, whose tokenizer is not here; else about a token for five letters."""
        if self.recorded is not None and self._played < len(self.recorded):
            starts = (event for event in self.recorded[self._played].events if isinstance(event, ev.TurnStart))
            return next((start.prompt_tokens for start in starts), 0)
        return _count(what)

    def cancel(self) -> None:
        """Ends the running request before its next round; a wait in progress ends at once."""
        if not self._turn_lock.locked():
            return
        self._cancelled = True
        if self._timer is not None and not self._timer.done():
            self._timer.set_result(None)

    async def info(self) -> ModelInfo:
        return self.script.info

    async def close(self) -> None:
        self.cancel()
        self._state = "closed"


def _count(what: ChatRequest | str) -> int:
    if isinstance(what, str):
        return len(pieces(what))
    if what.messages is not None:
        return sum(map(_message_tokens, what.messages))
    if what.ids is not None:
        return len(what.ids)
    return len(pieces(what.text or ""))


def _message_tokens(message: Message) -> int:
    calls = sum(len(pieces(call.arguments)) + 1 for call in message.tool_calls)
    return len(pieces(message.content)) + len(pieces(message.reasoning)) + calls + _MESSAGE_OVERHEAD
