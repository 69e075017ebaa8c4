"""One call, later. What Textual's timer does, without a task and a look at the function's signature for each.

Ten texts and four drawings of figures a second would pay for both. Knows widgets; knows nothing of what is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from textual.widget import Widget


def later(widget: Widget, seconds: float, call: Callable[[], object]) -> asyncio.TimerHandle:
    """Call `call` in `seconds` unless `widget` has gone by then. An error ends the app, as one in a timer does."""

    def due() -> None:
        if widget.is_attached:
            try:
                call()
            except Exception as error:
                widget.app._handle_exception(error)

    return asyncio.get_running_loop().call_later(seconds, due)
