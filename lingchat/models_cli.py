"""`lingchat models`: list, show, add, remove and inspect models.

Texts and tables for people, JSON for programs. What is true about models is the catalog's; this only tells it.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lingchat.arguments import Parser
from lingchat.catalog import fetch, models, seen
from lingchat.catalog.about import About, look
from lingchat.catalog.store import Progress
from lingchat.config import paths
from lingchat.errors import LingchatError, UsageError
from lingchat.events import Engine, now_ns
from lingchat.models_inspect import brief, facts, inspect, size
from lingchat.notes import Notes
from lingchat.visible import visible, visible_line

# Of what is known about a model: told under another name, or for the judgement alone.
_OWN_WORDS = ("path", "nbytes", "why_not", "host_bytes", "gpu_bytes")
ACTIONS = ("list", "show", "add", "rm", "inspect")
SCHEMA_VERSION = 1
_SOURCES = {
    "default": "default",
    "lingchat": "added",
    "ollama": "Ollama",
    "lmstudio": "LM Studio",
    "llama.cpp": "llama.cpp",
    "huggingface": "Hugging Face",
}


def parser() -> Parser:
    parse = Parser(
        "lingchat models",
        description="Models: the default one, those you added, and those that other programs keep on this disk.",
    )
    actions = parse.add_subparsers(dest="action", metavar="ACTION", parser_class=_Action)
    for action, what, text in (
        ("list", None, "what there is, and whether it runs here (also without an action)"),
        ("show", "NAME", "one model"),
        (
            "add",
            "WHEEL|GGUF|FOLDER|ORG/NAME",
            "make a model known: a file, a folder, a wheel with one, or one of the hub",
        ),
        ("rm", "NAME", "forget a model; delete its file only if lingchat stored it itself"),
        (
            "inspect",
            "PATH",
            "what a model's files or a config.json alone say, and what would fit; exit 3 when it cannot run",
        ),
    ):
        sub = actions.add_parser(action, help=text, description=text)
        if what is not None:
            sub.add_argument("what", metavar=what)
        _output(sub)
    _output(parse)
    return parse


class _Action(Parser):
    """argparse names the action's program itself, by keyword."""

    def __init__(self, prog: str = "lingchat models", **rest: Any) -> None:
        super().__init__(prog, **rest)


def _output(parse: argparse.ArgumentParser) -> None:
    parse.add_argument("--output", choices=("text", "json"), default=argparse.SUPPRESS, help="text (default) or json")


def main(argv: Sequence[str]) -> int:
    """Run `lingchat models ARGV`; the exit code. Raises `LingchatError`, unless JSON is asked for, which tells it too."""
    if argv and argv[0] not in ACTIONS and not argv[0].startswith("-"):
        near = difflib.get_close_matches(argv[0], ACTIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(ACTIONS)}."
        raise UsageError(f"`lingchat models {argv[0]}`: there is no such action; {hint}")
    found = parser().parse(argv)
    as_json = getattr(found, "output", "text") == "json"
    try:
        return _act(found, as_json)
    except LingchatError as error:
        if not as_json:
            raise
        _json({"schema_version": SCHEMA_VERSION, "error": {"code": error.code, "message": str(error)}})
        return error.exit_code


def _act(found: argparse.Namespace, as_json: bool) -> int:
    match found.action or "list":
        case "list":
            return _list(as_json)
        case "show":
            return _show(found.what, as_json)
        case "add":
            return _add(found.what, as_json)
        case "rm":
            return _say({"removed": found.what, "message": models.remove(found.what)}, as_json)
        case _:
            return _inspect(Path(found.what).expanduser(), as_json)


# list and show


def _list(as_json: bool) -> int:
    rows = models.list_models()
    abouts = seen.look_all([row.path for row in rows if not row.why_not and row.path.exists()], paths().cache)
    told = [_told(row, abouts.get(row.path)) for row in rows]
    if as_json:
        _json({"schema_version": SCHEMA_VERSION, "models": told})
        return 0
    lines = [(m["name"], size(m["bytes"]), _kind(m), _SOURCES[m["source"]], _runs(m)) for m in told]
    _table(("MODEL", "SIZE", "KIND", "FROM", "RUNS HERE"), lines)
    return 0


def _told(row: models.Row, about: About | None) -> dict[str, Any]:
    """One model as JSON tells it."""
    default = fetch.DEFAULT
    told: dict[str, Any] = {
        "name": row.name,
        "source": row.source,
        "path": str(row.path),
        "stored": row.stored,
        "present": row.path.exists() and not row.why_not,
    }
    if about is not None:
        told |= {key: value for key, value in asdict(about).items() if key not in _OWN_WORDS}
        told |= {"bytes": about.nbytes, "runs": about.runs, "why_not": about.why_not}
    elif row.source == "default":
        note = f"fetched on first use ({default.wheel_bytes / 1e6:.0f} MB, wheel {default.wheel})"
        told |= {"bytes": default.gguf_bytes, "runs": True, "why_not": "", "note": note}
    else:
        told |= {"bytes": 0, "runs": False, "why_not": row.why_not or f"gone: {row.path} is not there"}
    if row.source == "default":
        told |= {"demo": True, "state": fetch.default_state(row.path.parent)}
    return told


def _kind(told: dict[str, Any]) -> str:
    architecture = str(told.get("architecture", "")).removesuffix("ForCausalLM")
    return " ".join(part for part in (architecture, told.get("quantization", "")) if part) or "–"


def _runs(told: dict[str, Any]) -> str:
    if not told["runs"]:
        return f"no: {told['why_not']}"
    return f"yes, {told['note']}" if "note" in told else "yes"


def _show(name: str, as_json: bool) -> int:
    row = models.named(name)
    about = look(row.path) if row.path.exists() and not row.why_not else None
    told = _told(row, about)
    if as_json:
        _json({"schema_version": SCHEMA_VERSION, **told})
        return 0
    pairs = [("name", told["name"]), ("from", _SOURCES[told["source"]]), ("path", told["path"])]
    pairs += [("size", size(told["bytes"])), ("runs here", _runs(told))]
    if about is not None:
        pairs += facts(about)
    if row.source == "default":
        pairs += [("state", told["state"]), ("wheel", fetch.DEFAULT.wheel), ("sha256", fetch.DEFAULT.sha256)]
        pairs += [("licence", "Apache-2.0"), ("note", "a small demonstration model; use your own with -m")]
    _pairs(pairs)
    return 0


# add and inspect


def _add(what: str, as_json: bool) -> int:
    notes = Notes()

    def on_progress(progress: Progress) -> None:
        notes.engine(
            Engine(
                t_ns=now_ns(),
                phase="download" if progress.phase in ("download", "wait") else "load",
                message=progress.message,
                done_bytes=progress.done,
                total_bytes=progress.total,
                progress=progress.fraction,
            )
        )

    try:
        added = models.add(what, on_progress)
    finally:
        notes.clear()
    where = f"stored as {added.path}" if added.stored else f"used in place: {added.path}"
    use = "it is the default model" if added.name == fetch.DEFAULT.name else f"chat with `lingchat -m {added.name}`"
    message = f"{added.name} is added, {where}; {use}."
    return _say({"name": added.name, "path": str(added.path), "stored": added.stored, "message": message}, as_json)


def _inspect(path: Path, as_json: bool) -> int:
    found = inspect(path)
    if as_json:
        _json({"schema_version": SCHEMA_VERSION, **found.told})
    else:
        _pairs(found.pairs)
        if found.keys:
            print()
            _pairs([(key, brief(value)) for key, value in found.keys.items()])
    return found.exit_code


# output


def _say(told: dict[str, Any], as_json: bool) -> int:
    if as_json:
        _json({"schema_version": SCHEMA_VERSION, **told})
    else:
        print(visible(told["message"]))
    return 0


def _json(value: dict[str, Any]) -> None:
    # A lone surrogate of a strange file name cannot be written as UTF-8: ASCII escapes can.
    print(json.dumps(value, indent=1))


def _pairs(pairs: list[tuple[str, str]]) -> None:
    pairs = [(name, text) for name, text in pairs if text]
    width = max(len(name) for name, _ in pairs)
    for name, text in pairs:
        print(f"{visible_line(name):<{width}}  {visible_line(text)}")


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """On a terminal the last column folds under itself; anywhere else every row is one line."""
    safe = [tuple(visible_line(cell) for cell in row) for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for i, name in enumerate(head):
            table.add_column(name, justify="right" if name == "SIZE" else "left", overflow="fold", no_wrap=i in (1, 3))
        for row in safe:
            style = "" if row[-1].startswith("yes") else "dim"
            table.add_row(*(Text(cell, style=style) for cell in row))
        Console().print(table)
        return
    widths = [max(len(row[i]) for row in (head, *safe)) for i in range(len(head) - 1)]
    for row in (head, *safe):
        cells = [
            cell.rjust(width) if i == 1 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        print("  ".join((*cells, row[-1])))
