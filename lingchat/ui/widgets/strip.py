"""The strip: one column for each token, or for several when they come fast, as tall as the token was slow.

`StripModel` decides what stands in the columns and on which scale; `TokenStrip` draws it. A column holds the slowest of
its tokens, so a spike survives. Columns follow the engine's clock, at most 8 a second. The scale changes at most once a
second and never shrinks inside a turn, so the drawing does not jitter; a token above it gets a glyph of its own, which
reads without colour.

Red is a column with a token beyond 3 x p50. Amber is one of whose tokens a tenth is beyond 1.5 x p50: of the thirty
that share a column at 250 tokens/s the slowest nearly always is, and that tells nothing.

The reference of scale and colour is p50 of the rounds. Without drafting that is TPOT p50. With drafting a round that
accepts nothing costs its one token all of the round, and that is no trouble: measured against p50 of d / k, every
column of several rounds would be red.

Knows per-token times; knows nothing of events' transport, of stats' definitions or of the app.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

from lingchat.events import Decode

BARS = "▁▂▃▄▅▆▇█"
ABOVE = "▲"
COLUMN_NS = 125_000_000  # 8 columns a second
SCALE_NS = 1_000_000_000
HEADROOM = 1.25
TYPICAL = 4  # the scale reaches at least 4 x p50, so that a usual column is a quarter high
SLOW, BAD = 1.5, 3.0  # multiples of p50 above which the colour changes
MOST_SLOW = 8  # tokens of a column that are known by themselves
KEPT = 512  # columns


class StripModel:
    """Columns and scale of one turn."""

    def __init__(self) -> None:
        self.columns: deque[float] = deque(maxlen=KEPT)  # ms per token, the slowest of the column
        self._slow: deque[list[float]] = deque(maxlen=KEPT)  # of each column: its slowest tokens, the slowest first
        self._counts: deque[int] = deque(maxlen=KEPT)  # tokens of each column
        self.version = 0  # changes when anything drawn changes
        self.top_ms: float | None = None  # the scale
        self.p50_ms: float | None = None
        self._column_end = 0  # ns; a token before it joins the last column
        self._scaled_ns = 0

    def start_turn(self) -> None:
        self.columns.clear()
        self._slow.clear()
        self._counts.clear()
        self.top_ms = self.p50_ms = None
        self._column_end = 0
        self.version += 1

    def feed(self, decode: Decode) -> None:
        """Adds a batch of rounds: the k tokens of a round are spread evenly over its time."""
        end_ns = decode.t0_ns
        for dt_us, k in zip(decode.dt_us, decode.k, strict=True):
            start_ns, end_ns = end_ns, end_ns + 1000 * dt_us
            if k <= 0:
                continue
            ms = dt_us / k / 1000.0
            for token in range(1, k + 1):
                self._add(ms, start_ns + (end_ns - start_ns) * token // k)
        self.version += 1

    def _add(self, ms: float, at_ns: int) -> None:
        if self.columns and at_ns < self._column_end:
            self.columns[-1] = max(self.columns[-1], ms)
            self._counts[-1] += 1
            slow = self._slow[-1]
            if len(slow) < MOST_SLOW or ms > slow[-1]:
                slow.append(ms)
                slow.sort(reverse=True)
                del slow[MOST_SLOW:]
            return
        self.columns.append(ms)
        self._slow.append([ms])
        self._counts.append(1)
        # A steady stream keeps the grid, so columns hold equally many tokens; after a pause it starts anew.
        late = at_ns - self._column_end
        self._column_end = (self._column_end if self._column_end and late < COLUMN_NS else at_ns) + COLUMN_NS

    def rescale(self, p50_ms: float | None, p95_ms: float | None, now_ns: int) -> None:
        """Fits the scale to percentiles of the turn's rounds: 25 % above p95, and far enough above p50."""
        if p50_ms is None or p95_ms is None:
            return
        if self.top_ms is not None and now_ns - self._scaled_ns < SCALE_NS:
            return
        want = max(HEADROOM * p95_ms, TYPICAL * p50_ms, self.top_ms or 0.0)
        if want != self.top_ms or p50_ms != self.p50_ms:
            self.top_ms, self.p50_ms = want, p50_ms
            self._scaled_ns = now_ns
            self.version += 1

    def level(self, ms: float, rows: int = 1) -> int:
        """Height of a bar in eighths of a row, 1 to 8 x rows; one more than that above the scale."""
        full = 8 * rows
        if self.top_ms is None:
            return 2 * rows  # no scale yet: as a typical token
        if ms > self.top_ms:
            return full + 1
        return max(1, min(full, round(ms / self.top_ms * full)))

    def _tone(self, slow: list[float], count: int) -> str:
        """ "good", "slow" or "bad" for a column, by multiples of p50."""
        if not self.p50_ms or slow[0] <= SLOW * self.p50_ms:
            return "good"
        if slow[0] > BAD * self.p50_ms:
            return "bad"
        tenth = slow[min(count // 10, len(slow) - 1)]
        return "slow" if tenth > SLOW * self.p50_ms else "good"

    def glyphs(self, width: int, row: int = 0, rows: int = 1) -> list[tuple[str, str]]:
        """Glyph and tone of the last `width` columns; `row` 0 is the upper one of `rows`."""
        below = 8 * (rows - 1 - row)
        out: list[tuple[str, str]] = []
        if width <= 0:
            return out
        last = slice(-width, None)
        for ms, slow, count in zip(
            *(list(part)[last] for part in (self.columns, self._slow, self._counts)), strict=True
        ):
            level = self.level(ms, rows)
            if level > 8 * rows:
                glyph = ABOVE if row == 0 else BARS[7]
            else:
                eighths = min(level - below, 8)
                glyph = BARS[eighths - 1] if eighths > 0 else " "
            out.append((glyph, self._tone(slow, count)))
        return out


class TokenStrip(Widget):
    """Draws a `StripModel`; the newest token is at the right end."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"strip--good", "strip--slow", "strip--bad"}

    DEFAULT_CSS = """
    TokenStrip {
        height: 2;
        width: 1fr;
        & > .strip--good { color: $text-success; }
        & > .strip--slow { color: $text-warning; }
        & > .strip--bad { color: $text-error; text-style: bold; }
        &:ansi {
            & > .strip--good { color: ansi_green; }
            & > .strip--slow { color: ansi_yellow; }
            & > .strip--bad { color: ansi_red; }
        }
    }
    """

    def __init__(
        self, model: StripModel, *, name: str | None = None, id: str | None = None, classes: str | None = None
    ):
        super().__init__(name=name, id=id, classes=classes)
        self.model = model
        self._drawn = -1

    def redraw(self) -> None:
        """Asks for a repaint if the model has changed since the last one."""
        if self._drawn != self.model.version:
            self._drawn = self.model.version
            self.refresh()

    def render_line(self, y: int) -> Strip:
        width, rows = self.size
        base = self.visual_style
        styles = {tone: (base + self.get_visual_style(f"strip--{tone}", partial=True)).rich_style for tone in TONES}
        segments = [Segment(glyph, styles[tone]) for glyph, tone in self.model.glyphs(width, y, rows)]
        return Strip(segments, len(segments)).adjust_cell_length(width, base.rich_style).simplify()


TONES = ("good", "slow", "bad")
