"""Painting by parts: what the terminal shows after any number of partial updates is what a whole painting shows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyte
import pytest
from chat_app import Bench, running, script
from textual._compositor import Compositor
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from lingchat.config import load_settings
from lingchat.engines.clocks import VirtualClock
from lingchat.engines.scripted import ScriptTurn
from lingchat.ui.app import LingchatApp
from lingchat.ui.compositor import PartialCompositor, SpansUpdate

TEXT = (
    """The cache keeps one entry per *block*. Here is **how**, with 漢字 in it:

1. allocate
2. fill, then commit

```python
for block in blocks:
    cache[block.id] = block
```

"""
    * 12
)
Cells = list[list[tuple[str, ...]]]


def cells(screen: pyte.Screen) -> Cells:
    """Characters and how they look; what a blank cell's letter would look like is not seen."""
    return [
        [
            (cell.data, cell.bg, str(cell.reverse), *((cell.fg, str(cell.bold)) if cell.data.strip() else ()))
            for cell in (screen.buffer[y][x] for x in range(screen.columns))
        ]
        for y in range(screen.lines)
    ]


class Painted:
    """A terminal that is fed what an app displays, and the parts of it that were partial."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, app: type[App[Any]], size: tuple[int, int]) -> None:
        self.size = size
        self.terminal = pyte.Screen(*size)
        self.partial = 0

        def display(app: App[Any], screen: Screen[Any], update: Any) -> None:
            if update is not None:
                self.partial += isinstance(update, SpansUpdate)
                self.feed(self.terminal, update.render_segments(app.console))

        monkeypatch.setattr(app, "_display", display)

    @staticmethod
    def feed(terminal: pyte.Screen, data: str) -> None:
        pyte.Stream(terminal).feed(data.replace("\n", ""))

    def check(self, app: App[Any]) -> None:
        whole = pyte.Screen(*self.size)
        self.feed(whole, app.screen._compositor.render_full_update().render_segments(app.console))
        for y, (got, want) in enumerate(zip(cells(self.terminal), cells(whole), strict=True)):
            assert got == want, f"line {y}"


async def settle(bench: Bench) -> None:
    """Until the screen has painted what it knows of."""
    await bench.pilot.pause()
    await bench.until(lambda: not bench.app.screen._dirty_widgets and not bench.app.screen._compositor._dirty_regions)


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (40, 12)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("theme", ["dark", "ansi"])
async def test_a_chat_painted_by_parts(
    size: tuple[int, int], theme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    painted = Painted(monkeypatch, LingchatApp, size)
    clock = VirtualClock(auto=False)
    what = script(ScriptTurn(text=TEXT, m=(3,), a=(0, 1, 3), round_ms=(4.0, 4.0, 30.0), rounds_an_event=3))
    settings = load_settings({"theme": theme}, env={})
    async with running(what, size=size, home=tmp_path, clock=clock, settings=settings) as bench:
        steps = ["a", "b", "/", "ctrl+u", "f2", "pageup", "x", "f2", "alt+up", "escape", "ctrl+end", "/", "ctrl+u"]
        await bench.say("why does the cache grow?")
        for step in [*steps, *[""] * 20]:
            await clock.advance(90)
            bench.screen.conversation.flush()
            for view in (bench.screen.frame.panel, bench.screen.frame.line):
                view.live.draw()
            if step:
                await bench.pilot.press(step)
            await settle(bench)
            painted.check(bench.app)
        assert painted.partial > 20
        bench.screen.turns.stop()
        await bench.idle()


class Patch(Widget):
    """Letters in columns of its own; it overlaps others."""

    def __init__(self, letter: str, place: Region, layer: str) -> None:
        super().__init__()
        self.letter, self.turn = letter, 0
        self.styles.layer = layer
        self.styles.position = "absolute"
        self.styles.offset = (place.x, place.y)
        self.styles.width, self.styles.height = place.width, place.height
        if letter == "b":
            self.styles.border = ("round", "red")

    def render_line(self, y: int) -> Strip:
        text = (self.letter + "漢" + str(self.turn % 10)) * self.content_size.width
        return Strip.blank(0).join([Strip(list(self.app.console.render(text)), None)]).crop(0, self.content_size.width)


class Patches(Screen[None]):
    CSS = "Patches { layers: under over; }"

    def __init__(self, compositor: Compositor) -> None:
        super().__init__()
        self._compositor = compositor
        self.patches = [
            Patch("a", Region(0, 0, 30, 12), "under"),
            Patch("b", Region(5, 3, 20, 6), "over"),
            Patch("c", Region(12, 5, 9, 9), "over"),
            Patch("d", Region(25, 10, 30, 10), "under"),
        ]

    def compose(self) -> ComposeResult:
        yield from self.patches


@pytest.mark.parametrize("seed", range(4))
async def test_widgets_over_each_other(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Host(App[None]):
        pass

    painted = Painted(monkeypatch, Host, (40, 16))
    chance = random.Random(seed)
    host = Host()
    async with host.run_test(size=(40, 16)) as pilot:
        screen = Patches(PartialCompositor())
        await host.push_screen(screen)
        await pilot.pause()
        for _ in range(25):
            for patch in chance.sample(screen.patches, chance.randint(1, 3)):
                if chance.random() < 0.6:
                    patch.turn += 1
                    patch.refresh()
                else:  # painted again, though nothing of it has changed
                    width, height = patch.content_size
                    patch.refresh(Region(0, chance.randrange(height), width, chance.randint(1, height)))
            await pilot.pause()
            while screen._dirty_widgets:
                await pilot.pause()
            painted.check(host)
        assert painted.partial > 10
