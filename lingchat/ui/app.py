"""The app: it puts the chat screen on a terminal and takes it off again. Wiring only.

What is on the screens, what keys and commands do, and what a chat is stand elsewhere.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen

from lingchat.config import Settings, paths
from lingchat.errors import EXIT_HANGUP, ConfigError
from lingchat.events import now_ns
from lingchat.session import SessionStore
from lingchat.ui import clipboard
from lingchat.ui.history import Draft, History
from lingchat.ui.keys import conflicts
from lingchat.ui.palette import CommandProvider
from lingchat.ui.screens.chat import ChatScreen
from lingchat.ui.signals import SignalGuard
from lingchat.ui.terminal import TerminalDriver
from lingchat.ui.themes import DEFAULTS, OWN, THEMES
from lingchat.ui.widgets.blocks import warm_up
from lingchat.ui.widgets.conversation import Conversation
from lingchat.ui.widgets.prompt import Prompt
from lingchat.visible import visible

if TYPE_CHECKING:
    from lingchat.chat import Chat

CLOSE_TIMEOUT_S = 5.0
WARM_S, SETTLED_S = 0.5, 1.5  # after so long the screen stands; after so long nothing more is made
GARBAGE = 10_000  # objects made and not yet gone, after which the young ones are looked at


class LingchatApp(App[None], inherit_bindings=False):
    """The Textual app around one chat."""

    TITLE = "lingchat"
    CSS_PATH = "lingchat.tcss"
    COMMANDS = {CommandProvider}  # noqa: RUF012 (Textual's own declaration)
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "ctrl+p"
    ESCAPE_TO_MINIMIZE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+p", "command_palette", "command palette", show=False, id="app.palette"),
        Binding("ctrl+l", "redraw", "redraw the screen", show=False, id="app.redraw"),
        Binding("ctrl+z", "suspend_process", "suspend (fg comes back)", show=False, id="app.suspend"),
        Binding("f6,alt+m", "mouse", "mouse on, or left to the terminal", show=False, id="app.mouse"),
    ]

    def __init__(
        self,
        chat: Chat,
        settings: Settings,
        prompts: Sequence[str] = (),
        provenance: str = "live",
        *,
        store: SessionStore | None = None,
        state: Path | None = None,
        read_only: bool = False,
        clock_ns: Callable[[], int] = now_ns,
    ) -> None:
        """`store` lists other sessions, `state` is the folder of history and drafts; None: there are none to go to.

        `prompts` are sent first, in order. `read_only` is a replay: it shows no prompt. `clock_ns` is the engine's clock.
        """
        plain = "NO_COLOR" in os.environ
        super().__init__(
            driver_class=TerminalDriver if sys.platform != "win32" else None,
            ansi_color=True if plain else None,  # Textual turns colours into greys otherwise
        )
        self.chat = chat
        self.settings = settings
        self.mouse_on = settings.mouse
        project = os.getcwd()
        self._chat_screen = ChatScreen(
            chat,
            settings,
            store,
            History(state / "history.jsonl" if state else None, project),
            Draft(state, project),
            prompts=prompts,
            provenance=provenance,
            read_only=read_only,
            clock_ns=clock_ns,
        )
        for theme in OWN:
            self.register_theme(theme)
        if not self.set_theme("ansi" if plain else settings.theme):
            origin = settings.origins.get("theme", "the settings")
            raise ConfigError(
                f"theme: there is no theme {settings.theme} (from {origin}); dark, light and ansi are there."
            )
        places = (Prompt.BINDINGS, Conversation.BINDINGS, ChatScreen.BINDINGS, LingchatApp.BINDINGS)
        self._conflicts = conflicts(settings.keys, places, settings.origins.get("keys", "the settings"))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return DEFAULTS

    def get_default_screen(self) -> Screen[Any]:
        """The chat lies at the bottom: an empty screen under it would be laid out, styled and painted for nothing."""
        return self._chat_screen

    def on_mount(self) -> None:
        self.set_keymap(self.settings.keys)
        if self._conflicts:
            told = "; ".join(self._conflicts)
            self._chat_screen.call_after_refresh(self._chat_screen.note, f"keys: {told} (lingchat config path)", True)

    # ------------------------------------------------------------------ what screens ask of the app

    def set_theme(self, name: str) -> bool:
        """Use `dark`, `light`, `ansi`, or any theme Textual knows; False when there is none of that name."""
        full = THEMES.get(name, name)
        if full not in self.available_themes:
            return False
        self.theme = full
        return True

    def copy_to_clipboard(self, text: str) -> None:
        """Copy through the terminal and the system's tool. What could act on a terminal is made visible."""
        text = clipboard.clean(text)
        self._clipboard = text
        sequence = clipboard.osc52(text)
        if self._driver is not None and sequence is not None:
            self._driver.write(sequence)
            self._driver.flush()
        tool = clipboard.system_tool()
        if tool is not None and not self.is_headless:
            self.run_worker(clipboard.run_tool(tool, text), group="clipboard", exit_on_error=False)

    def action_mouse(self) -> None:
        """Give the mouse to the terminal (native selection), or take it."""
        self.mouse_on = not self.mouse_on
        if isinstance(self._driver, TerminalDriver):
            self._driver.set_mouse(self.mouse_on)
        self._chat_screen.note("mouse on" if self.mouse_on else "mouse left to the terminal: select and copy natively")

    def action_redraw(self) -> None:
        self.refresh(layout=True)

    # ------------------------------------------------------------------ ends

    @property
    def in_application_mode(self) -> bool:
        return isinstance(self._driver, TerminalDriver) and self._driver.active

    def leave(self, code: int) -> None:
        """End in order with an exit code. Safe in a signal handler."""
        loop: asyncio.AbstractEventLoop | None = self._loop
        if loop is None or loop.is_closed():
            raise SystemExit(code)
        loop.call_soon_threadsafe(lambda: self.exit(return_code=code))

    def terminal_lost(self) -> None:
        """The terminal went away without a signal."""
        self.exit(return_code=EXIT_HANGUP)

    def _fatal_error(self) -> None:
        """An error nobody caught: a plain traceback after the terminal is back, instead of Textual's with locals."""
        self._exit_renderables.append(Text(visible(traceback.format_exc().rstrip())))
        self._close_messages_no_wait()


def _settle_memory() -> None:
    """What the start has made stays: no collection looks at its hundred thousand objects again, which takes 50 ms."""
    gc.freeze()
    gc.set_threshold(GARBAGE)
    gc.enable()


async def _run(app: LingchatApp) -> None:
    loop = asyncio.get_running_loop()
    loop.call_later(WARM_S, threading.Thread(target=warm_up, name="warm-up", daemon=True).start)
    loop.call_later(SETTLED_S, _settle_memory)
    try:
        await app.run_async(mouse=app.settings.mouse)
    finally:
        await asyncio.wait_for(app.chat.close(app.return_code or 0), CLOSE_TIMEOUT_S)


def run_app(chat: Chat, settings: Settings, first_prompt: str | None = None, provenance: str = "live") -> int:
    """Run the chat on this terminal until the user leaves; the exit code. The chat is closed on every way out."""
    state = None if settings.private else paths().state
    store = SessionStore(paths().sessions) if chat.session is not None and not settings.private else None
    app = LingchatApp(chat, settings, [first_prompt] if first_prompt else [], provenance, store=store, state=state)
    with SignalGuard(app.leave, lambda: app.in_application_mode) as guard:
        asyncio.run(_run(app))
    return guard.exit_code if guard.exit_code is not None else app.return_code or 0
