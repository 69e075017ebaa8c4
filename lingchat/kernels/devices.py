"""Which device computes. Asked in the engine's process only: nobody else imports torch.

Knows torch's word on what is there; knows no models and no memory.
"""

from __future__ import annotations

import torch

from lingchat.errors import NoDevice, UsageError

DEVICES = ("auto", "cpu", "cuda")


def choose_device(asked: str) -> str:
    """`cpu` or `cuda`. `auto` is a GPU where torch sees one; `NoDevice` when one was asked for and there is none."""
    if asked not in DEVICES:
        raise UsageError(f"--device {asked} is not known; choose one of {', '.join(DEVICES)}.")
    if asked == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if asked == "cuda":
        why = (
            "this torch is a build for the CPU only" if torch.version.cuda is None else "torch sees no NVIDIA GPU here"
        )
        raise NoDevice(f"--device cuda: {why}. Use --device auto or cpu; lingchat doctor says what this machine has.")
    return "cpu"
