"""The sessions there are: list, full-text search, preview, rename, delete with undo, resume.

It works on the store; opening the chosen session is the chat screen's matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from lingchat.errors import LingchatError
from lingchat.stats import format_count
from lingchat.ui.widgets.status import one_line
from lingchat.visible import visible

if TYPE_CHECKING:
    from lingchat.session import Hit, Session, SessionInfo, SessionStore

LIMIT = 200


class Entry(NamedTuple):
    """A row: a session, and where the search found its words."""

    id: str
    title: str
    when: str
    detail: str


def entry_of(info: SessionInfo) -> Entry:
    return Entry(info.id, info.title, info.updated, f"{format_count(info.messages)} messages")


def entries_of(hits: Sequence[Hit]) -> list[Entry]:
    """One row a session, the first hit in it."""
    found: dict[str, Entry] = {}
    for hit in hits:
        found.setdefault(hit.session, Entry(hit.session, hit.title, hit.time, f"{hit.before}{hit.match}{hit.after}"))
    return list(found.values())


NARROW = 80
PREVIEW_CHARACTERS = 4_000
KEYS = "enter opens · ctrl+e renames · ctrl+x deletes · ctrl+z brings back · esc back"
KEYS_SHORT = "enter · ^e · ^x · ^z · esc"


class SessionsScreen(Screen[str | None]):
    """Dismissed with the id of the session to open, or with None."""

    AUTO_FOCUS = ".page-search"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "leave", "back", show=False, priority=True),
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("down", "move(1)", show=False, priority=True),
        Binding("pageup", "preview(-1)", show=False, priority=True),
        Binding("pagedown", "preview(1)", show=False, priority=True),
        Binding("enter", "pick", "open", show=False, priority=True),
        Binding("ctrl+e,f4", "rename", "rename", show=False, priority=True),
        Binding("ctrl+x,f8", "delete", "delete", show=False, priority=True),
        Binding("ctrl+z,alt+z", "undo", "bring back", show=False, priority=True),
    ]

    def __init__(self, store: SessionStore, current: Session | None, search: str = "") -> None:
        super().__init__()
        self._store = store
        self._current = current
        self._current_id = current.id if current is not None else ""
        self._search = search
        self._shown: list[Entry] = []
        self._deleted: list[str] = []
        self._renaming: Entry | None = None

    def compose(self) -> ComposeResult:
        yield Static("", classes="page-head", id="sessions-head", markup=False)
        yield Input(self._search, placeholder="search in all sessions", classes="page-search", compact=True)
        with Horizontal(classes="page-body"):
            yield OptionList(classes="page-list", compact=True, markup=False)
            with VerticalScroll(classes="page-preview", can_focus=False):
                yield Static("", id="sessions-preview", markup=False)
        yield Static("", classes="page-foot", id="sessions-note", markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False
        self._fill()

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width < NARROW, "-narrow")
        self._say()

    # ------------------------------------------------------------------ list

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        if self._renaming is None:
            self._fill()

    @property
    def _words(self) -> str:
        return self.query_one(Input).value.strip()

    def _fill(self, keep: str | None = None) -> None:
        """List what the search finds; `keep` stays highlighted if it is there."""
        try:
            words = self._words
            found = entries_of(self._store.search(words, LIMIT)) if words else [*map(entry_of, self._store.list(LIMIT))]
        except LingchatError as error:
            self._say(str(error))
            return
        self._shown = found
        options = self.query_one(OptionList)
        options.clear_options()
        for entry in self._shown:
            options.add_option(Option(self._line(entry)))
        place = next((at for at, entry in enumerate(self._shown) if entry.id == keep), 0)
        options.highlighted = place if self._shown else None
        head = f"   {format_count(len(self._shown))} {'found' if self._words else 'kept'}"
        self.query_one("#sessions-head", Static).update(Content.assemble(("sessions", "bold"), (head, "$quiet")))
        self._preview()

    def _line(self, entry: Entry) -> Content:
        mark = "● " if entry.id == self._current_id else "  "
        when = one_line(entry.when[:16].replace("T", " "))
        title = one_line(entry.title) or "(no title)"
        detail = f"  {one_line(entry.detail)}"
        return Content.assemble((mark, "$accent"), (f"{when}  ", "$quiet"), (title, "$foreground"), (detail, "$quiet"))

    @property
    def _entry(self) -> Entry | None:
        at = self.query_one(OptionList).highlighted
        return self._shown[at] if at is not None and at < len(self._shown) else None

    @on(OptionList.OptionHighlighted)
    def _preview(self) -> None:
        entry = self._entry
        text = ""
        if entry is not None:
            try:
                text = self._text(entry.id)
            except LingchatError as error:
                text = str(error)
        elif self._words:
            text = "nothing found"
        self.query_one("#sessions-preview", Static).update(Content(visible(text)))
        self.query_one(".page-preview").scroll_home(animate=False)
        self._say()

    def _text(self, session_id: str) -> str:
        """The beginning of a session, as far as a preview needs it."""
        session = self._store.open(session_id, readonly=True)
        lines: list[str] = []
        size = 0
        for node in session.path():
            name = "you" if node.role == "user" else "model" if node.role == "assistant" else node.role
            lines.append(f"{name}\n{node.said.strip()}\n")
            size += len(node.said)
            if size > PREVIEW_CHARACTERS:
                break
        return "\n".join(lines)[: PREVIEW_CHARACTERS + 200]

    def _say(self, text: str = "") -> None:
        keys = KEYS if self.size.width >= NARROW else KEYS_SHORT
        self.query_one("#sessions-note", Static).update(one_line(text) or keys)

    # ------------------------------------------------------------------ actions

    @on(OptionList.OptionSelected)
    def _clicked(self) -> None:
        self.action_pick()

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        if by < 0:
            options.action_cursor_up()
        else:
            options.action_cursor_down()

    def action_preview(self, pages: int) -> None:
        view = self.query_one(".page-preview")
        view.scroll_relative(y=pages * max(1, view.size.height - 2), animate=False)

    def action_leave(self) -> None:
        if self._renaming is not None:
            self._end_rename()
        else:
            self.dismiss(None)

    def action_pick(self) -> None:
        if self._renaming is not None:
            self._rename_to(self._words)
        elif (entry := self._entry) is not None:
            self.dismiss(entry.id)

    def action_rename(self) -> None:
        """Take the search line for the new title."""
        entry = self._entry
        if entry is None or self._renaming is not None:
            return
        self._renaming = entry
        line = self.query_one(Input)
        self._search = line.value
        line.value = entry.title
        line.cursor_position = len(entry.title)
        self._say("new title: enter keeps it · esc leaves it")

    def _rename_to(self, title: str) -> None:
        entry = self._renaming
        assert entry is not None
        said = ""
        try:
            if self._current is not None and entry.id == self._current_id:
                self._current.rename(title)
            else:
                self._store.rename(entry.id, title)
        except LingchatError as error:
            said = str(error)
        self._end_rename(entry.id)
        self._say(said)

    def _end_rename(self, keep: str | None = None) -> None:
        with self.prevent(Input.Changed):
            self.query_one(Input).value = self._search
        self._renaming = None
        self._fill(keep)

    def action_delete(self) -> None:
        entry = self._entry
        if entry is None or self._renaming is not None:
            return
        if entry.id == self._current_id:
            self._say("this session is open: /new first")
            return
        at = self._shown.index(entry)
        try:
            self._store.delete(entry.id)
        except LingchatError as error:
            self._say(str(error))
            return
        self._deleted.append(entry.id)
        after = self._shown[at + 1 : at + 2] or self._shown[at - 1 : at]
        self._fill(after[0].id if after else None)
        self._say(f"deleted “{entry.title}” · ctrl+z brings it back")

    def action_undo(self) -> None:
        if not self._deleted:
            return
        session_id = self._deleted[-1]
        try:
            self._store.restore(session_id)
        except LingchatError as error:
            self._say(str(error))
            return
        self._deleted.pop()
        self._fill(session_id)
        self._say("brought back")
