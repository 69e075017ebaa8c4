"""A model, its state and its rounds in a few lines, for tests of the runtime below the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from lingchat.engines.api import Sampling
from lingchat.runtime.drafts.lookup import LookupDrafter
from lingchat.runtime.drafts.width import Width
from lingchat.runtime.drivers.eager import EagerDriver, TimedRound
from lingchat.runtime.models.registry import build
from lingchat.runtime.ops.protocol import BufferSpec
from lingchat.runtime.ops.torch_ops import TorchOps
from lingchat.runtime.rounds import Rounds
from lingchat.runtime.state import State
from lingchat.runtime.weights.load import open_weights


class Bench:
    """One loaded model with rounds over it; `width` rows at most, `chunk` tokens a prefill pass."""

    def __init__(
        self, path: Path, dtype: str = "fp32", width: int = 8, chunk: int = 64, capacity: int = 600, places: int = 8
    ) -> None:
        self.ops = TorchOps(dtype)
        with torch.inference_mode():
            self.model = build(open_weights(path), self.ops)
            drafter = LookupDrafter(self.ops)
            specs = self.model.state_spec(capacity), drafter.state_spec(capacity)
            self.state = State(*specs, self.ops, 4, width=width, places=places)
            self.rounds = Rounds(self.ops, self.model, self.state, drafter, width, chunk)
        self.driver = EagerDriver(self.ops, self.rounds)

    def reset(self, length: int = 0) -> None:
        """Back to the first `length` rows; a model that only appends can go to any, another to 0 or a snapshot."""
        self.state.restore(self.state.nearest(length, current=-1), current=-1)

    @torch.inference_mode()
    def prefill_logits(self, ids: Sequence[int], chunk: int) -> torch.Tensor:
        """Logits after the last of `ids`, prefilled in chunks of `chunk`."""
        self.reset()
        logits = torch.empty(0)
        for start in range(0, len(ids), chunk):
            part = ids[start : start + chunk]
            logits, _ = self.model.prefill(self._ids(part), len(part), self.state)
            self._commit(len(part))
        return logits[0]

    @torch.inference_mode()
    def verify_logits(self, ids: Sequence[int], width: int) -> torch.Tensor:
        """Logits after every one of `ids`, `width` rows a pass."""
        self.reset()
        out = []
        for start in range(0, len(ids), width):
            part = ids[start : start + width]
            out.append(self.model.verify(self._ids(part), len(part), self.state)[0])
            self._commit(len(part))
        return torch.cat(out)

    @torch.inference_mode()
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
        self.rounds.begin(ids, count, sampling or Sampling(temperature=0.0), seed, ends)
        for _ in self.driver.prefill(ids):
            pass
        rounds = [self.driver.first()]
        if not rounds[0].record.done:
            rounds += self.driver.decode(Width(drafts, adaptive=False))
        return [i for timed in rounds for i in timed.record.ids], rounds

    def _ids(self, part: Sequence[int]) -> torch.Tensor:
        return torch.tensor(part, dtype=torch.int32)

    def _commit(self, count: int) -> None:
        buffer = self.ops.allocate(BufferSpec("count", (1,), "i32"))
        self.ops.fill(buffer, [count])
        self.state.commit(buffer)
