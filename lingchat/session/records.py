"""The lines of a session file, and how bytes become records.

A session is `<id>.jsonl`: a head, then one record for each thing that happened, in order; nothing is ever changed or
taken out. A reply is a `Begun`, the `Delta`s as they were flushed, and an `Ended`; one without an end was cut by a
kill. Only whole lines count: what follows the last newline was never written.

Knows nothing of trees, locks or indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from lingchat.engines.api import Role, ToolCall
from lingchat.errors import SessionError

VERSION = 1
# From a version to the next: takes a record as it was written, gives it as the next version writes it.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of all records."""


class Head(Record, frozen=True, kw_only=True, tag="session"):
    """The first line."""

    v: int
    id: str
    created: str  # ISO 8601 with offset, as all times here


class Added(Record, frozen=True, kw_only=True, tag="node"):
    """A whole message under `parent` (0: at the root). Ids count up from 1 within the file.

    `name` and `call` are of a tool's result: which tool, and the id of the call it answers.
    """

    id: int
    parent: int
    role: Role
    content: str
    time: str = ""
    name: str = ""
    call: str = ""


class Begun(Record, frozen=True, kw_only=True, tag="reply"):
    """A reply begins under `parent`."""

    id: int
    parent: int
    time: str = ""


class Delta(Record, frozen=True, kw_only=True, tag="delta"):
    """More of reply `id`. A reader that does not know `calls` still reads the rest, so they need no new version."""

    id: int
    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


class Ended(Record, frozen=True, kw_only=True, tag="end"):
    """Reply `id` is complete; `run` and `turn` name its trace."""

    id: int
    stop: str
    run: str = ""
    turn: int = 0
    footer: str = ""
    stats: dict[str, Any] = {}


class Selected(Record, frozen=True, kw_only=True, tag="select"):
    """The active branch ends at node `id`."""

    id: int


class Titled(Record, frozen=True, kw_only=True, tag="title"):
    title: str


class SystemSet(Record, frozen=True, kw_only=True, tag="system"):
    """The session's system prompt from here on."""

    text: str


AnyRecord = Head | Added | Begun | Delta | Ended | Selected | Titled | SystemSet

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(AnyRecord)


class Line(NamedTuple):
    """A line of the file: its record (None when it is damaged) and the offset behind it."""

    record: AnyRecord | None
    end: int


def encode(record: AnyRecord) -> bytes:
    """A line without its newline."""
    return _ENCODER.encode(record)


def decode(data: bytes, *, start: int = 0, version: int = VERSION) -> Iterator[Line]:
    """The whole lines of `data`, which begins at offset `start` of its file and was written by `version`."""
    read = _DECODER.decode if version == VERSION else lambda line: _migrated(line, version)
    place = 0
    while (newline := data.find(b"\n", place)) >= 0:
        line, place = data[place:newline], newline + 1
        try:
            yield Line(read(line), start + place)
        except msgspec.DecodeError:
            yield Line(None, start + place)


def version_of(data: bytes, name: str) -> int:
    """The schema version of a session file by its first line. A damaged first line counts as the current version.

    `SessionError` when the file is newer than this program.
    """
    try:
        head = msgspec.json.decode(data[: data.find(b"\n") + 1] or b"null")
    except msgspec.DecodeError:
        return VERSION
    version = head.get("v", VERSION) if isinstance(head, dict) else VERSION
    if not isinstance(version, int) or version > VERSION:
        raise SessionError(
            f"session {name} was written by a newer lingchat (format {version}, this one reads {VERSION}); use that one"
        )
    return version


def _migrated(line: bytes, version: int) -> AnyRecord:
    raw = msgspec.json.decode(line)
    if not isinstance(raw, dict):
        raise msgspec.ValidationError("a record is an object")
    for step in range(version, VERSION):
        raw = MIGRATIONS[step](raw)
    if raw.get("type") == "session":
        raw["v"] = VERSION
    record: AnyRecord = msgspec.convert(raw, AnyRecord)
    return record
