"""A reply while it is written.

Deltas collect in it until the conversation flushes. Finished blocks are laid out once; the growing block is plain text,
and so is a long one until the end. `finish` parses the whole text, in a thread if it is long, and replaces only the
blocks that this shows to differ.

Knows messages and blocks, and of events only what the line of reasoning needs; knows nothing of the screen.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lingchat.engines.api import ToolCall
from lingchat.events import AnyEvent, Reasoning
from lingchat.stats import ReasoningMeter, reasoning_note
from lingchat.ui.widgets.blocks import Block, BlockSplitter, Fence, parse
from lingchat.ui.widgets.markdown import code_bottom, code_top
from lingchat.ui.widgets.message import MessageView, Owner, TurnView
from lingchat.ui.widgets.rows import Row
from lingchat.ui.widgets.sections import BlockSection, GrowingText, Section
from lingchat.visible import visible_line


class Refined(msgspec.Struct, frozen=True):
    """The body of a finished reply."""

    sections: list[Section]
    blocks: list[bytes]
    codes: list[str]


class Reply(MessageView):
    """A reply being written."""

    def __init__(self, view: TurnView, key: str, owner: Owner) -> None:
        super().__init__(view, key, owner)
        self.splitter = BlockSplitter()
        self.live = True
        self._pending: list[str] = []
        self._pending_reasoning: list[str] = []
        self._reasoning: list[str] = []
        self._calls: tuple[ToolCall, ...] = ()
        self._doing = "…"  # what the line in the footer's place says
        self._note = ""
        self._meter = ReasoningMeter()
        self._shown = 0  # text up to here is in the layout
        self._mode: tuple[int, Fence | None] | None = None  # where the tail starts, and the fence it is in

    def build(self) -> None:
        if not self.live:
            super().build()
            return
        self.header = Section(indent=0)
        self._head()
        self.tail = GrowingText()
        self.status = Section()
        self.sections = [self.header, self.tail, self.status]
        self._show_status()

    def unload(self) -> None:
        if not self.live:
            super().unload()

    @property
    def text(self) -> str:
        return self.splitter.source + "".join(self._pending) if self.live else self.view.text

    def append(self, delta: str) -> None:
        """More of the reply's text."""
        self._pending.append(delta)
        self.owner.schedule(self)

    def append_reasoning(self, delta: str) -> None:
        """More of its reasoning."""
        self._pending_reasoning.append(delta)
        self.owner.schedule(self)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self._calls if self.live else self.view.calls

    def call(self, call: ToolCall) -> None:
        """A tool call of it, whole."""
        self._calls += (call,)
        if self._built:
            self._show_status()
        self.owner.schedule(self)

    def observe(self, event: AnyEvent) -> None:
        """Takes any event of the turn: the figures behind "thinking" come from them."""
        self._meter.add(event)
        if isinstance(event, Reasoning):
            self.set_reasoning_note(reasoning_note(self._meter.ms, self._meter.tokens))

    def set_reasoning_note(self, note: str) -> None:
        """What stands behind "thinking": "4.1 s · 1,020 tokens · 248 tok/s"."""
        if note != self._note:
            self._note = note
            self.owner.schedule(self)

    def set_status(self, text: str) -> None:
        """The line that holds the footer's place while the reply is written."""
        if self.live:
            self._doing = visible_line(text)
            if self._built:
                self._show_status()
            self.owner.schedule(self)

    def _show_status(self) -> None:
        self.status.flow = [*self._call_rows(), Row(self._doing, style=".conversation--muted")]
        self.status.gap = bool(self._calls) and (self.has_reasoning or bool(self.splitter.source))
        self.status.dirty()

    def flush(self, width: int) -> int:
        """Brings the layout up to what has arrived; returns the first line of the reply that may have changed."""
        if not self.live:
            return 0
        above = sum(len(section.lines(width)) for section in self.sections[:-2])
        changed = above + max(len(self.tail.lines(width)) - 1, 0)
        if self._pending_reasoning:
            text = "".join(self._pending_reasoning)
            self._pending_reasoning.clear()
            self._reasoning.append(text)
            if not self.has_reasoning:
                self._add_reasoning("thinking")
            self.thought.grow(text)
            changed = 1
        word = "thought" if self._pending or self._calls or self.splitter.source else "thinking"
        if self.has_reasoning and (title := f"{word} {self._note}".strip()) != self._title:
            self._retitle(title)
            changed = 1
        if self._pending:
            delta = "".join(self._pending)
            self._pending.clear()
            mode = self._mode
            for number, block in enumerate(self.splitter.append(delta)):
                self._add_block(block, in_tail=number == 0 and mode is not None)
            self._grow_tail()
            changed = min(changed, above) if mode != self._mode else changed
        return changed

    def _grow_tail(self) -> None:
        splitter = self.splitter
        fence = splitter.fence
        if (splitter.start, fence) != self._mode:
            self._mode = (splitter.start, fence)
            self.tail.gap = self._gap()
            self.tail.restart(code_top(fence.info, None, self.key) if fence else None)
            self._shown = fence.start if fence else splitter.start
        if self._shown == splitter.start:
            self._shown += _blank_prefix(splitter.text, self._shown)
        self.tail.grow(splitter.text[self._shown :])
        self._shown = len(splitter.text)

    def _add_block(self, block: Block, *, in_tail: bool) -> None:
        """Lays out a finished block. A long one stays as plain as it is in the tail, which then has a successor."""
        place = len(self.sections) - 2
        if not block.light:
            self._append_blocks([block], place)
            return
        if not in_tail:  # it came whole, in one chunk
            self.tail.restart()
            self.tail.gap = self._gap()
            self._mode, self._shown = (block.start, None), block.start
        fence = self._mode[1] if self._mode is not None else None
        end = block.end if fence is None else self.splitter.text.rfind("\n", 0, block.end - 1) + 1
        self.tail.grow(self.splitter.text[self._shown : end])
        if fence is not None:
            self.tail.close(code_bottom())
        self.tail = GrowingText()
        self.sections.insert(place + 1, self.tail)
        self._mode = None
        self.codes.extend(block.codes)
        self.blocks.append(b"")

    def finish(self, footer: str = "", stop: str = "eos", error: str = "") -> None:
        """The reply is complete (or cut, as `stop` says). Its figures show at once, its final form follows."""
        if not self.live:
            return
        self.flush(self.owner.text_width)
        thought = {"reasoning": "".join(self._reasoning), "reasoning_note": self._note}
        text = self.splitter.close()
        self.live = False
        self.view = msgspec.structs.replace(
            self.view, text=text, calls=self._calls, footer=footer, stop=stop, error=error, **thought
        )
        if self.has_reasoning:
            self._retitle(f"thought {self._note}".strip())
        self.sections[-1:] = [self._foot(self._gap() or bool(text.strip()))]
        self.owner.refine(self)

    def refinement(self, width: int) -> Callable[[], Refined]:
        """A pure function that makes the final body; what it takes from here it takes now, so it may run in a thread."""
        known = {section.identity: section for section in self.sections if isinstance(section, BlockSection)}
        text, key, gap = self.view.text, self.key, self.has_reasoning

        def refine() -> Refined:
            refined = Refined([], [], [])
            for block in parse(text):
                identity = (block.digest, len(refined.codes), gap or bool(refined.blocks))
                section = known.get(identity)
                if section is None:
                    section = BlockSection(block, len(refined.codes), key, gap=identity[2])
                    section.lines(width)
                refined.sections.append(section)
                refined.codes.extend(block.codes)
                refined.blocks.append(block.digest)
            return refined

        return refine

    def adopt(self, refined: Refined) -> None:
        """Shows the final body."""
        if not self._built:
            return
        above = [self.header, self.folder, self.thought] if self.has_reasoning else [self.header]
        self.blocks, self.codes = refined.blocks, refined.codes
        self.sections = [*above, *refined.sections, self._foot(self._gap())]
        self.owner.relayout(self)

    def fail(self, message: str) -> None:
        """The reply broke off: what has arrived stays, the cause stands below it."""
        self.finish(stop="error", error=message)


def _blank_prefix(text: str, start: int) -> int:
    end = start
    while end < len(text) and text[end] == "\n":
        end += 1
    return end - start
