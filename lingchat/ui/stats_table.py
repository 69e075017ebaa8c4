"""The figures of `/stats` as a table of text: the last turn, the one before for comparison, and the session.

Every digit comes from `stats`, as the panel's and those of `lingchat stats` do.
"""

from __future__ import annotations

from lingchat.stats import (
    METRICS,
    NO_DRAFT,
    UNKNOWN,
    RunStats,
    Tally,
    format_bytes,
    format_change,
    format_count,
    format_share,
    reasoning_note,
)

LABEL_WIDTH = 20
COLUMN_WIDTH = 20
COMPARED = {"ttft_ms", "tpot_p50_ms", "tpot_p95_ms", "tpot_p99_ms", "round_p50_ms", "round_p95_ms", "tok_s"}

DEFINITIONS = """\
TTFT               request accepted to first token
TPOT               a round's time over its tokens, the first token left out
tok/s              of the turn, prefill left out
acceptance length  tokens a round over rounds with drafts; the bonus token counts
rate               accepted of the drafts verified
hiccup             a round above 3 x the running median"""


def table(stats: RunStats, which: str = "", counted_from: int = 0) -> str:
    """`which` is "turn", "session" or "" for both; turns up to `counted_from` are left out of the session."""
    numbers = sorted(stats.turns)
    if not numbers:
        return "No turn yet."
    last = stats.turns[numbers[-1]]
    before = stats.turns[numbers[-2]] if len(numbers) > 1 else None
    session = Tally()
    counted = [number for number in numbers if number > counted_from]
    for number in counted:
        session.merge(stats.turns[number])

    columns: list[tuple[str, Tally]] = []
    if which in ("", "turn"):
        columns.append((f"turn {numbers[-1]}", last))
        if before is not None:
            columns.append((f"turn {numbers[-2]}", before))
    if which in ("", "session"):
        count = f"{format_count(len(counted))} turn{'' if len(counted) == 1 else 's'}"
        columns.append((f"session ({count})", session))

    rows = ["".ljust(LABEL_WIDTH) + "".join(name.ljust(COLUMN_WIDTH) for name, _ in columns).rstrip()]
    for metric in METRICS:
        cells = []
        for tally in (tally for _, tally in columns):
            text = metric.text(tally)
            if tally is last and before is not None and metric.name in COMPARED:
                change = format_change(metric.get(last), metric.get(before))
                text += f" ({change})" if change != UNKNOWN else ""
            cells.append(text.ljust(COLUMN_WIDTH))
        rows.append(metric.label.ljust(LABEL_WIDTH) + "".join(cells).rstrip())
    shown = columns[0][1]
    rows.append("")
    if shown.positions:
        marks = "  ".join(f"{place} {format_share(share)}" for place, share in enumerate(shown.positions, 1))
        rows.append(f"accepted by position, of rounds that drafted so far   {marks}")
        counts = "  ".join(f"{accepted}: {format_count(rounds)}" for accepted, rounds in enumerate(shown.accept_hist))
        rows.append(f"rounds by drafts accepted   {counts}")
    else:
        rows.append(NO_DRAFT)
    thought = reasoning_note(last.reasoning.ms, last.reasoning.tokens)
    if thought and which != "session":
        rows.append(f"reasoning of turn {numbers[-1]}   {thought}")
    rows.append(_memory(stats))
    return "\n".join([*rows, "", DEFINITIONS])


def _memory(stats: RunStats) -> str:
    """Where the bytes are, as the engine last said; the state and its snapshots only where a model has them."""
    engine = stats.engine
    if engine is None:
        return f"memory   {UNKNOWN}"
    parts = ("weights", "kv", *("state",) * bool(engine.state), *("snapshots",) * bool(engine.snapshots), "free")
    return "memory   " + " · ".join(f"{name} {format_bytes(getattr(engine, name))}" for name in parts)
