"""Which device computes. Asked in the engine's process only.

torch has the last word on a GPU, but its import takes longer than a native start: it is asked only where the system
shows a GPU, or one was demanded. Knows no models and no memory.
"""

from __future__ import annotations

from pathlib import Path

from lingchat.errors import NoDevice, UsageError

DEVICES = ("auto", "cpu", "cuda")
# Device nodes of NVIDIA's driver: of a machine, of Windows' Linux, of a Jetson.
NODES = ("nvidiactl", "nvidia0", "dxg", "nvhost-gpu", "nvgpu")


def choose_device(asked: str) -> str:
    """`cpu` or `cuda`. `auto` is a GPU where torch sees one; `NoDevice` when one was asked for and there is none."""
    if asked not in DEVICES:
        raise UsageError(f"--device {asked} is not known; choose one of {', '.join(DEVICES)}.")
    if asked == "cpu" or (asked == "auto" and not may_have_gpu()):
        return "cpu"
    try:
        import torch
    except ImportError as error:
        if asked == "auto":
            return "cpu"
        raise NoDevice(f"--device cuda needs torch: {error}. Use --device auto or cpu.") from error

    if torch.cuda.is_available():
        return "cuda"
    if asked == "cuda":
        why = (
            "this torch is a build for the CPU only" if torch.version.cuda is None else "torch sees no NVIDIA GPU here"
        )
        raise NoDevice(f"--device cuda: {why}. Use --device auto or cpu; lingchat doctor says what this machine has.")
    return "cpu"


def may_have_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether the system shows a GPU that torch could use."""
    return any((devices / name).exists() for name in NODES)
