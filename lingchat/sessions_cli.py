"""`lingchat sessions list|show|search|export|rm`: earlier conversations, as text.

Knows sessions; knows nothing of screens.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from lingchat.arguments import Parser
from lingchat.config import paths
from lingchat.errors import DiskError, UsageError
from lingchat.session import Session, SessionStore
from lingchat.visible import visible, visible_line

ACTIONS = {
    "list": "[N]              the newest N (20)",
    "show": "ID               a conversation",
    "search": "WORDS...         messages that hold every word",
    "export": "ID [FILE]        as Markdown or, if FILE ends in .json, as JSON",
    "rm": "ID...            delete; restore ID brings one back within a week",
    "restore": "ID...            undo rm",
}


def main(argv: Sequence[str]) -> int:
    """Run `lingchat sessions` with the words after it; the exit code."""
    parse = Parser(
        "lingchat sessions",
        usage="lingchat sessions ACTION ...",
        description="Earlier conversations. ID is an id, the beginning or end of one, or `last`.",
        epilog="actions:\n" + "\n".join(f"  {name:<8} {text}" for name, text in ACTIONS.items()),
    )
    parse.add_argument("action", nargs="?", choices=ACTIONS, default="list", metavar="ACTION", help=argparse.SUPPRESS)
    parse.add_argument("words", nargs="*", metavar="...", help=argparse.SUPPRESS)
    found = parse.parse(argv)
    store = SessionStore(paths().sessions)
    words: list[str] = found.words
    match found.action:
        case "list":
            _list(store, words)
        case "show":
            print(visible(_markdown(_opened(store, words, 1))), end="")
        case "search":
            _search(store, words)
        case "export":
            _export(_opened(store, words, 2), words[1] if len(words) > 1 else None)
        case "rm":
            for name in words or _missing("rm"):
                print(f"deleted {store.delete(name)} (lingchat sessions restore brings it back within a week)")
        case "restore":
            for name in words or _missing("restore"):
                store.restore(name)
                print(f"restored {name}")
    return 0


def _missing(action: str) -> list[str]:
    raise UsageError(f"lingchat sessions {action} takes the id of a session; lingchat sessions list shows them")


def _opened(store: SessionStore, words: list[str], most: int) -> Session:
    if not words or len(words) > most:
        _missing("show" if most == 1 else "export")
    return store.open(words[0], readonly=True)


def _list(store: SessionStore, words: list[str]) -> None:
    if len(words) > 1 or (words and not words[0].isdigit()):
        raise UsageError("lingchat sessions list takes at most one number")
    rows = store.list(int(words[0]) if words else 20)
    if not rows:
        print("no session yet: every chat makes one")
    for row in rows:
        print(f"{row.id}  {row.updated[:16].replace('T', ' ')}  {row.messages:>4}  {visible_line(row.title)}")


def _search(store: SessionStore, words: list[str]) -> None:
    if not words:
        raise UsageError("lingchat sessions search takes words to look for")
    for hit in store.search(" ".join(words)):
        passage = " ".join((hit.before + hit.match + hit.after).split())
        print(f"{hit.session}  {visible_line(hit.title)}\n    {hit.role}: {visible_line(passage)}")


def _markdown(session: Session) -> str:
    """The active branch: a heading a message, its text as it is, a reply's calls and figures under it."""
    parts = [f"# {session.title or 'untitled'}\n"]
    if session.system:
        parts.append(f"## system\n\n{session.system}\n")
    for node in session.path():
        parts.append(f"## {node.role} {node.time}".rstrip() + f"\n\n{node.said}\n")
        if node.footer:
            parts.append(f"*{node.footer}*\n")
    return "\n".join(parts)


def _export(session: Session, file: str | None) -> None:
    if file is not None and file.endswith(".json"):
        whole = {
            "id": session.id,
            "title": session.title,
            "created": session.created,
            "system": session.system,
            "messages": msgspec.to_builtins(session.path()),
        }
        data = msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"
    else:
        data = _markdown(session).encode("utf-8", "replace")
    if file is None or file == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    try:
        Path(file).write_bytes(data)
    except OSError as problem:
        raise DiskError(f"cannot write {file}: {problem.strerror}") from problem
