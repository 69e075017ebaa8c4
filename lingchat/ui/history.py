"""What was typed: the prompt history of all projects, and the draft that was not sent.

The history is a JSONL file, `{"time", "project", "text"}` a line, readable by its owner only; entries of the current
project come before those of others. The draft is one small file a project, replaced whole.

Knows nothing of widgets. A file that cannot be written raises DiskError; a damaged line is skipped on reading.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from lingchat.errors import DiskError

MAX_ENTRIES = 5_000  # the newest are kept in memory
MAX_TEXT = 256_000  # characters; a larger prompt is not worth recalling by arrow keys
TAIL_BYTES = 4_000_000


class Entry(msgspec.Struct, frozen=True):
    time: str
    project: str
    text: str


class History:
    """The prompts sent so far. Without a path it lives in memory only."""

    def __init__(self, path: Path | None, project: str) -> None:
        self.path = path
        self.project = project
        self.private = False  # while true nothing is written
        self._entries: list[Entry] | None = None

    def _load(self) -> list[Entry]:
        if self._entries is None:
            self._entries = list(self._read())[-MAX_ENTRIES:]
        return self._entries

    def _read(self) -> Iterator[Entry]:
        if self.path is None or not self.path.exists():
            return
        decoder = msgspec.json.Decoder(Entry)
        try:
            with self.path.open("rb") as file:
                file.seek(0, os.SEEK_END)
                if file.tell() > TAIL_BYTES:
                    file.seek(-TAIL_BYTES, os.SEEK_END)
                    file.readline()
                else:
                    file.seek(0)
                for line in file:
                    try:
                        yield decoder.decode(line)
                    except msgspec.DecodeError:
                        continue  # a torn line of a crash
        except OSError as cause:
            raise DiskError(f"cannot read the prompt history {self.path}: {cause.strerror}") from cause

    def add(self, text: str) -> None:
        """Remember a prompt. Repeating the newest, or an overlong one, adds nothing; nor does private mode."""
        entries = self._load()
        if self.private or not text.strip() or len(text) > MAX_TEXT:
            return
        if entries and entries[-1].text == text and entries[-1].project == self.project:
            return
        entry = Entry(datetime.now().astimezone().isoformat(timespec="seconds"), self.project, text)
        entries.append(entry)
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                size = os.lseek(descriptor, 0, os.SEEK_END)
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                line = b"\n" * torn + msgspec.json.encode(entry) + b"\n"
                os.write(descriptor, line)  # one write: lines of two chats never mix
            finally:
                os.close(descriptor)
        except OSError as cause:
            raise DiskError(f"cannot write the prompt history {self.path}: {cause.strerror}") from cause

    def _ordered(self) -> Iterator[str]:
        """Newest first, this project's before the others', each text once."""
        seen: set[str] = set()
        entries = self._load()
        for own in (True, False):
            for entry in reversed(entries):
                if (entry.project == self.project) is own and entry.text not in seen:
                    seen.add(entry.text)
                    yield entry.text

    def starting_with(self, prefix: str) -> list[str]:
        """Prompts that begin with what is typed, newest first."""
        return [text for text in self._ordered() if text.startswith(prefix) and text != prefix]

    def containing(self, words: str) -> list[str]:
        """Prompts that hold every word of `words`, in any case, newest first."""
        wanted = words.lower().split()
        return [text for text in self._ordered() if all(word in text.lower() for word in wanted)]


class Draft:
    """The unsent text of a project. Without a folder nothing is kept."""

    def __init__(self, folder: Path | None, project: str) -> None:
        digest = hashlib.sha256(project.encode()).hexdigest()[:16]
        self.path = folder / "drafts" / digest if folder is not None else None
        self._saved: str | None = None

    def load(self) -> str:
        """The text left behind, or nothing. A file that is not text counts as nothing."""
        if self.path is None or not self.path.exists():
            return ""
        try:
            self._saved = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""
        return self._saved

    def save(self, text: str) -> None:
        """Replace the draft; an empty one is removed. Raises DiskError."""
        if self.path is None or text == self._saved:
            return
        try:
            if text:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                new = self.path.with_suffix(f".{os.getpid()}")
                descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write(text)
                os.replace(new, self.path)
            else:
                self.path.unlink(missing_ok=True)
        except OSError as cause:
            raise DiskError(f"cannot keep the draft in {self.path}: {cause.strerror}") from cause
        self._saved = text
