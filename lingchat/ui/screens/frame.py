"""The widgets of the chat screen: which there are, where they stand, which of them a terminal's size leaves visible.

It shows what it is told; keys, turns and commands are the screen's matter.
"""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.geometry import Size
from textual.widgets import Static

from lingchat.events import AnyEvent, Stall
from lingchat.stats import RunStats
from lingchat.ui import saying
from lingchat.ui.first_prompts import FIRST_PROMPTS
from lingchat.ui.history import History
from lingchat.ui.layout import Layout
from lingchat.ui.turns import Turns
from lingchat.ui.widgets.conversation import Conversation
from lingchat.ui.widgets.latency import LatencyLine, LatencyPanel
from lingchat.ui.widgets.popup import Popup
from lingchat.ui.widgets.prompt import Prompt, Typed
from lingchat.ui.widgets.queue import QueueView
from lingchat.ui.widgets.status import Header, StatusLine
from lingchat.ui.widgets.welcome import Welcome
from lingchat.visible import visible


class _Foot(Vertical):
    """What stands under conversation and panel, over the whole width."""

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As high as at the screen's width: Textual's grid asks at each column's, whatever the columns spanned.

        Measured at the panel's, a longer note would wrap, and leave an empty row under the prompt.
        """
        return super().get_content_height(container, viewport, container.width)


class Frame:
    """Built inside `compose`, since widgets want a running app."""

    def __init__(
        self,
        history: History,
        recall: Callable[[], Typed | None],
        provenance: str,
        clock_ns: Callable[[], int],
        *,
        read_only: bool,
    ) -> None:
        self.provenance = provenance
        self.read_only = read_only
        self.shape = Layout("off", False, False)
        self.popup = Popup()
        self.prompt = Prompt(self.popup, history, recall)
        self.conversation = Conversation(id="conversation")
        self.panel = LatencyPanel(provenance=provenance, clock_ns=clock_ns, id="dock")
        self.line = LatencyLine(provenance=provenance, clock_ns=clock_ns, strip=self.panel.live.strip, id="strip")
        self.conversation.flushed = self._join
        self._header, self._status, self._queue = Header(), StatusLine(), QueueView()
        self._welcome = Welcome(FIRST_PROMPTS)
        self._stall = Static("", id="stall", markup=False)
        self._notice = Static("", id="notice", markup=False)
        self._stall.display = self._notice.display = False

    def compose(self) -> ComposeResult:
        yield self._header
        yield self._welcome
        yield self.conversation
        yield self.panel
        with _Foot(id="foot"):
            yield self.line
            yield self._stall
            yield self._notice
            yield self._queue
            yield self.popup
            with Horizontal(id="entry") as entry:
                entry.display = not self.read_only
                yield Static("›", id="mark")
                yield self.prompt
        yield self._status

    def arrange(self, shape: Layout) -> None:
        self.shape = shape
        self.panel.display = shape.latency == "panel"
        self.line.display = shape.latency == "strip"

    def fold(self, stats: RunStats, event: AnyEvent | None) -> None:
        """`event` has gone into `stats`: panel and strip look again."""
        self.panel.fold(stats, event)
        self.line.fold(stats, event)

    def _join(self) -> None:
        """Text has moved, and the screen will be painted for it."""
        self.panel.join()
        self.line.join()

    def asked(self, at_ns: int | None) -> None:
        """A request went out, and no event tells of it yet; None: nothing does."""
        self.panel.asked(at_ns)
        self.line.asked(at_ns)

    def note(self, text: str, error: bool) -> None:
        self._notice.set_class(error, "-error")
        self._notice.update(visible(text))
        self._notice.display = bool(text)

    def draw(self, turns: Turns, model: str, title: str) -> None:
        """Header, queue, and the welcome or the conversation. Equal content repaints nothing."""
        self._say_provenance(turns)
        self._header.say(model, title, saying.engine_state(turns), self.provenance)
        empty = not self.conversation.messages
        self._welcome.display, self.conversation.display = empty, not empty
        if empty:
            self._welcome.say(model, turns.engine, turns.failure, turns.info is not None and turns.info.demo)
        edited = "(edited) "
        self._queue.show([edited * bool(one.replaces) + one.typed.shown for one in turns.waiting], turns.held)
        self._draw_stall(turns.stall)

    def _say_provenance(self, turns: Turns) -> None:
        """Live figures of random weights, or of another machine's clock, say so: the engine knows."""
        if self.provenance == "live" and turns.info is not None and turns.info.provenance != "live":
            self.provenance = turns.info.provenance
            self.panel.set_provenance(self.provenance)
            self.line.set_provenance(self.provenance)

    def _draw_stall(self, stall: Stall | None) -> None:
        self._stall.display = stall is not None and self.shape.latency == "off"  # panel and strip say it themselves
        if stall is not None:
            self._stall.update(saying.stall_line(stall))

    def say_status(self, activity: tuple[str, str], counter: tuple[str, bool], hints: list[str]) -> None:
        text, over = counter
        self._status.say(*activity, text, "$error" if over else "$quiet", hints)
