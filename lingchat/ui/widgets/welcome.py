"""What an empty chat shows: the model, how far it has loaded, and the first prompts.

It draws what it is told; the keys that pick a prompt belong to the screen.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from lingchat.events import Engine
from lingchat.stats import format_bytes, format_percent
from lingchat.ui.widgets.status import one_line

BAR = 24
WORDS = {
    "start": "starting the engine",
    "download": "downloading the model",
    "load": "loading the model",
    "compile": "preparing kernels",
    "ready": "ready",
    "idle": "ready",
}


def progress_share(event: Engine) -> float | None:
    """How far a phase is, 0 to 1, or None when nobody knows."""
    if event.progress >= 0:
        return min(event.progress, 1.0)
    if event.total_bytes > 0:
        return min(event.done_bytes / event.total_bytes, 1.0)
    return None


def progress_text(event: Engine) -> str:
    """`downloading the model  43%  42 MB of 98 MB`, with what is unknown left out."""
    parts = [WORDS.get(event.phase, event.phase)]
    share = progress_share(event)
    if share is not None:
        parts.append(format_percent(share))
    if event.done_bytes and event.total_bytes:
        parts.append(f"{format_bytes(event.done_bytes)} of {format_bytes(event.total_bytes)}")
    elif event.done_bytes:
        parts.append(format_bytes(event.done_bytes))
    return "  ".join(parts)


def short_progress(event: Engine) -> str:
    """`download 43%`."""
    share = progress_share(event)
    return event.phase if share is None else f"{event.phase} {format_percent(share)}"


def progress_bar(event: Engine, width: int = BAR) -> str:
    """Blocks to eighths of a cell; empty when the share is unknown."""
    share = progress_share(event)
    if share is None:
        return ""
    eighths = round(share * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width, "░")[:width]


class Welcome(Static):
    """Shown in place of the conversation until something was said."""

    def __init__(self, prompts: Sequence[tuple[str, str]]) -> None:
        super().__init__("", id="welcome", markup=False)
        self._prompts = prompts

    def say(self, model: str, engine: Engine | None, failure: str, demo: bool) -> None:
        """Draw again: the model, the engine's last event or its failure, and whether this is the demonstration model."""
        lines = [Content.styled(one_line(model), "bold $foreground")]
        if failure:
            lines += [
                Content.styled(one_line(failure), "$error"),
                Content.styled("/restart tries again", "$quiet"),
            ]
        elif engine is not None and engine.phase not in ("ready", "idle"):
            bar = progress_bar(engine)
            lines.append(Content.assemble((progress_text(engine), "$accent")))
            if bar:
                lines.append(Content.styled(bar, "$primary"))
            if engine.message:
                lines.append(Content.styled(one_line(engine.message), "$quiet"))
        elif demo:
            lines.append(Content.styled("a small demonstration model; your own: lingchat -m PATH, or /model", "$quiet"))
        lines.append(Content(""))
        for number, (label, _prompt) in enumerate(self._prompts, 1):
            lines.append(Content.assemble((f" {number} ", "bold $accent"), (f" {label}", "$foreground")))
        lines += [Content(""), Content.styled("press a number, or type your own", "$quiet")]
        self.update(Content("\n").join(lines))
