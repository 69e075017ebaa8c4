"""Token ids to what a person reads: whole characters, reasoning apart from the answer, calls, stop strings held back.

Pure Python over the model's formats; knows no engine and no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingchat.engines.api import ChatRequest
from lingchat.runtime.formats.load import Formats, Prompt
from lingchat.runtime.formats.parts import Part
from lingchat.runtime.stops import StopFilter


class Words:
    """Token ids to parts: `("reasoning" | "text", delta)` and `("tool_call", ToolCall)`, in the order of the reply.

    `unanswered` is True after `finish` when the reply ended inside its reasoning, by the length or by an end token: it
    has reasoning, and neither an answer nor a call. Whoever shows the reply must say so; an empty text is no success.
    """

    def __init__(self, formats: Formats, request: ChatRequest, prompt: Prompt) -> None:
        # After plain text the reply goes on in its middle: a leading space of its first word belongs to it.
        self._characters = formats.tokenizer.decode_stream(continues=request.text is not None)
        self._parser = formats.reply_parser(prompt) if request.messages is not None else None
        self._stops = StopFilter(request.sampling.stop)
        self.unanswered = False

    def push(self, ids: Sequence[int]) -> tuple[list[Part], bool]:
        """The parts that became certain, and whether a stop string ended the reply."""
        return self._parsed(self._characters.push(ids))

    def finish(self, stopped: bool) -> list[Part]:
        """What was held back until the end."""
        if stopped:
            return []
        parts, hit = self._parsed(self._characters.finish())
        if not hit and self._parser is not None:
            more, hit = self._filtered(self._parser.finish())
            parts += more
            self.unanswered = self._parser.unanswered
        return parts if hit else parts + self._held()

    def _parsed(self, text: str) -> tuple[list[Part], bool]:
        return self._filtered([("text", text)] if self._parser is None else self._parser.push(text))

    def _filtered(self, parts: Sequence[Part]) -> tuple[list[Part], bool]:
        """Stop strings count in the answer: not in the reasoning before it, nor inside or across a call."""
        filtered: list[Part] = []
        for part in parts:
            if part[0] != "text":
                filtered += [*self._held(), part]
                continue
            shown, hit = self._stops.push(part[1])
            if shown:
                filtered.append(("text", shown))
            if hit:
                return filtered, True
        return filtered, False

    def _held(self) -> list[Part]:
        text = self._stops.finish()
        return [("text", text)] if text else []
