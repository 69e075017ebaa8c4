"""The one table of slash commands, and how a line of input is read against it.

The chat screen, the command palette, the help screen and the line mode all read this table, so that they offer the
same commands with the same words. It knows names, hints and help; what a command does belongs to the front end.
"""

from __future__ import annotations

import msgspec


class Command(msgspec.Struct, frozen=True):
    """One slash command. `hint` is how its argument is written, `choices` what tab offers for it."""

    name: str
    hint: str
    help: str
    group: str
    choices: tuple[str, ...] = ()
    while_busy: bool = True  # may run while a reply streams

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.hint}".rstrip()


COMMANDS: tuple[Command, ...] = (
    Command("new", "", "start a new session", "chat", while_busy=False),
    Command("sessions", "[search]", "list, search, preview, rename and delete sessions", "chat", while_busy=False),
    Command("resume", "[id]", "go on with the last session, or the one named", "chat", while_busy=False),
    Command("rename", "TITLE", "give this session a title", "chat"),
    Command(
        "edit", "[n]", "edit your last message, or the n-th, and ask again (a new branch)", "chat", while_busy=False
    ),
    Command("regen", "", "answer the last message again (a new branch)", "chat", while_busy=False),
    Command("copy", "[n]", "copy the last reply, or its code block n", "chat"),
    Command("editor", "", "write the prompt in your editor", "chat"),
    Command("private", "[on|off]", "keep what you type out of the prompt history", "chat", ("on", "off")),
    Command("model", "[name]", "choose a model; the engine restarts with it", "model", while_busy=False),
    Command(
        "system", "[text|none]", "show or set the system message of this session", "model", ("none",), while_busy=False
    ),
    Command(
        "sampling",
        "[k=v ...]",
        "show or set how tokens are chosen",
        "model",
        ("temperature=", "top_p=", "top_k=", "min_p=", "repetition_penalty=", "seed=", "max_tokens=", "reset"),
    ),
    Command(
        "think",
        "[on|off|auto|show|hide]",
        "reasoning: on, off or auto tells the model, show or hide the screen",
        "model",
        ("on", "off", "auto", "show", "hide"),
    ),
    Command("spec", "[off|on|K]", "drafting: off, on, or at most K drafts a round", "model", ("off", "on", "4", "8")),
    Command("restart", "", "start the engine again", "model"),
    Command("stats", "[turn|session|reset]", "latency figures in full", "latency", ("turn", "session", "reset")),
    Command("theme", "[dark|light|ansi]", "change the colours", "app", ("dark", "light", "ansi")),
    Command("help", "", "keys and commands", "app"),
    Command("quit", "", "leave; the session is already saved", "app"),
)

ALIASES: dict[str, str] = {"exit": "quit", "q": "quit", "keys": "help", "regenerate": "regen", "clear": "new"}

_BY_NAME: dict[str, Command] = {command.name: command for command in COMMANDS}


class Say(msgspec.Struct, frozen=True):
    """Text for the model."""

    text: str


class Call(msgspec.Struct, frozen=True):
    """A command with the rest of its line, stripped."""

    command: Command
    argument: str


class Unknown(msgspec.Struct, frozen=True):
    """A line that starts like a command and is none. It is never sent to the model."""

    name: str
    nearest: str | None

    @property
    def message(self) -> str:
        hint = f"; did you mean /{self.nearest}?" if self.nearest else "."
        return f"There is no command /{self.name}{hint} (//{self.name} sends it as text, /help lists commands)"


def find(name: str) -> Command | None:
    """The command of that name or alias."""
    return _BY_NAME.get(ALIASES.get(name, name))


def nearest(name: str) -> str | None:
    """The command a typo most likely meant: an unfinished name first, else the closest spelling, or None."""
    lowered = name.lower()
    if lowered in _BY_NAME or lowered in ALIASES:
        return ALIASES.get(lowered, lowered)
    started = [known for known in _BY_NAME if lowered and known.startswith(lowered)]
    if started:
        return started[0]
    import difflib  # for a typo only

    close = difflib.get_close_matches(lowered, [*_BY_NAME, *ALIASES], n=1, cutoff=0.6)
    return ALIASES.get(close[0], close[0]) if close else None


def parse(text: str) -> Say | Call | Unknown:
    """What a line of input asks for. `//` at the start sends a literal slash."""
    if text.startswith("//"):
        return Say(text[1:])
    if not text.startswith("/"):
        return Say(text)
    head, _, rest = text[1:].partition("\n")
    words = head.split(maxsplit=1)
    name = words[0] if words and not head[:1].isspace() else ""
    command = find(name)
    if command is None:
        return Unknown(name, nearest(name))
    argument = words[1] if len(words) > 1 else ""
    return Call(command, "\n".join(part for part in (argument, rest) if part).strip())


class Completion(msgspec.Struct, frozen=True):
    """One line of the popup: `text` replaces the input when it is accepted."""

    text: str
    label: str
    help: str


def completions(text: str) -> list[Completion]:
    """What the popup offers for an input: command names while the name is typed, then the choices of its argument."""
    if not text.startswith("/") or text.startswith("//") or "\n" in text:
        return []
    name, space, argument = text[1:].partition(" ")
    if not space:
        return [
            Completion(f"/{command.name}{' ' if command.hint else ''}", command.usage, command.help)
            for command in COMMANDS
            if command.name.startswith(name.lower())
        ]
    command = find(name)
    if command is None:
        return []
    before, _, word = argument.rpartition(" ")
    if before and not any(choice.endswith("=") for choice in command.choices):
        return []
    stem = f"/{name} {before} " if before else f"/{name} "
    return [
        Completion(stem + choice, choice, command.help)
        for choice in command.choices
        if choice.startswith(word) and choice != word
    ]
