"""`lingchat demo`: one prompt, one model, a ladder of removed waits on the user's own machine.

`lanes` declares the rungs, `record` runs them one after another, `lane_state` folds what they did, `screen` plays all
side by side on their recorded clock and `still` keeps the end as a picture. This module reads the arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from lingchat.arguments import Parser
from lingchat.config import Settings, load_settings, paths
from lingchat.errors import FetchError, ModelNotFound
from lingchat.streams import need_screen
from lingchat.ui.demo.lanes import LADDER, PROMPT, TOKENS

if TYPE_CHECKING:
    from lingchat.notes import Notes
    from lingchat.ui.demo.lanes import Rung
    from lingchat.ui.demo.record import MakeEngine, Recording
    from lingchat.ui.demo.screen import DemoApp


def main(argv: Sequence[str]) -> int:
    """Run `lingchat demo` with the words after it; the exit code."""
    parse = Parser(
        "lingchat demo",
        usage="lingchat demo [options]",
        description="Runs one prompt several ways on this machine, one after another, then shows the runs side by side.",
        epilog="ways:\n" + "\n".join(f"  {rung.label}" for rung in LADDER),
    )
    parse.add_argument("--prompt", metavar="TEXT", default=PROMPT, help="another prompt than the usual one")
    parse.add_argument("--replay", action="store_true", help="show the runs made last, without running anything")
    parse.add_argument("--save", metavar="FOLDER", help="where runs and the still are kept")
    parse.add_argument("-m", "--model", metavar="MODEL", help="a name, folder or .gguf file (lingchat models)")
    found = parse.parse(argv)
    need_screen("lingchat stats FILE prints the figures of a run", "start it in a terminal")
    settings = load_settings({"model": found.model})
    folder = Path(found.save).absolute() if found.save else paths().data / "demo"
    return show(settings, folder, found.prompt, replay=found.replay)


def show(settings: Settings, folder: Path, prompt: str, *, replay: bool) -> int:
    """Record (unless `replay`) and play; the exit code."""
    from lingchat.notes import Notes

    notes = Notes(settings.color)
    runs, note = asyncio.run(gather(settings, folder, prompt, notes, replay=replay))
    from lingchat.ui.demo.lanes import PACES
    from lingchat.ui.demo.screen import DemoApp
    from lingchat.ui.signals import SignalGuard

    app = DemoApp(runs, PACES, folder, theme=settings.theme, note=note)
    with SignalGuard(app.leave, lambda: app.in_application_mode) as guard:
        app.run(mouse=False)
    _summary(app)
    return guard.exit_code if guard.exit_code is not None else app.return_code or 0


async def gather(
    settings: Settings, folder: Path, prompt: str, notes: Notes, *, replay: bool, make_engine: MakeEngine | None = None
) -> tuple[list[Recording], str]:
    """The recordings to show and what must be said of them.

    Without a model (no network, none here) the recordings that ship are shown, and said to be of another machine.
    """
    from lingchat.ui.demo.record import nothing_to_show, recordings, shipped

    cause = None
    if not replay:
        try:
            await run_ladder(settings, folder, prompt, notes, make_engine or local_engine(settings))
            return recordings(folder, LADDER), ""
        except (FetchError, ModelNotFound) as problem:
            if settings.model is not None:
                raise  # a model that was asked for is not replaced by pictures of another
            cause = problem
            notes.say(f"{problem}. Showing recordings instead")
    elif found := recordings(folder, LADDER):
        return found, f"recorded {found[0].trace.start.wall[:16].replace('T', ' ')} on {found[0].trace.start.machine}"
    found = shipped(LADDER)
    if not found:
        raise nothing_to_show(cause)
    start = found[0].trace.start
    return found, f"NOT this machine: recorded {start.wall[:10]} on {start.machine}"


async def run_ladder(settings: Settings, folder: Path, prompt: str, notes: Notes, make_engine: MakeEngine) -> None:
    """Run the rungs one after another and keep each in `folder`."""
    import msgspec

    from lingchat.events import Engine, TurnEnd, Warn
    from lingchat.opening import run_start
    from lingchat.stats import RunStats, footer
    from lingchat.trace import SUFFIX
    from lingchat.ui.demo.record import record

    for number, rung in enumerate(LADDER, 1):
        notes.say(f"run {number} of {len(LADDER)}: {rung.label}")
        stats = RunStats()
        # Without the folder it was started in: these recordings are made to be passed on.
        start = msgspec.structs.replace(run_start(settings, ["demo"]), cwd="")
        async with aclosing(record(rung, prompt, TOKENS, make_engine, folder, start)) as events:  # type: ignore[type-var]
            async for event in events:
                stats.add(event)
                if isinstance(event, Engine) and event.phase == "ready" and _is_another(rung, event.backend):
                    notes.say(f"left out: {event.backend} would serve (lingchat doctor tells why)")
                    (folder / f"{rung.key}{SUFFIX}").unlink(missing_ok=True)  # one from before is of other code
                    break
                if isinstance(event, Engine):
                    notes.engine(event)
                elif isinstance(event, Warn):
                    notes.say(event.message)
                elif isinstance(event, TurnEnd) and stats.current is not None:
                    notes.say(footer(stats.current))


def _is_another(rung: Rung, backend: str) -> bool:
    """Whether a rung that is about native code would be run by torch: no compiler was there, or is not done yet."""
    return rung.native and backend.startswith("torch")


def local_engine(settings: Settings) -> MakeEngine:
    """Engines of this machine, one for each rung."""
    from lingchat.engines.choose import choose_engine

    # The ladder is a processor's: its first rungs, and the traces it is compared with, know nothing of a GPU.
    return lambda rung: choose_engine(
        settings.model, device="cpu", dtype=rung.dtype, threads=settings.threads or None, native=rung.native
    )


def _summary(app: DemoApp) -> None:
    """The figures once more, as text that stays on the terminal."""
    from lingchat.stats import footer
    from lingchat.ui.demo.lane_state import RecordedLane

    for lane in app.lanes:
        if isinstance(lane.state, RecordedLane):
            print(f"{lane.state.title:<18} {footer(lane.state.stats)}")
    for path in app.files:
        print(f"saved {path}")
