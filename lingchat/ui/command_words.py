"""What the commands of screen and line mode have in common: arguments read, messages found, answers as text.

Knows chats, sessions and figures; draws nothing and imports no screen.
"""

from __future__ import annotations

from typing import Protocol

from lingchat.chat import THINKING, Chat
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


class Thinker(Protocol):
    """A front end, as far as `/think` needs it."""

    chat: Chat
    reasoning_shown: bool


def think(host: Thinker, argument: str) -> str:
    """`/think`: two things of one name. `on`, `off` and `auto` are what the model is told from the next message on,
    `show` and `hide` what the reader sees. Gives the answer. Raises UsageError."""
    if argument in THINKING:
        host.chat.thinking = THINKING[argument]
        return host.chat.thinking_problem or _TOLD[host.chat.thinking]
    if argument in ("show", "hide"):
        host.reasoning_shown = argument == "show"
        return _SHOWN[host.reasoning_shown]
    if argument:
        raise UsageError("/think [on|off|auto|show|hide]: on, off and auto tell the model, show and hide the screen")
    return f"{host.chat.thinking_problem or _TOLD[host.chat.thinking]}; {_SHOWN[host.reasoning_shown]}"


_TOLD = {
    True: "the model is told to reason before it answers",
    False: "the model is told to answer at once",
    None: "the model reasons as it does by itself",
}
_SHOWN = {True: "reasoning is shown (/think hide folds it)", False: "reasoning is folded (/think show opens it)"}


def private_text(private: bool) -> str:
    return "what you type is not written into the history" if private else "the history is written again"


RESET_TEXT = "session figures count from here"


def counted_from(stats: RunStats, argument: str, now: int) -> int:
    """Turns up to this one are left out of the session's figures after `/stats ARGUMENT`. Raises UsageError."""
    if argument not in ("", "turn", "session", "reset"):
        raise UsageError("/stats [turn|session|reset]")
    return max(stats.turns, default=0) if argument == "reset" else now
