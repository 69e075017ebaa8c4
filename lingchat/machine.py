"""What this machine is called: its processor, and the line by which a trace names where it was made.

Asked of the system, never of torch. Knows nothing of the rest of the package.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
TIMEOUT_S = 10.0  # nvidia-smi needs seconds when no process keeps the driver loaded


def processor_name() -> str:
    """The processor's name as its maker writes it; where the system keeps none (Linux on arm64), its kind."""
    return _by_linux() or _by_macos() or platform.processor() or platform.machine() or "unknown processor"


def usable_threads() -> int:
    """Threads that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_limit(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """How many cores the container may use, 0 without a limit: "200000 100000" in cgroup v2's cpu.max is 2."""
    try:
        quota, period = file.read_text().split()
        return 0.0 if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return 0.0  # no control groups of version 2 here


def machine() -> str:
    """Processor, threads and system, as a trace and a replayed figure name them."""
    return f"{processor_name()}, {usable_threads()} threads, {platform.system()} {platform.machine()}"


def _by_linux() -> str:
    try:
        with CPUINFO.open() as lines:
            for line in lines:
                if line.startswith("model name"):
                    return " ".join(line.partition(":")[2].split())
    except OSError:
        pass  # not Linux
    return ""


def _by_macos() -> str:
    return output("sysctl", "-n", "machdep.cpu.brand_string") if sys.platform == "darwin" else ""


def output(*command: str) -> str:
    """What a tool of the system prints; empty when it is not installed, fails, or hangs."""
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""
