"""The index of sessions: SQLite with full-text search, derived from the `.jsonl` files and never the truth.

It is brought up to date when someone lists or searches, never while a reply streams: of every file that changed, only
what lies behind the last settled offset is read. Settled is what no later line can change; a reply that is still
growing is not, so its row is made again until it has ended. Text is indexed by trigrams, so that parts of words and
of names in code are found, in any script. A damaged index is made again.

Knows records; knows nothing of locks or of who writes.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from lingchat.errors import DiskError, SessionError
from lingchat.journal import private_folder
from lingchat.session.records import Added, Begun, Delta, Ended, Head, Titled, decode, version_of
from lingchat.session.tree import title_of

SCHEMA = 1
_TRIGRAM = 3  # shorter words cannot be looked up, they are searched for
_SNIPPET = 60  # characters on either side of a hit
_TABLES = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, title TEXT NOT NULL, opening TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL,
    inode INTEGER NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    settled INTEGER NOT NULL, settled_node INTEGER NOT NULL
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, session TEXT NOT NULL, node INTEGER NOT NULL, role TEXT NOT NULL, time TEXT NOT NULL
);
CREATE UNIQUE INDEX messages_by_node ON messages (session, node);
CREATE VIRTUAL TABLE texts USING fts5(content, tokenize='trigram');
"""


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session as a list shows it."""

    id: str
    title: str
    created: str  # ISO 8601
    updated: str
    messages: int


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A message (or, with node 0, a title) that matches. `before + match + after` is one line."""

    session: str
    title: str
    node: int
    role: str
    time: str
    before: str
    match: str
    after: str


SessionInfos = list[SessionInfo]
Hits = list[Hit]


class _Row(msgspec.Struct):
    """What the index knows of a file."""

    id: str
    title: str = ""  # as given
    opening: str = ""  # the title that the first user message gives
    created: str = ""
    updated: str = ""
    inode: int = 0
    size: int = 0
    mtime_ns: int = 0
    settled: int = 0  # offset up to which no later line changes anything
    settled_node: int = 0


class Index:
    """The index of one folder of sessions. Connections are opened for each call, so any thread may call."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.path = root / "index.sqlite"

    def list(self, limit: int) -> SessionInfos:
        """The sessions, most recently written first."""
        with self._current() as db:
            rows = db.execute(
                "SELECT id, title, opening, created, updated, (SELECT count(*) FROM messages WHERE session = sessions.id) "
                "FROM sessions ORDER BY updated DESC, mtime_ns DESC, id DESC LIMIT ?",
                (limit,),
            ).fetchall()
        return [
            SessionInfo(id=i, title=title or opening, created=created, updated=updated, messages=count)
            for i, title, opening, created, updated, count in rows
        ]

    def search(self, text: str, limit: int) -> Hits:
        """Titles and messages that contain every word of `text`, newest session first."""
        words = text.replace("\0", " ").split()  # SQLite would end the text at a NUL
        if not words:
            return []
        with self._current() as db:
            return [*_title_hits(db, words, limit), *_message_hits(db, words, limit)][:limit]

    def rebuild(self) -> None:
        """Throws the index away and makes it again."""
        self._remove()
        with self._current():
            pass

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    @contextlib.contextmanager
    def _current(self) -> Iterator[sqlite3.Connection]:
        """A connection to an index that knows every file as it is now."""
        with _typed_errors(self.path):
            try:
                db = self._connected()
                self._refresh(db)
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError:  # the file is damaged or is none of ours; all of it can be derived
                self._remove()
                db = self._connected()
                self._refresh(db)
            with contextlib.closing(db):
                yield db

    def _connected(self) -> sqlite3.Connection:
        private_folder(self._root)
        os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(self.path, timeout=5.0, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
        except sqlite3.Error:
            db.close()
            raise
        return db

    def _refresh(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")  # a second process waits here, then finds the work done
        try:
            if db.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:
                _make_tables(db)
            known = {
                row[0]: _Row(*row) for row in db.execute(f"SELECT {', '.join(_Row.__struct_fields__)} FROM sessions")
            }
            for file in self._root.glob("*.jsonl"):
                _update(db, file, known.pop(file.stem, _Row(file.stem)))
            for gone in known:
                _forget(db, gone, above=-1)
                db.execute("DELETE FROM sessions WHERE id = ?", (gone,))
            db.execute("COMMIT")
        except BaseException:
            db.close()  # rolls back
            raise


def _make_tables(db: sqlite3.Connection) -> None:
    for (name,) in db.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ('sessions', 'messages', 'texts')"
    ).fetchall():
        db.execute(f"DROP TABLE {name}")
    for statement in _TABLES.split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA}")


def _update(db: sqlite3.Connection, file: Path, row: _Row) -> None:
    """Reads what is new in a file."""
    try:
        if _stamp(file.stat()) == (row.inode, row.size, row.mtime_ns):
            return
        with file.open("rb") as source:
            stamp = _stamp(os.fstat(source.fileno()))
            version = version_of(source.readline(), file.stem)
            if stamp[0] != row.inode or stamp[1] < row.settled:
                row = _Row(file.stem)  # another file than before
            source.seek(row.settled)
            data = source.read()
    except FileNotFoundError:  # deleted a moment ago
        return
    except SessionError:  # from a newer version: it cannot be listed, opening it says why
        return
    row.inode, row.size, row.mtime_ns = stamp
    _forget(db, row.id, above=row.settled_node)
    _take_lines(db, row, data, version)
    db.execute(
        f"REPLACE INTO sessions VALUES ({', '.join('?' * len(_Row.__struct_fields__))})", msgspec.structs.astuple(row)
    )


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _take_lines(db: sqlite3.Connection, row: _Row, data: bytes, version: int) -> None:
    growing: dict[int, tuple[Begun, list[str]]] = {}
    newest = row.settled_node
    for line in decode(data, start=row.settled, version=version):
        match line.record:
            case Head() as head:
                row.created = head.created
                row.updated = max(row.updated, head.created)
            case Titled() as titled:
                row.title = titled.title
            case Added() as added:
                _insert(db, row, added.id, added.role, added.time, added.content)
                newest = max(newest, added.id)
            case Begun() as begun:
                growing[begun.id] = (begun, [])
                newest = max(newest, begun.id)
            case Delta() as delta if delta.id in growing:
                growing[delta.id][1].append(delta.text)
            case Ended() as ended if ended.id in growing:
                begun, parts = growing.pop(ended.id)
                _insert(db, row, begun.id, "assistant", begun.time, "".join(parts))
        if not growing:
            row.settled, row.settled_node = line.end, newest
    for begun, parts in growing.values():
        _insert(db, row, begun.id, "assistant", begun.time, "".join(parts))


def _insert(db: sqlite3.Connection, row: _Row, node: int, role: str, time: str, content: str) -> None:
    done = db.execute("INSERT OR IGNORE INTO messages VALUES (NULL, ?, ?, ?, ?)", (row.id, node, role, time))
    if done.rowcount == 1:
        db.execute("INSERT INTO texts (rowid, content) VALUES (?, ?)", (done.lastrowid, content.replace("\0", " ")))
    row.updated = max(row.updated, time)
    if role == "user" and not row.opening:
        row.opening = title_of(content)


def _forget(db: sqlite3.Connection, session: str, *, above: int) -> None:
    """Removes the messages of a session behind node `above`."""
    rows = db.execute("SELECT id FROM messages WHERE session = ? AND node > ?", (session, above)).fetchall()
    db.executemany("DELETE FROM texts WHERE rowid = ?", rows)
    db.executemany("DELETE FROM messages WHERE id = ?", rows)


# -- searching --------------------------------------------------------------------------------------------------------


def _title_hits(db: sqlite3.Connection, words: list[str], limit: int) -> list[Hit]:
    found: list[Hit] = []
    for session, title, updated in db.execute(
        "SELECT id, title, updated FROM sessions WHERE title != '' ORDER BY updated DESC"
    ):
        if all(word.casefold() in title.casefold() for word in words):
            before, match, after = snippet(title, words)
            hit = Hit(
                session=session, title=title, node=0, role="", time=updated, before=before, match=match, after=after
            )
            found.append(hit)
    return found[:limit]


def _message_hits(db: sqlite3.Connection, words: list[str], limit: int) -> list[Hit]:
    long = [word for word in words if len(word) >= _TRIGRAM]
    conditions, values = [], []
    if long:
        conditions.append("texts MATCH ?")
        values.append(" AND ".join('"' + word.replace('"', '""') + '"' for word in long))
    for word in words:
        if len(word) < _TRIGRAM:
            conditions.append("texts.content LIKE ? ESCAPE '\\'")
            values.append(f"%{_literal(word)}%")
    rows = db.execute(
        "SELECT s.id, CASE s.title WHEN '' THEN s.opening ELSE s.title END, m.node, m.role, m.time, texts.content "
        "FROM texts JOIN messages m ON m.id = texts.rowid JOIN sessions s ON s.id = m.session "
        f"WHERE {' AND '.join(conditions)} ORDER BY s.updated DESC, s.id, m.node LIMIT ?",
        (*values, limit),
    )
    found: list[Hit] = []
    for session, title, node, role, time, content in rows:
        before, match, after = snippet(content, words)
        hit = Hit(
            session=session, title=title, node=node, role=role, time=time, before=before, match=match, after=after
        )
        found.append(hit)
    return found


def _literal(word: str) -> str:
    """For LIKE, with \\ as its escape."""
    return re.sub(r"([%_\\])", r"\\\1", word)


def snippet(content: str, words: list[str]) -> tuple[str, str, str]:
    """One line around the first word found: what stands before it, itself, and what follows."""
    places = [hit for word in words if (hit := re.search(re.escape(word), content, re.IGNORECASE))]
    if not places:  # matched by a case folding that `re` does not know
        return "", "", _one_line(content[: 2 * _SNIPPET])
    place = min(places, key=lambda hit: hit.start())
    begin, end = max(0, place.start() - _SNIPPET), min(len(content), place.end() + _SNIPPET)
    before = ("…" if begin else "") + _one_line(content[begin : place.start()]).lstrip()
    after = _one_line(content[place.end() : end]).rstrip() + ("…" if end < len(content) else "")
    return before, place[0], after


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@contextlib.contextmanager
def _typed_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if "fts5" in str(error) or "no such tokenizer" in str(error):
            raise SessionError(
                f"this Python's SQLite {sqlite3.sqlite_version} lacks FTS5 with trigrams (3.34)"
            ) from error
        if "locked" in str(error):
            raise SessionError("another lingchat is busy with the index of sessions; try again") from error
        raise DiskError(f"cannot use the index of sessions {path}: {error}") from error
    except OSError as error:
        raise DiskError(f"cannot use the index of sessions {path}: {error.strerror}") from error
