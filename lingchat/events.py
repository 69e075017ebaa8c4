"""What happens: one vocabulary for engine, chat, headless runs, trace files and replay.

The structs here are the wire format (msgpack) and the trace format (one JSON object a line, tagged by `type`).
They are facts, never commands. Every number on a screen is a fold over them.

Times: `t_ns` and the fields named in a struct's `clock` are nanoseconds of one monotonic clock. The engine and the
front end use the system's CLOCK_MONOTONIC, which both processes share; a trace file holds them from run start
(`rebase`). Only `RunStart.wall` is a time of day.

Knows nothing of the rest of the package.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar, Literal

import msgspec

StopReason = Literal["eos", "length", "stop", "cancel", "error"]
Phase = Literal["start", "download", "load", "compile", "ready", "idle"]
WaitPhase = Literal["queue", "tokenize", "prefill", "decode"]


def now_ns() -> int:
    """The clock of every event: system-wide monotonic nanoseconds."""
    return time.monotonic_ns()


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of all events."""

    clock: ClassVar[tuple[str, ...]] = ("t_ns",)
    t_ns: int


class RunStart(Event, frozen=True, kw_only=True, tag="run.start"):
    """A run begins: one process that talks to one engine. A chat of many turns is one run."""

    id: str
    wall: str  # ISO 8601 with offset
    argv: tuple[str, ...] = ()
    cwd: str = ""
    version: str = ""
    machine: str = ""  # processor, threads and system, so that a replayed number keeps its place
    model: str = ""
    sampling: dict[str, Any] = {}


class RunEnd(Event, frozen=True, kw_only=True, tag="run.end"):
    status: Literal["ok", "error", "cancel"]
    exit: int
    stats: dict[str, Any] = {}


class TurnStart(Event, frozen=True, kw_only=True, tag="turn.start"):
    """The engine has tokenised a request and knows what it must compute."""

    turn: int
    prompt_tokens: int
    reused: int  # prompt tokens whose state was already there
    text: str = ""  # the last user message, so that a replay can show it
    spec: str = "off"
    sampling: dict[str, Any] = {}


class TurnFirst(Event, frozen=True, kw_only=True, tag="turn.first"):
    """The first token exists; the parts of TTFT as instants."""

    clock: ClassVar[tuple[str, ...]] = (
        "t_ns",
        "accepted",
        "started",
        "tokenized",
        "prefill_start",
        "prefill_end",
        "first_token",
    )
    turn: int
    accepted: int  # the request reached the engine
    started: int  # its turn came (differs from `accepted` by the queue)
    tokenized: int
    prefill_start: int
    prefill_end: int
    first_token: int
    prompt_tokens: int
    reused: int


class Prefill(Event, frozen=True, kw_only=True, tag="prefill"):
    """A chunk of the prompt is computed. `done` of `total` new prompt tokens (reused ones not counted)."""

    turn: int
    done: int
    total: int


class Decode(Event, frozen=True, kw_only=True, tag="decode"):
    """A batch of rounds, in order; all lists have one entry a round, except `ids`, one a token.

    Round i ended at `t0_ns + 1000 * sum(dt_us[:i + 1])`: `dt_us` is the time from the end of the round before (for
    the first round of a turn: from `TurnFirst.prefill_end`) to the end of this one, so nothing between rounds hides.
    """

    clock: ClassVar[tuple[str, ...]] = ("t_ns", "t0_ns")
    turn: int
    t0_ns: int
    dt_us: tuple[int, ...]
    k: tuple[int, ...]  # tokens emitted
    m: tuple[int, ...]  # draft rows verified beyond the anchor
    a: tuple[int, ...]  # drafts accepted
    drafter: tuple[str, ...] = ()
    draft_us: tuple[int, ...] = ()
    verify_us: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()


class TurnEnd(Event, frozen=True, kw_only=True, tag="turn.end"):
    turn: int
    stop: StopReason
    stats: dict[str, Any] = {}  # filled by the trace writer's fold, never by the engine


class Text(Event, frozen=True, kw_only=True, tag="text"):
    turn: int
    delta: str


class Reasoning(Event, frozen=True, kw_only=True, tag="reasoning"):
    turn: int
    delta: str


class ToolCall(Event, frozen=True, kw_only=True, tag="tool.call"):
    """The model asks for a tool: the `index`-th call of its reply, from 0. Whole, since a half is of no use.

    It is a fact about the reply. Whether anything is run is someone else's decision.
    """

    turn: int
    index: int
    name: str
    arguments: str  # a JSON object, as text
    id: str = ""  # the model's own name for the call, where its format has one


class Engine(Event, frozen=True, kw_only=True, tag="engine"):
    """The engine's own state. Byte counts are 0 while unknown."""

    phase: Phase
    message: str = ""
    progress: float = -1.0  # 0..1, or -1 when unknown
    done_bytes: int = 0
    total_bytes: int = 0
    model: str = ""
    backend: str = ""
    weights: int = 0
    kv: int = 0
    state: int = 0  # recurrent state, whose size does not grow with the context
    snapshots: int = 0  # room kept for copies of it
    free: int = 0
    context: int = 0


class Ui(Event, frozen=True, kw_only=True, tag="ui"):
    lag_p95_ms: float


class Warn(Event, frozen=True, kw_only=True, tag="warn"):
    code: str
    message: str
    turn: int = 0


class Error(Event, frozen=True, kw_only=True, tag="error"):
    """A `LingchatError` as an event; `code` names its class."""

    code: str
    message: str
    turn: int = 0


class Stall(Event, frozen=True, kw_only=True, tag="stall"):
    """No event for longer than the running turn explains. `waited_ms` so far."""

    phase: WaitPhase
    waited_ms: float
    turn: int = 0


AnyEvent = (
    RunStart
    | RunEnd
    | TurnStart
    | TurnFirst
    | Prefill
    | Decode
    | TurnEnd
    | Text
    | Reasoning
    | ToolCall
    | Engine
    | Ui
    | Warn
    | Error
    | Stall
)


def rebase(event: AnyEvent, epoch_ns: int) -> AnyEvent:
    """The same event with every clock field counted from `epoch_ns`."""
    changes = {name: getattr(event, name) - epoch_ns for name in event.clock}
    return msgspec.structs.replace(event, **changes)
