"""A model, its state and its rounds in a few lines, for tests of the runtime below the engine, on any back end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from kernels.cpu import native

from lingchat.engines.api import Sampling
from lingchat.runtime.drafts.lookup import LookupDrafter
from lingchat.runtime.drafts.width import Width
from lingchat.runtime.drivers.base import TimedRound
from lingchat.runtime.drivers.eager import EagerDriver
from lingchat.runtime.drivers.recorded import driver_for
from lingchat.runtime.models.registry import build
from lingchat.runtime.ops.native_ops import NativeOps
from lingchat.runtime.ops.protocol import BufferSpec, Ops
from lingchat.runtime.ops.torch_ops import TorchOps
from lingchat.runtime.rounds import Rounds
from lingchat.runtime.state import State
from lingchat.runtime.weights.load import open_weights

NATIVE = "native"


def open_ops(dtype: str, threads: int = 1, isa: str = "") -> Ops:
    """A back end: a dtype of torch's, or NATIVE."""
    return NativeOps(native.library(), threads, isa) if dtype == NATIVE else TorchOps(dtype)


class Bench:
    """One loaded model with rounds over it; `width` rows at most, `chunk` tokens a prefill pass.

    `dtype` is one of torch's back end, or NATIVE, which alone heeds `threads` and `isa`. `eager`: drive every operation
    by itself, as a drafter needs it that looks at the state from the host.
    """

    def __init__(
        self,
        path: Path,
        dtype: str = "fp32",
        width: int = 8,
        chunk: int = 64,
        capacity: int = 600,
        places: int = 8,
        threads: int = 1,
        isa: str = "",
        eager: bool = False,
    ) -> None:
        self.ops = open_ops(dtype, threads, isa)
        with self.ops.session():
            self.model = build(open_weights(path), self.ops)
            drafter = LookupDrafter(self.ops)
            specs = self.model.state_spec(capacity), drafter.state_spec(capacity)
            cached = 2 if dtype == NATIVE else 4
            self.state = State(*specs, self.ops, cached, width=width, places=places)
            self.rounds = Rounds(self.ops, self.model, self.state, drafter, width, chunk)
        self.driver = EagerDriver(self.ops, self.rounds) if eager else driver_for(self.ops, self.rounds)

    def reset(self, length: int = 0) -> None:
        """Back to the first `length` rows; a model that only appends can go to any, another to 0 or a snapshot."""
        self.state.restore(self.state.nearest(length, current=-1), current=-1)

    def prefill_logits(self, ids: Sequence[int], chunk: int) -> torch.Tensor:
        """Logits after the last of `ids`, prefilled in chunks of `chunk`."""
        self.reset()
        logits = torch.empty(0)
        for start in range(0, len(ids), chunk):
            part = ids[start : start + chunk]
            logits = self.prefill(part)
            self.commit(len(part))
        return logits[0]

    def verify_logits(self, ids: Sequence[int], width: int) -> torch.Tensor:
        """Logits after every one of `ids`, `width` rows a pass."""
        self.reset()
        out = []
        for start in range(0, len(ids), width):
            part = ids[start : start + width]
            out.append(self.verify(part))
            self.commit(len(part))
        return torch.cat(out)

    def prefill(self, ids: Sequence[int]) -> torch.Tensor:
        """A pass over `ids`, not committed: logits [1, V] after the last."""
        with self.ops.session():
            return self._numbers(self.model.prefill(self._integers(ids), len(ids), self.state)[0], 1)

    def verify(self, ids: Sequence[int]) -> torch.Tensor:
        """A pass over `ids`, not committed: logits after each."""
        with self.ops.session():
            return self._numbers(self.model.verify(self._integers(ids), len(ids), self.state)[0], len(ids))

    def reply(
        self,
        ids: Sequence[int],
        count: int,
        drafts: int,
        sampling: Sampling | None = None,
        seed: int = 1,
        ends: Sequence[int] = (),
    ) -> tuple[list[int], list[TimedRound]]:
        """`count` tokens after the prompt `ids`, drafting at most `drafts`; tokens and rounds."""
        self.reset()
        with self.ops.session():
            self.rounds.begin(ids, count, sampling or Sampling(temperature=0.0), seed, ends)
            for _ in self.driver.prefill(ids):
                pass
            rounds = [self.driver.first()]
            if not rounds[0].record.done:
                rounds += self.driver.decode(Width(drafts, adaptive=False))
        return [i for timed in rounds for i in timed.record.ids], rounds

    def commit(self, count: int) -> None:
        with self.ops.session():
            self.state.commit(self._integers([count]))

    def integers(self, buffer: Any) -> list[int]:
        """An int32 buffer on the host."""
        return torch.frombuffer(bytearray(self.ops.read(buffer)), dtype=torch.int32).tolist()

    def _integers(self, values: Sequence[int]) -> Any:
        buffer = self.ops.allocate(BufferSpec("integers", (len(values),), "i32"))
        self.ops.fill(buffer, values)
        return buffer

    def _numbers(self, buffer: Any, rows: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(self.ops.read(buffer)), dtype=torch.float32).view(rows, -1)
