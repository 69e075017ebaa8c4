"""How the chat screen shares its cells, by the size of the terminal and the user's wish. Pure arithmetic."""

from __future__ import annotations

from typing import Literal, NamedTuple

Latency = Literal["panel", "strip", "off"]
CYCLE: tuple[Latency, ...] = ("panel", "strip", "off")

DOCK_COLUMNS = 120  # from here on the panel docks by itself
DOCK_ROWS = 20
DOCK_LEAST_COLUMNS = 90  # narrower than this it does not fit even when asked for
TINY_COLUMNS = 60  # below either: conversation, prompt, one status line
TINY_ROWS = 15
FLAT_ROWS = 8  # below this not even a rule


class Layout(NamedTuple):
    latency: Latency
    tiny: bool
    flat: bool


def layout(columns: int, rows: int, wish: Latency | None) -> Layout:
    """What is shown at a size. `wish` is the user's choice, None for the automatic one."""
    tiny = columns < TINY_COLUMNS or rows < TINY_ROWS
    if tiny:
        return Layout("off", True, rows < FLAT_ROWS)
    shown: Latency
    if wish is None:
        shown = "panel" if columns >= DOCK_COLUMNS and rows >= DOCK_ROWS else "strip"
    elif wish == "panel" and columns < DOCK_LEAST_COLUMNS:
        shown = "strip"
    else:
        shown = wish
    return Layout(shown, False, False)


def after(shown: Latency, columns: int) -> Latency:
    """The next state of F2: panel, strip, off; the panel is left out where it does not fit."""
    order = CYCLE if columns >= DOCK_LEAST_COLUMNS else CYCLE[1:]
    return order[(order.index(shown) + 1) % len(order)] if shown in order else order[0]
