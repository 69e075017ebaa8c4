"""One message of the conversation as sections of rows: header, reasoning, blocks, tail, footer.

A section keeps its screen lines for the last width and the strips painted from them, so a flush pays only for what
changed. `Reply` is the streaming kind: deltas collect in it until the conversation flushes, finished blocks are laid
out once, the growing block is plain text, and `finish` replaces only the blocks that one parse of the whole text
shows to differ.

Knows rows and blocks; knows the conversation only as `Owner`. All text is data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from textual.content import Span
from textual.strip import Strip
from textual.style import Style

from lingchat.ui.widgets.blocks import Block, BlockSplitter, Fence, parse
from lingchat.ui.widgets.markdown import TAB, block_rows, code_line, code_top
from lingchat.ui.widgets.rows import Line, Piece, Row, rewrap_last, wrap
from lingchat.visible import visible, visible_line

INDENT = 2  # columns of the body under its header


@dataclass(frozen=True)
class TurnView:
    """A message as the conversation shows it; `node_id` names it in every message posted about it."""

    role: str  # "user", "assistant", or anything else for a notice
    text: str
    node_id: str = ""
    time: str = ""  # shown at the right of a user's header: "09:41"
    header: str = ""  # the same for a reply: "#7  3.9 ms/tok"
    reasoning: str = ""
    reasoning_note: str = ""  # "4.1 s · 1,020 tokens"
    footer: str = ""
    stop: str = ""
    sibling: int = 1  # 1 is the oldest
    siblings: int = 1
    name: str = ""  # instead of "you" and "model"


class Owner(Protocol):
    """What a message needs of the conversation."""

    def schedule(self, reply: Reply) -> None: ...

    def relayout(self, view: MessageView) -> None: ...


class Section:
    """Rows that change together."""

    def __init__(self, flow: Sequence[object] = (), *, indent: int = INDENT, gap: bool = False) -> None:
        self.flow = flow  # Row, or anything with rows(width)
        self.indent = indent
        self.gap = gap  # a blank line above
        self.width = -1
        self.strips: dict[int, tuple[int, Strip]] = {}  # line -> the y it was painted for, its strip
        self._lines: list[Line] = []

    def lines(self, width: int) -> list[Line]:
        if width != self.width:
            self.width = width
            self.strips.clear()
            self._lines = self.layout(width - self.indent)
        return self._lines

    def layout(self, width: int) -> list[Line]:
        lines = [Line(_BLANK, 0, 0)] if self.gap else []
        for part in self.flow:
            for row in [part] if isinstance(part, Row) else part.rows(width):  # type: ignore[attr-defined]
                lines.extend(wrap(row, width))
        return lines

    def dirty(self) -> None:
        self.width = -1


_BLANK = Row("")


class GrowingText(Section):
    """Plain text that grows at its end; only its last row is laid out again.

    Newlines at the end wait for the text after them, so that the last line is never blank.
    """

    def __init__(self, *, gap: bool = False, lead: tuple[Piece, ...] = (), style: str = "") -> None:
        super().__init__(gap=gap)
        self._lead = lead
        self._style = style
        self._rows: list[Row] = []
        self._held = ""
        self._code = False
        self.hidden = False

    def lines(self, width: int) -> list[Line]:
        return [] if self.hidden else super().lines(width)

    def restart(self, top: Row | None = None) -> None:
        """Empties the text; with `top`, what comes is code under that row."""
        self._rows = [] if top is None else [top]
        self._code = top is not None
        self._held = ""
        self.dirty()

    def grow(self, text: str) -> None:
        text = self._held + text
        body = text.rstrip("\n")
        self._held = text[len(body) :]
        if not body:
            return
        first, *others = visible(body).expandtabs(TAB).split("\n")
        fresh = not self._rows or (self._code and len(self._rows) == 1)
        if fresh:
            others = [first, *others]
        else:
            row = self._rows[-1]._replace(text=self._rows[-1].text + first)
            self._rows[-1] = row
            if self.width >= 0:
                self._extend_last(row)
        for line in others:
            row = code_line(line) if self._code else Row(line, (), self._lead, style=self._style)
            self._rows.append(row)
            if self.width >= 0:
                self._lines.extend(wrap(row, self.width - self.indent))

    def _extend_last(self, row: Row) -> None:
        first = len(self._lines) - 1
        while first > 0 and self._lines[first].start > 0:
            first -= 1
        kept = self._lines[first:]
        self._lines[first:] = rewrap_last(kept, row, self.width - self.indent)
        self.strips.pop(first + len(kept) - 1, None)

    def layout(self, width: int) -> list[Line]:
        if not self._rows:
            return []
        lines = [Line(_BLANK, 0, 0)] if self.gap else []
        for row in self._rows:
            lines.extend(wrap(row, width))
        return lines


class MessageView:
    """A message in the list: what it is always, its sections only while it is laid out."""

    def __init__(self, view: TurnView, key: str, owner: Owner) -> None:
        self.view = view
        self.key = key  # names this message in click actions
        self.owner = owner
        self.selected = False
        self.reasoning_open = False
        self.sections: list[Section] = []
        self.blocks: list[bytes] = []  # digests of the blocks laid out
        self.codes: list[str] = []
        self.thought = GrowingText()
        self._title = ""
        self._built = False

    @property
    def text(self) -> str:
        return self.view.text

    def lines(self, width: int) -> int:
        """Height in screen lines, the blank line below included."""
        if not self._built:
            self._built = True
            self.build()
        return sum(len(section.lines(width)) for section in self.sections) + 1

    def locate(self, index: int, width: int) -> tuple[Section, int] | None:
        """The section and its line at line `index` of the message; None for the blank line below."""
        for section in self.sections:
            size = len(section.lines(width))
            if index < size:
                return section, index
            index -= size
        return None

    def unload(self) -> None:
        """Forgets the layout; the next look builds it again."""
        self._built = False
        self.sections = []
        self.blocks = []

    def code(self, number: int) -> str | None:
        """Source of code block `number` (from 1), exactly as written; None if there is no such block."""
        codes = [code for block in parse(self.text) for code in block.codes] if self.view.role == "assistant" else []
        return codes[number - 1] if 1 <= number <= len(codes) else None

    def build(self) -> None:
        self.header = Section(indent=0)
        self._head()
        self.sections = [self.header]
        if self.view.role != "assistant":
            lines = visible(self.view.text.rstrip("\n")).expandtabs(TAB).split("\n")
            self.sections.append(Section([Row(line) for line in lines]))
            return
        if self.view.reasoning:
            self._add_reasoning(f"thought {self.view.reasoning_note}".strip())
            self.thought.grow(self.view.reasoning)
        self._append_blocks(parse(self.view.text), len(self.sections))
        self._foot()

    def select(self, selected: bool) -> None:
        self.selected = selected
        if self._built:
            self._head()
            self.header.dirty()

    def set_view(self, view: TurnView) -> None:
        """Shows other facts about the same text: header, siblings, node."""
        self.view = view
        if self._built:
            self._head()
            self.owner.relayout(self)

    def toggle_reasoning(self) -> None:
        self.reasoning_open = not self.reasoning_open
        if self.has_reasoning:
            self.thought.hidden = not self.reasoning_open
            self._retitle(self._title)
            self.owner.relayout(self)

    @property
    def has_reasoning(self) -> bool:
        return self._built and self.thought in self.sections

    def _add_reasoning(self, title: str) -> None:
        """One line that folds, and the text behind it, as sections right under the header."""
        self.folder = Section()
        self.thought = GrowingText(lead=(("│ ", ".conversation--rule"),), style=".conversation--muted")
        self.thought.hidden = not self.reasoning_open
        self.sections[1:1] = [self.folder, self.thought]
        self._retitle(title)

    def _retitle(self, title: str) -> None:
        self._title = title
        click = Style.from_meta({"@click": ("fold_reasoning", (self.key,))})
        text = f"{'▾' if self.reasoning_open else '▸'} {visible_line(title)}"
        self.folder.flow = [Row(text, [Span(0, len(text), click)], style=".conversation--muted")]
        self.folder.dirty()

    def _head(self) -> None:
        view = self.view
        role = {"user": "you", "assistant": "model"}.get(view.role, view.role)
        style = {"user": ".conversation--user", "assistant": ".conversation--model"}.get(
            view.role, ".conversation--muted"
        )
        name = visible_line(view.name or role)
        edge: list[Piece] = []
        if view.siblings > 1:
            back = Style.from_meta({"@click": ("sibling", (self.key, -1))})
            ahead = Style.from_meta({"@click": ("sibling", (self.key, 1))})
            edge += [("‹", back), (f"{view.sibling}/{view.siblings}", ".conversation--muted"), ("›  ", ahead)]
        if self.selected:
            hint = (
                "c copy · o open · e edit · b branch" if view.role == "user" else "c copy · o open · r again · b branch"
            )
            edge.append((hint, ".conversation--hint"))
        else:
            edge.append((visible_line(view.time or view.header), ".conversation--muted"))
        self.header.flow = [Row(name, [Span(0, len(name), style)], edge=tuple(edge), code=True)]
        self.header.dirty()

    def _foot(self, error: str = "") -> None:
        rows = []
        if error:
            mark: Piece = ("✗ ", ".conversation--error")
            lines = visible(error).split("\n")
            rows += [Row(line, (), (mark,), (("  ", ""),), style=".conversation--error") for line in lines]
        if self.view.footer:
            rows.append(Row(visible_line(self.view.footer), style=".conversation--muted"))
        self.sections.append(Section(rows, gap=bool(rows) and len(self.sections) > 1))

    def _append_blocks(self, blocks: Sequence[Block], place: int) -> None:
        """Lays out `blocks` as sections from index `place` on, after those already there."""
        for block in blocks:
            self.sections.insert(place, self._block(block, len(self.codes)))
            self.codes.extend(block.codes)
            self.blocks.append(block.digest)
            place += 1

    def _block(self, block: Block, codes_before: int) -> Section:
        return BlockSection(block, codes_before, self.key, gap=self._gap())

    def _gap(self) -> bool:
        """Whether the next block has something above it, other than the header."""
        return bool(self.blocks) or self.has_reasoning


class BlockSection(Section):
    """A finished block."""

    def __init__(self, block: Block, codes_before: int, key: str, *, gap: bool) -> None:
        super().__init__(block_rows(block, codes_before + 1, key), gap=gap)
        self.identity = (block.digest, codes_before, gap)


class Reply(MessageView):
    """A reply being written."""

    def __init__(self, view: TurnView, key: str, owner: Owner) -> None:
        super().__init__(view, key, owner)
        self.splitter = BlockSplitter()
        self.live = True
        self._pending: list[str] = []
        self._pending_reasoning: list[str] = []
        self._reasoning: list[str] = []
        self._note = ""
        self._shown = 0  # text up to here is in the layout
        self._mode: tuple[int, Fence | None] | None = None

    def build(self) -> None:
        if not self.live:
            super().build()
            return
        self.header = Section(indent=0)
        self._head()
        self.tail = GrowingText()
        self.status = Section([Row("…", style=".conversation--muted")])
        self.sections = [self.header, self.tail, self.status]

    def unload(self) -> None:
        if not self.live:
            super().unload()

    @property
    def text(self) -> str:
        return self.splitter.text + "".join(self._pending) if self.live else self.view.text

    def append(self, delta: str) -> None:
        """More of the reply's text."""
        self._pending.append(delta)
        self.owner.schedule(self)

    def append_reasoning(self, delta: str) -> None:
        self._pending_reasoning.append(delta)
        self.owner.schedule(self)

    def set_reasoning_note(self, note: str) -> None:
        """What stands behind "thinking": "4.1 s · 1,020 tokens · 248 tok/s"."""
        if note != self._note:
            self._note = note
            self.owner.schedule(self)

    def set_status(self, text: str) -> None:
        """The line that holds the footer's place while the reply is written."""
        if self.live:
            self.status.flow = [Row(visible_line(text), style=".conversation--muted")]
            self.status.dirty()
            self.owner.schedule(self)

    def flush(self) -> None:
        """Brings the layout up to what has arrived; called by the conversation at its interval."""
        if not self.live:
            return
        if self._pending_reasoning:
            text = "".join(self._pending_reasoning)
            self._pending_reasoning.clear()
            self._reasoning.append(text)
            if not self.has_reasoning:
                self._add_reasoning("thinking")
            self.thought.grow(text)
        if self.has_reasoning and (title := f"thinking {self._note}".strip()) != self._title:
            self._retitle(title)
        if self._pending:
            delta = "".join(self._pending)
            self._pending.clear()
            self._append_blocks(self.splitter.append(delta), len(self.sections) - 2)
            self._grow_tail()

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

    def finish(self, footer: str = "", stop: str = "eos", error: str = "") -> None:
        """The reply is complete (or cut, as `stop` says): one parse of the whole replaces what differs from it."""
        if not self.live:
            return
        self.flush()
        blocks = self.splitter.finish()
        self.live = False
        thought = {"reasoning": "".join(self._reasoning), "reasoning_note": self._note}
        self.view = replace(self.view, text=self.splitter.text, footer=footer, stop=stop, **thought)
        old = {section.identity: section for section in self.sections if isinstance(section, BlockSection)}
        kept = [self.header]
        if self.has_reasoning:
            self._retitle(f"thought {self._note}".strip())
            kept += [self.folder, self.thought]
        self.sections, self.blocks, self.codes = kept, [], []
        for block in blocks:
            identity = (block.digest, len(self.codes), self._gap())
            self.sections.append(old.get(identity) or self._block(block, len(self.codes)))
            self.codes.extend(block.codes)
            self.blocks.append(block.digest)
        self._foot(error)
        self.owner.relayout(self)

    def fail(self, message: str) -> None:
        """The reply broke off: what has arrived stays, the cause stands below it."""
        self.finish(stop="error", error=message)


def _blank_prefix(text: str, start: int) -> int:
    end = start
    while end < len(text) and text[end] == "\n":
        end += 1
    return end - start
