"""Which engine a command talks to: the built-in one, or a scripted one while developing. Imports only the one chosen.

`LINGCHAT_ENGINE=scripted:FILE` is an aid of development and of tests: an engine that needs no model and plays the
JSON script in FILE (`engines.script`), so that the installed command can be tried and tested whole. With `played:FILE`
the script is played in a process of its own, behind the pipe that the built-in engine speaks through: what the front
end costs is then all that its process costs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lingchat.errors import ConfigError

if TYPE_CHECKING:
    from lingchat.engines.api import Engine
    from lingchat.engines.process import Worker

VARIABLE = "LINGCHAT_ENGINE"


def launch() -> Worker | None:
    """Start the built-in engine's process before it is known what it shall load; None when another one is wanted."""
    if os.environ.get(VARIABLE):
        return None
    from lingchat.engines.process import start_worker

    return start_worker()


def choose_engine(
    model: str | None,
    *,
    device: str = "auto",
    dtype: str | None = None,
    threads: int | None = None,
    context: int | None = None,
    native: bool = True,
    worker: Worker | None = None,
) -> Engine:
    """The engine for `model` (None: the default one), its process already loading. Raises ConfigError.

    `worker` is what `launch` gave; without `native` torch serves even where native code could, for comparisons.
    """
    hook = os.environ.get(VARIABLE, "")
    if hook:
        kind, _, file = hook.partition(":")
        if kind not in ("scripted", "played") or not file:
            raise ConfigError(f"the variable {VARIABLE} is {hook!r}, but must be scripted:FILE or played:FILE")
        if kind == "scripted":
            from lingchat.engines.scripted import Script, ScriptedEngine

            return ScriptedEngine(Script.read(file))
        from lingchat.engines.local import LocalEngine

        engine = LocalEngine(program=("-m", "lingchat.engines.played", file))
    else:
        from lingchat.engines.local import LocalEngine

        engine = LocalEngine(
            model, device=device, dtype=dtype, threads=threads, context=context, native=native, worker=worker
        )
    engine.spawn()
    return engine
