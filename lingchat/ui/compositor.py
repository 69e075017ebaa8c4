"""Textual's compositor, but a partial update costs what has changed.

Textual's own renders every widget of the screen whole for each update and cuts all of it at every edge of any widget,
to write a few lines in the end. While a reply streams that is half of what the screen costs. Here each changed span of
a line is taken from the widget on top of it, and widgets render only the lines that changed. What the terminal shows
is the same (`tests/ui/test_compositor.py` compares the two).

Knows regions and strips; knows nothing of what the widgets show.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from textual._compositor import Compositor, CompositorUpdate
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

Span = tuple[int, int, int]  # y, first column, the column after the last


class SpansUpdate(CompositorUpdate):
    """Pieces of lines, each with the place where it begins."""

    def __init__(self, pieces: Sequence[tuple[int, int, Strip]]) -> None:
        """`pieces` are x, y and what stands there."""
        self._pieces = pieces

    def render_segments(self, console: Console) -> str:
        return "".join([f"\x1b[{y + 1};{x + 1}H{strip.render(console)}" for x, y, strip in self._pieces])


class PartialCompositor(Compositor):
    """For a screen that changes in few places, many times a second."""

    def render_partial_update(self) -> SpansUpdate | None:  # type: ignore[override]
        screen = self.size.region
        dirty = [part for region in self._dirty_regions if (part := region.intersection(screen))]
        self._dirty_regions.clear()
        if not dirty:
            return None
        spans: list[Span] = list(self._regions_to_spans(dirty))
        pieces: list[tuple[int, int, Strip]] = []
        for widget, (region, clip) in self.visible_widgets.items():  # from the front to the back
            spans = _show(widget, region, region.intersection(clip), spans, pieces)
            if not spans:
                break
        pieces.sort(key=lambda piece: (piece[1], piece[0]))
        return SpansUpdate(pieces)


def _show(
    widget: Widget, region: Region, seen: Region, spans: list[Span], pieces: list[tuple[int, int, Strip]]
) -> list[Span]:
    """Add what the `seen` part of a widget shows of `spans` to `pieces`; the spans that are left for those behind it."""
    left, top, right, bottom = seen.corners
    wanted: list[Span] = []
    rest: list[Span] = []
    for y, x1, x2 in spans:
        a, b = max(x1, left), min(x2, right)
        if not top <= y < bottom or a >= b:
            rest.append((y, x1, x2))
            continue
        wanted.append((y, a, b))
        if x1 < a:
            rest.append((y, x1, a))
        if b < x2:
            rest.append((y, b, x2))
    if wanted:
        first, last = min(wanted)[0], max(wanted)[0]
        a, b = min(a for _, a, _ in wanted), max(b for _, _, b in wanted)
        x, y = region.offset
        lines = widget.render_lines(Region(a - x, first - y, b - a, last - first + 1))
        pieces += [(left, row, lines[row - first].crop(left - a, right - a)) for row, left, right in wanted]
    return rest
