"""An open session: what a conversation does to it, and how that reaches the file.

Every change is applied to the tree in memory first and then written. When the write fails, `DiskError` tells so, the
tree stays right, and the unwritten lines wait for the next write or `flush`: a caller makes room and goes on, it does
not repeat the change. A reply that streams is written at most every 100 ms; its end waits for the disk.

Knows nothing of engines but their messages, and nothing of screens.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lingchat.engines.api import Message, Role, ToolCall
from lingchat.errors import SessionError
from lingchat.journal import FLUSH_NS, Journal, private_folder, utf8
from lingchat.session.lock import WriterLock
from lingchat.session.records import (
    VERSION,
    Added,
    AnyRecord,
    Begun,
    Delta,
    Ended,
    Head,
    Selected,
    SystemSet,
    Titled,
    encode,
)
from lingchat.session.tree import INTERRUPTED, Node, Tree


class Session:
    """A conversation. Made by `SessionStore`; one that was opened for reading raises when it is changed."""

    def __init__(
        self,
        file: Path,
        tree: Tree,
        wall: Callable[[], str],
        *,
        lock: WriterLock | None = None,
        journal: Journal | None = None,
        readonly: bool = False,
        damaged: int = 0,
    ) -> None:
        """Without a journal a session is new: file and lock come with the first change, so an unused one leaves nothing."""
        self.id = file.stem
        self.file = file
        self.damaged = damaged  # lines that could not be read
        self.readonly = readonly
        self.closed = False
        self._tree = tree
        self._wall = wall
        self._lock = lock
        self._journal = journal
        self._waiting: list[bytes] = []  # lines from before the file could be made
        for reply in tree.unfinished():  # cut by a kill: a writer makes the file say so itself
            end = Ended(id=reply, stop=INTERRUPTED)
            if readonly:
                tree.apply(end)
            else:
                self._apply(end)

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """As given, else the beginning of the first user message, else empty."""
        return self._tree.title

    @property
    def system(self) -> str:
        """The system prompt."""
        return self._tree.system

    @property
    def created(self) -> str:
        return self._tree.created

    @property
    def leaf(self) -> Node | None:
        """The last message of the active branch."""
        return self._tree.node(self._tree.leaf) if self._tree.leaf else None

    def __len__(self) -> int:
        """Messages on all branches."""
        return len(self._tree)

    def node(self, node: int) -> Node:
        if node not in self._tree:
            raise SessionError(f"session {self.id} has no message {node}")
        return self._tree.node(node)

    def path(self) -> list[Node]:
        """The active branch, first message to last. A reply being written is on it, as far as it has come."""
        return self._tree.path()

    def children(self, node: int) -> list[Node]:
        """What follows a message (`ROOT`: the first messages), for drawing the tree."""
        return self._tree.children(node)

    def siblings(self, node: Node | int) -> list[Node]:
        """The versions of a message, oldest first, itself among them."""
        return self._tree.children(self.node(_id(node)).parent)

    def messages(self, leaf: Node | int | None = None) -> tuple[Message, ...]:
        """The branch as a request: the system prompt, then every message that says anything. `leaf` ends another one.

        Replies go back with their reasoning and their calls. The model's template decides what of them it writes: one
        that keeps earlier reasoning (Ling's does) then makes the very tokens that the engine's state already holds, so
        that the next turn computes only what is new; one that drops it makes the prompt it was trained on.
        """
        found = [Message("system", self.system)] if self.system else []
        for node in self._tree.path(None if leaf is None else _id(leaf)):
            if node.content or node.reasoning or node.calls or node.role == "tool":
                found.append(node.message)
        return tuple(found)

    # -- changing --------------------------------------------------------------------------------------------------

    def add(
        self, role: Role, content: str, parent: Node | int | None = None, *, name: str = "", call: str = ""
    ) -> Node:
        """Adds a message after the active branch, or after `parent` (an edit: the parent of the message it replaces).

        `name` and `call` are of a tool's result: the tool, and the id of the call it answers. The new message ends the
        active branch. It is handed to the operating system, not waited for.
        """
        number = self._tree.next_id()
        under = self._tree.leaf if parent is None else self._checked(parent)
        self._apply(
            Added(id=number, parent=under, role=role, content=utf8(content), time=self._wall(), name=name, call=call)
        )
        self.flush()
        return self._tree.node(number)

    def begin_reply(self, parent: Node | int | None = None) -> Reply:
        """Starts a reply after the active branch, or after `parent` (a regeneration). It is written with its first text."""
        number = self._tree.next_id()
        under = self._tree.leaf if parent is None else self._checked(parent)
        self._apply(Begun(id=number, parent=under, time=self._wall()))
        return Reply(self, number)

    def select(self, node: Node | int) -> Node:
        """Makes the branch of `node` the active one, down to where it was last left; gives that end."""
        leaf = self._tree.leaf_under(self.node(_id(node)).id)
        if leaf != self._tree.leaf:
            self._apply(Selected(id=leaf))
            self.flush()
        return self._tree.node(leaf)

    def cut(self, node: Node | int) -> None:
        """Ends the active branch at `node` itself: what follows stays in the tree, as a branch not taken."""
        self._apply(Selected(id=self.node(_id(node)).id))
        self.flush()

    def rename(self, title: str) -> None:
        """Gives a title; an empty one brings back the derived one."""
        self._apply(Titled(title=utf8(" ".join(title.split()))))
        self.flush()

    def set_system(self, text: str) -> None:
        """Sets the system prompt from the next request on."""
        if text != self.system:
            self._apply(SystemSet(text=utf8(text)))
            if len(self._tree):  # before the first message it waits, so that an unused session leaves no file
                self.flush()

    # -- writing ---------------------------------------------------------------------------------------------------

    @property
    def unsaved(self) -> int:
        """Bytes in memory that are not in the file."""
        return sum(len(line) + 1 for line in self._waiting) + (self._journal.unsaved if self._journal else 0)

    def flush(self) -> None:
        """Writes what waits; a kill of this process cannot reach it then. `DiskError` keeps it waiting."""
        self._open_journal().flush()

    def sync(self) -> None:
        """Flushes and waits for the disk."""
        self._open_journal().sync()

    def close(self) -> None:
        """Writes what waits and gives the lock back. Idempotent. On `DiskError` the session stays open."""
        if self.closed:
            return
        if not self.readonly and (len(self._tree) or self._journal is not None):
            self.sync()
        self.discard()

    def discard(self) -> None:
        """Closes without writing: the way out when the disk stays full."""
        self.closed = True
        if self._journal is not None:
            self._journal.abandon()
        if self._lock is not None:
            self._lock.release()

    def _checked(self, parent: Node | int) -> int:
        number = _id(parent)
        if number and number not in self._tree:
            raise SessionError(f"session {self.id} has no message {number}")
        return number

    def _apply(self, record: AnyRecord) -> None:
        self._check_writable()
        self._tree.apply(record)
        self._queue(record)

    def _check_writable(self) -> None:
        if self.readonly or self.closed:
            raise SessionError(f"session {self.id} is {'closed' if self.closed else 'open for reading only'}")

    def _queue(self, record: AnyRecord) -> None:
        line = encode(record)
        if self._journal is None:
            self._waiting.append(line)
        else:
            self._journal.append(line)

    def _open_journal(self) -> Journal:
        if self._journal is None:
            private_folder(self.file.parent)
            self._lock = self._lock or WriterLock(self.file.with_suffix(".lock"), self.id)
            journal = Journal(self.file, new=True)
            for line in (encode(Head(v=VERSION, id=self.id, created=self._tree.created)), *self._waiting):
                journal.append(line)
            self._waiting.clear()
            self._journal = journal
        return self._journal


class Reply:
    """A reply that streams into a session.

    `delta` keeps at most 100 ms of text in memory, but nothing calls it in a silence: `tick` is for then.
    """

    def __init__(self, session: Session, number: int) -> None:
        self.id = number
        self._session = session
        self._text: list[str] = []  # not yet queued for the file
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._made = 0  # calls of this reply
        self._flushed_ns: int | None = None
        self._ended = False

    @property
    def node(self) -> Node:
        """The reply as far as it has come."""
        return self._session.node(self.id)

    def delta(self, text: str, now_ns: int) -> None:
        """More text of the reply."""
        self._grow(Delta(id=self.id, text=utf8(text)), now_ns)

    def reasoning(self, text: str, now_ns: int) -> None:
        """More of what the model thought before it."""
        self._grow(Delta(id=self.id, reasoning=utf8(text)), now_ns)

    def call(self, name: str, arguments: str, call_id: str, now_ns: int) -> None:
        """A tool call in it. Without a `call_id` of the model's it gets one that no other call of the session has."""
        call_id = call_id or f"call_{self.id}_{self._made}"
        self._made += 1
        made = ToolCall(utf8(name), utf8(arguments), utf8(call_id))
        self._grow(Delta(id=self.id, calls=(made,)), now_ns)

    def tick(self, now_ns: int) -> None:
        """Writes text that has waited for 100 ms."""
        due = self._flushed_ns is None or now_ns - self._flushed_ns >= FLUSH_NS
        if due and (self._text or self._reasoning or self._calls or self._session.unsaved):
            self._flushed_ns = now_ns  # also when it fails: a full disk is tried ten times a second, not always
            self._queue_text()
            self._session.flush()

    def finish(
        self, stop: str, run: str = "", turn: int = 0, footer: str = "", stats: dict[str, Any] | None = None
    ) -> Node:
        """Ends the reply; it is on the disk when this returns. After a `DiskError` it is ended all the same."""
        if not self._ended:
            self._ended = True
            self._queue_text()
            end = Ended(id=self.id, stop=stop, run=run, turn=turn, footer=footer, stats=stats or {})
            self._session._apply(end)
            self._session.sync()
        return self.node

    def _grow(self, more: Delta, now_ns: int) -> None:
        if self._ended:
            raise SessionError("the reply has ended")
        self._session._check_writable()
        self._session._tree.apply(more)
        if more.text:
            self._text.append(more.text)
        if more.reasoning:
            self._reasoning.append(more.reasoning)
        self._calls += more.calls
        self.tick(now_ns)

    def _queue_text(self) -> None:
        if self._text or self._reasoning or self._calls:
            text, reasoning = "".join(self._text), "".join(self._reasoning)
            self._session._queue(Delta(id=self.id, text=text, reasoning=reasoning, calls=tuple(self._calls)))
            self._text.clear()
            self._reasoning.clear()
            self._calls.clear()


def _id(node: Node | int) -> int:
    return node if isinstance(node, int) else node.id
