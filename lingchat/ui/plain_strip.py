"""The line under a reply in line mode: a small picture of the tokens' times and the turn's figures.

Digits come from `stats`. Knows nothing of terminals but whether they can show block glyphs.
"""

from __future__ import annotations

from lingchat.events import Decode
from lingchat.stats import (
    NO_DRAFT,
    RunStats,
    TurnStats,
    format_accept_len,
    format_ms,
    format_percent,
    format_rate,
    per_token,
)
from lingchat.stats.text import ENDINGS

BARS = "▁▂▃▄▅▆▇█"
ABOVE = "▲"
WIDTH = 24
_KEPT = 1024


class Spark:
    """The times of a turn's tokens in at most `WIDTH` columns, the slowest of each kept. Constant memory."""

    def __init__(self) -> None:
        self._ms: list[float] = []
        self._merged = 1  # tokens an entry
        self._open: list[float] = []

    def add(self, decode: Decode) -> None:
        for ms in per_token(decode):
            self._open.append(ms)
            if len(self._open) == self._merged:
                self._ms.append(max(self._open))
                self._open.clear()
            if len(self._ms) == _KEPT:
                self._ms = _slowest(self._ms, _KEPT // 2)
                self._merged *= 2

    def text(self, turn: TurnStats, width: int = WIDTH) -> str:
        """A glyph a column: a quarter high is a usual token; above the scale there is a glyph of its own."""
        p50, p95 = turn.tpot(0.5), turn.tpot(0.95)
        values = [*self._ms, *([max(self._open)] if self._open else [])]
        if not values or not p50 or p95 is None:
            return ""
        top = max(1.25 * p95, 4 * p50)
        return "".join(ABOVE if ms > top else BARS[max(0, round(ms / top * 8) - 1)] for ms in _slowest(values, width))


def _slowest(values: list[float], columns: int) -> list[float]:
    """`values` in at most `columns` runs of equal length, the largest of each."""
    size = -(-len(values) // columns)
    return [max(values[at : at + size]) for at in range(0, len(values), size)]


def strip_line(run: RunStats, turn: TurnStats, spark: str) -> str:
    """`▂▂▃▂▇▂ 251 tok/s · TPOT 3.90/5.20/9.80 · TTFT 143 · L 2.57 · ctx 76%`."""
    context = run.engine.context if run.engine is not None else 0
    used = turn.context_tokens
    tpot = "/".join(format_ms(turn.tpot(q)) for q in (0.5, 0.95, 0.99))
    parts = [
        f"{format_rate(turn.tok_s)} tok/s",
        f"TPOT {tpot}",
        f"TTFT {format_ms(turn.ttft_ms)}",
        f"L {format_accept_len(turn)}" if turn.drafted_rounds else NO_DRAFT,
        f"ctx {format_percent(used / context if used is not None and context else None)}",
        ENDINGS.get(turn.stop or "", turn.stop or ""),
    ]
    return f"{spark} " * bool(spark) + " · ".join(part for part in parts if part)
