"""The keys of the chat screen by action, and what becomes of them when the user's `[keys]` bind some anew.

A key of screen, prompt, messages or app is rebound by the id of its action: `chat.latency = "f9"`.
The prompt carries them out in the order they were typed (see `Prompt`), so none of them is a priority binding. Every
F-key has a second key, since terminals of editors and desktops take some of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from textual.binding import Binding, BindingType

from lingchat.errors import ConfigError


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
    _key("1", "first_empty(1)", "1 2 3 on an empty chat: ask a first prompt", "first_1"),
    _key("2", "first_empty(2)", "", "first_2"),
    _key("3", "first_empty(3)", "", "first_3"),
]


def conflicts(keys: Mapping[str, str], places: Iterable[Iterable[BindingType]], origin: str) -> list[str]:
    """What to tell of the user's `keys`: each key that would do two things. Raises ConfigError for an id nobody has.

    `places` are the bindings as they come, the ones asked first in front.
    """
    declared = [binding for place in places for binding in place if isinstance(binding, Binding) and binding.id]
    known = {binding.id: binding for binding in declared}
    for name in keys:
        if name not in known:
            import difflib  # for a typo only: a start must not pay for it

            near = difflib.get_close_matches(name, [str(known_name) for known_name in known], n=1)
            hint = f", did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{origin}: keys.{name}: no action is called {name}{hint}")
    users: dict[str, list[Binding]] = {}
    for binding in declared:
        for key in keys.get(str(binding.id), binding.key).split(","):
            users.setdefault(key.strip(), []).append(binding)
    told = []
    for key, bindings in users.items():
        ids = [str(binding.id) for binding in bindings]
        if len({binding.action for binding in bindings}) > 1 and any(name in keys for name in ids):
            told.append(f"{key} is bound to {' and '.join(ids)}")
    return told
