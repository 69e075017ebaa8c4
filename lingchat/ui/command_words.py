"""What the commands of screen and line mode have in common: arguments read, messages found, answers as text.

Knows sessions and figures; draws nothing and imports no screen.
"""

from __future__ import annotations

from lingchat.errors import UsageError
from lingchat.session import Node, Session
from lingchat.stats import RunStats


def read_switch(argument: str, now: bool, usage: str) -> bool:
    """`on`, `off`, or nothing for the other one. Raises UsageError with the usage."""
    if argument not in ("", "on", "off"):
        raise UsageError(usage)
    return argument == "on" if argument else not now


def read_place(argument: str) -> int:
    """A place counted from 1. Raises ValueError."""
    place = int(argument)
    if place < 1:
        raise ValueError
    return place


def read_title(argument: str) -> str:
    if not argument:
        raise UsageError("/rename TITLE gives this session a title.")
    return " ".join(argument.split())


def message_to_edit(session: Session, argument: str) -> Node:
    """The user's n-th message of the active branch, or the last. Raises UsageError."""
    own = [node for node in session.path() if node.role == "user"]
    if not own:
        raise UsageError("There is no message of yours to edit yet.")
    try:
        return own[read_place(argument) - 1] if argument else own[-1]
    except (ValueError, IndexError) as cause:
        raise UsageError(f"/edit [n]: n is 1 to {len(own)}, the number of your message.") from cause


def last_reply(session: Session, wish: str) -> Node:
    """The newest reply of the active branch. Raises UsageError: there is none to `wish` yet."""
    replies = [node for node in session.path() if node.role == "assistant"]
    if not replies:
        raise UsageError(f"There is no reply to {wish} yet.")
    return replies[-1]


def read_system(argument: str) -> str:
    """The system message; `none` is none."""
    return "" if argument == "none" else argument


def system_text(system: str) -> str:
    return f"system message: {system}" if system else "no system message (/system TEXT sets one)"


def private_text(private: bool) -> str:
    return "what you type is not written into the history" if private else "the history is written again"


RESET_TEXT = "session figures count from here"


def counted_from(stats: RunStats, argument: str, now: int) -> int:
    """Turns up to this one are left out of the session's figures after `/stats ARGUMENT`. Raises UsageError."""
    if argument not in ("", "turn", "session", "reset"):
        raise UsageError("/stats [turn|session|reset]")
    return max(stats.turns, default=0) if argument == "reset" else now
