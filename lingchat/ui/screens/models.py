"""The models there are: one is picked, and the engine restarts with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from lingchat.ui.widgets.status import one_line

if TYPE_CHECKING:
    from lingchat.catalog.models import Row

NARROW = 80


class ModelsScreen(Screen[str | None]):
    """Dismissed with the name of the model to load, or with None."""

    AUTO_FOCUS = ".page-search"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "leave", "back", show=False, priority=True),
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("down", "move(1)", show=False, priority=True),
        Binding("enter", "pick", "load", show=False, priority=True),
    ]

    def __init__(self, rows: Sequence[Row], current: str) -> None:
        super().__init__()
        self._rows = list(rows)
        self._shown: list[Row] = []
        self._current = current

    def compose(self) -> ComposeResult:
        yield Static(Content.assemble(("models", "bold"), ("   which one answers", "$quiet")), classes="page-head")
        yield Input(placeholder="type to filter, or a path or hub name", classes="page-search", compact=True)
        yield OptionList(classes="page-list", compact=True, markup=False)
        yield Static("", classes="page-foot", id="models-why", markup=False)
        yield Static("enter loads · esc back · lingchat models add PATH keeps one", classes="page-foot", markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False
        self._fill("")

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width < NARROW, "-narrow")

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        self._fill(event.value)

    def _fill(self, words: str) -> None:
        wanted = words.lower().split()
        self._shown = [row for row in self._rows if all(word in f"{row.name} {row.source}".lower() for word in wanted)]
        options = self.query_one(OptionList)
        options.clear_options()
        for row in self._shown:
            here = row.name and self._current.startswith(row.name.removesuffix("-Instruct"))
            style = "$quiet" if row.why_not else "$foreground"
            note = "  does not run here" if row.why_not else ("  in use" if here else "")
            options.add_option(
                Option(
                    Content.assemble(
                        (one_line(row.name), style), (f"  {one_line(row.source)}", "$quiet"), (note, "$accent")
                    )
                )
            )
        options.highlighted = 0 if self._shown else None
        self._explain()

    @property
    def _row(self) -> Row | None:
        at = self.query_one(OptionList).highlighted
        return self._shown[at] if at is not None and at < len(self._shown) else None

    @on(OptionList.OptionHighlighted)
    def _explain(self) -> None:
        row = self._row
        typed = self.query_one(Input).value.strip()
        text = (row.why_not or str(row.path)) if row is not None else (f"load {typed}" if typed else "")
        self.query_one("#models-why", Static).update(one_line(text))

    @on(OptionList.OptionSelected)
    def _clicked(self) -> None:
        self.action_pick()

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        if by < 0:
            options.action_cursor_up()
        else:
            options.action_cursor_down()

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_pick(self) -> None:
        """Load the chosen row; with none left, what was typed is taken as a path or name."""
        row = self._row
        if row is None:
            typed = self.query_one(Input).value.strip()
            if typed:
                self.dismiss(typed)
        elif not row.why_not:
            self.dismiss(row.name)
