"""The latency panel and its one-line form: live, at most 4 times a second, and still when nothing changes.

Both are pure consumers: `fold(run, event, now_ns)` after each event has gone into `run`. They measure nothing; while a
turn runs they look again every quarter second, since elapsed time and silence are told by the clock alone.

Knows figures and the strip; knows no engine and no app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.style import Style
from textual.timer import Timer
from textual.widget import Widget

from lingchat import events
from lingchat.events import AnyEvent, Decode, TurnStart
from lingchat.stats import RunStats
from lingchat.ui.later import later
from lingchat.ui.widgets import figures
from lingchat.ui.widgets.strip import StripModel, TokenStrip
from lingchat.visible import visible_line

REFRESH_S = 0.25
REFRESH_NS = 250_000_000
JOIN_S = 0.15  # longer than the time between two flushes of text
LEAST_STRIP, MOST_STRIP = 4, 24  # columns of the strip in the one-line form
TALL_PANEL, TALL_STRIP = 34, 4  # with so many lines there is room for a taller strip

CLASSES = TokenStrip.COMPONENT_CLASSES | {
    f"figures--{name}" for name in ("label", "value", "strong", "muted", "bar", "track", "bad", "busy")
}
STYLES = """
        & > .strip--good { color: $text-success; }
        & > .strip--slow { color: $text-warning; }
        & > .strip--bad { color: $text-error; text-style: bold; }
        & > .figures--label { color: $foreground 75%; }
        & > .figures--value { color: $foreground; }
        & > .figures--strong { color: $foreground; text-style: bold; }
        & > .figures--muted { color: $foreground 50%; }
        & > .figures--bar { color: $primary; }
        & > .figures--track { color: $foreground 20%; }
        & > .figures--bad { color: $text-error; }
        & > .figures--busy { color: $text-accent; text-style: bold; }
        &:ansi {
            & > .strip--good { color: ansi_green; }
            & > .strip--slow { color: ansi_yellow; }
            & > .strip--bad { color: ansi_red; }
            & > .figures--label { color: ansi_default; }
            & > .figures--value { color: ansi_default; }
            & > .figures--strong { color: ansi_default; }
            & > .figures--muted { color: ansi_bright_black; }
            & > .figures--bar { color: ansi_blue; }
            & > .figures--track { color: ansi_bright_black; }
            & > .figures--bad { color: ansi_red; }
            & > .figures--busy { color: ansi_magenta; }
        }
"""


class FigureLines(Widget):
    """The figures of a run as lines of styled text; showing others repaints only those that differ."""

    COMPONENT_CLASSES: ClassVar[set[str]] = CLASSES
    DEFAULT_CSS = "FigureLines { width: 1fr; height: auto;" + STYLES + "}"

    def __init__(
        self,
        *,
        provenance: str = "live",
        clock_ns: Callable[[], int] = events.now_ns,
        strip: StripModel | None = None,
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        """`clock_ns` is the clock of the events shown; `strip` is another widget's that is told of the same events."""
        super().__init__(name=name, id=id, classes=classes)
        self.lines: list[Content] = []
        self._styles_by_name: dict[str, RichStyle] = {}
        self.live = Live(self, self._draw, clock_ns, strip)
        self.set_provenance(provenance)

    def fold(self, run: RunStats, event: AnyEvent | None = None, now_ns: int | None = None) -> None:
        """`event` has just been added to `run`."""
        self.live.fold(run, event, now_ns)

    def join(self) -> None:
        """The screen is about to be painted for something else: draw along if it is time."""
        self.live.join()

    def asked(self, at_ns: int | None) -> None:
        """A request went to the engine, which has said nothing about it yet; None: there is none."""
        self.live.asked(at_ns)

    def set_provenance(self, word: str) -> None:
        """Where the numbers come from: live, replay, remote (client clock), random weights."""
        raise NotImplementedError

    def _draw(self, run: RunStats, now_ns: int) -> None:
        """Show what there is to say about `run`."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.live.draw()

    def on_resize(self) -> None:
        self.live.draw()

    def on_show(self) -> None:
        self.live.draw()

    @property
    def text(self) -> str:
        """What the lines say."""
        return "\n".join(content.plain for content in self.lines)

    def show(self, lines: list[Content]) -> None:
        old, self.lines = self.lines, lines
        width = self.content_size.width
        for y in range(max(len(old), len(lines))):
            if y >= len(old) or y >= len(lines) or not lines[y].is_same(old[y]):
                self.refresh(Region(0, y, width, 1))

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles_by_name.clear()

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        if y >= len(self.lines):
            return Strip.blank(width, self._figure_style(""))
        content = self.lines[y]
        text = content.plain
        # The spans of `figures.line` follow each other and leave nothing out.
        segments = [
            Segment(text[start:end], self._figure_style(str(style)))
            for start, end, style in content.spans
            if end > start
        ]
        return Strip(segments).adjust_cell_length(width, self._figure_style(""))

    def _figure_style(self, name: str) -> RichStyle:
        """A component class of ours by its name with a dot; "" is the widget's own style."""
        known = self._styles_by_name.get(name)
        if known is None:
            style = self.get_visual_style(name[1:], partial=True) if name else Style()
            known = self._styles_by_name[name] = (self.visual_style + style).rich_style
        return known


class Live:
    """When to look again: soon after an event, at most every quarter second, never when nothing can have changed.

    While text moves, the drawing waits for the next of its flushes, so that the screen is painted once for both.
    """

    def __init__(
        self,
        widget: Widget,
        draw: Callable[[RunStats, int], None],
        clock_ns: Callable[[], int],
        strip: StripModel | None,
    ) -> None:
        self._widget = widget
        self._draw = draw
        self._clock_ns = clock_ns
        self._timer: asyncio.TimerHandle | None = None
        self._watch: Timer | None = None  # while a request is out that no event tells of
        self._drawn_ns: int | None = None
        self._joined_ns: int | None = None  # when the screen was last painted for something else
        self.run = RunStats()
        self.asked_ns: int | None = None  # when a request went out that no event has told of yet
        self._feeds = strip is None
        self.strip = StripModel() if strip is None else strip
        self.draws = 0  # for tests and measurements

    @property
    def now_ns(self) -> int:
        return self._clock_ns()

    def fold(self, run: RunStats, event: AnyEvent | None, now_ns: int | None = None) -> None:
        self.run = run
        if event is not None and self.asked_ns is not None and not isinstance(event, (events.Ui, events.Engine)):
            self.asked(None)
        if self._feeds:
            if isinstance(event, TurnStart):
                self.strip.start_turn()
            elif isinstance(event, Decode):
                self.strip.feed(event)
        if self._timer is None and self._widget.display:
            self.ask()

    def asked(self, at_ns: int | None) -> None:
        """Watch a request that no event tells of yet. Most are told of before there is anything to see."""
        self.asked_ns = at_ns
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        if at_ns is not None and self._widget.is_attached:
            self._watch = self._widget.set_interval(REFRESH_S, self.draw)

    def ask(self) -> None:
        """Something changed: draw now, or when a quarter second has passed since the last drawing."""
        if self._timer is not None or not self._widget.is_attached:
            return
        waited = None if self._drawn_ns is None else (self.now_ns - self._drawn_ns) / 1e9
        if waited is None or waited >= REFRESH_S:
            self.draw()
        else:
            self._wait(max(REFRESH_S - waited, 0.001))

    def join(self) -> None:
        """The screen is about to be painted for something else: draw along if it is time."""
        now = self._joined_ns = self.now_ns
        if self._timer is not None and self._drawn_ns is not None and now - self._drawn_ns >= REFRESH_NS:
            self._timer.cancel()
            self._due()

    def _wait(self, seconds: float) -> None:
        text_moves = self._joined_ns is not None and self.now_ns - self._joined_ns < REFRESH_NS
        self._timer = later(self._widget, seconds + (JOIN_S if text_moves else 0.0), self._due)

    def _due(self) -> None:
        self._timer = None
        self.draw()

    def draw(self) -> None:
        """Draws, and looks again in a quarter second while a turn runs: time alone then changes what is shown."""
        self._drawn_ns = self.now_ns
        if not self._widget.display:
            return
        turn = self.run.current
        if turn is not None:
            self.strip.rescale(turn.round(0.5), turn.round(0.95), self._drawn_ns)
        self.draws += 1
        self._draw(self.run, self._drawn_ns)
        if self._timer is None and turn is not None and turn.phase != "done" and self._widget.is_attached:
            self._wait(REFRESH_S)


class LatencyPanel(FigureLines):
    """The dock at the right: where the time of this turn went and goes."""

    DEFAULT_CSS = """
    LatencyPanel {
        dock: right;
        width: 40;
        height: 1fr;
        padding: 0 1;
        border: round $foreground 30%;
        border-title-color: $text-primary;
        border-title-style: bold;
        border-subtitle-color: $foreground 60%;
        background: $background;
        &:ansi { border: round ansi_bright_black; background: ansi_default; border-title-color: ansi_blue; }
    }
    """

    BORDER_TITLE = "latency"

    def set_provenance(self, word: str) -> None:
        self.border_subtitle = Content(visible_line(word))

    def _draw(self, run: RunStats, now_ns: int) -> None:
        width, height = self.content_size
        if width <= 0:
            return
        engine = figures.loading(run)
        lines = figures.head_lines(run, now_ns, width, self.live.asked_ns)
        if engine is not None:
            lines[1:] = figures.loading_lines(engine, width)
        if run.current is not None:
            rows = TALL_STRIP if height >= TALL_PANEL else 2
            lines += [Content(), *(strip_line(self.live.strip, width, row, rows) for row in range(rows))]
            lines.append(figures.legend(self.live.strip.top_ms, width, run.current.drafted_rounds > 0))
        lines.append(Content())
        lines += figures.tail_lines(run, width, max(height - len(lines), 0))
        self.show(lines)


def strip_line(model: StripModel, width: int, row: int, rows: int) -> Content:
    """Row `row` of `rows` of the strip."""
    return figures.line(*((glyph, f".strip--{tone}") for glyph, tone in model.glyphs(width, row, rows)))


class LatencyLine(FigureLines):
    """The same in one line, for screens without room for the panel."""

    DEFAULT_CSS = "LatencyLine { height: 1; width: 1fr; }"

    def set_provenance(self, word: str) -> None:
        self._provenance = visible_line(word)
        self.live.ask()

    def _draw(self, run: RunStats, now_ns: int) -> None:
        width = self.content_size.width
        word = "" if self._provenance == "live" else f" {self._provenance}"
        pieces, room = figures.one_line(run, now_ns, width - cell_len(word), self.live.asked_ns)
        strip = self.live.strip.glyphs(min(room, MOST_STRIP)) if room >= LEAST_STRIP else []
        start = [(glyph, f".strip--{tone}") for glyph, tone in strip]
        self.show(
            [figures.line(*start, (" ", ""), *pieces, (word, figures.BUSY))]
            if start
            else [figures.line(*pieces, (word, figures.BUSY))]
        )
