"""What the two readers of weight file headers share: a tensor's place, the checks, and errors that name the file.

Knows neither format.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from lingchat.errors import ModelFileError, ModelNotFound
from lingchat.kernels.blocks import Block

DAMAGED = "The file is damaged or incomplete; fetch it again."
MAX_JSON = 100_000_000  # the limit that the safetensors library sets on its header


class TensorInfo(NamedTuple):
    """Where one tensor lies. `shape` is rows first, (out, in) for a matrix; `offset` counts from the file's start."""

    name: str
    type: str
    shape: tuple[int, ...]
    part: int  # index into the header's `parts`
    offset: int
    nbytes: int


def bad(path: Path, what: str, do: str) -> NoReturn:
    raise ModelFileError(f"{path}: {what}. {do}")


def open_file(path: Path) -> Any:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise ModelNotFound(f"{path}: no such file.") from None
    except OSError as error:
        raise ModelFileError(
            f"{path}: cannot be read ({error.strerror}). Check the path and its permissions."
        ) from error


def read_bytes(path: Path) -> bytes:
    with open_file(path) as file:
        data: bytes = file.read(MAX_JSON + 1)
    if len(data) > MAX_JSON:
        bad(path, f"more than {MAX_JSON} bytes", DAMAGED)
    return data


def json_object(path: Path, data: bytes) -> dict[str, Any]:
    """A JSON object whose keys come once each, or ModelFileError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = dict(pairs)
        if len(keys) != len(pairs):
            twice = sorted(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            bad(path, f"the key {some(twice)} comes twice", DAMAGED)
        return keys

    try:
        value = json.loads(data, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: no valid JSON ({error}){guess(data[:64])}. {DAMAGED}") from error
    if not isinstance(value, dict):
        bad(path, "its JSON is no object", DAMAGED)
    return value


def tensor_nbytes(path: Path, what: str, kind: str, shape: tuple[int, ...], block: Block) -> int:
    values = math.prod(shape)
    if 0 in shape:
        bad(path, f"{what} is empty, its shape is {shape}", DAMAGED)
    if block.values > 1 and (not shape or shape[-1] % block.values):
        bad(path, f"{what} of type {kind} and shape {shape}: rows are no multiple of {block.values}", DAMAGED)
    return values // block.values * block.nbytes


def check_overlap(path: Path, tensors: Iterable[TensorInfo]) -> None:
    placed = sorted(tensors, key=lambda t: t.offset)
    for one, two in pairwise(placed):
        if one.offset + one.nbytes > two.offset:
            bad(path, f"tensors {shown(one.name)} and {shown(two.name)} overlap", DAMAGED)


def guess(start: bytes) -> str:
    """What a wrong file probably is, as part of a sentence."""
    if start.startswith(b"version http"):
        return " (a git-lfs pointer: the weights themselves were never fetched)"
    if start.lstrip()[:5].lower() in (b"<!doc", b"<html"):
        return " (a web page, saved instead of the file)"
    return ""


def shown(text: str) -> str:
    """A name from a stranger's file, safe and short enough for an error message."""
    safe = ascii(text)[1:-1]
    return safe if len(safe) <= 100 else safe[:97] + "..."


def some(names: Sequence[str]) -> str:
    first = ", ".join(shown(name) for name in names[:10])
    return first if len(names) <= 10 else f"{first} and {len(names) - 10} more"
