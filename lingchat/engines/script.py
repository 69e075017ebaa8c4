"""What a scripted engine says: declared turns, and the cues they become.

A cue is an event and the instant it is due, counted from the moment the request's turn comes. Cues are computed, not
measured, so a script's figures repeat exactly, whatever the machine does.

Knows nothing of clocks, of the runtime or of screens.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from lingchat import events as ev
from lingchat.engines.api import ChatRequest, ModelInfo
from lingchat.errors import ConfigError, EngineCrashed

_PIECE = re.compile(r"\s*\S{1,5}|\s+")


def pieces(text: str) -> tuple[str, ...]:
    """`text` cut into token-sized pieces; joined they give `text` again."""
    return tuple(_PIECE.findall(text))


class _Declared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Failure(_Declared, frozen=True, kw_only=True):
    """An error in place of round `at` (0: after the prefill, -1: before `turn.start`, as a refused prompt is)."""

    code: str
    message: str
    at: int = 0


class Pause(_Declared, frozen=True, kw_only=True):
    """`ms` more before round `at` ends; null means forever, until `cancel`."""

    at: int
    ms: float | None = None


class LoadPhase(_Declared, frozen=True, kw_only=True):
    """A phase of `start()`: it lasts `ms` and reports its progress `reports` times."""

    phase: ev.Phase = "load"
    message: str = ""
    ms: float = 0.0
    reports: int = 1
    total_bytes: int = 0


class ScriptCall(_Declared, frozen=True, kw_only=True):
    """A tool call; `arguments` is a JSON object as text."""

    name: str
    arguments: str = "{}"
    id: str = ""


class ScriptTurn(_Declared, frozen=True, kw_only=True):
    """One reply. Lists with an entry a round are repeated until the text is used up.

    `tokens` gives the pieces one by one; otherwise `text` is cut into pieces. `reasoning` comes before it, `calls`
    after it, each as one token. With `echo` the reply is the last user message. A round emits its accepted drafts and
    one token more.
    """

    text: str = ""
    tokens: tuple[str, ...] = ()
    echo: bool = False
    reasoning: str = ""
    calls: tuple[ScriptCall, ...] = ()
    m: tuple[int, ...] = ()  # drafts verified; empty: no drafting
    a: tuple[int, ...] = ()  # of them accepted
    drafter: str = "script"
    round_ms: float | tuple[float, ...] = 4.0
    tokenize_ms: float = 0.0
    prefill_ms: float = 10.0
    prefill_chunks: int = 1
    prompt_tokens: int | None = None  # None: counted
    reused: int = 0
    rounds_an_event: int = 1
    stop: ev.StopReason = "eos"
    pause: Pause | None = None
    failure: Failure | None = None
    crash: int | None = None  # the engine process dies in place of this round


DEMO_INFO = ModelInfo(name="scripted model", backend="scripted", context=8192, provenance="live")


class Script(_Declared, frozen=True, kw_only=True):
    """What a scripted engine is and what it answers. After the last turn it begins again, unless `once`."""

    turns: tuple[ScriptTurn, ...] = (ScriptTurn(text="Hello."),)
    info: ModelInfo = DEMO_INFO
    load: tuple[LoadPhase, ...] = ()
    load_failure: Failure | None = None
    once: bool = False

    @classmethod
    def of(cls, *turns: ScriptTurn | str, **rest: Any) -> Script:
        """A script from turns; a string is a turn with that text."""
        return cls(turns=tuple(ScriptTurn(text=turn) if isinstance(turn, str) else turn for turn in turns), **rest)

    @classmethod
    def steady(
        cls,
        tok_s: float = 500.0,
        tokens: int = 2000,
        *,
        text: str = "",
        drafts: int = 0,
        accepted: Sequence[int] = (),
        prefill_ms: float = 10.0,
    ) -> Script:
        """A reply of `tokens` tokens at `tok_s` tokens a second; with `drafts`, `accepted` of them in turn."""
        source = pieces(text) if text else pieces("The next token comes as early as this machine allows. ")
        accepts = tuple(min(count, drafts) for count in accepted) if drafts else ()
        per_round = 1.0 if not accepts else sum(accepts) / len(accepts) + 1
        turn = ScriptTurn(
            tokens=tuple(itertools.islice(itertools.cycle(source), tokens)),
            m=(drafts,) if drafts else (),
            a=accepts,
            round_ms=1000.0 * per_round / tok_s,
            prefill_ms=prefill_ms,
        )
        return cls(turns=(turn,))

    @classmethod
    def read(cls, path: str | Path) -> Script:
        """The script in a JSON file. Raises ConfigError naming the file and the field."""
        try:
            return msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except OSError as cause:
            raise ConfigError(f"cannot read the script {path}: {cause.strerror}") from cause
        except msgspec.DecodeError as cause:
            raise ConfigError(f"{path} is not a script: {cause}") from cause


class Cue(NamedTuple):
    """`event`, with its clock fields counted from the turn's start, is due at `at_ns`; a `round` waits for a step."""

    at_ns: float
    event: ev.AnyEvent
    round: bool = False


_Item = tuple[type[ev.Text] | type[ev.Reasoning], str] | tuple[int, ScriptCall]  # a delta, or a call by its index


def nanoseconds(ms: float) -> int:
    """`ms` milliseconds."""
    return round(ms * 1e6)


def error_cues(at: float, turn: int, code: str, message: str) -> Iterator[Cue]:
    """The end of a request that fails `at` nanoseconds after its start."""
    t = 0 if math.isinf(at) else int(at)
    yield Cue(at, ev.Error(t_ns=t, code=code, message=message, turn=turn))
    yield Cue(at, ev.TurnEnd(t_ns=t, turn=turn, stop="error"))


def script_cues(turn: ScriptTurn, request: ChatRequest, prompt_tokens: int, queued_ns: int, seed: int) -> Iterator[Cue]:
    """The cues of a scripted turn: turn.start, prefill chunks, turn.first, then decode and text a batch of rounds."""
    n = request.turn
    if turn.failure is not None and turn.failure.at < 0:
        yield from error_cues(0, n, turn.failure.code, turn.failure.message)
        return
    prompt = prompt_tokens if turn.prompt_tokens is None else turn.prompt_tokens
    reused = min(turn.reused, max(prompt - 1, 0))
    drafting = bool(turn.m) and request.spec not in ("off", 0)
    tokenized = nanoseconds(turn.tokenize_ms)
    sampling = msgspec.to_builtins(msgspec.structs.replace(request.sampling, seed=seed))
    start = ev.TurnStart(
        t_ns=tokenized,
        turn=n,
        prompt_tokens=prompt,
        reused=reused,
        text=last_user_text(request),
        spec=str(request.spec),
        sampling=sampling,
    )
    yield Cue(tokenized, start)
    chunks = max(turn.prefill_chunks, 1)
    new = prompt - reused
    for i in range(1, chunks + 1):
        at = tokenized + nanoseconds(turn.prefill_ms * i / chunks)
        yield Cue(at, ev.Prefill(t_ns=at, turn=n, done=new * i // chunks, total=new))
    prefilled = tokenized + nanoseconds(turn.prefill_ms)

    thoughts = pieces(turn.reasoning)
    reply = pieces(last_user_text(request)) if turn.echo else turn.tokens or pieces(turn.text)
    stream: list[_Item] = [(ev.Reasoning, piece) for piece in thoughts]
    stream += [(ev.Text, piece) for piece in reply]
    stream += list(enumerate(turn.calls))
    limit = request.sampling.max_tokens
    stop: ev.StopReason = turn.stop
    if limit and limit < len(stream):
        stream, stop = stream[:limit], "length"

    durations = itertools.cycle(turn.round_ms if isinstance(turn.round_ms, tuple) else (turn.round_ms,))
    ms = itertools.cycle(turn.m if drafting else (0,))
    accepts = itertools.cycle(turn.a if drafting and turn.a else (0,))
    depth = request.spec if isinstance(request.spec, int) else max(turn.m, default=0)
    done, end, batch_start = 0, prefilled, prefilled
    batch: list[tuple[int, int, int, int]] = []  # dt_us, k, m, a
    spoken: list[_Item] = []
    for number in itertools.count():
        if done >= len(stream):
            break
        if turn.failure is not None and turn.failure.at == number:
            yield from error_cues(end, n, turn.failure.code, turn.failure.message)
            return
        if turn.crash == number:
            yield from error_cues(end, n, EngineCrashed.code, "the engine process died (scripted crash)")
            return
        before: float = end
        end += nanoseconds(next(durations))
        if turn.pause is not None and turn.pause.at == number:
            if turn.pause.ms is None:  # hangs: nothing more comes, only `cancel` ends it
                yield from error_cues(math.inf, n, EngineCrashed.code, "the engine process hung (scripted)")
                return
            end += nanoseconds(turn.pause.ms)
        m = min(next(ms), depth)
        a = min(next(accepts), m)
        k = min(a + 1, len(stream) - done)
        a = min(a, k)  # a reply that ends inside the drafts emits no bonus token
        # Differences of whole microseconds from the prefill's end, so that rounding never adds up.
        dt_us = (end - prefilled) // 1000 - (int(before) - prefilled) // 1000
        batch.append((dt_us, k, m, a))
        spoken.extend(stream[done : done + k])
        if number == 0:
            yield Cue(end, _first(n, queued_ns, tokenized, prefilled, end, prompt, reused), round=True)
        done += k
        last = done >= len(stream)
        if last or len(batch) >= turn.rounds_an_event or number == 0:
            dts, k_s, m_s, a_s = zip(*batch, strict=True)
            decode = ev.Decode(
                t_ns=end,
                turn=n,
                t0_ns=prefilled + (batch_start - prefilled) // 1000 * 1000,
                dt_us=dts,
                k=k_s,
                m=m_s,
                a=a_s,
                drafter=(turn.drafter,) * len(dts) if drafting else (),
                ids=tuple(range(done - sum(k_s), done)) if request.keep_ids else (),
            )
            yield Cue(end, decode, round=number > 0)
            yield from (Cue(end, event) for event in _spoken(spoken, n, end))
            batch, spoken, batch_start = [], [], end
    yield Cue(end, ev.TurnEnd(t_ns=end, turn=n, stop=stop))


def _spoken(items: Sequence[_Item], turn: int, at: int) -> Iterator[ev.AnyEvent]:
    """The pieces of a batch as events: those of one kind in one delta, each call by itself."""
    for kind, group in itertools.groupby(items, key=lambda item: item[0]):
        if isinstance(kind, int):
            for index, call in group:
                assert isinstance(index, int) and isinstance(call, ScriptCall)
                yield ev.ToolCall(t_ns=at, turn=turn, index=index, name=call.name, arguments=call.arguments, id=call.id)
        else:
            yield kind(t_ns=at, turn=turn, delta="".join(str(piece) for _, piece in group))


def _first(n: int, queued: int, tokenized: int, prefilled: int, end: int, prompt: int, reused: int) -> ev.TurnFirst:
    return ev.TurnFirst(
        t_ns=end,
        turn=n,
        accepted=-queued,
        started=0,
        tokenized=tokenized,
        prefill_start=tokenized,
        prefill_end=prefilled,
        first_token=end,
        prompt_tokens=prompt,
        reused=reused,
    )


def last_user_text(request: ChatRequest) -> str:
    """What `turn.start.text` shows: the last user message, or the raw text."""
    if request.messages is None:
        return request.text or ""
    return next((message.content for message in reversed(request.messages) if message.role == "user"), "")
