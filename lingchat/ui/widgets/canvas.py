"""What the conversation's lines are painted with: styles by their names, blank lines, the line above, the badge.

A style is resolved once and kept until the theme changes; asking the stylesheet for it on every line would cost more
than the line. Knows strips and styles; knows no messages.
"""

from __future__ import annotations

from rich.segment import Segment
from textual.cache import LRUCache
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget


class Canvas:
    """For one widget, whose component classes the names beginning with "." are."""

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._styles: dict[str, Style] = {}
        self._blanks: LRUCache[int, Strip] = LRUCache(256)  # blank lines by their y
        self._whole: LRUCache[int, tuple[Strip, Strip]] = LRUCache(
            512
        )  # by the content's identity: content, whole line
        self._plain: bool | None = None
        self._sides: tuple[Segment, Segment] | None = None  # what stands beside the content
        self._width = 0  # of the content

    def forget(self) -> None:
        """The theme has changed."""
        self._styles.clear()
        self._blanks.clear()
        self._whole.clear()
        self._plain = self._sides = None

    @property
    def plain(self) -> bool:
        """Whether the widget has no more about its content than spaces at its sides: no border, no tint, no opacity."""
        if self._plain is None:
            styles = self._widget.styles
            padding = styles.padding
            self._plain = (
                styles.gutter == padding
                and not (padding.top or padding.bottom or styles.tint.a or styles.has_rule("hatch"))
                and styles.text_opacity == self._widget.opacity == 1.0
                and not any(edge for edge, _ in styles.outline)
            )
        return self._plain

    @property
    def left(self) -> int:
        """Cells beside the content, at its left."""
        return len((self._sides or self._find_sides())[0].text)

    def fit(self, width: int) -> None:
        """The content is `width` cells wide."""
        if width != self._width:
            self._width = width
            self._whole.clear()

    def beside(self, strip: Strip) -> Strip:
        """`strip`, as wide as the content, between the spaces at the widget's sides."""
        known = self._whole.get(id(strip))
        if known is not None:  # `strip` is kept with it, so no other has its identity
            return known[1]
        left, right = self._sides or self._find_sides()
        line = strip.adjust_cell_length(self._width, left.style)
        whole = Strip([left, *line, right], len(left.text) + self._width + len(right.text))
        self._whole[id(strip)] = (strip, whole)
        return whole

    def _find_sides(self) -> tuple[Segment, Segment]:
        _, right, _, left = self._widget.styles.padding
        base, background = self._widget.background_colors
        style = Style(background=base + background).rich_style
        self._sides = Segment(" " * left, style), Segment(" " * right, style)
        return self._sides

    def style(self, style: str | Style) -> Style:
        """A style by its name."""
        if isinstance(style, Style):
            return style
        if (known := self._styles.get(style)) is None:
            widget = self._widget
            if style.startswith("."):
                # A partial style loses an opaque background.
                own = widget.get_component_styles(style[1:]).has_rule("background")
                known = widget.get_visual_style(style[1:], partial=not own)
            else:
                known = widget._get_style(style)
            self._styles[style] = known
        return known

    def blank(self, y: int, width: int) -> Strip:
        """Line `y` without anything on it."""
        blank = self._blanks.get(y)
        if blank is None or blank.cell_length != width:
            style = self._widget.visual_style.rich_style_with_offset(0, y)
            blank = self._blanks[y] = Strip([Segment(" " * width, style)], width)
        return blank

    def older(self, count: int, width: int) -> Strip:
        """The line that stands for `count` messages above, and lays them out when it is clicked."""
        click = Style.from_meta({"@click": ("load_older", ())})
        style = (self._widget.visual_style + self.style(".conversation--muted") + click).rich_style
        text = f"▲ {count:,} earlier messages"[:width]
        return Strip([Segment(text.center(width), style)], width)

    def badge(self, strip: Strip, new: int, width: int) -> Strip:
        """`strip` with the number of lines below it that nobody has seen, if there is room; a click goes there."""
        click = Style.from_meta({"@click": ("scroll_end", ())})
        style = (self.style(".conversation--more") + click).rich_style
        text = f" ↓ {new:,} new line{'s' if new != 1 else ''} "
        if len(text) >= width:
            return strip
        badge = Strip([Segment(text, style)], len(text))
        return Strip.join([strip.crop(0, width - len(text) - 1), badge, strip.crop(width - 1)])

    def marked(self, strip: Strip) -> Strip:
        """`strip` behind the bar of the message under the cursor."""
        bar = Segment("▌", (self._widget.visual_style + self.style(".conversation--cursor")).rich_style)
        return Strip([bar, *strip], strip.cell_length + 1)
