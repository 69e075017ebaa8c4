"""The conversation tree: what the records of a session add up to.

`Tree.apply` is the only place where a record gets its meaning, for a file being read and for one being written.

Knows nothing of files.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lingchat.engines.api import Message, Role, ToolCall
from lingchat.replies import call_line, no_answer
from lingchat.session.records import Added, AnyRecord, Begun, Delta, Ended, Head, Selected, SystemSet, Titled

ROOT = 0  # the parent of first messages
INTERRUPTED = "interrupted"  # the stop of a reply whose end was never written
_TITLE_LENGTH = 60


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A message. Replies also know what they called, how they ended, and which turn of which run made them."""

    id: int
    parent: int  # a node's id, or ROOT
    role: Role
    content: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    name: str = ""  # of the tool whose result this is
    call: str = ""  # the id of the call that it answers
    time: str = ""
    stop: str = ""  # of a reply; empty while it is being written
    run: str = ""
    turn: int = 0
    footer: str = ""
    stats: dict[str, Any] = {}

    @property
    def message(self) -> Message:
        """What a request carries of it."""
        return Message(self.role, self.content, self.reasoning, self.calls, self.name, self.call)

    @property
    def said(self) -> str:
        """What a reader of plain text is shown: the text, a line a call, and that there is no answer where it is so."""
        more = [f"→ {call_line(call.name, call.arguments)}  (not run)" for call in self.calls]
        nothing = no_answer(self.content, self.reasoning, len(self.calls), self.stop)
        more += [f"({nothing})"] if nothing else []
        return "\n\n".join(part for part in (self.content.rstrip("\n"), *more) if part) if more else self.content


class _Growing:
    """A reply that has not ended."""

    def __init__(self, begun: Begun, parent: int) -> None:
        self.head = Node(id=begun.id, parent=parent, role="assistant", content="", time=begun.time)
        self.texts: list[str] = []
        self.reasonings: list[str] = []
        self.calls: list[ToolCall] = []

    def node(self) -> Node:
        return msgspec.structs.replace(
            self.head, content="".join(self.texts), reasoning="".join(self.reasonings), calls=tuple(self.calls)
        )


class Tree:
    """Messages, their branches, and which branch is the active one."""

    def __init__(self) -> None:
        self.created = ""
        self.updated = ""
        self.given_title = ""
        self.system = ""
        self.leaf = ROOT  # the end of the active branch
        self._nodes: dict[int, Node] = {}
        self._growing: dict[int, _Growing] = {}
        self._children: dict[int, list[int]] = {ROOT: []}
        self._chosen: dict[int, int] = {}  # parent -> the child last active
        self._newest = ROOT

    def apply(self, record: AnyRecord) -> None:
        match record:
            case Head():
                self.created = self.updated = record.created
            case Added() | Begun() if record.id in self._nodes or record.id <= ROOT:
                pass  # an id is given once; a second one is damage, and could tie the tree into a circle
            case Added():
                parent = self._known(record.parent)
                node = Node(
                    id=record.id,
                    parent=parent,
                    role=record.role,
                    content=record.content,
                    name=record.name,
                    call=record.call,
                    time=record.time,
                )
                self._nodes[record.id] = node
                self._attach(record.id, parent, record.time)
            case Begun():
                parent = self._known(record.parent)
                self._growing[record.id] = growing = _Growing(record, parent)
                self._nodes[record.id] = growing.head
                self._attach(record.id, parent, record.time)
            case Delta():
                self._grow(record)
            case Ended():
                self._end(record)
            case Selected():
                if record.id in self._nodes:
                    self._activate(record.id)
            case Titled():
                self.given_title = record.title
            case SystemSet():
                self.system = record.text

    def _grow(self, record: Delta) -> None:
        growing = self._growing.get(record.id)
        if growing is None:  # its beginning was damaged: the text is kept, as a reply to the newest message
            if record.id in self._nodes or record.id <= ROOT:
                return
            self.apply(Begun(id=record.id, parent=record.id - 1))
            growing = self._growing[record.id]
        if record.text:
            growing.texts.append(record.text)
        if record.reasoning:
            growing.reasonings.append(record.reasoning)
        growing.calls += record.calls

    def _end(self, record: Ended) -> None:
        growing = self._growing.pop(record.id, None)
        if growing is not None:
            self._nodes[record.id] = msgspec.structs.replace(
                growing.node(),
                stop=record.stop,
                run=record.run,
                turn=record.turn,
                footer=record.footer,
                stats=record.stats,
            )

    def _known(self, parent: int) -> int:
        """The parent itself, or the newest node before it when its own record was damaged."""
        if parent in self._nodes or parent == ROOT:
            return parent
        return max((node for node in self._nodes if node < parent), default=ROOT)

    def _attach(self, node: int, parent: int, time: str) -> None:
        self._children.setdefault(parent, []).append(node)
        self._newest = max(self._newest, node)
        self.updated = time or self.updated
        if parent == self.leaf:  # the way up is active already: reading a long session stays linear
            self._chosen[parent] = self.leaf = node
        else:
            self._activate(node)

    def _activate(self, node: int) -> None:
        self.leaf = node
        while node != ROOT:
            parent = self._nodes[node].parent
            self._chosen[parent] = node
            node = parent

    # -- reading ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: int) -> bool:
        return node in self._nodes

    def node(self, node: int) -> Node:
        growing = self._growing.get(node)
        return self._nodes[node] if growing is None else growing.node()

    def path(self, leaf: int | None = None) -> list[Node]:
        """The branch from the root to `leaf` (default: the active one)."""
        at = self.leaf if leaf is None else leaf
        branch: list[Node] = []
        while at != ROOT:
            branch.append(self.node(at))
            at = self._nodes[at].parent
        return branch[::-1]

    def children(self, node: int) -> list[Node]:
        """The messages that follow `node` (ROOT: the first ones), oldest first."""
        return [self.node(child) for child in self._children.get(node, [])]

    def leaf_under(self, node: int) -> int:
        """The end of the branch that was last active under `node`."""
        while node in self._chosen:
            node = self._chosen[node]
        return node

    def unfinished(self) -> list[int]:
        """Replies without an end."""
        return list(self._growing)

    def next_id(self) -> int:
        return self._newest + 1

    @property
    def title(self) -> str:
        """The given title, or the beginning of the first user message."""
        return self.given_title or next((title_of(n.content) for n in self._nodes.values() if n.role == "user"), "")


def title_of(content: str) -> str:
    """A message's first words, on one line of at most 60 characters."""
    words = " ".join(content[:1000].split())
    if len(words) <= _TITLE_LENGTH:
        return words
    head = words[: _TITLE_LENGTH - 1]
    space = head.rfind(" ")
    return (head[:space] if space > _TITLE_LENGTH // 2 else head) + "…"
