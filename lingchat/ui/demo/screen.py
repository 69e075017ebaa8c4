"""The demo's screen: every lane beside the others, all on one clock that starts together.

The upper row is what this machine did, run by run; the lower row is how published speeds feel. It ends in a still.
Knows lane states; knows nothing of engines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

from lingchat.errors import EXIT_HANGUP, DiskError
from lingchat.events import Engine, now_ns
from lingchat.ui.demo.lane_state import LaneState, PaceLane, RecordedLane
from lingchat.ui.demo.lanes import Pace
from lingchat.ui.demo.record import Recording
from lingchat.ui.demo.still import save_still
from lingchat.ui.terminal import TerminalDriver
from lingchat.ui.themes import DEFAULTS, OWN, THEMES
from lingchat.ui.widgets.strip import TokenStrip
from lingchat.visible import visible_line

TICK_S = 1 / 15
TAIL = 2000  # characters of a lane's text that can be on the screen


class LaneView(Vertical):
    """One lane: title, figures, strip, text. Widths are shared; the end of the text is what is seen."""

    DEFAULT_CSS = """
    LaneView {
        width: 1fr;
        height: 1fr;
        border: round $foreground 30%;
        border-title-color: $text-primary;
        border-title-style: bold;
        border-subtitle-color: $foreground 60%;
        padding: 0 1;
        &:ansi { border: round ansi_bright_black; }
        & > .lane--figures { height: auto; }
        & > TokenStrip { height: 1; }
        & > .lane--text { height: 1fr; overflow: hidden; margin-top: 1; }
    }
    """

    def __init__(self, state: LaneState, *, strip: bool) -> None:
        super().__init__()
        self.state = state
        self.border_title = Content(visible_line(state.title))
        self.border_subtitle = Content(visible_line(state.source))
        self._figures = Static("", markup=False, classes="lane--figures")
        self._strip = TokenStrip(state.strip) if strip else None
        self._text = Static("", markup=False, classes="lane--text")

    def compose(self) -> ComposeResult:
        yield self._figures
        if self._strip is not None:
            yield self._strip
        yield self._text

    def show(self) -> None:
        """Draw what the state says now."""
        progress, cost = self.state.figures()
        mark = " ✓" if self.state.done else ""
        width = self._figures.size.width
        self._figures.update(Content(f"{_folded(progress + mark, width)}\n{_folded(cost, width)}"))
        if self._strip is not None:
            self._strip.redraw()
        width, height = self._text.size
        self._text.update(Content("\n".join(_last_lines(self.state.text[-TAIL:], width, height))))


def _folded(line: str, width: int) -> str:
    """A narrow lane breaks between figures, not inside one."""
    lines: list[str] = []
    for figure in line.split(" · "):
        if lines and cell_len(lines[-1]) + 3 + cell_len(figure) <= width:
            lines[-1] += f" · {figure}"
        else:
            lines.append(figure)
    return "\n".join(lines)


def _last_lines(text: str, width: int, height: int) -> list[str]:
    """The last `height` lines of `text` folded to `width` cells."""
    if width <= 0 or height <= 0:
        return []
    lines: list[str] = []
    for line in text.split("\n"):
        lines += [str(part) for part in Content(line).wrap(width)] if line else [""]
    return lines[-height:]


def model_name(recordings: Sequence[Recording]) -> str:
    """What the engine of the first run called its model."""
    names = [event.model for event in recordings[0].trace if isinstance(event, Engine)] if recordings else []
    return next((name for name in reversed(names) if name), "")


def own_machine(recordings: Sequence[Recording]) -> str:
    return f"one run after another on this machine, {recordings[0].trace.start.machine}" if recordings else ""


class DemoApp(App[None], inherit_bindings=False):
    """Plays recordings beside paces, then saves a still into `folder`."""

    TITLE = "lingchat demo"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape,ctrl+c,ctrl+d", "quit", "leave", id="demo.quit"),
        Binding("r", "again", "once more", id="demo.again"),
    ]
    CSS = """
    Screen { layout: vertical; }
    #head, #foot { height: auto; padding: 0 1; color: $foreground 75%; }
    #rungs { height: 3fr; }
    #paces { height: 2fr; }
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        paces: Sequence[Pace],
        folder: Path,
        *,
        theme: str = "dark",
        note: str = "",
        clock_ns: Callable[[], int] = now_ns,
    ) -> None:
        """`note` says what the viewer must know: that the recordings are not of this machine, for one."""
        super().__init__(driver_class=TerminalDriver if sys.platform != "win32" else None)
        self._recordings, self._paces = recordings, paces
        self._folder = folder
        self._note = note
        self._clock_ns = clock_ns
        self.lanes: list[LaneView] = []
        self.files: list[Path] = []
        self._timer: Timer | None = None
        self._began_ns = 0
        self._foot = Static("", markup=False, id="foot")
        for own in OWN:
            self.register_theme(own)
        self.theme = THEMES.get("ansi" if self.no_color else theme, theme)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return DEFAULTS

    @property
    def in_application_mode(self) -> bool:
        return isinstance(self._driver, TerminalDriver) and self._driver.active

    def leave(self, code: int) -> None:
        """End in order with an exit code. Safe in a signal handler."""
        loop = self._loop
        if loop is None or loop.is_closed():
            raise SystemExit(code)
        loop.call_soon_threadsafe(lambda: self.exit(return_code=code))

    def terminal_lost(self) -> None:
        self.exit(return_code=EXIT_HANGUP)

    def compose(self) -> ComposeResult:
        parts = ["lingchat demo", model_name(self._recordings), self._note or own_machine(self._recordings)]
        yield Static(visible_line(" · ".join(part for part in parts if part)), markup=False, id="head")
        with Horizontal(id="rungs"):
            for recording in self._recordings:
                self.lanes.append(LaneView(RecordedLane(recording), strip=True))
                yield self.lanes[-1]
        with Horizontal(id="paces"):
            for pace in self._paces:
                self.lanes.append(LaneView(PaceLane(pace), strip=False))
                yield self.lanes[-1]
        yield self._foot

    def on_mount(self) -> None:
        self._began_ns = self._clock_ns()
        self._foot.update("q leaves")
        self._timer = self.set_interval(TICK_S, self._tick)

    def _tick(self) -> None:
        ms = (self._clock_ns() - self._began_ns) / 1e6
        for lane in self.lanes:
            if not lane.state.done:
                lane.state.at(ms)
                lane.show()
        if all(lane.state.done for lane in self.lanes):
            assert self._timer is not None
            self._timer.stop()
            self._foot.update("r: once more · q: leave")
            self.call_after_refresh(self._save)

    def _save(self) -> None:
        try:
            self.files, missing = save_still(self.export_screenshot(title=self.TITLE), self._folder)
        except DiskError as problem:
            self._foot.update(f"{visible_line(str(problem))} · r: once more · q: leave")
            return
        said = " and ".join(path.name for path in self.files)
        self._foot.update(
            f"saved {said} in {self._folder}{'; ' + missing if missing else ''} · r: once more · q: leave"
        )

    async def action_quit(self) -> None:
        self.exit()

    async def action_again(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self.lanes.clear()
        await self.recompose()
        self.on_mount()
