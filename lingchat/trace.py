"""The one writer and the one reader of trace files.

A trace is a run's events, one JSON object a line: `{"v":1,"seq":17,"type":"decode","t_ns":8123456, ...}`. Times count
from run start; the time of day stands in `run.start` alone. The file only grows, is readable by its user alone, and
holds at most 250 ms less than what happened when the process is killed: a torn last line is no event. Known secrets
in the command line and in messages are masked; what was said in the chat is kept as it was said.

Knows events and their fold; knows nothing of engines, sessions or screens.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import msgspec

from lingchat import events
from lingchat.config import paths
from lingchat.errors import TraceError
from lingchat.events import AnyEvent, Decode, Error, RunEnd, RunStart, TurnEnd, Warn, rebase
from lingchat.journal import FLUSH_NS, Journal, private_folder, utf8
from lingchat.stats import RunStats, summary

VERSION = 1
SUFFIX = ".jsonl"
MASK = "***"

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(AnyEvent)
# Names that announce a secret, as a flag, a variable or a field; and the shapes of well-known tokens.
# "tokens" and "tokenizer" are everyday words here, and no secrets.
_WORDS = r"secret|passw(?:or)?d|api[_-]?key|credential|authorization"
_NAMED = rf"[\w-]*(?:token(?!s|i)|{_WORDS})[\w-]*"
_FLAG = re.compile(rf"--?{_NAMED}", re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"(\b(?:{_NAMED}\s*=|[\w-]*(?:{_WORDS})[\w-]*\"?\s*:)\s*\"?(?:bearer\s+)?)[^\s,;&\"']+", re.IGNORECASE
)
_SHAPED = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[opusr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,})"
)
_IN_URL = re.compile(r"(\w+://[^/\s:@]*:)[^/\s@]+@")


def new_run_id(now: datetime | None = None) -> str:
    """A name that sorts by time and does not repeat: 20250301-094107-3fa9c1."""
    return f"{now or datetime.now():%Y%m%d-%H%M%S}-{os.urandom(3).hex()}"


def mask(text: str) -> str:
    """The text without the secrets that can be recognised in it."""
    text = _IN_URL.sub(rf"\g<1>{MASK}@", text)
    text = _ASSIGNED.sub(rf"\g<1>{MASK}", text)
    return _SHAPED.sub(MASK, text)


def mask_argv(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A command line without secrets: those recognised by themselves, and the value after a flag such as --api-key."""
    masked: list[str] = []
    secret_next = False
    for word in argv:
        masked.append(MASK if secret_next and not word.startswith("-") else mask(word))
        secret_next = bool(_FLAG.fullmatch(word))
    return tuple(masked)


class TraceEncoder:
    """Turns live events into trace lines: times from run start, sequence numbers, masks, figures at the ends.

    Its fold, `stats`, has seen every event given to `line`. `-p --output jsonl` prints these lines without a file.
    """

    def __init__(self, run_start: RunStart) -> None:
        self.stats = RunStats()
        self._epoch_ns = run_start.t_ns
        self._seq = 0

    def line(self, event: AnyEvent) -> bytes:
        """The next line of the trace, without its newline."""
        self.stats.add(event)
        body = _ENCODER.encode(rebase(self._completed(event), self._epoch_ns))
        head = f'{{"v":{VERSION},"seq":{self._seq},'.encode()
        self._seq += 1
        return head + body[1:]

    def _completed(self, event: AnyEvent) -> AnyEvent:
        match event:
            case TurnEnd():
                return msgspec.structs.replace(event, stats=summary(self.stats.turns[event.turn]))
            case RunEnd():
                return msgspec.structs.replace(event, stats=summary(self.stats.total))
            case RunStart():
                argv = tuple(utf8(word) for word in mask_argv(event.argv))
                return msgspec.structs.replace(event, argv=argv, cwd=utf8(event.cwd))
            case Warn() | Error():
                return msgspec.structs.replace(event, message=mask(event.message))
            case _:
                return event


class TraceWriter:
    """Writes one run to one file. `write` is cheap; the file is written at most every 100 ms, and at ends.

    A `DiskError` from any method leaves the unwritten lines in memory: the next `write`, `tick` or `close` tries again.
    """

    def __init__(self, journal: Journal, run_start: RunStart, clock: Callable[[], int]) -> None:
        """Use `create`."""
        self.id = run_start.id
        self.path = journal.path
        self._journal = journal
        self._clock = clock
        self._encoder = TraceEncoder(run_start)
        self._flushed_ns = clock()

    @classmethod
    def create(cls, folder: Path, run_start: RunStart, *, clock: Callable[[], int] = events.now_ns) -> TraceWriter:
        """Starts `<folder>/<id>.jsonl` with `run_start`; an empty id is replaced by a new one. `clock` gives now in ns."""
        if not run_start.id:
            run_start = msgspec.structs.replace(run_start, id=new_run_id())
        journal = Journal(private_folder(folder) / f"{run_start.id}{SUFFIX}", new=True)
        writer = cls(journal, run_start, clock)
        writer.write(run_start)
        writer._flush(sync=False)
        return writer

    @property
    def stats(self) -> RunStats:
        """The fold of everything written, so that whoever writes a trace need not fold a second time."""
        return self._encoder.stats

    def write(self, event: AnyEvent) -> None:
        """Adds one event (live times). The ends of turns and of the run reach the disk before this returns."""
        self._journal.append(self._encoder.line(event))
        if isinstance(event, (TurnEnd, RunEnd)):
            self._flush(sync=True)
        else:
            self.tick(self._clock())

    def tick(self, now_ns: int) -> None:
        """Writes what has waited for 100 ms. To be called now and then while no events come."""
        if self._journal.unsaved and now_ns - self._flushed_ns >= FLUSH_NS:
            self._flush(sync=False)

    def _flush(self, *, sync: bool) -> None:
        self._flushed_ns = self._clock()  # also after a failure: a full disk is tried ten times a second, not always
        if sync:
            self._journal.sync()
        else:
            self._journal.flush()

    def close(self) -> None:
        """Writes the rest and closes. Idempotent. A run that ended well has had its `RunEnd` written before."""
        self._journal.close()


class Trace:
    """A trace as it was read: a sequence of events (times from run start), and what was passed over."""

    def __init__(self, path: Path, found: list[AnyEvent], unknown: int, damaged: int, torn: bool) -> None:
        self.path = path
        self.events = found
        self.unknown = unknown  # events of types that this version does not know
        self.damaged = damaged  # lines that are no event, the torn last one not counted
        self.torn = torn  # the last line was cut

    @property
    def start(self) -> RunStart:
        first = self.events[0]
        assert isinstance(first, RunStart)  # `read_trace` lets nothing else through
        return first

    def fold(self, *, exact: bool = False) -> RunStats:
        """The figures of the run: those that the screen showed, or exact ones."""
        stats = RunStats(exact=exact)
        for event in self.events:
            stats.add(event)
        return stats

    def __iter__(self) -> Iterator[AnyEvent]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, index: int) -> AnyEvent:
        return self.events[index]


def read_trace(path: Path | str) -> Trace:
    """Reads a trace file. `TraceError` when there is none, or when it is none.

    A torn last line is ignored, unknown types and damaged lines are passed over and counted.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror}") from error
    _check_head(path, lines[0])
    found: list[AnyEvent] = []
    unknown = damaged = 0
    torn = False
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            found.append(_event(line))
        except msgspec.DecodeError:
            if _type_is_unknown(line):
                unknown += 1
            elif number == len(lines) - 1:
                torn = True
            else:
                damaged += 1
    return Trace(path, found, unknown, damaged, torn)


def _event(line: bytes) -> AnyEvent:
    """One line as an event; `DecodeError` when it is none, or when its lists contradict each other."""
    event: AnyEvent = _DECODER.decode(line)
    if isinstance(event, Decode):
        columns = (event.dt_us, event.k, event.m, event.a)
        if len({len(column) for column in columns}) != 1 or any(n < 0 for column in columns for n in column):
            raise msgspec.ValidationError("rounds with missing or negative entries")
    return event


def _check_head(path: Path, line: bytes) -> None:
    try:
        head = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise TraceError(f"{path} is no trace: its first line is not a JSON object") from error
    version = head.get("v") if isinstance(head, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise TraceError(f"{path} was written by a newer lingchat (trace version {version}, this one reads {VERSION})")
    try:
        start = _event(line)
    except msgspec.DecodeError as error:
        raise TraceError(f"{path} is no trace: its first line is no event ({error})") from error
    if version != VERSION or not isinstance(start, RunStart):
        raise TraceError(f"{path} is no trace: it does not begin with run.start of version {VERSION}")


def _type_is_unknown(line: bytes) -> bool:
    """Whether the line is an event as such, of a type that is not ours."""
    try:
        record: Any = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    return isinstance(record, dict) and isinstance(record.get("type"), str) and record["type"] not in _TYPES


_TYPES = {str(kind.__struct_config__.tag) for kind in get_args(AnyEvent)}


class RunInfo(msgspec.Struct, frozen=True):
    """A trace in the runs folder."""

    id: str
    path: Path
    wall: str  # when it began, ISO 8601
    model: str
    bytes: int


def list_runs(folder: Path | None = None) -> list[RunInfo]:
    """The traces of the runs folder (of `folder`), newest first. Files that are no trace are left out."""
    found: list[RunInfo] = []
    for path in (folder or paths().runs).glob(f"*{SUFFIX}"):
        try:
            with path.open("rb") as file:
                start = _event(file.readline())
                size = os.fstat(file.fileno()).st_size
        except (OSError, msgspec.DecodeError):
            continue
        if isinstance(start, RunStart):
            found.append(RunInfo(path.stem, path, start.wall, start.model, size))
    return sorted(found, key=lambda run: (run.wall, run.id), reverse=True)


def find_run(name: Path | str, folder: Path | None = None) -> Path:
    """The trace that `name` means: a file, an id, the unique beginning or end of one, or `last`.

    `TraceError` names the candidates when several match, and the newest runs when none does.
    """
    try:
        if Path(name).is_file():
            return Path(name)
    except OSError as error:  # a name too long for a file
        raise TraceError(f"no run or trace file is called {str(name)[:80]}: {error.strerror}") from error
    folder = folder or paths().runs
    runs = list_runs(folder)
    ids = [run.id for run in runs]
    if name == "last" and runs:
        return runs[0].path
    matches = [i for i in ids if i == name] or [
        i for i in ids if name and (i.startswith(str(name)) or i.endswith(str(name)))
    ]
    if len(matches) == 1:
        return folder / f"{matches[0]}{SUFFIX}"
    if matches:
        raise TraceError(f"{name} may be any of {', '.join(matches[:5])}: give more of the id")
    known = f"; the newest are {', '.join(ids[:3])}" if ids else ", nor is there any yet: every chat writes one"
    raise TraceError(f"no run or trace file is called {name}{known}")
