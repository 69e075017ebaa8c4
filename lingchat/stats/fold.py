"""The fold from events to figures: `TurnStats` for one turn, `RunStats` for a run of turns.

Pure: no I/O and no clock. Times come from the events; whoever asks for a figure that depends on the present passes
`now_ns` of the same clock. A fold over a trace (times from run start) gives the same figures as the live one, since
only differences of times enter, and any grouping of rounds into `Decode` events gives the same figures too.

Knows nothing of screens, files or engines.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal, NamedTuple

from lingchat.events import (
    AnyEvent,
    Decode,
    Engine,
    Error,
    Prefill,
    Reasoning,
    RunEnd,
    RunStart,
    Stall,
    StopReason,
    Text,
    ToolCall,
    TurnEnd,
    TurnFirst,
    TurnStart,
    Ui,
    Warn,
)
from lingchat.stats.reasoning import ReasoningMeter
from lingchat.stats.tally import Tally

TurnPhase = Literal["queue", "prefill", "decode", "done"]
TurnEvent = TurnStart | TurnFirst | Prefill | Decode | TurnEnd | Text | Reasoning | ToolCall | Warn | Error | Stall

SECOND_NS = 1_000_000_000
# Events arrive in batches, so the newest round known is a little old. Up to this much silence counts as delivery, not
# as an engine that stands still; beyond it tok/s now begins to fall.
DELIVERY_NS = 250_000_000
STALL_MIN_NS = 2 * SECOND_NS
STALL_ROUNDS = 20.0  # x round p95
STALL_PREFILL = 3.0  # x the time that earlier prefills would have taken for what remains
STALL_FIRST_PREFILL_NS = 10 * SECOND_NS  # while no prefill speed is known


class Round(NamedTuple):
    """One round of a `Decode` event."""

    ms: float  # d
    k: int
    m: int
    a: int

    @property
    def ms_per_token(self) -> float | None:
        """d / k; None for a round that emitted nothing."""
        return self.ms / self.k if self.k else None


def per_round(decode: Decode) -> list[Round]:
    """The rounds of a batch, in order."""
    rows = zip(decode.dt_us, decode.k, decode.m, decode.a, strict=True)
    return [Round(dt / 1000.0, k, m, a) for dt, k, m, a in rows]


def per_token(decode: Decode) -> list[float]:
    """The TPOT of every token of a batch in ms, d / k: one entry a token, so rounds with k = 0 have none.

    A turn's first token is among them when the batch holds the turn's first round; its cost is in TTFT.
    """
    return [dt / k / 1000.0 for dt, k in zip(decode.dt_us, decode.k, strict=True) for _ in range(k)]


class TurnStats(Tally):
    """One turn: a `Tally` of its rounds, the parts of TTFT, and what it is doing now."""

    def __init__(self, turn: int = 0, *, exact: bool = False, prefill_tok_s: float | None = None) -> None:
        """`prefill_tok_s` is the speed of earlier prefills of the run, for the stall rule."""
        super().__init__(exact)
        self.turns = 1
        self.turn = turn
        self.phase: TurnPhase = "queue"
        self.stop: StopReason | None = None
        self.text = ""  # the last user message, where the engine reports it
        self.spec = ""
        self.sampling: dict[str, Any] = {}
        self.error: Error | None = None
        self.reasoning = ReasoningMeter()
        self.prefill_done = 0
        self.prefill_total: int | None = None
        self._earlier_prefill_tok_s = prefill_tok_s
        self._first: TurnFirst | None = None
        self._start_ns: int | None = None  # turn.start
        self._chunk_ns: int | None = None  # the newest prefill chunk
        self._end_ns: int | None = None  # turn.end
        self._heard_ns: int | None = None  # the newest sign of life
        self._stalled = False  # a stall event came and nothing since
        self._t_first: int | None = None  # end of the first round
        self._t_last: int | None = None  # end of the newest round that emitted tokens
        self._recent: deque[tuple[int, int]] = deque()  # (end, tokens) of the last second, at most one entry a ms

    def add(self, event: AnyEvent) -> None:
        """Folds one event of this turn; events must come in order."""
        match event:
            case TurnStart():
                self.phase = "prefill"
                self.prompt_tokens, self.reused = event.prompt_tokens, event.reused
                self.text, self.spec, self.sampling = event.text, event.spec, event.sampling
                self.prefill_total = event.prompt_tokens - event.reused
                self._start_ns = event.t_ns
            case Prefill():
                self.phase = "prefill"
                self.prefill_done, self.prefill_total = event.done, event.total
                self._chunk_ns = event.t_ns
            case TurnFirst():
                self._add_first(event)
            case Decode():
                self._add_decode(event)
            case TurnEnd():
                self.phase = "done"
                self.stop = event.stop
                self._end_ns = event.t_ns
            case Stall():
                self.stalls += not self._stalled  # reports of one silence count once
                self._stalled = True
                return
            case Error():
                self.error = event
            case Text() | Reasoning() | ToolCall() | Warn():
                pass
            case _:
                return
        self.reasoning.add(event)
        self._stalled = False
        self._heard_ns = event.t_ns

    def _add_first(self, event: TurnFirst) -> None:
        if self._first is not None:
            return  # a first token comes once
        self._first = event
        for part, samples in self._waits_us.items():
            samples.add(max(0.0, getattr(self, f"{part}_ms")) * 1000.0)
        self.phase = "decode"
        self.prompt_tokens, self.reused = event.prompt_tokens, event.reused
        self.prefill_done = self.prefill_total = event.prompt_tokens - event.reused

    def _add_decode(self, event: Decode) -> None:
        self.phase = "decode"
        end_ns = event.t0_ns
        for dt_us, k, m, a in zip(event.dt_us, event.k, event.m, event.a, strict=True):
            end_ns += 1000 * dt_us
            self.add_round(dt_us, k, m, a)
            if k > 0:
                self._saw_tokens(end_ns, k)
        self.draft_us += sum(event.draft_us)
        self.verify_us += sum(event.verify_us)
        for name, m in zip(event.drafter, event.m, strict=False):  # drafter names are optional
            if m > 0 and name:
                self._drafters[name] += 1

    def _saw_tokens(self, end_ns: int, k: int) -> None:
        self._t_last = end_ns
        if self._t_first is None:
            self._t_first = end_ns
            return
        self._decode_ns = end_ns - self._t_first
        recent = self._recent
        if recent and recent[-1][0] // 1_000_000 == end_ns // 1_000_000:
            recent[-1] = (end_ns, recent[-1][1] + k)
        else:
            recent.append((end_ns, k))
        while recent[0][0] <= end_ns - SECOND_NS:
            recent.popleft()

    # -- TTFT and its parts: they add up, so nothing hides between them ------------------------------------------

    @property
    def ttft_ms(self) -> float | None:
        """First token - request accepted."""
        return None if self._first is None else (self._first.first_token - self._first.accepted) / 1e6

    @property
    def queue_ms(self) -> float | None:
        """Waiting for requests before this one."""
        return None if self._first is None else (self._first.started - self._first.accepted) / 1e6

    @property
    def tokenize_ms(self) -> float | None:
        """Template and tokenizer."""
        return None if self._first is None else (self._first.tokenized - self._first.started) / 1e6

    @property
    def prefill_ms(self) -> float | None:
        """From the prompt's ids to their state: finding the reusable prefix, restoring it, computing the rest."""
        return None if self._first is None else (self._first.prefill_end - self._first.tokenized) / 1e6

    @property
    def first_round_ms(self) -> float | None:
        """From the end of prefill to the first token."""
        return None if self._first is None else (self._first.first_token - self._first.prefill_end) / 1e6

    @property
    def prefill_tok_s(self) -> float | None:
        """New prompt tokens a second of prefill, as far as it has come."""
        if self._first is not None:
            tokens, ns = self._first.prompt_tokens - self._first.reused, self._first.prefill_end - self._first.tokenized
        elif self._chunk_ns is not None and self._start_ns is not None:
            tokens, ns = self.prefill_done, self._chunk_ns - self._start_ns
        else:
            return None
        return tokens / ns * 1e9 if tokens > 0 and ns > 0 else None

    # -- the present -----------------------------------------------------------------------------------------------

    @property
    def context_tokens(self) -> int | None:
        """Rows of the context in use: prompt and reply."""
        return None if self.prompt_tokens is None else self.prompt_tokens + self.tokens

    def elapsed_ms(self, now_ns: int) -> float | None:
        """Since the request was accepted (before that is known: since it was tokenised), until now or its end."""
        start = self._start_ns if self._first is None else self._first.accepted
        return None if start is None else ((now_ns if self._end_ns is None else self._end_ns) - start) / 1e6

    def tok_s_now(self, now_ns: int) -> float | None:
        """Tokens over the last second of engine time; None before the second token and when the turn is done.

        Within the first second after the first token the window is what there is of it, so that prefill never enters.
        """
        if self.phase == "done" or self._t_first is None or self._t_last is None or not self._recent:
            return None
        end = max(self._t_last, now_ns - DELIVERY_NS)
        start = max(end - SECOND_NS, self._t_first)
        return sum(k for t, k in self._recent if t > start) / (end - start) * 1e9 if end > start else None

    def stalled(self, now_ns: int) -> Stall | None:
        """The silence, when it is longer than the turn explains; None again as soon as an event comes.

        Decoding: no event for max(2 s, 20 x round p95). Prefill: for max(2 s, 3 x the time that the remaining tokens
        take at the speed of this turn's chunks, or else of earlier turns), 10 s while no speed is known.
        """
        if self._heard_ns is None or self.phase in ("queue", "done"):
            return None
        waited_ns = now_ns - self._heard_ns
        limit_ns = self._decode_patience() if self.phase == "decode" else self._prefill_patience()
        if waited_ns <= limit_ns:
            return None
        phase: Literal["decode", "prefill"] = "decode" if self.phase == "decode" else "prefill"
        return Stall(t_ns=now_ns, phase=phase, waited_ms=waited_ns / 1e6, turn=self.turn)

    def _decode_patience(self) -> float:
        p95_ms = self.round(0.95)
        return STALL_MIN_NS if p95_ms is None else max(STALL_MIN_NS, STALL_ROUNDS * p95_ms * 1e6)

    def _prefill_patience(self) -> float:
        speed = self.prefill_tok_s or self._earlier_prefill_tok_s
        if speed is None or self.prefill_total is None:
            return STALL_FIRST_PREFILL_NS
        remaining = max(0, self.prefill_total - self.prefill_done)
        return max(STALL_MIN_NS, STALL_PREFILL * remaining / speed * SECOND_NS)


class RunStats:
    """A run: its turns by number, the newest one, and everything that belongs to no turn."""

    def __init__(self, *, exact: bool = False) -> None:
        self.exact = exact
        self.start: RunStart | None = None
        self.end: RunEnd | None = None
        self.turns: dict[int, TurnStats] = {}
        self.current: TurnStats | None = None  # the newest turn, running or done
        self.engine: Engine | None = None  # the newest engine event
        self.ui_lag_ms: float | None = None  # event-loop lag p95
        self.warnings = 0
        self.errors = 0
        self.stalls: deque[Stall] = deque(maxlen=100)
        self._done = Tally(exact)  # the turns that have ended
        self._open: dict[int, TurnStats] = {}  # those that have not, or whose end was lost in a crash
        self._prefill_tokens = 0
        self._prefill_s = 0.0

    def add(self, event: AnyEvent) -> None:
        """Folds one event; events must come in order."""
        match event:
            case RunStart():
                self.start = event
            case RunEnd():
                self.end = event
            case Engine():
                self.engine = event
            case Ui():
                self.ui_lag_ms = event.lag_p95_ms
            case _:
                self._add_to_turn(event)

    def _add_to_turn(self, event: TurnEvent) -> None:
        self.warnings += isinstance(event, Warn)
        self.errors += isinstance(event, Error)
        if isinstance(event, Stall):
            self.stalls.append(event)
        if event.turn == 0 and isinstance(event, (Warn, Error, Stall)):
            if isinstance(event, Error) and self.engine is not None and self.engine.phase not in ("ready", "idle"):
                self.engine = None  # what was loading could not be loaded
            return  # of the run, not of a turn
        turn = self.turns.get(event.turn)
        if turn is None or (isinstance(event, TurnStart) and turn.phase != "queue"):
            turn = self._begin(event.turn)
        turn.add(event)
        if turn.phase == "done" and event.turn in self._open:
            self._finish(self._open.pop(event.turn))

    def _begin(self, number: int) -> TurnStats:
        lost = self._open.pop(number, None)  # the same number again, without an end: a crash, or a damaged trace
        if lost is not None:
            self._finish(lost)
        speed = self._prefill_tokens / self._prefill_s if self._prefill_s > 0 else None
        turn = TurnStats(number, exact=self.exact, prefill_tok_s=speed)
        self.turns[number] = self.current = self._open[number] = turn
        return turn

    def _finish(self, turn: TurnStats) -> None:
        self._done.merge(turn)
        if turn.prefill_tok_s is not None:
            self._prefill_tokens += turn.prefill_done
            self._prefill_s += turn.prefill_done / turn.prefill_tok_s

    @property
    def total(self) -> Tally:
        """All turns merged, the running one included."""
        total = Tally(self.exact)
        total.merge(self._done)
        for turn in self._open.values():
            total.merge(turn)
        return total
