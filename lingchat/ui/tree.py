"""The session's tree as the conversation shows it: nodes of the active branch as turn views.

Knows sessions and turn views; draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from lingchat.stats import format_ms, reasoning_note
from lingchat.ui.widgets.conversation import Conversation
from lingchat.ui.widgets.message import TurnView

if TYPE_CHECKING:
    from lingchat.session import Node, Session

SHOWN_ROLES = ("user", "assistant")


def clock_time(stamp: str) -> str:
    """`09:41` of an ISO time in the user's zone; nothing when it is no time."""
    try:
        return datetime.fromisoformat(stamp).astimezone().strftime("%H:%M")
    except ValueError:
        return ""


def reply_header(name: str, ms_per_token: float | None) -> str:
    """`#7  3.90 ms/tok`: which reply, and its median time a token if it is known."""
    return name if ms_per_token is None else f"{name}  {format_ms(ms_per_token)} ms/tok"


def view(node: Node, siblings: Sequence[Node], number: int) -> TurnView:
    """A node as a turn view; `number` counts replies."""
    place = next((at for at, other in enumerate(siblings, 1) if other.id == node.id), 1)
    user = node.role == "user"
    return TurnView(
        node.role,
        node.content,
        str(node.id),
        time=clock_time(node.time) if user else "",
        header="" if user else reply_header(f"#{number}", node.stats.get("tpot_p50_ms")),
        reasoning=node.reasoning,
        reasoning_note=reasoning_note(node.stats.get("reasoning_ms"), node.stats.get("reasoning_tokens")),
        calls=node.calls,
        footer=node.footer,
        stop=node.stop,
        sibling=place,
        siblings=max(1, len(siblings)),
    )


def views(session: Session, upto: Node | None = None) -> list[TurnView]:
    """The active branch from its root, as far as the node before `upto`."""
    found = []
    replies = 0
    for node in session.path():
        if upto is not None and node.id == upto.id:
            break
        if node.role in SHOWN_ROLES:
            replies += node.role == "assistant"
            found.append(view(node, session.siblings(node), replies))
    return found


def find(session: Session, node_id: str) -> Node | None:
    """The node that a message on the screen is; None for one that is not kept (a refused prompt)."""
    return session.node(int(node_id)) if node_id else None


def name_messages(conversation: Conversation, session: Session) -> None:
    """Tell the messages on the screen which nodes they are, and which siblings they have.

    Messages without a name are the newest: they are told from the end of the path, and only if they are the same.
    """
    nodes = {str(node.id): node for node in session.path() if node.role in SHOWN_ROLES}
    messages = [message for message in conversation.messages if message.view.role in SHOWN_ROLES]
    named = {message.view.node_id for message in messages}
    fresh = [node for node_id, node in nodes.items() if node_id not in named]
    for message in reversed(messages):
        node = nodes.get(message.view.node_id)
        if node is None and not message.view.node_id and fresh and _same(message.view.role, message.text, fresh[-1]):
            node = fresh.pop()
        if node is not None:
            told = view(node, session.siblings(node), 0)
            known = message.view
            changed = msgspec.structs.replace(known, node_id=told.node_id, sibling=told.sibling, siblings=told.siblings)
            if changed != known:
                message.set_view(changed)


def _same(role: str, text: str, node: Node) -> bool:
    return role == node.role and (role == "assistant" or text == node.content)
