"""The words of the header and the status line, out of what goes on. Pure: it reads state and returns text."""

from __future__ import annotations

from lingchat import events as ev
from lingchat.stats import TurnStats, format_count, format_seconds
from lingchat.ui.turns import Turns
from lingchat.ui.widgets.welcome import progress_text, short_progress

WAITS = {"queue": "waiting for its turn", "tokenize": "reading the prompt", "prefill": "prefill", "decode": "decoding"}


def engine_state(turns: Turns) -> str:
    """What the header says of the engine; nothing when it simply runs."""
    if turns.failure:
        return "engine stopped"
    if turns.ready:
        return ""
    return short_progress(turns.engine) if turns.engine is not None else "starting"


def activity(turns: Turns, turn: TurnStats | None, *, editing: bool, quitting: bool, alone: bool) -> tuple[str, str]:
    """What the status line says first, and its style. `alone`: there is no room for a header or a latency line."""
    if quitting:
        return "ctrl+c again quits", "$accent"
    if turns.failure:
        return "engine stopped · /restart", "$error"
    if turns.stopping:
        return "stopping", "$accent"
    if turns.busy:
        phase = turn.phase if turn is not None else "queue"
        return WAITS.get(phase, "decoding"), "$accent"
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


def stall_line(stall: ev.Stall) -> str:
    return f"{WAITS.get(stall.phase, stall.phase)}: nothing for {format_seconds(stall.waited_ms)} · esc stops"
