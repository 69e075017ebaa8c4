"""What waits to be sent: one line a message, above the prompt.

It shows a list; when its first entry is sent is the screen's matter.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from lingchat.ui.widgets.status import one_line

ROWS = 3


class QueueView(Static):
    """Hidden while nothing waits."""

    def __init__(self) -> None:
        super().__init__("", id="queue", markup=False)
        self.display = False

    def show(self, waiting: Sequence[str], held: bool) -> None:
        """List the texts that wait; `held` says that they go on only with enter (after an interrupt or an error)."""
        self.display = bool(waiting)
        if not waiting:
            return
        note = "enter sends · ↑ edits" if held else "↑ edits"
        word = "held" if held else "queued"
        lines = []
        for number, text in enumerate(waiting[:ROWS]):
            parts = [(f"{word} ", "$accent" if held else "$quiet"), (one_line(text), "$foreground")]
            if number == 0:
                parts.append((f"   {note}", "$faint"))
            lines.append(Content.assemble(*parts))
        if len(waiting) > ROWS:
            lines.append(Content.styled(f"and {len(waiting) - ROWS} more", "$quiet"))
        self.update(Content("\n").join(lines))
