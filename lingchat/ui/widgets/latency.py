"""The latency panel and its one-line form: live, at most 4 times a second, and still when nothing changes.

Both are pure consumers: `fold(run, event, now_ns)` after each event has gone into `run`. They measure nothing; while a
turn runs they look again every quarter second, since elapsed time and silence are told by the clock alone.

Knows figures and the strip; knows no engine and no app.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.segment import Segment
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.style import Style
from textual.timer import Timer
from textual.widget import Widget

from lingchat import events
from lingchat.events import AnyEvent, Decode, TurnStart
from lingchat.stats import RunStats
from lingchat.ui.widgets import figures
from lingchat.ui.widgets.strip import StripModel, TokenStrip
from lingchat.visible import visible_line

REFRESH_S = 0.25
TALL_PANEL, TALL_STRIP = 34, 4  # with so many lines there is room for a taller strip

FIGURE_CLASSES = {f"figures--{name}" for name in ("label", "value", "strong", "muted", "bar", "track", "bad", "busy")}
FIGURE_CSS = """
        & > .figures--label { color: $foreground 75%; }
        & > .figures--value { color: $foreground; }
        & > .figures--strong { color: $foreground; text-style: bold; }
        & > .figures--muted { color: $foreground 50%; }
        & > .figures--bar { color: $primary; }
        & > .figures--track { color: $foreground 20%; }
        & > .figures--bad { color: $text-error; }
        & > .figures--busy { color: $text-accent; text-style: bold; }
        &:ansi {
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
    """Lines of styled text; setting them repaints only those that differ."""

    COMPONENT_CLASSES: ClassVar[set[str]] = FIGURE_CLASSES
    DEFAULT_CSS = "FigureLines { width: 1fr; height: auto;" + FIGURE_CSS + "}"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.lines: list[Content] = []

    def show(self, lines: list[Content]) -> None:
        old, self.lines = self.lines, lines
        if len(old) != len(lines):
            self.refresh(layout=True)
            return
        for y, (before, after) in enumerate(zip(old, lines, strict=True)):
            if not after.is_same(before):
                self.refresh(Region(0, y, self.size.width, 1))

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return len(self.lines)

    def render_line(self, y: int) -> Strip:
        content = self.lines[y] if y < len(self.lines) else Content()
        base = self.visual_style
        segments = [
            Segment(text, (base + style).rich_style)
            for text, style in content.render(base, end="", parse_style=self._figure_style)
        ]
        return Strip(segments).adjust_cell_length(self.size.width, base.rich_style)

    def _figure_style(self, style: str | Style) -> Style:
        if isinstance(style, Style):
            return style
        return self.get_visual_style(style[1:], partial=True) if style else Style()


class Live:
    """When to look again: soon after an event, at most every quarter second, never when nothing can have changed."""

    def __init__(self, widget: Widget, draw: Callable[[], None], clock_ns: Callable[[], int]) -> None:
        self._widget = widget
        self._draw = draw
        self._clock_ns = clock_ns
        self._timer: Timer | None = None
        self._drawn_ns: int | None = None
        self.run: RunStats | None = None
        self.strip = StripModel()
        self.draws = 0  # for tests and measurements

    @property
    def now_ns(self) -> int:
        return self._clock_ns()

    def fold(self, run: RunStats, event: AnyEvent | None, now_ns: int | None = None) -> None:
        self.run = run
        if isinstance(event, TurnStart):
            self.strip.start_turn()
        elif isinstance(event, Decode):
            self.strip.feed(event)
        self.ask()

    def ask(self) -> None:
        """Something changed: draw now, or when a quarter second has passed since the last drawing."""
        if self._timer is not None or not self._widget.is_attached:
            return
        waited = None if self._drawn_ns is None else (self.now_ns - self._drawn_ns) / 1e9
        if waited is None or waited >= REFRESH_S:
            self.draw()
        else:
            self._timer = self._widget.set_timer(max(REFRESH_S - waited, 0.001), self._due)

    def _due(self) -> None:
        self._timer = None
        self.draw()

    def draw(self) -> None:
        """Draws, and looks again in a quarter second while a turn runs: time alone then changes what is shown."""
        if self.run is None:
            return
        self._drawn_ns = self.now_ns
        turn = self.run.current
        if turn is not None:
            self.strip.rescale(turn.round(0.5), turn.round(0.95), self._drawn_ns)
        if self._widget.display:
            self.draws += 1
            self._draw()
        if self._timer is None and turn is not None and turn.phase != "done":
            self._timer = self._widget.set_timer(REFRESH_S, self._due)


class LatencyPanel(Vertical):
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
        overflow: hidden hidden;
        &:ansi { border: round ansi_bright_black; background: ansi_default; border-title-color: ansi_blue; }
        & > TokenStrip { margin-top: 1; }
        & > #latency-tail { margin-top: 1; }
    }
    """

    def __init__(
        self,
        *,
        provenance: str = "live",
        clock_ns: Callable[[], int] = events.now_ns,
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        """`clock_ns` is the clock of the events shown."""
        super().__init__(name=name, id=id, classes=classes)
        self.live = Live(self, self._draw, clock_ns)
        self._head = FigureLines(id="latency-head")
        self._strip = TokenStrip(self.live.strip, id="latency-strip")
        self._legend = FigureLines(id="latency-legend")
        self._tail = FigureLines(id="latency-tail")
        self.border_title = Content("latency")
        self.set_provenance(provenance)

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._strip
        yield self._legend
        yield self._tail

    def fold(self, run: RunStats, event: AnyEvent | None = None, now_ns: int | None = None) -> None:
        """`event` has just been added to `run`."""
        self.live.fold(run, event, now_ns)

    def set_provenance(self, word: str) -> None:
        """Where the numbers come from: live, replay, remote (client clock), random weights."""
        self.border_subtitle = Content(visible_line(word))

    def on_mount(self) -> None:
        self.live.run = self.live.run or RunStats()
        self.live.draw()

    def on_resize(self) -> None:
        self.live.draw()

    def _draw(self) -> None:
        run = self.live.run
        width = self.content_size.width
        if run is None or width <= 0:
            return
        now = self.live.now_ns
        engine = figures.loading(run)
        head = figures.head_lines(run, now, width)
        if engine is not None:
            head[1:] = figures.loading_lines(engine, width)
        self._head.show(head)
        idle = run.current is None
        self._strip.display = self._legend.display = not (engine is not None and idle)
        drafted = run.current is not None and run.current.drafted_rounds > 0
        self._legend.show([figures.legend(self.live.strip.top_ms, width, drafted)])
        rows = TALL_STRIP if self.content_size.height >= TALL_PANEL else 2
        if self._strip.styles.height is None or self._strip.styles.height.value != rows:
            self._strip.styles.height = rows
        self._strip.redraw()
        used = len(head) + rows + 3
        self._tail.show(figures.tail_lines(run, width, max(self.content_size.height - used, 0)))


class LatencyLine(Widget):
    """The same in one line, for screens without room for the panel."""

    COMPONENT_CLASSES: ClassVar[set[str]] = FIGURE_CLASSES | TokenStrip.COMPONENT_CLASSES
    DEFAULT_CSS = (
        """
    LatencyLine {
        height: 1;
        width: 1fr;
        & > .strip--good { color: $text-success; }
        & > .strip--slow { color: $text-warning; }
        & > .strip--bad { color: $text-error; text-style: bold; }
        &:ansi {
            & > .strip--good { color: ansi_green; }
            & > .strip--slow { color: ansi_yellow; }
            & > .strip--bad { color: ansi_red; }
        }
    """
        + FIGURE_CSS
        + "}"
    )

    def __init__(
        self,
        *,
        provenance: str = "live",
        clock_ns: Callable[[], int] = events.now_ns,
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self.live = Live(self, self._draw, clock_ns)
        self._provenance = visible_line(provenance)
        self._pieces: list[figures.Piece] = []

    def fold(self, run: RunStats, event: AnyEvent | None = None, now_ns: int | None = None) -> None:
        """`event` has just been added to `run`."""
        self.live.fold(run, event, now_ns)

    def set_provenance(self, word: str) -> None:
        self._provenance = visible_line(word)
        self.live.ask()

    def on_mount(self) -> None:
        self.live.run = self.live.run or RunStats()
        self.live.draw()

    def on_resize(self) -> None:
        self.live.draw()

    def _draw(self) -> None:
        run, width = self.live.run, self.size.width
        if run is None or width <= 0:
            return
        word = "" if self._provenance == "live" else self._provenance
        tail: list[figures.Piece] = [(f" {word}", figures.BUSY)] if word else []
        pieces, room = figures.one_line(run, self.live.now_ns, width - len(word) - bool(word))
        strip = (
            [(glyph, f".strip--{tone}") for glyph, tone in self.live.strip.glyphs(min(room, 24))] if room > 3 else []
        )
        pieces = [*strip, (" ", ""), *pieces, *tail] if strip else [*pieces, *tail]
        if pieces != self._pieces:
            self._pieces = pieces
            self.refresh()

    def render_line(self, y: int) -> Strip:
        base = self.visual_style
        segments = []
        for text, style in self._pieces:
            part = self.get_visual_style(style[1:], partial=True) if style else Style()
            segments.append(Segment(text, (base + part).rich_style))
        return Strip(segments).adjust_cell_length(self.size.width, base.rich_style).simplify()
