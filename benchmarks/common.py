"""What every benchmark shares: the machine it ran on, the roof of this run, and one JSON file a run."""

from __future__ import annotations

import json
import mmap
import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lingchat.machine import processor_name

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("lingchat", "torch", "textual", "xllamacpp", "tokenizers")


def machine() -> dict[str, Any]:
    """Processor, cores, memory, versions and what else was running."""
    return {
        "cpu": processor_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "load_average_before": os.getloadavg()[0],
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": _commit(),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    if shutil.which("git") is None:
        return ""
    result = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=RESULTS.parent)
    return result.stdout.strip()


def read_bandwidth(threads: int) -> float:
    """Bytes a second that `threads` threads read from 1 GiB, far beyond any cache: the roof of this run.

    The best of several places in memory, in large pages where the system has them, as native code keeps weights.
    """
    import torch

    torch.set_num_threads(threads)
    best = 0.0
    for _ in range(4):
        with mmap.mmap(-1, 1 << 30) as memory:
            if hasattr(mmap, "MADV_HUGEPAGE"):
                memory.madvise(mmap.MADV_HUGEPAGE)
            block = torch.frombuffer(memory, dtype=torch.float32).fill_(1.0)
            for _ in range(8):
                begin = time.perf_counter()
                block.sum()
                best = max(best, block.nbytes / (time.perf_counter() - begin))
            del block  # the map cannot close while it is looked at
    return best


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest of repeated measurements."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def save(name: str, result: dict[str, Any]) -> Path:
    """Write one run as `results/<name>.json` and say where."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{path} written")
    return path
