"""The words of the header and the status line, out of what goes on. Pure: it reads state and returns text."""

from __future__ import annotations

from lingchat import events as ev
from lingchat.stats import format_count, format_seconds
from lingchat.ui.turns import Turns
from lingchat.ui.widgets.welcome import progress_text, short_progress

WAITS = {
    "queue": "queued, tokenizing",
    "tokenize": "queued, tokenizing",
    "prefill": "prefill",
    "decode": "decoding",
}
NOTICED_NS = 250_000_000


def engine_state(turns: Turns) -> str:
    """What the header says of the engine; nothing when it simply runs."""
    if turns.failure:
        return "engine stopped"
    if turns.ready:
        return ""
    return short_progress(turns.engine) if turns.engine is not None else "starting"


def activity(turns: Turns, now_ns: int, *, editing: bool, quitting: bool, alone: bool) -> tuple[str, str]:
    """What the status line says first, and its style. `alone`: there is no room for a header or a latency line."""
    if quitting:
        return "ctrl+c again quits", "$accent"
    if turns.failure:
        return "engine stopped · /restart", "$error"
    if turns.stopping:
        hung = turns.stall is not None or turns.asked_ns is not None
        return "stopping · /restart ends a hung engine" if hung else "stopping", "$accent"
    if turns.busy:
        if turns.asked_ns is not None:
            return unanswered(now_ns - turns.asked_ns), "$accent"
        return WAITS.get(turns.turn.phase if turns.turn is not None else "queue", "decoding"), "$accent"
    if editing:
        return "editing · enter asks again · esc leaves", "$accent"
    if turns.ready:
        return "ready", "$quiet"
    if alone and turns.engine is not None:
        return progress_text(turns.engine), "$accent"
    return "type already, it is sent when ready", "$accent"


def hints(turns: Turns, *, private: bool) -> list[str]:
    """The right side of the status line, the most useful first."""
    found = ["esc stop" if turns.busy else "/ commands", "F1 help", "F2 latency"]
    if turns.waiting:
        found.insert(0, f"queue {format_count(len(turns.waiting))}")
    if private:
        found.append("private")
    return found


def unanswered(waited_ns: int) -> str:
    """What a request does that the engine has said nothing about: for how long, once that can be noticed."""
    return WAITS["queue"] + (f" {format_seconds(waited_ns / 1e6)}" if waited_ns >= NOTICED_NS else "")


def stall_line(stall: ev.Stall) -> str:
    return f"{WAITS.get(stall.phase, stall.phase)}: nothing for {format_seconds(stall.waited_ms)} · esc stops"
