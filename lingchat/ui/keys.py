"""The keys of the chat screen, by action; every one can be rebound by its id.

The prompt carries them out in the order they were typed (see `Prompt`), so none of them is a priority binding. Every
F-key has a second key, since terminals of editors and desktops take some of them.
"""

from __future__ import annotations

from textual.binding import Binding, BindingType


def _key(keys: str, action: str, description: str, name: str) -> Binding:
    return Binding(keys, action, description, show=False, id=f"chat.{name}")


CHAT_KEYS: list[BindingType] = [
    _key("escape", "escape", "close list, leave messages, stop the reply", "escape"),
    _key("ctrl+c", "interrupt", "copy selection, stop, clear, twice: quit", "interrupt"),
    _key("ctrl+d", "quit_empty", "quit when the prompt is empty", "quit"),
    _key("f1,alt+h", "help", "keys and commands (also ? on an empty prompt)", "help"),
    _key("question_mark", "help_empty", "", "help_empty"),
    _key("f2,ctrl+t", "latency", "latency: panel, strip, off", "latency"),
    _key("f3,alt+r", "reasoning", "open or fold reasoning", "reasoning"),
    _key("alt+up,ctrl+up", "cursor(-1)", "walk over messages: c copy, o open, e edit, r again, b branch", "cursor_up"),
    _key("alt+down,ctrl+down", "cursor(1)", "", "cursor_down"),
    _key("pageup", "page(-1)", "scroll the conversation", "page_up"),
    _key("pagedown", "page(1)", "", "page_down"),
    _key("ctrl+home", "top", "to the first message", "top"),
    _key("ctrl+end", "bottom", "to the newest text", "bottom"),
    _key("ctrl+n", "slash('new')", "new session", "new"),
    _key("ctrl+o", "slash('sessions')", "sessions", "sessions"),
    _key("alt+1", "first(1)", "ask a first prompt (also 1 2 3 on an empty chat)", "first_1"),
    _key("alt+2", "first(2)", "", "first_2"),
    _key("alt+3", "first(3)", "", "first_3"),
    _key("1", "first_empty(1)", "", "first_empty_1"),
    _key("2", "first_empty(2)", "", "first_empty_2"),
    _key("3", "first_empty(3)", "", "first_empty_3"),
]
