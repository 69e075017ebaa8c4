"""Does it fit? The bytes a dense model will take, from its shapes alone, against the memory that is free.

Asked before anything is allocated. Knows no back end: a dtype is a name with a number of bytes.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lingchat.errors import DoesNotFit, EngineError
from lingchat.runtime.weights.config import ModelConfig
from lingchat.runtime.weights.names import expected_shapes

# Bytes a value: of matrices, and of KV rows. int8 has a bf16 scale a row besides; its KV rows are bf16.
_MATRIX = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}
_KV = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 2}
_INT8_COLUMNS = 32  # rows of int8 are padded to a multiple of this (kernels/gemv.py)
_FP32 = 4  # vectors (norms, biases), activations and logits
_LOGIT_ROWS = 32  # verified rows whose logits, and as many of their probabilities, exist at once
RESERVE = 384 << 20  # the process itself: the interpreter, torch's libraries, a tokenizer


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by purpose. `state` is what does not grow with the context (none in dense models)."""

    weights: int
    kv: int
    state: int
    workspace: int
    context: int  # tokens that `kv` holds

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.state + self.workspace


def plan(config: ModelConfig, dtype: str, context: int, *, rows: int = 256, kv_bytes: int | None = None) -> MemoryPlan:
    """The plan for matrices in `dtype` (fp32, bf16, fp16 or int8), `context` tokens, prefill in chunks of `rows`.

    `kv_bytes` is the width of a cached value where the back end does not take the one that goes with `dtype`.
    """
    return MemoryPlan(
        weights=sum(_tensor_bytes(shape, dtype) for shape in expected_shapes(config).values()),
        kv=2 * config.layers * context * config.kv_heads * config.head_dim * (kv_bytes or _KV[dtype]),
        state=0,
        workspace=_workspace(config, rows),
        context=context,
    )


def check_fits(needed: MemoryPlan, free_bytes: int, *, reserve: int = RESERVE) -> None:
    """Raises DoesNotFit, with needed and free bytes, when `needed` and the process's own `reserve` exceed them."""
    total = needed.total + reserve
    if total <= free_bytes:
        return
    message = (
        f"The model needs {_gb(total)} of memory (weights {_gb(needed.weights)}, "
        f"context of {needed.context} tokens {_gb(needed.kv)}), {_gb(free_bytes)} are free."
    )
    left = free_bytes - (total - needed.kv)
    fitting = left * needed.context // needed.kv if needed.kv else 0
    if fitting >= 256:
        advice = f"A context of at most {fitting} tokens would fit."
    else:
        advice = "Close other programs, or use a smaller model or a smaller quantisation."
    raise DoesNotFit(f"{message} {advice}")


def free_memory() -> int:
    """Bytes this process may still take: what the system has available, and no more than its control group allows."""
    if sys.platform == "darwin":
        said = subprocess.run(["vm_stat"], capture_output=True, text=True, check=True, timeout=10)
        return vm_stat_free(said.stdout)
    available = meminfo_available(Path("/proc/meminfo"))
    if available is None:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = cgroup_free(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return available if limit is None else min(available, limit)


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
    try:
        lines = membership.read_text().splitlines()
    except FileNotFoundError:
        return None
    left: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = mount, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, names = mount / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # Inside a container the path may be the host's; what is mounted at the root is then the container's own.
        inner = root / path.lstrip("/")
        folders = [inner, *inner.parents]
        left += [n for n in (_group_left(f, *names) for f in folders if f.is_relative_to(root)) if n is not None]
    return min(left, default=None)


def vm_stat_free(text: str) -> int:
    """Bytes that macOS's vm_stat counts as free or quickly freed."""
    size = re.search(r"page size of (\d+) bytes", text)
    pages = {name: int(n) for name, n in re.findall(r"^Pages ([a-z ]+):\s+(\d+)\.$", text, re.MULTILINE)}
    if size is None or "free" not in pages:
        raise EngineError("vm_stat's output is not understood, so the free memory is unknown.")
    return int(size[1]) * sum(pages.get(name, 0) for name in ("free", "inactive", "speculative", "purgeable"))


def _group_left(folder: Path, limit_name: str, usage_name: str, cache_name: str) -> int | None:
    limit, usage = _number(folder / limit_name), _number(folder / usage_name)
    if limit is None or usage is None or limit >= 1 << 60:  # version 1 says "none" with a huge number
        return None
    stat = folder / "memory.stat"
    match = re.search(rf"^{cache_name} (\d+)$", stat.read_text(), re.MULTILINE) if stat.is_file() else None
    return max(0, limit - usage + (int(match[1]) if match else 0))


def _number(file: Path) -> int | None:
    text = file.read_text().strip() if file.is_file() else ""
    return int(text) if text.isdigit() else None


def _tensor_bytes(shape: tuple[int, ...], dtype: str) -> int:
    if len(shape) == 1:
        return shape[0] * _FP32
    if dtype == "int8":  # whole vectors of the kernel, and a scale a row
        return shape[0] * (-(-shape[1] // _INT8_COLUMNS) * _INT8_COLUMNS + 2)
    return math.prod(shape) * _MATRIX[dtype]


def _workspace(config: ModelConfig, rows: int) -> int:
    """Activations of one block for `rows` rows, and logits with their probabilities for the verified rows."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    # residual, normed, out-projection; q, k, v and attention's output; gate, up and their product
    a_row = 3 * config.hidden + 2 * q + 2 * kv + 3 * config.ffn
    return _FP32 * (rows * a_row + 2 * min(rows, _LOGIT_ROWS) * config.vocab)


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB"
