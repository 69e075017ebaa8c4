"""The door to the figures: everything the rest of the package uses of the statistics is imported from here.

`fold` turns events into figures (the definitions stand in `tally`), `histogram` holds the distributions, `text` writes
digits and `report` lays them out for `lingchat stats`. All of it is pure: no I/O, no clock. Nothing else in the package
computes or formats a latency or an acceptance.
"""

from __future__ import annotations

from lingchat.stats.fold import Round, RunStats, TurnStats, per_round, per_token
from lingchat.stats.histogram import ExactSamples, Histogram
from lingchat.stats.reasoning import ReasoningMeter
from lingchat.stats.report import compare, report
from lingchat.stats.tally import HICCUP, Tally
from lingchat.stats.text import (
    METRICS,
    NO_DRAFT,
    UNKNOWN,
    Metric,
    footer,
    format_accept_len,
    format_bytes,
    format_change,
    format_count,
    format_ms,
    format_percent,
    format_rate,
    format_ratio,
    format_seconds,
    format_share,
    reasoning_note,
    summary,
    timings,
)

__all__ = [
    "HICCUP",
    "METRICS",
    "NO_DRAFT",
    "UNKNOWN",
    "ExactSamples",
    "Histogram",
    "Metric",
    "ReasoningMeter",
    "Round",
    "RunStats",
    "Tally",
    "TurnStats",
    "compare",
    "footer",
    "format_accept_len",
    "format_bytes",
    "format_change",
    "format_count",
    "format_ms",
    "format_percent",
    "format_rate",
    "format_ratio",
    "format_seconds",
    "format_share",
    "per_round",
    "per_token",
    "reasoning_note",
    "report",
    "summary",
    "timings",
]
