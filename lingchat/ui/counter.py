"""The token counter beside the prompt: what the text makes with the history before it, and what the context leaves.

Counting is the engine's matter and takes a round trip, so it waits until typing pauses, and an answer for a text that
has changed meanwhile is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from lingchat.errors import LingchatError
from lingchat.stats import format_count
from lingchat.ui.widgets.prompt import Typed

if TYPE_CHECKING:
    from lingchat.chat import Chat

PAUSE_S = 0.15


class Counter:
    """`tokens` is None while unknown, and while the prompt is empty or holds a command."""

    def __init__(
        self,
        chat: Chat,
        on_change: Callable[[], None],
        spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], object],
    ) -> None:
        self._chat = chat
        self._on_change = on_change
        self._spawn = spawn
        self._text: str | None = None
        self.tokens: int | None = None

    def changed(self, typed: Typed, ready: bool) -> None:
        """The prompt holds something else now."""
        text = typed.full
        if text == self._text and ready == (self.tokens is not None):
            return
        self._text = text
        if not ready or not text.strip() or (text.startswith("/") and not text.startswith("//")):
            if self.tokens is not None:
                self.tokens = None
                self._on_change()
            return
        self._spawn(partial(self._count, text))

    async def _count(self, text: str) -> None:
        await asyncio.sleep(PAUSE_S)
        if text != self._text:
            return
        try:
            tokens = await self._chat.count(text)
        except LingchatError:
            tokens = None  # the engine is away; its own error is on the screen already
        if text == self._text and tokens != self.tokens:
            self.tokens = tokens
            self._on_change()

    def text(self, context: int) -> tuple[str, bool]:
        """The counter as shown, and whether the prompt no longer fits."""
        if self.tokens is None:
            return "", False
        if not context:
            return f"{format_count(self.tokens)} tok", False
        left = context - self.tokens
        if left <= 0:
            return f"{format_count(self.tokens)} tok · {format_count(1 - left)} too many", True
        return f"{format_count(self.tokens)} tok · {format_count(left)} left", False
