"""What this machine computes with: processor, memory, GPUs. Asked of the system, never of torch.

Unknown values are empty or 0. Knows nothing of lingchat's own files.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lingchat.machine import CPUINFO, core_limit, output, processor_name, usable_threads

NVIDIA_VERSION = Path("/proc/driver/nvidia/version")

# What the kernels can make use of, by the name that Linux gives it; x86 first, then arm64.
INSTRUCTION_SETS = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx_vnni": "AVX-VNNI",
    "avx512f": "AVX-512F",
    "avx512bw": "AVX-512BW",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "amx_int8": "AMX INT8",
    "amx_bf16": "AMX BF16",
    "asimd": "NEON",
    "asimddp": "dot product",
    "i8mm": "I8MM",
    "bf16": "BF16",
    "sve": "SVE",
    "sve2": "SVE2",
}
# macOS names what the processor has by switches of its own.
_APPLE = {
    "hw.optional.AdvSIMD": "NEON",
    "hw.optional.arm.FEAT_DotProd": "dot product",
    "hw.optional.arm.FEAT_I8MM": "I8MM",
    "hw.optional.arm.FEAT_BF16": "BF16",
}


def processor() -> dict[str, Any]:
    """Name, physical cores, threads, threads this process may use, the container's limit in cores, instruction sets."""
    found: dict[str, Any] = {"name": processor_name(), "cores": 0, "threads": os.cpu_count() or 0}
    found["usable_threads"] = usable_threads()
    found["core_limit"] = core_limit()
    if CPUINFO.exists():
        found |= parse_cpuinfo(CPUINFO.read_text())
    elif sys.platform == "darwin":
        found |= _apple()
    found["system"] = f"{platform.system()} {platform.release()} {platform.machine()}"
    return found


def parse_cpuinfo(text: str) -> dict[str, Any]:
    """Physical cores and instruction sets from Linux's /proc/cpuinfo. arm64 has no core ids."""
    blocks = [dict(re.findall(r"^([^:\n\t]+?)\s*:\s*(.*)$", block, re.MULTILINE)) for block in text.split("\n\n")]
    blocks = [block for block in blocks if "processor" in block]
    first = blocks[0] if blocks else {}
    cores = {
        (block["physical id"], block["core id"]) for block in blocks if "core id" in block and "physical id" in block
    }
    flags = set(f"{first.get('flags', '')} {first.get('Features', '')}".split())
    return {
        "cores": len(cores) or len(blocks),
        "instruction_sets": [shown for flag, shown in INSTRUCTION_SETS.items() if flag in flags],
    }


def _apple() -> dict[str, Any]:
    return {
        "cores": int(output("sysctl", "-n", "hw.physicalcpu") or 0),
        "instruction_sets": [shown for switch, shown in _APPLE.items() if output("sysctl", "-n", switch) == "1"],
    }


def gpus() -> dict[str, Any]:
    """NVIDIA GPUs by the driver's own tool; without it, by the device nodes and the driver's version file."""
    query = "--query-gpu=name,memory.total,driver_version"
    lines = output("nvidia-smi", query, "--format=csv,noheader,nounits").splitlines()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    devices = [{"name": row[0], "memory": int(row[1]) << 20} for row in rows if len(row) == 3 and row[1].isdigit()]
    nodes = sorted(str(node) for node in Path("/dev").glob("nvidia[0-9]*"))
    driver = rows[0][2] if devices else _driver(NVIDIA_VERSION)
    return {"cuda": bool(devices or (nodes and driver)), "devices": devices, "nodes": nodes, "driver": driver}


def _driver(file: Path) -> str:
    try:
        match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", file.read_text())
    except OSError:
        return ""  # no driver is loaded
    return match[1] if match else ""


def torch_cuda() -> str | None:
    """The CUDA version that the installed torch is built for, "" for a build for the CPU only, None without torch.

    Read from torch's own version file, since importing it takes seconds and may fail where a doctor is needed.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        tree = ast.parse(Path(spec.origin).with_name("version.py").read_text())
    except (OSError, SyntaxError):
        return None
    for node in tree.body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == "cuda" and isinstance(node.value, ast.Constant):
            return str(node.value.value or "")
    return None


def chosen(asked: str, gpu: dict[str, Any], cuda: str | None) -> tuple[str, str]:
    """The device that the engine will most likely use, "" when what was `asked` for is not there; and why."""
    if asked == "cpu":
        return "cpu", "as set"
    why_not = ""
    if not gpu["cuda"]:
        why_not = "no NVIDIA GPU with a driver is found"
    elif cuda is None:
        why_not = "there is no torch"
    elif not cuda:
        why_not = "the installed torch is a build for the CPU only"
    if why_not:
        return ("cpu", why_not) if asked == "auto" else ("", why_not)
    return "cuda", f"torch is built for CUDA {cuda}"
