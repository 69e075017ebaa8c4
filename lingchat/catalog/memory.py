"""How much memory there is, and how much of it this process may still take. No torch.

Knows the figures of the operating system and of a GPU's driver only.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from lingchat.errors import EngineError
from lingchat.machine import output

_MEMBERSHIP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
# Files of a control group in version 2 and version 1: limit, usage, and the name of its idle page cache.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_UNLIMITED = 1 << 60  # version 1 says "none" with a huge number


def total() -> int:
    """Bytes of physical memory, or of the container's limit where that is smaller."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [_number(folder / names[0]) for folder, names in _groups(_MEMBERSHIP, _GROUPS)]
    return min([physical, *(limit for limit in limits if limit is not None)])


def free_memory() -> int:
    """Bytes this process may still take: what the system has available, and no more than its control group allows."""
    if sys.platform == "darwin":
        said = subprocess.run(["vm_stat"], capture_output=True, text=True, check=True, timeout=10)
        return vm_stat_free(said.stdout)
    available = meminfo_available(Path("/proc/meminfo"))
    if available is None:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = cgroup_free(_MEMBERSHIP, _GROUPS)
    return available if limit is None else min(available, limit)


def give_back_freed() -> None:
    """Have glibc return what was freed: reading a vocabulary leaves holes that weights do not fit into. Nothing
    elsewhere."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@cache
def gpu_free_memory() -> int | None:
    """Bytes free on the first NVIDIA GPU, by its driver's tool; None without one. Asked once a process."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return None
    line = output("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits").partition("\n")[0].strip()
    return int(line) << 20 if line.isdigit() else None


def meminfo_available(meminfo: Path) -> int | None:
    """MemAvailable of Linux's /proc/meminfo in bytes, None where there is none."""
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    except FileNotFoundError:
        return None
    return int(match[1]) * 1024 if match else None


def cgroup_free(membership: Path, mount: Path) -> int | None:
    """Bytes left to this process's control group and those above it (versions 1 and 2); None without a limit.

    Page cache that was not used lately does not count as taken: the kernel drops it before it refuses memory.
    """
    left = (_group_left(folder, *names) for folder, names in _groups(membership, mount))
    return min((n for n in left if n is not None), default=None)


def vm_stat_free(text: str) -> int:
    """Bytes that macOS's vm_stat counts as free or quickly freed."""
    size = re.search(r"page size of (\d+) bytes", text)
    pages = {name: int(n) for name, n in re.findall(r"^Pages ([a-z ]+):\s+(\d+)\.$", text, re.MULTILINE)}
    if size is None or "free" not in pages:
        raise EngineError("vm_stat's output is not understood, so the free memory is unknown.")
    return int(size[1]) * sum(pages.get(name, 0) for name in ("free", "inactive", "speculative", "purgeable"))


def _groups(membership: Path, mount: Path) -> list[tuple[Path, tuple[str, str, str]]]:
    """The folders of this process's memory control groups, innermost first, and the names of their files."""
    if not membership.exists():
        return []
    found = []
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = mount, _V2
        elif "memory" in controllers.split(","):
            root, names = mount / "memory", _V1
        else:
            continue
        # Inside a container the path may be the host's; what is mounted at the root is then the container's own.
        inner = root / path.lstrip("/")
        found += [(folder, names) for folder in (inner, *inner.parents) if folder.is_relative_to(root)]
    return found


def _group_left(folder: Path, limit_name: str, usage_name: str, cache_name: str) -> int | None:
    limit, usage = _number(folder / limit_name), _number(folder / usage_name)
    if limit is None or usage is None or limit >= _UNLIMITED:
        return None
    stat = folder / "memory.stat"
    match = re.search(rf"^{cache_name} (\d+)$", stat.read_text(), re.MULTILINE) if stat.is_file() else None
    return max(0, limit - usage + (int(match[1]) if match else 0))


def _number(file: Path) -> int | None:
    text = file.read_text().strip() if file.is_file() else ""
    return int(text) if text.isdigit() else None
