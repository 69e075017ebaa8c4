"""The whole app on a scripted engine, for tests: no terminal, no model, time that moves by itself or when asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from textual.pilot import Pilot
from textual.widgets import Static

from lingchat.chat import Chat
from lingchat.config import Settings, load_settings
from lingchat.engines.api import ModelInfo
from lingchat.engines.clocks import Clock, VirtualClock
from lingchat.engines.scripted import Script, ScriptedEngine, ScriptTurn
from lingchat.session import SessionStore
from lingchat.ui.app import LingchatApp
from lingchat.ui.screens.chat import ChatScreen

INFO = ModelInfo(name="SmolLM2-135M · demo model", backend="scripted", context=2048, demo=True)


def script(*turns: ScriptTurn | str, **rest: object) -> Script:
    """A script of a model with a small context."""
    return Script.of(*turns, **{"info": INFO, **rest})


class Bench:
    """A running app and what a test asks of it."""

    def __init__(self, app: LingchatApp, pilot: Pilot[None], engine: ScriptedEngine) -> None:
        self.app = app
        self.pilot = pilot
        self.engine = engine
        self.copied: list[str] = []

    @property
    def screen(self) -> ChatScreen:
        return self.app._chat_screen

    @property
    def texts(self) -> list[tuple[str, str]]:
        """Role and source of the messages on the screen."""
        return [(message.view.role, message.text) for message in self.screen.conversation.messages]

    @property
    def notice(self) -> str:
        widget = self.screen.query_one("#notice", Static)
        return str(widget.content) if widget.display else ""

    @property
    def status(self) -> str:
        return self.screen.query_one("#status").plain  # type: ignore[attr-defined]

    @property
    def header(self) -> str:
        return self.screen.query_one("#header").plain  # type: ignore[attr-defined]

    async def until(self, holds: Callable[[], object], seconds: float = 20.0) -> None:
        """Let the app run until `holds()`; fails after `seconds`."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, "the condition was not met in time"
            await self.pilot.pause()
            await asyncio.sleep(0.005)

    async def say(self, text: str) -> None:
        """Type and send."""
        self.screen.prompt.put_text(text)
        await self.pilot.press("enter")
        await self.pilot.pause()

    async def ready(self) -> None:
        await self.until(lambda: self.screen.turns.ready)

    async def idle(self) -> None:
        """Until nothing runs and nothing waits."""
        turns = self.screen.turns
        await self.until(lambda: not turns.busy and (turns.held or not turns.waiting))
        await self.pilot.pause()


@asynccontextmanager
async def running(
    what: Script,
    *,
    size: tuple[int, int] = (80, 24),
    home: Path | None = None,
    clock: Clock | None = None,
    settings: Settings | None = None,
    wait: bool = True,
    prompts: tuple[str, ...] = (),
) -> AsyncIterator[Bench]:
    """The app at a size. `home` keeps sessions, history and drafts; `clock` defaults to one that jumps."""
    clock = clock or VirtualClock()
    engine = ScriptedEngine(what, clock=clock)
    settings = settings or load_settings({}, env={})
    store = SessionStore(home / "sessions") if home is not None else None
    chat = Chat(engine, store.create() if store is not None else None, None, settings)
    app = LingchatApp(chat, settings, prompts, store=store, state=home, clock_ns=clock.now_ns)
    async with app.run_test(size=size) as pilot:
        bench = Bench(app, pilot, engine)
        app.copy_to_clipboard = bench.copied.append  # type: ignore[method-assign]
        if wait:
            await bench.ready()
            await pilot.pause()
        yield bench
    await chat.close()
