"""A request that the engine has said nothing about yet: there is no turn to read figures from, only a clock.

Pure. Knows nothing of widgets.
"""

from __future__ import annotations

from lingchat.events import Stall

PATIENCE_NS = 10_000_000_000  # queue and tokenizer take milliseconds; a first prefill has the same patience


def silence(asked_ns: int, now_ns: int) -> Stall | None:
    """The silence since the request was handed over, when it is longer than anything explains."""
    waited_ns = now_ns - asked_ns
    if waited_ns < PATIENCE_NS:
        return None
    return Stall(t_ns=now_ns, phase="queue", waited_ms=waited_ns / 1e6, turn=0)
