"""How many threads decode: the physical cores this process may use. Pure Python."""

from __future__ import annotations

import os
from pathlib import Path

from lingchat.errors import UsageError


def choose_threads(asked: int | None) -> int:
    if asked is None:
        return physical_cores()
    if not 1 <= asked <= 512:
        raise UsageError(f"--threads {asked} is out of range; give 1 to 512.")
    return asked


def physical_cores() -> int:
    """Cores, not hyperthreads, of those this process may run on; at least 1."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in usable:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(topology.read_text() if topology.exists() else str(cpu))
    return max(1, len(siblings))
