"""Which engine a command talks to: the built-in one, or a scripted one while developing. Imports only the one chosen.

`LINGCHAT_ENGINE=scripted:FILE` is an aid of development and of tests: an engine that needs no model and plays the
JSON script in FILE (`engines.script`), so that the installed command can be tried and tested whole.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lingchat.errors import ConfigError

if TYPE_CHECKING:
    from lingchat.engines.api import Engine

VARIABLE = "LINGCHAT_ENGINE"


def choose_engine(
    model: str | None,
    *,
    device: str = "auto",
    dtype: str | None = None,
    threads: int | None = None,
    context: int | None = None,
) -> Engine:
    """The engine for `model` (None: the default one), its process already loading. Raises ConfigError."""
    hook = os.environ.get(VARIABLE, "")
    if hook:
        kind, _, file = hook.partition(":")
        if kind != "scripted" or not file:
            raise ConfigError(f"the variable {VARIABLE} is {hook!r}, but must be scripted:FILE")
        from lingchat.engines.scripted import Script, ScriptedEngine

        return ScriptedEngine(Script.read(file))
    from lingchat.engines.local import LocalEngine

    engine = LocalEngine(model, device=device, dtype=dtype, threads=threads, context=context)
    engine.spawn()
    return engine
