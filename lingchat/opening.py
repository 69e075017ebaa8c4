"""How a chat comes to be: its session, its trace and the first line of it. The same for every front end.

Knows nothing of screens or streams; the engine is given.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta

from lingchat import __version__
from lingchat.chat import Chat
from lingchat.config import Settings, paths
from lingchat.engines.api import Engine
from lingchat.errors import SessionError
from lingchat.events import RunStart, now_ns
from lingchat.machine import machine
from lingchat.session import Session, SessionStore
from lingchat.trace import TraceWriter, new_run_id


def run_start(settings: Settings, argv: Sequence[str] = (), began_ns: int | None = None) -> RunStart:
    """The first event of a run that begins now, or began at `began_ns` of the events' clock."""
    now = now_ns()
    t_ns = now if began_ns is None else began_ns
    wall = datetime.now().astimezone() - timedelta(microseconds=(now - t_ns) / 1000)
    return RunStart(
        t_ns=t_ns,
        id=new_run_id(),
        wall=wall.isoformat(timespec="milliseconds"),
        argv=("lingchat", *argv),
        cwd=os.getcwd(),
        version=__version__,
        machine=machine(),
        model=settings.model or "",
        sampling=settings.sampling_fields(),
    )


def open_chat(
    engine: Engine, settings: Settings, start: RunStart, *, last: bool = False, resume: str | None = None
) -> Chat:
    """A chat on `engine`: in the last session, the one named, or a new one. A new private one leaves nothing on the disk.

    Raises SessionError when the session is not there or open elsewhere.
    """
    unkept = settings.private and not last and resume is None
    session = None if unkept else _session(last, resume)
    trace = None if settings.private else TraceWriter.create(paths().runs, start)
    return Chat(engine, session, trace, settings)


def _session(last: bool, resume: str | None) -> Session:
    store = SessionStore(paths().sessions)
    if last:
        resume = store.last_id()
        if resume is None:
            raise SessionError("there is no session yet to go on with: leave -c out")
    if resume is not None:
        return store.open(resume)
    return store.create()
