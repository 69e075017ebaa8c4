"""`lingchat stats` as text and as JSON: one run, or several side by side.

Knows folds and digits; knows nothing of files or of the terminal. Names out of a trace are made visible here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lingchat.errors import UsageError
from lingchat.stats.fold import RunStats, TurnStats
from lingchat.stats.tally import Tally
from lingchat.stats.text import (
    METRICS,
    NO_DRAFT,
    UNKNOWN,
    Metric,
    footer,
    format_count,
    format_ms,
    format_percent,
    format_ratio,
    format_share,
    reasoning_note,
    summary,
)
from lingchat.visible import visible_line

SCHEMA_VERSION = 1
_LABEL = 19
_BAR = 20
_NOTES = (
    "TPOT = round time / its tokens, the first token left out. Acceptance length =",
    "tokens a round, over rounds that verified drafts; position j = accepted /",
    "verified at least j. Hiccup = a round over 3 x the median before it.",
)


class Named(NamedTuple):
    """A run under the name it was asked for."""

    name: str
    run: RunStats


def chosen(run: RunStats, turn: int | None) -> Tally:
    """The tally to show: of turn `turn`, of the only turn, or of all turns. `UsageError` when there is no such turn."""
    if turn is None:
        return next(iter(run.turns.values())) if len(run.turns) == 1 else run.total
    if turn not in run.turns:
        known = ", ".join(map(str, run.turns)) or "none"
        raise UsageError(f"the run has no turn {turn}; its turns are: {known}")
    return run.turns[turn]


def report(run: RunStats, turn: int | None = None) -> str:
    """One run: where it was made, a line for each turn as its footer on the screen, and all figures of what is `chosen`."""
    lines = [*_heading(run), ""]
    if turn is None and len(run.turns) > 1:
        lines += [f"turn {number:<4}{footer(stats)}" for number, stats in run.turns.items()] + [""]
    tally = chosen(run, turn)
    of = (
        f"turn {turn}"
        if turn is not None
        else f"{len(run.turns)} turns, of TTFT the median"
        if len(run.turns) > 1
        else ""
    )
    if of:
        lines += [of]
    lines += [f"{metric.label:<{_LABEL}}{metric.text(tally)}" for metric in METRICS]
    if isinstance(tally, TurnStats) and tally.reasoning.ms is not None:
        lines.append(f"{'reasoning':<{_LABEL}}{reasoning_note(tally.reasoning.ms, tally.reasoning.tokens)}")
    if run.ui_lag_ms is not None:
        lines.append(f"{'UI lag p95 ms':<{_LABEL}}{format_ms(run.ui_lag_ms)}")
    return "\n".join([*lines, "", *_acceptance(tally), "", *_NOTES, _precision(run.exact)])


def compare(runs: Sequence[Named], turn: int | None = None) -> str:
    """Several runs side by side, each figure of the later ones with its ratio to the first."""
    tallies = [chosen(named.run, turn) for named in runs]
    width = max(18, *(len(named.name) + 2 for named in runs))
    lines = [f"{'':<{_LABEL}}" + "".join(f"{visible_line(named.name):<{width}}" for named in runs).rstrip()]
    lines.append(f"{'model':<{_LABEL}}" + "".join(f"{_model(named.run):<{width}}" for named in runs).rstrip())
    for metric in METRICS:
        cells = [metric.text(tallies[0])]
        for tally in tallies[1:]:
            ratio = _ratio(metric, tally, tallies[0])
            cells.append(metric.text(tally) + ("" if ratio is None else f" (×{format_ratio(ratio)})"))
        lines.append(f"{metric.label:<{_LABEL}}" + "".join(f"{cell:<{width}}" for cell in cells).rstrip())
    return "\n".join([*lines, "", *_NOTES, _precision(runs[0].run.exact)])


def as_json(runs: Sequence[Named], turn: int | None = None) -> dict[str, Any]:
    """The same figures as an object; with several runs, the ratios of each to the first too."""
    first = chosen(runs[0].run, turn)
    found = []
    for named in runs:
        tally = chosen(named.run, turn)
        start = named.run.start
        record: dict[str, Any] = {
            "run": start.id if start else named.name,
            "wall": start.wall if start else None,
            "model": start.model if start else None,
            "machine": start.machine if start else None,
            "exact": named.run.exact,
            "turns": [{"turn": number, **summary(stats)} for number, stats in named.run.turns.items()],
            "figures": summary(tally),
        }
        if named is not runs[0]:
            record["ratios"] = {metric.name: _rounded(_ratio(metric, tally, first)) for metric in METRICS}
        found.append(record)
    return {"schema_version": SCHEMA_VERSION, "runs": found}


def _ratio(metric: Metric, tally: Tally, base: Tally) -> float | None:
    """Of the measured values, not of their digits; None where there is nothing to divide by."""
    value, other = metric.get(tally), metric.get(base)
    return None if value is None or not other else value / other


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)


def _heading(run: RunStats) -> list[str]:
    start = run.start
    if start is None:
        return ["run without a beginning"]
    engine = run.engine
    backend = engine.backend if engine is not None else ""
    first = [f"run {start.id}", start.wall, _model(run), backend]
    second = [start.machine, f"lingchat {start.version}" if start.version else ""]
    rows = (" · ".join(visible_line(part) for part in row if part) for row in (first, second))
    return [row for row in rows if row]


def _model(run: RunStats) -> str:
    """As the engine named it, else as it was asked for."""
    name = (run.engine.model if run.engine else "") or (run.start.model if run.start else "")
    return visible_line(name) or UNKNOWN


def _acceptance(tally: Tally) -> list[str]:
    if not tally.drafted_rounds:
        return [NO_DRAFT]
    drafters = ", ".join(f"{visible_line(name)} {format_count(count)}" for name, count in tally.drafters.items())
    most = max(tally.accept_hist)
    rows = [f"rounds by drafts accepted{f' (drafted by: {drafters})' if drafters else ''}"]
    for accepted, rounds in enumerate(tally.accept_hist):
        bar = "█" * round(_BAR * rounds / most)
        rows.append(
            f"{accepted:>3} {bar:<{_BAR}} {format_percent(rounds / tally.drafted_rounds):>4}  {format_count(rounds)}"
        )
    marks = "  ".join(f"{place} {format_share(share)}" for place, share in enumerate(tally.positions, 1))
    return [*rows, f"accepted at position  {marks}"]


def _precision(exact: bool) -> str:
    return "Quantiles are exact." if exact else "Quantiles are within 1 %, as on the screen; --exact gives exact ones."
