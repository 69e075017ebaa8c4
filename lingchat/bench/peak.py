"""The most memory taken so far, beside which a plan is held. Knows no models.

On a GPU it is what torch has allocated, on a CPU what the process holds above what it held when the watch began.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"  # see proc(5)


class PeakWatch:
    """Watches from now on. `how` says what is measured; empty where this system cannot tell."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._before = 0
        self.how = ""
        if device == "cuda":
            self._before = torch.cuda.memory_allocated()
            self.how = "torch.cuda.max_memory_allocated"
            self.restart()
        elif _STATUS.exists() and self._forget():
            self._before = _kilobytes("VmRSS")
            self.how = "VmHWM above what the process held before"

    def restart(self) -> None:
        """From here on, the peak of what follows alone."""
        if self._device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        elif self.how:
            self._forget()

    def bytes(self) -> int | None:
        """The peak since the last restart; None where it cannot be told."""
        if self._device == "cuda":
            return int(torch.cuda.max_memory_allocated()) - self._before
        return _kilobytes("VmHWM") - self._before if self.how else None

    def _forget(self) -> bool:
        """Whether the system forgot the process's peak; some containers refuse."""
        try:
            _CLEAR.write_text(_FORGET_PEAK)
        except OSError:
            return False
        return True


def _kilobytes(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0
