"""`lingchat replay RUN`: the chat screen again, fed by a trace on its recorded clock, a multiple of it, or by hand.

The figures are those of the recorded run at any speed, since the screen's clock is the replay's. Knows the app and the
scripted engine; knows nothing of how a trace is stored.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.timer import Timer

from lingchat.arguments import Parser
from lingchat.chat import Chat
from lingchat.config import Settings, load_settings
from lingchat.engines.clocks import Clock
from lingchat.engines.scripted import ScriptedEngine
from lingchat.streams import need_screen
from lingchat.trace import Trace, find_run, read_trace
from lingchat.ui.app import CLOSE_TIMEOUT_S, LingchatApp
from lingchat.ui.signals import SignalGuard
from lingchat.ui.widgets.prompt import Typed

LOOK_S = 0.05
LONGEST_GAP_NS = 2_000_000_000  # between turns; a person may have thought for an hour


class Steps:
    """Holds each round until a key lets it go. `ScriptedEngine` asks `wait`, the screen tells the rest."""

    def __init__(self) -> None:
        self._held: asyncio.Future[None] | None = None
        self._free = False

    def wait(self) -> asyncio.Future[None]:
        """A future that is done when the next round may come."""
        self._held = asyncio.get_running_loop().create_future()
        if self._free:
            self._held.set_result(None)
        return self._held

    def hold(self) -> None:
        """From here on each round waits: a turn begins."""
        self._free = False

    def one(self) -> None:
        if self._held is not None and not self._held.done():
            self._held.set_result(None)

    def rest(self) -> None:
        """Everything up to the next `hold`."""
        self._free = True
        self.one()


class ReplayApp(LingchatApp):
    """The chat screen without a prompt, which asks the recorded questions by itself."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "leave the replay", id="replay.quit"),
        Binding("space,right,enter", "round", "the next round (with --step)", id="replay.round"),
        Binding("c", "rest", "to the end of the turn (with --step)", id="replay.rest"),
    ]

    def __init__(
        self, engine: ScriptedEngine, settings: Settings, trace: Trace, steps: Steps | None, speed: float = 1.0
    ) -> None:
        chat = Chat(engine, None, None, settings)
        super().__init__(chat, settings, (), "replay", read_only=True, clock_ns=engine.clock.now_ns)
        self._engine = engine
        self._trace = trace
        self._steps = steps
        self._speed = speed
        self._asked = 0
        self._due_s: float | None = None  # of the loop's clock: when the next question is asked
        self._watch: Timer | None = None
        self.over = False

    def on_mount(self) -> None:
        super().on_mount()
        self._chat_screen.call_after_refresh(self._free_keys)
        self._watch = self.set_interval(LOOK_S, self._next)

    def _free_keys(self) -> None:
        """The hidden prompt takes no keys: they are the replay's."""
        self._chat_screen.prompt.disabled = True
        self._chat_screen.set_focus(None)

    def _next(self) -> None:
        """Ask the next question once the turn before is over and its recorded pause has passed."""
        turns, recorded = self._chat_screen.turns, self._engine.recorded or []
        if not turns.ready or turns.busy or turns.waiting:
            return
        if self._asked == 0:
            self._chat_screen.note(self._about())
        if self._asked == len(recorded):
            assert self._watch is not None
            self._watch.stop()
            self.over = True
            self._chat_screen.note("the run ends here; q leaves")
            return
        now = asyncio.get_running_loop().time()
        turn = recorded[self._asked]
        if self._due_s is None:
            self._due_s = now + min(turn.gap_ns, LONGEST_GAP_NS) / 1e9 / self._speed
        if now >= self._due_s:
            self._due_s = None
            self._asked += 1
            if self._steps is not None:
                self._steps.hold()
            turns.submit(Typed(turn.prompt, {}))

    def _about(self) -> str:
        start = self._trace.start
        keys = "space: next round · c: to the end of the turn · q: leave" if self._steps is not None else "q leaves"
        parts = [f"recorded {start.wall[:16].replace('T', ' ')}", start.machine, keys]
        return " · ".join(part for part in parts if part)

    async def action_quit(self) -> None:
        self.exit()

    def action_round(self) -> None:
        if self._steps is not None:
            self._steps.one()

    def action_rest(self) -> None:
        if self._steps is not None:
            self._steps.rest()


def make_app(
    trace: Trace, settings: Settings, *, speed: float = 1.0, step: bool = False, clock: Clock | None = None
) -> ReplayApp:
    """The app that replays `trace`, on the system's clock at `speed` unless one is given."""
    steps = Steps() if step else None
    engine = ScriptedEngine.from_trace(trace, speed, step=steps.wait if steps is not None else None, clock=clock)
    return ReplayApp(engine, settings, trace, steps, speed)


def main(argv: Sequence[str]) -> int:
    """Run `lingchat replay` with the words after it; the exit code."""
    parse = Parser(
        "lingchat replay",
        usage="lingchat replay RUN [--speed N | --step]",
        description="Show a run again in the chat screen. RUN is a trace file, an id, the beginning or end of one, or last.",
    )
    parse.add_argument("run", metavar="RUN", help=argparse.SUPPRESS)
    pace = parse.add_mutually_exclusive_group()
    pace.add_argument("--speed", metavar="N", type=_speed, default=1.0, help="N times as fast as it was")
    pace.add_argument("--step", action="store_true", help="a key lets each round go")
    found = parse.parse(argv)
    trace = read_trace(find_run(found.run))
    app = make_app(trace, load_settings(), speed=found.speed, step=found.step)
    need_screen(f"lingchat stats {found.run} prints the figures", f"lingchat stats {found.run} prints the figures")
    with SignalGuard(app.leave, lambda: app.in_application_mode) as guard:
        asyncio.run(_run(app))
    return guard.exit_code if guard.exit_code is not None else app.return_code or 0


async def _run(app: ReplayApp) -> None:
    try:
        await app.run_async(mouse=app.settings.mouse)
    finally:
        await asyncio.wait_for(app.chat.close(), CLOSE_TIMEOUT_S)


def _speed(text: str) -> float:
    speed = float(text)
    if not 0.01 <= speed <= 1000:
        raise argparse.ArgumentTypeError("must be 0.01 to 1000")
    return speed
