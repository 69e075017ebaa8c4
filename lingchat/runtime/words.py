"""Token ids to what a person reads: whole characters, reasoning apart from the answer, stop strings held back.

Pure Python over the model's formats; knows no engine and no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingchat.engines.api import ChatRequest
from lingchat.runtime.formats.load import Formats, Prompt
from lingchat.runtime.stops import StopFilter


class Words:
    """Token ids to typed deltas: whole characters, reasoning apart, stop strings held back."""

    def __init__(self, formats: Formats, request: ChatRequest, prompt: Prompt) -> None:
        # After plain text the reply goes on in its middle: a leading space of its first word belongs to it.
        self._characters = formats.tokenizer.decode_stream(continues=request.text is not None)
        self._reasoning = formats.reply_parser(prompt) if request.messages is not None else None
        self._stops = StopFilter(request.sampling.stop)

    def push(self, ids: Sequence[int]) -> tuple[list[tuple[str, str]], bool]:
        """Deltas of (kind, text), and whether a stop string ended the reply."""
        return self._typed(self._characters.push(ids))

    def finish(self, stopped: bool) -> list[tuple[str, str]]:
        """What was held back until the end."""
        if stopped:
            return []
        deltas, hit = self._typed(self._characters.finish())
        if not hit and self._reasoning is not None:
            more, hit = self._filtered(self._reasoning.finish())
            deltas += more
        return deltas if hit else [*deltas, ("text", self._stops.finish())]

    def _typed(self, text: str) -> tuple[list[tuple[str, str]], bool]:
        parts = [("text", text)] if self._reasoning is None else self._reasoning.push(text)
        return self._filtered(parts)

    def _filtered(self, parts: Sequence[tuple[str, str]]) -> tuple[list[tuple[str, str]], bool]:
        """Stop strings count in the answer, not in the reasoning before it."""
        deltas: list[tuple[str, str]] = []
        for kind, text in parts:
            if kind != "text":
                deltas.append((kind, text))
                continue
            shown, hit = self._stops.push(text)
            deltas.append((kind, shown))
            if hit:
                return deltas, True
        return deltas, False
