"""Runs the rungs one after another, each in an engine of its own, and keeps each as a trace.

No screen runs meanwhile, so that none takes the processor from the decode loop. Knows engines and traces; knows
nothing of how a recording is shown.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from lingchat.engines.api import ChatRequest, Engine, Message, Sampling
from lingchat.errors import LingchatError, TraceError, from_code
from lingchat.events import AnyEvent, Error, RunEnd, RunStart, now_ns
from lingchat.trace import SUFFIX, Trace, TraceWriter, read_trace
from lingchat.ui.demo.lanes import Rung

MakeEngine = Callable[[Rung], Engine]
WARM_UP_TOKENS = 4


class Recording(NamedTuple):
    """A rung and the trace of its run."""

    rung: Rung
    trace: Trace


async def record(
    rung: Rung, prompt: str, tokens: int, make_engine: MakeEngine, folder: Path, start: RunStart
) -> AsyncIterator[AnyEvent]:
    """Run `rung` and write `<folder>/<key>.jsonl`, replacing one from before; the events, as they happen.

    Greedy, so that every rung writes the same text as far as its numbers allow. A few tokens run ahead unrecorded:
    the first touch of the weights would otherwise be counted for the first rung alone. Raises the engine's error.
    """
    target = folder / f"{rung.key}{SUFFIX}"
    engine = make_engine(rung)
    part = folder / f"{start.id}{SUFFIX}"
    writer = TraceWriter.create(folder, start)
    try:
        async with aclosing(engine.start()) as events:  # type: ignore[type-var]  # a generator
            async for event in events:
                writer.write(event)
                yield event
        warm_up = ChatRequest(
            text="Hello.", sampling=Sampling(temperature=0.0, max_tokens=WARM_UP_TOKENS), spec=rung.spec
        )
        async with aclosing(engine.chat(warm_up)) as events:  # type: ignore[type-var]
            async for event in events:
                _check(event)
        request = ChatRequest(
            messages=(Message("user", prompt),),
            sampling=Sampling(temperature=0.0, max_tokens=tokens),
            spec=rung.spec,
        )
        async with aclosing(engine.chat(request)) as events:  # type: ignore[type-var]
            async for event in events:
                writer.write(event)
                _check(event)
                yield event
        writer.write(RunEnd(t_ns=now_ns(), status="ok", exit=0))
        writer.close()
        part.replace(target)
    finally:
        await engine.close()
        writer.close()
        part.unlink(missing_ok=True)


def _check(event: AnyEvent) -> None:
    if isinstance(event, Error):
        raise from_code(event.code, event.message)


def recordings(folder: Path, ladder: Sequence[Rung]) -> list[Recording]:
    """What `folder` holds of the ladder, in its order. A file that is no trace raises TraceError."""
    found = []
    for rung in ladder:
        path = folder / f"{rung.key}{SUFFIX}"
        if path.is_file():
            found.append(Recording(rung, read_trace(path)))
    return found


def shipped(ladder: Sequence[Rung]) -> list[Recording]:
    """The recordings that come with the package, for a machine without a model."""
    with resources.as_file(resources.files("lingchat.ui.demo") / "traces") as folder:
        return recordings(folder, ladder)


def nothing_to_show(cause: LingchatError | None) -> LingchatError:
    """The error when there is neither a model nor a recording."""
    text = "there is no recording to replay, and this version ships none: run `lingchat demo` with a model first"
    return TraceError(text) if cause is None else type(cause)(f"{cause}. Besides, {text}")
