"""The folder of sessions: create, open, list, search, rename, delete and restore.

The `.jsonl` files are the truth; `index.sqlite` beside them is derived and can be made again at any time. A deleted
session lies in `trash/` for a week, so that deleting can be undone.

Knows files and the index; the meaning of records is `tree`'s.
"""

from __future__ import annotations

import os
import re
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from lingchat.errors import DiskError, SessionError
from lingchat.journal import Journal, private_folder
from lingchat.session.index import Hits, Index, SessionInfos
from lingchat.session.live import Session
from lingchat.session.lock import WriterLock
from lingchat.session.records import VERSION, Head, decode, encode, version_of
from lingchat.session.tree import Tree

SUFFIX = ".jsonl"
TRASH_DAYS = 7
Names = list[str]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def wall_time() -> str:
    """The time of day, ISO 8601 with offset."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


class SessionStore:
    """All sessions under one folder."""

    def __init__(self, root: Path, *, wall: Callable[[], str] = wall_time) -> None:
        """`root` need not exist. `wall` gives the time of day for new records."""
        self.root = root
        self._wall = wall
        self._trash = root / "trash"
        self._index = Index(root)
        self._open: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()

    # -- one session -------------------------------------------------------------------------------------------------

    def create(self, title: str = "") -> Session:
        """A new session. Nothing is written before its first message (or its title)."""
        name = f"{datetime.now():%Y%m%d-%H%M%S}-{os.urandom(3).hex()}"
        tree = Tree()
        tree.apply(Head(v=VERSION, id=name, created=self._wall()))
        session = Session(self._file(name), tree, self._wall)
        self._open[name] = session
        if title:
            session.rename(title)
        return session

    def open(self, name: str, *, readonly: bool = False) -> Session:
        """The session `name` (see `find`), for writing unless `readonly`.

        `SessionError` when it is missing, no session, from a newer version, or open for writing in another process.
        """
        name = self.find(name)
        file = self._file(name)
        if readonly:
            tree, damaged = _read(file)
            return Session(file, tree, self._wall, readonly=True, damaged=damaged)
        lock = self._lock(name)
        try:
            self._migrate(file)
            tree, damaged = _read(file)
            session = Session(file, tree, self._wall, lock=lock, journal=Journal(file, new=False), damaged=damaged)
            session.flush()
        except BaseException:
            lock.release()
            raise
        self._open[name] = session
        return session

    def find(self, name: str) -> str:
        """The full id that `name` means: an id, the unique beginning or end of one, or `last`."""
        if name == "last":
            last = self.last_id()
            if last is None:
                raise SessionError("there is no session yet")
            return last
        if _NAME.fullmatch(name):
            if self._file(name).is_file():
                return name
            names = [file.stem for file in self._files()]
            matches = [i for i in names if i.startswith(name) or i.endswith(name)]
            if len(matches) == 1:
                return matches[0]
            if matches:
                raise SessionError(f"{name} may be any of {', '.join(sorted(matches)[-5:])}: give more of the id")
        raise SessionError(f"no session is called {name[:100]!r}; `lingchat sessions list` shows them")

    def last_id(self) -> str | None:
        """The session written to most recently."""
        return max(self._files(), key=lambda file: file.stat().st_mtime_ns, default=Path()).stem or None

    def rename(self, name: str, title: str) -> None:
        """Gives a session a title, whether it is open here or not."""
        name = self.find(name)
        session = self._open_here(name)
        if session is not None:
            session.rename(title)
            return
        session = self.open(name)
        try:
            session.rename(title)
        finally:
            session.close()

    # -- all sessions ------------------------------------------------------------------------------------------------

    def list(self, limit: int = 100) -> SessionInfos:
        """The sessions, most recently written first."""
        return self._index.list(limit)

    def search(self, text: str, limit: int = 50) -> Hits:
        """Messages and titles that contain every word of `text`, newest session first."""
        return self._index.search(text, limit)

    def rebuild_index(self) -> None:
        """Makes the index again from the files."""
        self._index.rebuild()

    # -- deleting ----------------------------------------------------------------------------------------------------

    def delete(self, name: str) -> str:
        """Moves a session to the trash and gives its id for `restore`. Refused while it is open anywhere."""
        name = self.find(name)
        if self._open_here(name) is not None:
            raise SessionError(f"session {name} is open: leave it first")
        lock = self._lock(name)
        try:
            private_folder(self._trash)
            os.replace(self._file(name), self._trash / f"{name}{SUFFIX}")
            os.utime(self._trash / f"{name}{SUFFIX}")  # the week counts from now
        except OSError as error:
            raise DiskError(f"cannot delete session {name}: {error.strerror}") from error
        finally:
            lock.release()
        self.empty_trash(older_than_s=TRASH_DAYS * 86400)
        return name

    def restore(self, name: str) -> None:
        """Undoes `delete`."""
        source, target = self._trash / f"{name}{SUFFIX}", self._file(name)
        if not _NAME.fullmatch(name) or not source.is_file():
            raise SessionError(f"no deleted session is called {name[:100]!r}")
        try:
            os.link(source, target)  # fails when the name is taken, where a rename would overwrite
            source.unlink()
        except OSError as error:
            raise SessionError(f"cannot restore session {name}: {error.strerror}") from error

    def deleted(self) -> Names:
        """The ids that `restore` takes, most recently deleted first."""
        files = sorted(self._trash.glob(f"*{SUFFIX}"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
        return [file.stem for file in files]

    def empty_trash(self, *, older_than_s: float = 0.0) -> None:
        """Removes for good what was deleted longer ago than that."""
        for file in self._trash.glob(f"*{SUFFIX}"):
            if time.time() - file.stat().st_mtime >= older_than_s:
                file.unlink(missing_ok=True)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _file(self, name: str) -> Path:
        return self.root / f"{name}{SUFFIX}"

    def _files(self) -> Iterator[Path]:
        return self.root.glob(f"*{SUFFIX}")

    def _lock(self, name: str) -> WriterLock:
        return WriterLock(self.root / f"{name}.lock", name)

    def _open_here(self, name: str) -> Session | None:
        session = self._open.get(name)
        return None if session is None or session.closed else session

    def _migrate(self, file: Path) -> None:
        """Rewrites a file of an older version; the old one is kept as `<id>.v<N>`. The lock must be held."""
        try:
            data = file.read_bytes()
            version = version_of(data, file.stem)
            if version == VERSION:
                return
            new = file.with_suffix(".new")
            records = [line.record for line in decode(data, version=version)]
            new.unlink(missing_ok=True)  # of an attempt that was cut
            out = Journal(new, new=True)
            for record in records:
                if record is not None:
                    out.append(encode(record))
            out.close()
            kept = file.with_suffix(f".v{version}")
            kept.unlink(missing_ok=True)
            os.link(file, kept)
            os.replace(new, file)
        except OSError as error:
            raise DiskError(f"cannot bring {file} to the present format: {error.strerror}") from error


def _read(file: Path) -> tuple[Tree, int]:
    """The tree of a file, and how many of its lines are damaged."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise SessionError(f"cannot read session {file.stem}: {error.strerror}") from error
    tree = Tree()
    damaged = whole = 0
    for line in decode(data, version=version_of(data, file.stem)):
        if line.record is None:
            damaged += 1
        else:
            whole += 1
            tree.apply(line.record)
    if not whole:
        raise SessionError(f"{file} is no session: it has no line that can be read")
    return tree, damaged
