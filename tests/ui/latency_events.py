"""Events of a made-up but plausible turn, for tests of the latency widgets."""

from __future__ import annotations

import random
from collections.abc import Iterator

from lingchat.events import AnyEvent, Decode, Engine, Prefill, TurnEnd, TurnFirst, TurnStart, Ui

MS = 1_000_000


def engine() -> Engine:
    return Engine(t_ns=0, phase="ready", weights=98_000_000, kv=47_000_000, free=3_100_000_000, context=8192)


def first(turn: int = 1, prompt: int = 180, reused: int = 128) -> TurnFirst:
    return TurnFirst(
        t_ns=143 * MS,
        turn=turn,
        accepted=0,
        started=100_000,
        tokenized=2 * MS,
        prefill_start=3 * MS,
        prefill_end=130 * MS,
        first_token=143 * MS,
        prompt_tokens=prompt,
        reused=reused,
    )


def turn_events(*, drafts: int = 3, rounds: int = 200, end: bool = False) -> Iterator[AnyEvent]:
    """A turn: 9.5 ms rounds with an occasional slow one; with `drafts` 0 nothing is drafted."""
    dice = random.Random(1)
    yield engine()
    yield TurnStart(t_ns=3 * MS, turn=1, prompt_tokens=180, reused=128)
    yield Prefill(t_ns=90 * MS, turn=1, done=32, total=52)
    yield first()
    yield Ui(t_ns=143 * MS, lag_p95_ms=8.7)
    at = 130 * MS
    for number in range(rounds):
        accepted = dice.choices(range(drafts + 1), [28, 21, 17, 34, *[3] * 9][: drafts + 1])[0]
        us = int(dice.gauss(9500, 600)) * (7 if number % 67 == 40 else 1)
        yield Decode(t_ns=at + 1000 * us, turn=1, t0_ns=at, dt_us=(us,), k=(accepted + 1,), m=(drafts,), a=(accepted,))
        at += 1000 * us
    if end:
        yield TurnEnd(t_ns=at, turn=1, stop="eos")
