"""The result of a run in its three forms: text as it comes, one JSON object, or the trace's lines live.

Knows events and a sink; knows nothing of engines, sessions or signals.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from lingchat.events import AnyEvent, Error, Reasoning, RunEnd, RunStart, Text, ToolCall
from lingchat.headless.job import Output
from lingchat.headless.sink import Sink
from lingchat.stats import RunStats, timings
from lingchat.trace import TraceEncoder
from lingchat.visible import visible

SCHEMA_VERSION = 1


class Outcome(msgspec.Struct, kw_only=True):
    """How a run ended, and what names it."""

    status: str = "ok"  # ok, error or cancel
    exit: int = 0
    session: str | None = None
    run: str | None = None
    error: dict[str, str] | None = None  # {code, message}


class Form(Protocol):
    def add(self, event: AnyEvent) -> None:
        """An event, as it happens."""
        ...

    def end(self, outcome: Outcome, stats: RunStats, t_ns: int) -> None:
        """The run is over; nothing follows."""
        ...


class AsText:
    """The reply's text, delta by delta, and a newline at its end."""

    def __init__(self, sink: Sink, *, terminal: bool) -> None:
        """On a `terminal` control characters of the model are made visible; elsewhere the text goes out as it is."""
        self._sink = sink
        self._terminal = terminal
        self._last = ""

    def add(self, event: AnyEvent) -> None:
        if isinstance(event, Text) and event.delta:
            text = visible(event.delta) if self._terminal else event.delta
            self._sink.write(text.encode("utf-8", "replace"))
            self._last = text[-1]

    def end(self, outcome: Outcome, stats: RunStats, t_ns: int) -> None:
        if self._last not in ("", "\n"):
            self._sink.write(b"\n")


class AsJson:
    """One object, whatever happened."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, str]] = []

    def add(self, event: AnyEvent) -> None:
        if isinstance(event, Text):
            self._text.append(event.delta)
        elif isinstance(event, Reasoning):
            self._reasoning.append(event.delta)
        elif isinstance(event, ToolCall):
            self._calls.append({"name": event.name, "arguments": event.arguments, "id": event.id})

    def end(self, outcome: Outcome, stats: RunStats, t_ns: int) -> None:
        turn = stats.current
        prompt = turn.prompt_tokens if turn is not None else None
        usage = None
        if turn is not None and prompt is not None:
            usage = {
                "prompt_tokens": prompt,
                "completion_tokens": turn.tokens,
                "total_tokens": prompt + turn.tokens,
                "reused_tokens": turn.reused,
                "reasoning_tokens": turn.reasoning.tokens,
            }
        result: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "status": outcome.status,
            "text": "".join(self._text),
            "reasoning": "".join(self._reasoning),
            "tool_calls": self._calls,
            "stop": turn.stop if turn is not None else None,
            "usage": usage,
            "timings": timings(turn) if turn is not None else None,
            "session": outcome.session,
            "run": outcome.run,
            "error": outcome.error,
        }
        self._sink.write(msgspec.json.encode(result) + b"\n")


class AsLines:
    """The lines of the trace as they are written, whether or not a trace is kept."""

    def __init__(self, sink: Sink, run_start: RunStart) -> None:
        self._sink = sink
        self._encoder = TraceEncoder(run_start)
        self.add(run_start)

    def add(self, event: AnyEvent) -> None:
        self._sink.write(self._encoder.line(event) + b"\n")

    def end(self, outcome: Outcome, stats: RunStats, t_ns: int) -> None:
        seen = self._encoder.stats.errors
        if outcome.error is not None and not seen:
            self.add(Error(t_ns=t_ns, code=outcome.error["code"], message=outcome.error["message"]))
        status: Any = outcome.status
        self.add(RunEnd(t_ns=t_ns, status=status, exit=outcome.exit))


def make_form(output: Output, sink: Sink, *, terminal: bool, run_start: RunStart) -> Form:
    """The form that `--output` names."""
    if output == "json":
        return AsJson(sink)
    return AsText(sink, terminal=terminal) if output == "text" else AsLines(sink, run_start)
