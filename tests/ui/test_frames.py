"""What the screens look like: every state at every size, in the dark and the light theme, as text with its styles.

A frame is the screen's characters, then for each line its style runs (`12a3b`: twelve cells of style a, three of b),
then what the letters mean. After a change on purpose: `pytest tests/ui/test_frames.py --snapshot-update`, and look.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from chat_app import INFO, Bench, running, script
from rich.style import Style

from lingchat.config import load_settings
from lingchat.engines.api import ModelInfo
from lingchat.engines.clocks import VirtualClock
from lingchat.engines.scripted import Failure, LoadPhase, Pause, Script, ScriptCall, ScriptTurn
from lingchat.ui import turns
from lingchat.ui.lag import LagMeter
from lingchat.ui.widgets import message_list
from lingchat.ui.widgets.pace import Pace

SIZES = [(80, 24), (120, 40), (200, 60), (40, 12)]
TEXT = """The cache keeps one entry per block. Here is **how**:

1. allocate
2. fill, then *commit*

```python
for block in blocks:
    cache[block.id] = block
```

That is all."""
CJK = "日本語の**返事**です。絵文字 👩‍💻 と café（結合文字）。\n\n- 一\n- 二\n"
DRAFTED = {"m": (3,), "a": (0, 1, 3, 2, 3), "round_ms": (4.0, 5.0, 4.0, 4.0, 14.0)}


def frame(bench: Bench) -> str:
    """The screen as text and styles."""
    letters: dict[str, str] = {}
    text, runs = [], []
    for strip in bench.app.screen._compositor.render_strips():
        text.append(strip.text.rstrip())
        line = []
        for segment in strip.simplify():
            name = style_name(segment.style)
            letter = letters.setdefault(name, _letter(len(letters)))
            line.append(f"{segment.cell_length}{letter}")
        runs.append("".join(line))
    legend = [f"{letter} {name}" for name, letter in letters.items()]
    return "\n".join(["", *text, "", *runs, "", *legend, ""])


def _letter(number: int) -> str:
    return chr(97 + number) if number < 26 else chr(65 + number - 26)


def style_name(style: Style | None) -> str:
    """Colours and attributes, without links and meta data."""
    return str(style.without_color + Style(color=style.color, bgcolor=style.bgcolor)) if style else ""


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time of day and no measured lag in a frame, and nothing that hangs on how fast the test runs."""
    monkeypatch.setattr(turns, "wall_clock", lambda: "09:41")
    monkeypatch.setattr(message_list, "SCROLLBAR_S", 0.0)
    monkeypatch.setattr(Pace, "lines_ahead", lambda self, new_lines: 0)
    monkeypatch.setattr(LagMeter, "p95_ms", property(lambda self: None))


async def play(clock: VirtualClock, bench: Bench, ms: float) -> None:
    """Move time in small steps, so that the screen keeps up."""
    for _ in range(int(ms / 20)):
        await clock.advance(20)
    await bench.pilot.pause()
    bench.screen.conversation.flush()
    bench.screen.turns.tick()
    for view in (bench.screen.frame.panel, bench.screen.frame.line):
        view.live.draw()
    await bench.pilot.pause()


async def begin(bench: Bench, clock: VirtualClock, text: str, ms: float) -> None:
    await bench.say(text)
    await bench.until(lambda: bench.engine.requests)
    await play(clock, bench, ms)


async def empty(bench: Bench, clock: VirtualClock) -> None:
    await bench.pilot.pause()


async def loading(bench: Bench, clock: VirtualClock) -> None:
    await bench.until(lambda: bench.screen.turns.engine is not None)
    await play(clock, bench, 500)
    await bench.say("waits until the model is ready")


async def streaming(bench: Bench, clock: VirtualClock) -> None:
    await begin(bench, clock, "Why does the cache grow?", 2000)
    assert bench.screen.turns.busy


async def finished(bench: Bench, clock: VirtualClock) -> None:
    await begin(bench, clock, "Why does the cache grow?", 1000)
    await bench.idle()
    await play(clock, bench, 40)


async def thinking(bench: Bench, clock: VirtualClock) -> None:
    """Reasoning: folded under a finished reply, open under the one that streams."""
    await begin(bench, clock, "How far is the moon?", 1000)
    await bench.idle()
    await begin(bench, clock, "And the sun?", 2000)
    assert bench.screen.turns.busy
    await bench.pilot.press("f3")
    await play(clock, bench, 40)


async def queued(bench: Bench, clock: VirtualClock) -> None:
    await streaming(bench, clock)
    await bench.say("and then this")
    await bench.pilot.press(*"/s")
    await bench.pilot.pause()


async def failed(bench: Bench, clock: VirtualClock) -> None:
    await begin(bench, clock, "Why does the cache grow?", 1000)
    await bench.idle()
    await play(clock, bench, 40)


async def stalled(bench: Bench, clock: VirtualClock) -> None:
    await begin(bench, clock, "Why does the cache grow?", 5000)
    await bench.until(lambda: bench.screen.turns.stall is not None)


async def help_page(bench: Bench, clock: VirtualClock) -> None:
    await bench.pilot.press("f1")
    await bench.pilot.pause()


async def sessions_page(bench: Bench, clock: VirtualClock) -> None:
    store = bench.screen.store
    assert store is not None
    store._wall = lambda: "2026-05-04T09:41:00+00:00"
    for number, title in enumerate(("Why does the cache grow?", "日本語の質問", "A recipe for rye bread"), 1):
        session = store.create()
        session.add("user", title)
        reply = session.begin_reply()
        reply.delta(f"The answer to question {number}.", number)
        reply.finish("eos")
        session.close()
    await bench.pilot.press("ctrl+o")
    await bench.until(lambda: bench.app.screen is not bench.screen and bench.app.screen._shown)  # type: ignore[attr-defined]
    await bench.pilot.pause()


LOAD = (LoadPhase(phase="download", ms=1000, reports=10, total_bytes=98_000_000),)
BROKEN = ScriptTurn(
    text=TEXT, failure=Failure(code="engine_crashed", message="the engine process died", at=9), **DRAFTED
)

THOUGHTS = "The user asks about a distance. It changes, since the orbit is an ellipse.\n\nA mean will do."
THOUGHT = ScriptTurn(reasoning=THOUGHTS, text="384,400 km, about.", **DRAFTED)
CALLS = (
    ScriptCall(name="distance", arguments='{"from": "earth", "to": "moon", "unit": "km"}'),
    ScriptCall(name="evil\x1b[2J", arguments='{"path": "/etc/\u202epasswd", "text": "' + "long " * 100 + '"}'),
)
# A model with recurrent state: the panel has gauges for it and for its snapshots.
HYBRID = ModelInfo(
    name="Ling-3.0-tiny",
    backend="scripted",
    context=8192,
    weights_bytes=15_800_000_000,
    kv_bytes=28_300_000,
    state_bytes=25_600_000,
    snapshot_bytes=512_000_000,
)

States = dict[str, tuple[Script, Callable[[Bench, VirtualClock], Awaitable[None]]]]
STATES: States = {
    "empty": (script("x"), empty),
    "loading": (script("x", load=LOAD), loading),
    "streaming": (script(ScriptTurn(text=TEXT, pause=Pause(at=10), **DRAFTED)), streaming),
    "finished": (script(ScriptTurn(text=TEXT, **DRAFTED)), finished),
    "thinking": (script(THOUGHT, ScriptTurn(reasoning=THOUGHTS, text=TEXT, pause=Pause(at=5), **DRAFTED)), thinking),
    "calls": (
        script(ScriptTurn(reasoning=THOUGHTS, text="Let me look.", calls=CALLS, **DRAFTED), info=HYBRID),
        finished,
    ),
    "no-answer": (script(ScriptTurn(reasoning=THOUGHTS, stop="length", **DRAFTED), info=HYBRID), finished),
    "queued": (script(ScriptTurn(text=TEXT, pause=Pause(at=10), **DRAFTED)), queued),
    "error": (script(BROKEN), failed),
    "stall": (script(ScriptTurn(text=TEXT, pause=Pause(at=10), **DRAFTED)), stalled),
    "cjk": (script(ScriptTurn(text=CJK)), finished),
    "sessions": (script("x"), sessions_page),
    "help": (script("x"), help_page),
}


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("state", STATES)
async def test_frame(state: str, size: tuple[int, int], theme: str, tmp_path: Path, snapshot: object) -> None:
    what, act = STATES[state]
    clock = VirtualClock(auto=False)
    settings = load_settings({"theme": theme}, env={})
    async with running(
        what, size=size, home=tmp_path, clock=clock, settings=settings, wait=state != "loading"
    ) as bench:
        await act(bench, clock)
        assert frame(bench) == snapshot
        if bench.screen.turns.busy:
            bench.screen.turns.stop()
            await bench.idle()


async def test_without_colour_the_frame_still_says_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR: the same characters, and no colour in any style."""
    monkeypatch.setenv("NO_COLOR", "1")
    clock = VirtualClock(auto=False)
    what, act = STATES["finished"]
    async with running(what, size=(120, 40), clock=clock, settings=load_settings({}, env={"NO_COLOR": "1"})) as bench:
        await act(bench, clock)
        assert INFO.name in frame(bench) and "TTFT" in frame(bench)
        assert bench.app.theme == "lingchat-ansi"
