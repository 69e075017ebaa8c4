"""One message of the conversation as sections: header, reasoning, blocks, tool calls, footer.

What a message is stays; its sections exist only while it is laid out. All text is data.

Knows sections and blocks; knows the conversation only as `Owner`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import msgspec
from textual.content import Span
from textual.style import Style

from lingchat.engines.api import ToolCall
from lingchat.replies import call_line, no_answer
from lingchat.ui.widgets.blocks import Block, code_sources, parse
from lingchat.ui.widgets.markdown import TAB
from lingchat.ui.widgets.rows import Piece, Row
from lingchat.ui.widgets.sections import BlockSection, GrowingText, Section
from lingchat.visible import visible, visible_line

NOT_RUN = "  not run"
CALL_LIMIT = 240  # characters of a call's arguments in the conversation; `o` opens all of it


class TurnView(msgspec.Struct, frozen=True):
    """A message as the conversation shows it; `node_id` names it in every message posted about it."""

    role: str  # "user", "assistant", or anything else for a notice
    text: str
    node_id: str = ""
    time: str = ""  # shown at the right of a user's header: "09:41"
    header: str = ""  # the same for a reply: "#7  3.9 ms/tok"
    reasoning: str = ""
    reasoning_note: str = ""  # "4.1 s · 1,020 tokens · 248 tok/s"
    calls: tuple[ToolCall, ...] = ()  # asked for by the reply; none of them is run
    footer: str = ""
    stop: str = ""
    error: str = ""  # why it broke off
    sibling: int = 1  # 1 is the oldest
    siblings: int = 1
    name: str = ""  # instead of "you" and "model"


class Owner(Protocol):
    """What a message needs of the conversation."""

    @property
    def text_width(self) -> int: ...

    def schedule(self, reply: Any) -> None: ...

    def refine(self, reply: Any) -> None: ...

    def relayout(self, view: MessageView) -> None: ...


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
        self._ends: list[int] = []  # the line after each section
        self._built = False

    @property
    def text(self) -> str:
        return self.view.text

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.view.calls

    @property
    def whole(self) -> str:
        """The text, and every call in full."""
        calls = [f"→ {call_line(call.name, call.arguments)}" for call in self.calls]
        return "\n\n".join(part for part in (self.text.rstrip("\n") if calls else self.text, *calls) if part)

    def lines(self, width: int) -> int:
        """Height in screen lines, the blank line below included."""
        if not self._built:
            self._built = True
            self.build()
        self._ends = list(accumulate(len(section.lines(width)) for section in self.sections))
        return (self._ends[-1] if self._ends else 0) + 1

    def locate(self, index: int, width: int) -> tuple[Section, int] | None:
        """The section and its line at line `index` of the message, as `lines` last found it; None for the blank line."""
        place = bisect_right(self._ends, index)
        if place >= len(self._ends):
            return None
        section = self.sections[place]
        index -= self._ends[place - 1] if place else 0
        return (section, index) if index < len(section.lines(width)) else None

    def unload(self) -> None:
        """Forgets the layout; the next look builds it again."""
        self._built = False
        self.sections, self.blocks, self.codes, self._ends = [], [], [], []

    def code(self, number: int) -> str | None:
        """Source of code block `number` (from 1), exactly as written; None if there is no such block."""
        codes = code_sources(self.text) if self.view.role == "assistant" else []
        return codes[number - 1] if 1 <= number <= len(codes) else None

    def build(self) -> None:
        self.header = Section(indent=0)
        self._head()
        self.sections = [self.header]
        if self.view.role != "assistant":
            lines = visible(self.view.text.replace("\r\n", "\n").rstrip("\n")).expandtabs(TAB).split("\n")
            self.sections.append(Section([Row(line) for line in lines]))
            return
        if self.view.reasoning:
            self._add_reasoning(f"thought {self.view.reasoning_note}".strip())
            self.thought.grow(self.view.reasoning)
        self._append_blocks(parse(self.view.text), len(self.sections))
        self.sections.append(self._foot(self._gap()))

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

    def _call_rows(self) -> list[Row]:
        """A row a call: `→ look {"where":"Paris"}  not run`. Many lines' worth of arguments are cut."""
        rows = []
        lead, hang = ("→ ", ".conversation--hint"), ("  ", "")
        for call in self.calls:
            text, name = call_line(call.name, call.arguments, CALL_LIMIT), len(visible_line(call.name))
            spans = [
                Span(0, name, ".conversation--strong"),
                Span(name, len(text), ".conversation--code"),
                Span(len(text), len(text) + len(NOT_RUN), ".conversation--muted"),
            ]
            rows.append(Row(text + NOT_RUN, spans, (lead,), (hang,)))
        return rows

    def _foot(self, gap: bool) -> Section:
        rows = self._call_rows()
        view = self.view
        nothing = no_answer(view.text, view.reasoning, len(self.calls), "" if view.error else view.stop)
        if nothing:
            own = view.stop in ("cancel", "interrupted")  # the user's doing is no fault
            style = ".conversation--muted" if own else ".conversation--error"
            rows.append(Row(nothing, (), (("✗ ", style),), (("  ", ""),), style=style))
        if self.view.error:
            mark: Piece = ("✗ ", ".conversation--error")
            hang: Piece = ("  ", "")
            for number, text in enumerate(visible(self.view.error).expandtabs(TAB).split("\n")):
                rows.append(Row(text, (), (hang if number else mark,), (hang,), style=".conversation--error"))
        if self.view.footer:
            for text in self.view.footer.split("\n"):
                rows.append(Row(visible_line(text), style=".conversation--muted"))
        return Section(rows, gap=bool(rows) and gap)

    def _append_blocks(self, blocks: Sequence[Block], place: int) -> None:
        """Lays out `blocks` as sections from index `place` on, after those already there."""
        for block in blocks:
            self.sections.insert(place, BlockSection(block, len(self.codes), self.key, gap=self._gap()))
            self.codes.extend(block.codes)
            self.blocks.append(block.digest)
            place += 1

    def _gap(self) -> bool:
        """Whether the next block has something above it, other than the header."""
        return bool(self.blocks) or self.has_reasoning
