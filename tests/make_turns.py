"""Builds the events of a turn from rounds, and hypothesis strategies for them."""

from __future__ import annotations

from hypothesis import strategies as st

from lingchat.events import AnyEvent, Decode, TurnEnd, TurnFirst, TurnStart

MS = 1_000_000

Rounds = list[tuple[int, int, int, int]]  # dt_us, k, m, a


def turn_events(
    rounds: Rounds,
    *,
    turn: int = 1,
    at_ns: int = 5_000 * MS,
    queue_ms: int = 0,
    tokenize_ms: int = 1,
    prefill_ms: int = 128,
    prompt: int = 50,
    reused: int = 10,
    batches: list[int] | None = None,
    stop: str = "eos",
) -> list[AnyEvent]:
    """One turn, its rounds in `Decode` events that end at the counts in `batches` (default: one event)."""
    started = at_ns + queue_ms * MS
    tokenized = started + tokenize_ms * MS
    prefill_end = tokenized + prefill_ms * MS
    found: list[AnyEvent] = [
        TurnStart(t_ns=tokenized, turn=turn, prompt_tokens=prompt, reused=reused, text="hi", spec="on")
    ]
    if rounds:
        found.append(
            TurnFirst(
                t_ns=prefill_end + rounds[0][0] * 1000,
                turn=turn,
                accepted=at_ns,
                started=started,
                tokenized=tokenized,
                prefill_start=tokenized,
                prefill_end=prefill_end,
                first_token=prefill_end + rounds[0][0] * 1000,
                prompt_tokens=prompt,
                reused=reused,
            )
        )
    t0, begin = prefill_end, 0
    for end in sorted({*(batches or []), len(rounds)}):
        part = rounds[begin:end]
        if not part:
            continue
        last = t0 + 1000 * sum(dt for dt, _, _, _ in part)
        dt_us, k, m, a = (tuple(column) for column in zip(*part, strict=True))
        drafter = tuple("lookup" if one else "" for one in m)
        found.append(Decode(t_ns=last, turn=turn, t0_ns=t0, dt_us=dt_us, k=k, m=m, a=a, drafter=drafter))
        t0, begin = last, end
    found.append(TurnEnd(t_ns=t0 + MS, turn=turn, stop=stop))
    return found


@st.composite
def round_rows(draw: st.DrawFn, max_size: int = 40) -> Rounds:
    """Plausible rounds: some drafted, some that emit nothing, times from zero to a second."""
    rows: Rounds = []
    for _ in range(draw(st.integers(0, max_size))):
        dt = draw(st.one_of(st.integers(0, 50), st.integers(500, 20_000), st.integers(0, 1_000_000)))
        m = draw(st.integers(0, 8))
        a = draw(st.integers(0, m))
        k = draw(st.sampled_from([a + 1, a + 1, a + 1, 0, 1]))
        rows.append((dt, k, m, a))
    return rows
