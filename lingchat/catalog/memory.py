"""How much memory this process could still take. No torch, no device.

Knows the operating system's own figures only.
"""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def total() -> int:
    """Bytes of physical memory, or of the container's limit where that is smaller."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _cgroup("memory.max")
    return min(physical, limit) if limit else physical


def available() -> int:
    """Bytes that can be taken without swapping. Where the system does not say (macOS): all of the memory."""
    if not _MEMINFO.exists():
        return total()
    free = next(
        (int(line.split()[1]) * 1024 for line in _MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:")),
        total(),
    )
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if not limit or not used:
        return free
    # Cached file pages count as used, but the kernel gives them back before it refuses memory.
    cached = next((int(line.split()[1]) for line in _lines("memory.stat") if line.startswith("inactive_file ")), 0)
    return max(0, min(free, limit - used + cached))


def _cgroup(name: str) -> int:
    """A byte count of this container's group, or 0 where there is no limit."""
    text = "".join(_lines(name))
    return int(text) if text.isdigit() else 0


def _lines(name: str) -> list[str]:
    try:
        return (_CGROUP / name).read_text().splitlines()
    except OSError:
        return []  # no control groups of version 2 here
