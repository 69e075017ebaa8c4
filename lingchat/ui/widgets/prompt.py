"""The prompt: a text area that grows, sends, remembers, and turns long pastes into chips.

It edits text and posts `Submitted`; whether that is sent, queued or run as a command is the screen's matter. What it
needs from outside (history, what waits in the queue) is handed to it. Control characters never enter it: what is
seen is what is sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.document._document import Selection
from textual.message import Message
from textual.widgets import TextArea

from lingchat.ui.commands import Unknown, completions, parse
from lingchat.ui.history import History
from lingchat.ui.widgets.popup import Popup
from lingchat.visible import visible

CHIP_LINES = 20
CHIP_BYTES = 2_048
POPUP_MATCHES = 50
FREE_KEYS = ("question_mark", "1", "2", "3")


class Typed(msgspec.Struct, frozen=True):
    """What a prompt holds: the text as shown, the chips in it, and both together."""

    shown: str
    chips: dict[str, str]

    @property
    def full(self) -> str:
        """The text with every chip expanded."""
        if not self.chips:
            return self.shown
        pattern = re.compile("|".join(re.escape(label) for label in sorted(self.chips, key=len, reverse=True)))
        return pattern.sub(lambda match: self.chips[match.group()], self.shown)


def _plain_lines(text: str) -> str:
    """Line ends as `\\n`, and nothing a terminal would act on."""
    return visible(text.replace("\r\n", "\n").replace("\r", "\n"))


def _key(keys: str, action: str, description: str, name: str) -> Binding:
    return Binding(keys, action, description, show=False, id=f"prompt.{name}")


class Prompt(TextArea, inherit_bindings=False):
    """The multi-line prompt. `popup` is drawn by the screen, `history` may be empty, `recall` takes back what waits."""

    BINDINGS: ClassVar[list[BindingType]] = [
        _key("enter", "submit", "send, or queue while a reply runs", "send"),
        _key("ctrl+j,shift+enter,alt+enter", "newline", "new line (also \\ then enter)", "newline"),
        _key("tab", "complete", "complete a command, or open a pasted chip", "complete"),
        _key("up", "up", "line up, then older prompts", "up"),
        _key("down", "down", "line down, then newer prompts", "down"),
        _key("ctrl+r", "search", "search all prompts", "search"),
        _key("ctrl+g", "editor", "write in your editor", "editor"),
        _key("alt+e", "expand", "open the pasted chip at the caret", "expand"),
        _key("ctrl+underscore,alt+z", "undo", "undo", "undo"),
        _key("ctrl+y", "redo", "redo", "redo"),
        _key("left", "cursor_left", "left", "left"),
        _key("right", "cursor_right", "right", "right"),
        _key("ctrl+left,alt+b", "cursor_word_left", "word left", "word_left"),
        _key("ctrl+right,alt+f", "cursor_word_right", "word right", "word_right"),
        _key("home,ctrl+a", "cursor_line_start", "start of line", "home"),
        _key("end,ctrl+e", "cursor_line_end", "end of line", "end"),
        _key("shift+left", "cursor_left(True)", "select left", "select_left"),
        _key("shift+right", "cursor_right(True)", "select right", "select_right"),
        _key("shift+up", "cursor_up(True)", "select up", "select_up"),
        _key("shift+down", "cursor_down(True)", "select down", "select_down"),
        _key("ctrl+shift+left", "cursor_word_left(True)", "select word left", "select_word_left"),
        _key("ctrl+shift+right", "cursor_word_right(True)", "select word right", "select_word_right"),
        _key("shift+home", "cursor_line_start(True)", "select to start of line", "select_home"),
        _key("shift+end", "cursor_line_end(True)", "select to end of line", "select_end"),
        _key("backspace", "delete_left", "delete left, or a chip", "backspace"),
        _key("delete", "delete_right", "delete right", "delete"),
        _key("ctrl+w,ctrl+backspace,alt+backspace", "delete_word_left", "delete word left", "delete_word_left"),
        _key("alt+delete", "delete_word_right", "delete word right", "delete_word_right"),
        _key("ctrl+u", "delete_to_start_of_line", "delete to start of line", "delete_to_start"),
        _key("ctrl+k", "delete_to_end_of_line_or_delete_line", "delete to end of line", "delete_to_end"),
        _key("ctrl+x", "cut", "cut", "cut"),
        _key("ctrl+v", "paste", "paste what was cut or copied here", "paste"),
    ]

    @dataclass
    class Submitted(Message):
        """Enter was pressed on `typed`, and the prompt is empty again. Empty text is posted too."""

        typed: Typed

    class EditorWanted(Message):
        """The user wants to write this prompt in an external editor."""

    def __init__(self, popup: Popup, history: History, recall: Callable[[], Typed | None]) -> None:
        super().__init__(
            id="prompt",
            soft_wrap=True,
            compact=True,
            highlight_cursor_line=False,
            placeholder="Ask anything   / commands   F1 keys",
        )
        self.cursor_blink = False  # a blinking caret would repaint twice a second for ever
        self.match_cursor_bracket = False
        self._popup = popup
        self._history = history
        self._recall = recall
        self._chips: dict[str, str] = {}
        self._walk: list[str] = []  # history entries that begin with what was typed
        self._walk_at = -1
        self._walk_from: Typed | None = None
        self._expected: str | None = None  # text set by us; any other text ends walking and searching
        self._searching: Typed | None = None

    def on_mount(self) -> None:
        self.screen.screen_layout_refresh_signal.subscribe(self, self._place_cursor, immediate=True)

    def _place_cursor(self, _: object) -> None:
        """The terminal's own cursor stands on the caret, where input methods compose, wherever a layout put it."""
        if self.has_focus:
            self.app.cursor_position = self.cursor_screen_offset

    def check_consume_key(self, key: str, character: str | None = None) -> bool:
        """An empty prompt lets the screen look at `?` and digits first (help, first prompts)."""
        if key in FREE_KEYS and not self.text:
            return False
        return super().check_consume_key(key, character)

    async def _on_key(self, event: events.Key) -> None:
        """Carry out bound keys here, in the order they were typed.

        A priority binding runs before keys still waiting in this widget's queue: `hello` and enter arriving in one
        read would send an empty prompt.
        """
        if event.is_printable and not (event.key in FREE_KEYS and not self.text):
            return
        for node, bindings in self.screen._modal_binding_chain:
            for binding in bindings.key_to_bindings.get(event.key, ()):
                if await self.app.run_action(binding.action, node):
                    event.stop()
                    event.prevent_default()
                    return

    # ------------------------------------------------------------------ content

    @property
    def typed(self) -> Typed:
        shown = self.text
        return Typed(shown, {label: text for label, text in self._chips.items() if label in shown})

    def put(self, typed: Typed) -> None:
        """Replace the content, undoable, caret at the end."""
        self._chips.update(typed.chips)
        self._expected = typed.shown
        self.replace(typed.shown, (0, 0), self.document.end, maintain_selection_offset=False)
        self.move_cursor(self.document.end)

    def put_text(self, text: str) -> None:
        self.put(Typed(_plain_lines(text), {}))

    def prepend(self, typed: Typed) -> None:
        """Give back a text that was taken, before whatever was typed since."""
        now = self.typed
        joined = f"{typed.shown}\n{now.shown}" if now.shown.strip() else typed.shown
        self.put(Typed(joined, {**typed.chips, **now.chips}))

    def clear_all(self) -> None:
        self.put(Typed("", {}))
        self._chips.clear()
        self._stop_walking()

    # ------------------------------------------------------------------ chips and paste

    async def _on_paste(self, event: events.Paste) -> None:
        """Insert a paste. It never submits; a long one becomes a chip."""
        event.stop()
        event.prevent_default()
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        if not text:
            return
        lines = text.count("\n") + (not text.endswith("\n"))
        if lines > CHIP_LINES or len(text.encode("utf-8", "replace")) > CHIP_BYTES:
            text = self._chip(text, lines)
        else:
            text = visible(text)
        self.history.checkpoint()
        result = self.replace(text, *self.selection, maintain_selection_offset=False)
        self.move_cursor(result.end_location)
        self.focus()

    def _chip(self, text: str, lines: int) -> str:
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        label, number = f"[pasted {size}]", 1
        while label in self._chips and (self._chips[label] != text or label in self.text):
            number += 1
            label = f"[pasted {size} #{number}]"
        self._chips[label] = text
        return label

    def _chip_at_caret(self) -> tuple[str, int, int] | None:
        """The chip the caret touches: its label, its first column, the column after it."""
        row, column = self.cursor_location
        line = self.document.get_line(row)
        for label in self._chips:
            for match in re.finditer(re.escape(label), line):
                if match.start() <= column <= match.end():
                    return label, match.start(), match.end()
        return None

    def action_expand(self) -> None:
        """Put the pasted text in place of the chip at the caret."""
        if found := self._chip_at_caret():
            label, start, end = found
            row = self.cursor_location[0]
            result = self.replace(
                visible(self._chips[label]), (row, start), (row, end), maintain_selection_offset=False
            )
            self.move_cursor(result.end_location)

    def action_delete_left(self) -> None:
        found = self._chip_at_caret() if self.selection.is_empty else None
        if found and found[2] == self.cursor_location[1]:
            row = self.cursor_location[0]
            self.delete((row, found[1]), (row, found[2]))
            return
        super().action_delete_left()

    def get_line(self, line_index: int) -> Text:
        line = super().get_line(line_index)
        chip = self.get_component_rich_style("prompt--chip", partial=True)
        for label in self._chips:
            for match in re.finditer(re.escape(label), line.plain):
                line.stylize(chip, match.start(), match.end())
        if line_index == 0 and line.plain.startswith("/") and not line.plain.startswith("//"):
            line.stylize(Style(bold=True), 0, len(line.plain.split(" ", 1)[0]))
        return line

    COMPONENT_CLASSES: ClassVar[set[str]] = {"prompt--chip"}

    # ------------------------------------------------------------------ sending and lines

    def action_submit(self) -> None:
        if self._searching is not None:
            self._accept_popup()
            return
        choice = self._popup.chosen if self._popup.display else None
        if choice is not None and choice.text.rstrip() != self.text.rstrip():
            unfinished = isinstance(parse(self.text), Unknown)
            if unfinished or self._popup.moved:
                self._accept_popup()
                if choice.text.endswith((" ", "=")):
                    return  # it wants an argument
        row, column = self.cursor_location
        if column and self.document.get_line(row)[column - 1] == "\\":
            self.replace("\n", (row, column - 1), (row, column), maintain_selection_offset=False)
            self.move_cursor((row + 1, 0))
            return
        self._popup.close()
        typed = self.typed
        self.clear_all()  # now, not when the screen has looked: keys may be waiting behind this one
        self.post_message(self.Submitted(typed))

    def action_newline(self) -> None:
        result = self.replace("\n", *self.selection, maintain_selection_offset=False)
        self.move_cursor(result.end_location)

    # Textual 8.2 scrolls by the old caret before it restores the right one, which fails on a text that shrank:
    # so the caret waits at the start meanwhile.

    def undo(self) -> None:
        if self.history.undo_stack:
            self.set_reactive(TextArea.selection, Selection.cursor((0, 0)))
            super().undo()

    def redo(self) -> None:
        if self.history.redo_stack:
            self.set_reactive(TextArea.selection, Selection.cursor((0, 0)))
            super().redo()

    def action_editor(self) -> None:
        self.post_message(self.EditorWanted())

    # ------------------------------------------------------------------ popup, history

    def action_complete(self) -> None:
        if self._popup.display:
            self._accept_popup()
        elif self._chip_at_caret():
            self.action_expand()

    def _accept_popup(self) -> None:
        choice = self._popup.chosen
        searching, self._searching = self._searching, None
        self._popup.close()
        if choice is not None:
            self.put(Typed(choice.text, {}))
            if searching is None:
                self._offer()  # the arguments of the command just completed
        elif searching is not None:
            self.put(searching)

    def close_popup(self) -> bool:
        """Close an open popup; a search gives back the text it began with. False when there was none."""
        if not self._popup.display:
            return False
        self._popup.close()
        if self._searching is not None:
            self.put(self._searching)
            self._searching = None
        return True

    def _offer(self) -> None:
        self._popup.offer([(item.text, item.label, item.help) for item in completions(self.text)])

    def on_text_area_changed(self) -> None:
        if self.text != self._expected:
            self._stop_walking()
        if self._searching is not None:
            self._show_found()
        elif self.text == self._expected:
            self._expected = None
            if not self.text:
                self._popup.close()
        else:
            self._offer()

    def action_up(self) -> None:
        if self._popup.display:
            self._popup.move(-1)
        elif not self.navigator.is_first_wrapped_line(self.cursor_location):
            self.action_cursor_up()
        elif not self.text and (waiting := self._recall()) is not None:
            self.put(waiting)
        else:
            self._step(1)

    def action_down(self) -> None:
        if self._popup.display:
            self._popup.move(1)
        elif not self.navigator.is_last_wrapped_line(self.cursor_location):
            self.action_cursor_down()
        else:
            self._step(-1)

    def _step(self, by: int) -> None:
        """Walk through prompts that begin with what was typed; -1 past the newest gives the typed text back."""
        if self._walk_from is None:
            if by < 0:
                return
            self._walk_from = self.typed
            self._walk = self._history.starting_with(self.text)
            self._walk_at = -1
        at = self._walk_at + by
        if at >= len(self._walk):
            return
        self._walk_at = at
        if at < 0:
            typed = self._walk_from
            self._stop_walking()
            self.put(typed)
        else:
            self.put_text(self._walk[at])

    def _stop_walking(self) -> None:
        self._walk_from = None
        self._walk = []
        self._walk_at = -1

    def action_search(self) -> None:
        """Open the history search with the current text, or go to the next match."""
        if self._searching is None:
            self._searching = self.typed
            self._show_found()
        else:
            self._popup.move(1, wrap=True)

    def _show_found(self) -> None:
        found = self._history.containing(self.text)[:POPUP_MATCHES]
        rows = [
            (text, text.split("\n", 1)[0], f"{text.count(chr(10)) + 1} lines" if "\n" in text else "") for text in found
        ]
        self._popup.offer(rows, title="history: type to search, enter takes, ctrl+r next, esc back", keep=True)
