"""Sessions: conversations that survive. The door for the rest of the package.

`SessionStore` is the folder, `Session` an open conversation, `Reply` a reply that streams into it, `Node` a message.
"""

from __future__ import annotations

from lingchat.session.index import Hit, SessionInfo
from lingchat.session.live import Reply, Session
from lingchat.session.store import SessionStore
from lingchat.session.tree import INTERRUPTED, ROOT, Node

__all__ = ["INTERRUPTED", "ROOT", "Hit", "Node", "Reply", "Session", "SessionInfo", "SessionStore"]
