"""What was read from models before, so that a list of fifty opens fifty headers only once.

A note holds as long as the files' names, sizes and times are the same, and this program reads them as it did then. The
notes are a cache: a damaged or missing file of them costs time, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

from lingchat import architectures
from lingchat.catalog import about, store
from lingchat.catalog.about import About
from lingchat.catalog.own import same_model
from lingchat.errors import DiskError

FILE = "models-seen.json"


def look_all(paths: Iterable[Path], cache: Path) -> dict[Path, About]:
    """`about.look` of every path; notes are kept in the folder `cache`."""
    file = cache / FILE
    known, fresh, seen = _notes(file), {}, {}
    for path in paths:
        signature = _signature(path)
        note = known.get(str(path))
        if note is None or note["signature"] != signature:
            note = {"signature": signature, "about": {**asdict(about.read(path)), "path": str(path)}}
        fresh[str(path)] = note
        seen[path] = about.with_memory(About(**{**note["about"], "path": path}))
    if fresh != known:
        _keep(file, fresh)
    return seen


def _signature(path: Path) -> list[list[Any]]:
    """Names, sizes and times of the files that make a model, and of the code that reads them."""
    files = sorted(path.iterdir()) if path.is_dir() else same_model(path)
    return [*_times(files), *_readers()]


@cache
def _readers() -> list[list[Any]]:
    """The code that judges: `about.py` and the readers of configurations."""
    return _times([Path(about.__file__), *sorted(Path(architectures.__file__).parent.glob("*.py"))])


def _times(files: Iterable[Path]) -> list[list[Any]]:
    signature: list[list[Any]] = []
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            signature.append([file.name, 0, 0])  # a link into nothing: the reader will say so
            continue
        signature.append([file.name, stat.st_size, stat.st_mtime_ns])
    return signature


def _notes(file: Path) -> dict[str, Any]:
    names = {field.name for field in fields(About)}
    try:
        notes = json.loads(file.read_bytes())
        return {path: note for path, note in notes.items() if set(note["about"]) == names and "signature" in note}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}  # none yet, or of another version


def _keep(file: Path, notes: dict[str, Any]) -> None:
    try:
        store.make_folder(file.parent)
        store.write_atomic(file, json.dumps(notes).encode())
    except (DiskError, OSError):
        return  # a cache that cannot be written is no reason not to list models
