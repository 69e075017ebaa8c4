"""Time that passes while a reply is silent: front ends without a screen's own timer give the chat its ticks by this.

Without them what has been said would wait in memory for the next event, and a silence would stand in no trace.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from lingchat.chat import Chat
from lingchat.events import Stall, now_ns

TICK_S = 0.1  # as often as what was said is written


@contextlib.asynccontextmanager
async def ticking(chat: Chat, on_stall: Callable[[Stall], object] | None = None) -> AsyncIterator[None]:
    """Calls `chat.tick` inside the block. `on_stall` gets each silence once, when the trace has it."""
    task = asyncio.create_task(_tick(chat, on_stall))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task  # a failure of its own is raised here


async def _tick(chat: Chat, on_stall: Callable[[Stall], object] | None) -> None:
    silent = False
    while True:
        await asyncio.sleep(TICK_S)
        stall = chat.tick(now_ns())
        if stall is not None and not silent and on_stall is not None:
            on_stall(stall)
        silent = stall is not None
