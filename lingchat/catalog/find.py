"""Models already on this disk, where other programs keep them: Ollama, LM Studio, llama.cpp, Hugging Face.

Nothing is copied and nothing is written. Only the folders where those programs keep models are looked into, to a fixed
depth and up to a fixed number of entries; links that loop end, and what cannot be read is left out of the walk or told
in its row. Knows folders and names, no model formats.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

Source = Literal["lingchat", "ollama", "lmstudio", "llama.cpp", "huggingface"]

MAX_ENTRIES = 20_000  # of one program's folders; a model collection has hundreds
MAX_DEPTH = 5
MAX_MANIFEST = 1 << 20
_PART = re.compile(r"^(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)


class Found(msgspec.Struct, frozen=True):
    """A model of another program, in place. `why_not` is what its program's own files already tell against it."""

    name: str  # what `-m` takes
    source: Source
    path: Path  # a .gguf file, Ollama's blob, or a folder of safetensors
    why_not: str = ""


def find(environment: Mapping[str, str] | None = None, home: Path | None = None) -> list[Found]:
    """Every model found, by program, then by name. Names are unique."""
    environment = os.environ if environment is None else environment
    home = Path.home() if home is None else home
    found: dict[str, Found] = {}
    for models in (
        _ollama(environment, home),
        _lm_studio(home),
        _llama_cpp(environment, home),
        _hugging_face(environment, home),
    ):
        for model in sorted(models, key=lambda model: model.name):
            found.setdefault(model.name, model)
    return list(found.values())


# Ollama


def _ollama(environment: Mapping[str, str], home: Path) -> Iterator[Found]:
    own = environment.get("OLLAMA_MODELS")
    folders = [Path(own)] if own else [home / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]
    for folder in folders:
        manifests = folder / "manifests"
        for path in walk(manifests):
            parts = path.relative_to(manifests).parts
            if len(parts) != 4:  # host, namespace, model, tag
                continue
            layers = _layers(path)
            if layers is not None:
                yield _ollama_model(folder, parts, layers)


def _ollama_model(folder: Path, parts: tuple[str, ...], layers: dict[str, str]) -> Found:
    host, namespace, model, tag = parts
    shown = model if namespace == "library" else f"{namespace}/{model}"
    if not host.startswith("registry."):  # Ollama's own one goes without saying, as in its own commands
        shown = f"{host}/{shown}"
    name = f"ollama:{shown}" + ("" if tag == "latest" else f":{tag}")
    digest = layers.get("model", "")
    blob = folder / "blobs" / digest.replace(":", "-")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        return Found(name, "ollama", folder, "its manifest names no model file")
    if "adapter" in layers:
        return Found(name, "ollama", blob, "a model with an adapter (LoRA), which is not supported")
    if not blob.is_file():
        return Found(name, "ollama", blob, "damaged: its blob is missing; `ollama pull` it again")
    return Found(name, "ollama", blob)


def _layers(manifest: Path) -> dict[str, str] | None:
    """The digest of each kind of layer ("model", "adapter", "projector"); None when this is no manifest."""
    data = _json(manifest)
    layers = data.get("layers") if isinstance(data, dict) else None
    if not isinstance(layers, list):
        return None
    kinds: dict[str, str] = {}
    for layer in layers:
        if isinstance(layer, dict):
            kinds.setdefault(str(layer.get("mediaType", "")).rpartition(".")[2], str(layer.get("digest", "")))
    return kinds


# LM Studio and llama.cpp


def _lm_studio(home: Path) -> Iterator[Found]:
    settings = _json(home / ".lmstudio/settings.json")
    moved = settings.get("downloadsFolder") if isinstance(settings, dict) else None
    folders = [Path(moved)] if isinstance(moved, str) and moved else []
    folders += [home / ".lmstudio/models", home / ".cache/lm-studio/models"]
    for folder in folders:
        for path in _models(folder):
            parts = path.relative_to(folder).parts
            yield Found("lmstudio:" + "/".join(parts), "lmstudio", path)


def _llama_cpp(environment: Mapping[str, str], home: Path) -> Iterator[Found]:
    own = environment.get("LLAMA_CACHE")
    folders = [Path(own)] if own else [_cache(environment, home) / "llama.cpp"]
    if sys.platform == "darwin" and not own:
        folders.append(home / "Library/Caches/llama.cpp")
    for folder in folders:
        for path in _models(folder):
            yield Found(f"llama.cpp:{path.relative_to(folder).as_posix().removesuffix('.gguf')}", "llama.cpp", path)


# Hugging Face


def hub_cache(environment: Mapping[str, str], home: Path) -> Path:
    """Where huggingface_hub keeps repositories."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return Path(environment[name]).expanduser()
    if environment.get("HF_HOME"):
        return Path(environment["HF_HOME"]).expanduser() / "hub"
    return _cache(environment, home) / "huggingface/hub"


def _hugging_face(environment: Mapping[str, str], home: Path) -> Iterator[Found]:
    for repository in _entries(hub_cache(environment, home)):
        kind, *names = repository.name.split("--")
        if kind != "models" or not names:
            continue
        snapshot = _snapshot(repository)
        if snapshot is None:
            continue
        name = "/".join(names)
        for path in _models(snapshot):
            inner = path.relative_to(snapshot).as_posix()
            if path.suffix == ".gguf":
                yield Found(f"{name}:{inner}", "huggingface", path)
            elif inner == ".":
                yield Found(name, "huggingface", path)
        if not (snapshot / "config.json").is_file() or _has_weights(snapshot):
            continue
        if any(entry.suffix in (".bin", ".pt", ".pth") for entry in _entries(snapshot)):
            yield Found(
                name, "huggingface", snapshot, "its weights are pickle files (.bin); only safetensors and GGUF are read"
            )


def _snapshot(repository: Path) -> Path | None:
    """The files of `main`, or of the newest revision when `main` is not there."""
    snapshots = repository / "snapshots"
    try:
        main = snapshots / (repository / "refs/main").read_text().strip()
        if main.is_dir():
            return main
    except (OSError, ValueError):
        pass  # fetched by revision: there is no `main`
    folders = [entry for entry in _entries(snapshots) if entry.is_dir()]
    return max(folders, key=lambda folder: folder.stat().st_mtime, default=None)


# Shared


def _models(folder: Path) -> Iterator[Path]:
    """GGUF files (of a split one, its first part) and safetensors folders under `folder`."""
    folders: set[Path] = set()
    split: set[tuple[Path, str, str]] = set()
    for path in walk(folder):
        name = path.name
        if name.lower().endswith(".gguf"):
            part = _PART.match(name)
            if part is None:
                yield path
            elif (key := (path.parent, part["stem"], part["count"])) not in split:
                split.add(key)
                first = path.with_name(f"{part['stem']}-00001-of-{part['count']}.gguf")
                yield first if first.exists() else path
        elif _is_weights(name) and path.parent not in folders:
            folders.add(path.parent)
            yield path.parent


def _is_weights(name: str) -> bool:
    return name.endswith((".safetensors", ".safetensors.index.json"))


def _has_weights(folder: Path) -> bool:
    return any(_is_weights(entry.name) for entry in _entries(folder))


def walk(folder: Path, depth: int = MAX_DEPTH) -> Iterator[Path]:
    """Files under `folder`, sorted, links followed; each folder once, to a depth and up to a number of entries."""
    seen: set[tuple[int, int]] = set()
    left = MAX_ENTRIES
    waiting = [(folder, depth)]
    while waiting and left > 0:
        here, deeper = waiting.pop()
        try:
            stat = here.stat()
        except OSError:
            continue  # gone, a link into nothing or to itself, or not ours to read
        if (stat.st_dev, stat.st_ino) in seen:
            continue
        seen.add((stat.st_dev, stat.st_ino))
        folders = []
        for entry in _entries(here):
            left -= 1
            if left < 0:
                return
            if _is_folder(entry):
                folders.append((entry, deeper - 1))
            else:
                yield entry
        if deeper > 0:
            waiting += reversed(folders)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False  # a link to itself


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []  # not there, or not ours to read


def _json(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return json.loads(file.read(MAX_MANIFEST))
    except (OSError, ValueError, RecursionError):
        return None  # not there, or no JSON: then it names no model


def _cache(environment: Mapping[str, str], home: Path) -> Path:
    own = environment.get("XDG_CACHE_HOME")
    return Path(own) if own else home / ".cache"
