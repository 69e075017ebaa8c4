"""Figures as text: the one place where a measured number becomes digits.

The panel, the strip, footers, `lingchat stats` and JSON all go through these functions, so they print the same
digits. JSON carries the number that the digits spell, not more of it. An unknown value is "–", in JSON null.

Knows tallies and turns; knows nothing of events, files, colours or widths of a screen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from lingchat.stats.fold import TurnStats
from lingchat.stats.tally import Tally

UNKNOWN = "–"
NO_DRAFT = "no draft"
ENDINGS = {
    "eos": "",
    "stop": "",
    "length": "length limit",
    "cancel": "stopped",
    "error": "failed",
    "interrupted": "interrupted",
}


def _digits(value: float | None, decimals: tuple[tuple[float, int], ...], least: int) -> str:
    """Fewer decimals as the value grows: (limit, decimals) pairs, `least` above the last limit."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for limit, places in decimals:
        if round(abs(value), places) < limit:
            return f"{value:.{places}f}"
    return f"{value:.{least}f}"


def format_ms(ms: float | None) -> str:
    """Milliseconds without the unit: 3.90, 52.1, 143."""
    return _digits(ms, ((10, 2), (100, 1)), 0)


def format_rate(per_second: float | None) -> str:
    """A rate without its unit: 7.25, 42.5, 251."""
    return _digits(per_second, ((10, 2), (100, 1)), 0)


def format_ratio(value: float | None) -> str:
    """A small plain number, such as an acceptance length: 2.57."""
    return _digits(value, (), 2)


def format_percent(share: float | None) -> str:
    """A share of 1 in whole per cent: 52%."""
    return UNKNOWN if share is None or not math.isfinite(share) else f"{share * 100:.0f}%"


def format_share(share: float | None) -> str:
    """A share of 1 in two decimals without the zero before the point: .72, and 1.0 for one."""
    text = _digits(share, (), 2)
    return "1.0" if text == "1.00" else text.removeprefix("0")


def format_count(count: int | None) -> str:
    """1,020."""
    return UNKNOWN if count is None else f"{count:,}"


def format_seconds(ms: float | None) -> str:
    """A duration given in ms, as seconds or minutes with the unit: 1.8 s, 42 s, 3 m 05 s."""
    if ms is None or not math.isfinite(ms):
        return UNKNOWN
    if round(ms / 1000, 1) < 10:
        return f"{ms / 1000:.1f} s"
    seconds = round(ms / 1000)
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} m {seconds % 60:02d} s"


def reasoning_note(ms: float | None, tokens: int | None) -> str:
    """How long reasoning took, of how many tokens: "4.1 s · 1,020 tokens · 248 tok/s"; empty when there was none."""
    if ms is None:
        return ""
    if tokens == 1:
        return f"{format_seconds(ms)} · 1 token"  # a rate would be of nothing
    rate = tokens / ms * 1000 if ms > 0 and tokens else None
    return f"{format_seconds(ms)} · {format_count(tokens)} tokens · {format_rate(rate)} tok/s"


def format_bytes(count: int | None) -> str:
    """Bytes with a decimal unit: 412 MB, 9.8 GB; 0 is unknown, as in `events.Engine`."""
    if not count:
        return UNKNOWN
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if round(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{_digits(value, ((10, 1),), 0)} {unit}"
        value /= 1000
    return f"{_digits(value, ((10, 1),), 0)} TB"


def format_change(value: float | None, base: float | None) -> str:
    """How `value` compares with a baseline: +31 %; unknown when either is."""
    if value is None or base is None or base <= 0:
        return UNKNOWN
    return f"{(value / base - 1) * 100:+.0f} %"


def format_accept_len(tally: Tally) -> str:
    """The acceptance length, or "no draft"."""
    return format_ratio(tally.accept_len) if tally.drafted_rounds else NO_DRAFT


class Metric(NamedTuple):
    """A figure: its name in JSON, its label in text, where it comes from and how it is written."""

    name: str
    label: str
    get: Callable[[Tally], float | None]
    show: Callable[[Any], str]

    def text(self, tally: Tally) -> str:
        return self.show(self.get(tally))

    def number(self, tally: Tally) -> float | int | None:
        """The number that `text` spells (a share: to two decimals), None when unknown."""
        value = self.get(tally)
        if value is None or not math.isfinite(value):
            return None
        if isinstance(value, int):
            return value
        return round(value, 2) if self.show is format_percent else float(self.show(value))


def _wait(part: str) -> Callable[[Tally], float | None]:
    """TTFT or a part of it: of a turn itself, of merged turns the median."""
    return lambda tally: getattr(tally, f"{part}_ms") if isinstance(tally, TurnStats) else tally.wait(part, 0.5)


METRICS: tuple[Metric, ...] = (
    Metric("tokens", "tokens", lambda t: t.tokens, format_count),
    Metric("prompt_tokens", "prompt tokens", lambda t: t.prompt_tokens, format_count),
    Metric("reused", "  reused", lambda t: t.reused, format_count),
    Metric("ttft_ms", "TTFT ms", _wait("ttft"), format_ms),
    Metric("queue_ms", "  queue", _wait("queue"), format_ms),
    Metric("tokenize_ms", "  tokenize", _wait("tokenize"), format_ms),
    Metric("prompt_ms", "  prefill", _wait("prefill"), format_ms),
    Metric("first_round_ms", "  first round", _wait("first_round"), format_ms),
    Metric("tpot_p50_ms", "TPOT p50 ms", lambda t: t.tpot(0.5), format_ms),
    Metric("tpot_p95_ms", "     p95", lambda t: t.tpot(0.95), format_ms),
    Metric("tpot_p99_ms", "     p99", lambda t: t.tpot(0.99), format_ms),
    Metric("tpot_mean_ms", "     mean", lambda t: t.mean_tpot_ms, format_ms),
    Metric("round_p50_ms", "round p50 ms", lambda t: t.round(0.5), format_ms),
    Metric("round_p95_ms", "      p95", lambda t: t.round(0.95), format_ms),
    Metric("tok_s", "tok/s", lambda t: t.tok_s, format_rate),
    Metric("rounds", "rounds", lambda t: t.rounds, format_count),
    Metric("tokens_per_round", "tokens a round", lambda t: t.tokens_per_round, format_ratio),
    Metric("draft_n", "drafts verified", lambda t: t.draft_n, format_count),
    Metric("draft_n_accepted", "  accepted", lambda t: t.draft_n_accepted, format_count),
    Metric("accept_len", "acceptance length", lambda t: t.accept_len, format_ratio),
    Metric("accept_rate", "  rate", lambda t: t.accept_rate, format_percent),
    Metric("hiccups", "hiccups", lambda t: t.hiccups, format_count),
    Metric("stalls", "stalls", lambda t: t.stalls, format_count),
)

_TIMINGS = [
    "ttft_ms",
    "prompt_ms",
    "reused",
    "tpot_p50_ms",
    "tpot_p95_ms",
    "tpot_p99_ms",
    "tok_s",
    "rounds",
    "drafter",
    "draft_n",
    "draft_n_accepted",
    "accept_len",
    "accept_rate",
    "accept_hist",
]


def summary(tally: Tally) -> dict[str, Any]:
    """Every figure by name, as `turn.end` and `run.end` carry them in `stats`; a turn's stop is among them."""
    figures: dict[str, Any] = {metric.name: metric.number(tally) for metric in METRICS}
    figures["drafter"] = tally.drafter
    figures["accept_hist"] = tally.accept_hist
    figures["accept_positions"] = [round(share, 2) for share in tally.positions]
    if isinstance(tally, TurnStats):
        figures["stop"] = tally.stop
        figures["reasoning_tokens"] = tally.reasoning.tokens
        figures["reasoning_ms"] = None if tally.reasoning.ms is None else round(tally.reasoning.ms, 3)
    else:
        figures["turns"] = tally.turns
    return figures


def timings(tally: Tally) -> dict[str, Any]:
    """The `timings` object of `--output json` and of the endpoint: a fixed set of names."""
    figures = summary(tally)
    return {name: figures[name] for name in _TIMINGS}


def footer(turn: TurnStats, stop: str | None = None) -> str:
    """The line under a reply: "412 tok · TTFT 143 · p50 3.90 p95 5.20 · L 2.57", and how it ended if not by itself.

    `stop` overrules the turn's own, for a reply whose end the engine never reported.
    """
    ended = stop or turn.stop or ""
    parts = [
        f"{format_count(turn.tokens)} tok",
        f"TTFT {format_ms(turn.ttft_ms)}",
        f"p50 {format_ms(turn.tpot(0.5))} p95 {format_ms(turn.tpot(0.95))}",
        f"L {format_accept_len(turn)}" if turn.drafted_rounds else NO_DRAFT,
        ENDINGS.get(ended, ended),
    ]
    return " · ".join(part for part in parts if part)
