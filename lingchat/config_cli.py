"""`lingchat config path|show|set`: the settings, where each comes from, and changing one of the user's file.

Knows the table of settings; knows nothing of what they mean.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lingchat.arguments import Parser
from lingchat.config import find_field, load_settings, paths
from lingchat.config_fields import FIELDS, Field, Invalid
from lingchat.errors import ConfigError, DiskError, UsageError

_TABLE = re.compile(r"^\s*\[([^\[\]]+)\]\s*(#.*)?$")


def main(argv: Sequence[str]) -> int:
    """Run `lingchat config` with the words after it; the exit code."""
    parse = Parser(
        "lingchat config",
        usage="lingchat config path\n       lingchat config show\n       lingchat config set NAME VALUE",
        description="Settings. A flag goes before a variable, a variable before config.toml, that before the default.",
        epilog="settings:\n" + "\n".join(f"  {field.key:<28} {field.help}" for field in FIELDS),
    )
    parse.add_argument("what", nargs="?", choices=("path", "show", "set"), default="show", help="what to do (show)")
    parse.add_argument("name", nargs="?", help="for set: a setting")
    parse.add_argument("value", nargs="?", help="for set: its value; none takes away what may be nothing")
    found = parse.parse(argv)
    if found.what != "set" and found.name is not None:
        parse.error(f"{found.what} takes nothing more")
    if found.what == "path":
        print(paths().config_file)
    elif found.what == "show":
        _show()
    else:
        if found.value is None:
            parse.error("set takes a name and a value")
        set_value(paths().config_file, found.name, found.value)
    return 0


def _show() -> None:
    settings = load_settings()
    for field in FIELDS:
        value = getattr(settings, field.name)
        shown = "none" if value is None else _toml(value)
        print(f"{field.key:<28} {shown:<24} {settings.origins[field.name]}")
    for name, keys in settings.keys.items():
        print(f"{'keys.' + name:<28} {_toml(keys):<24} {settings.origins['keys']}")


def set_value(file: Path, name: str, text: str) -> None:
    """Write a setting into `file`, leaving everything else in it as it is.

    Raises UsageError for an unknown name or a value it cannot have, ConfigError when the file is not valid TOML or
    cannot be edited line by line, DiskError.
    """
    field = find_field(name, UsageError)
    try:
        value = field.check(text)
    except Invalid as problem:
        raise UsageError(f"{field.key} is {text!r}, but must be {problem}") from problem
    if field.name == "theme":
        _check_theme(text)
    try:
        before = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        before = ""
    except OSError as problem:
        raise ConfigError(f"cannot read {file}: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise ConfigError(f"cannot read {file}: it is not UTF-8 text") from problem
    expected = _parsed(before, file)
    written = "none" if value is None else list(value) if isinstance(value, tuple) else value
    (expected.setdefault(field.table, {}) if field.table else expected)[field.name] = written
    after = _edited(before, field, f"{field.name} = {_toml(written)}")
    try:
        same = tomllib.loads(after) == expected
    except tomllib.TOMLDecodeError:
        same = False
    if not same:  # a value over several lines, a dotted key: rare, and not worth guessing at
        raise ConfigError(f"{file} is written in a way that cannot be edited here: set {field.key} in it by hand")
    _replace(file, after)


def _check_theme(name: str) -> None:
    """Only the screen knows its themes; a wrong one would stop the next start."""
    from lingchat.ui.themes import is_theme

    if not is_theme(name):
        raise UsageError(f"there is no theme {name}: dark, light and ansi are there, and Textual's own")


def _parsed(text: str, file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{file} is not valid TOML: {problem}. Mend it or move it away") from problem


def _edited(text: str, field: Field, line: str) -> str:
    """The text with `line` in place of the setting's own, or at the end of its table, which is made if need be."""
    lines = text.splitlines()
    own = re.compile(rf"^\s*{re.escape(field.name)}\s*=")
    table, end, seen = "", 0, not field.table
    for at, old in enumerate(lines):
        heading = _TABLE.match(old)
        if heading:
            table = heading.group(1).strip()
            seen = seen or table == field.table
        if table == field.table:
            if own.match(old):
                lines[at] = line
                return "\n".join(lines) + "\n"
            if old.strip():
                end = at + 1
    if not seen:
        lines += [""] * bool(lines) + [f"[{field.table}]", line]
    else:
        lines.insert(end, line)
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A value as TOML writes it; JSON's strings, lists, numbers and booleans are TOML's."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _replace(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        target = Path(os.path.realpath(file))
        fd, new = tempfile.mkstemp(prefix=".config.", dir=target.parent)
        with os.fdopen(fd, "w", encoding="utf-8") as out:
            out.write(text)
        os.replace(new, target)
    except OSError as problem:
        raise DiskError(f"cannot write {file}: {problem.strerror}") from problem
