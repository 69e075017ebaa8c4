"""The command palette: slash commands and keyed actions, found by any part of their words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from lingchat.ui.commands import COMMANDS, Command
from lingchat.ui.screens.help import key_name


class CommandProvider(Provider):
    """Offers what the chat screen can do. A command that needs words is put into the prompt instead of run."""

    def _entries(self) -> Iterator[tuple[str, str, Callable[[], Any]]]:
        screen = self.screen
        run: Callable[[Command], Any] | None = getattr(screen, "run_from_palette", None)
        if run is None:
            return
        for command in COMMANDS:
            yield command.usage, command.help, partial(run, command)
        seen = set()
        for node in (screen, self.app):
            for key, binding in node._bindings:
                if binding.description and binding.action not in seen:
                    seen.add(binding.action)
                    yield binding.description, key_name(key), partial(self.app.run_action, binding.action, node)

    async def discover(self) -> Hits:
        for name, words, run in self._entries():
            yield DiscoveryHit(Content(name), run, text=name, help=words)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, words, run in self._entries():
            score = max(matcher.match(name), 0.8 * matcher.match(words))
            if score > 0:
                yield Hit(score, Content(name), run, text=name, help=words)
