"""What a run of the benchmark is asked for, and what may be asked. No torch: who only wants the help needs none."""

from __future__ import annotations

from dataclasses import dataclass

from lingchat.architectures.known import KNOWN

SHAPES = tuple(KNOWN)
DTYPES = ("bf16", "fp8", "int4", "fp32", "int8")
SCHEMA_VERSION = 1  # of the result


@dataclass(frozen=True)
class Job:
    """`prompt` tokens are prefilled and `new` decoded. None: the device, its precision and all layers."""

    shape: str
    dtype: str | None = None
    device: str = "auto"
    prompt: int = 1024
    new: int = 256
    layers: int | None = None
    seed: int = 0
    threads: int | None = None
