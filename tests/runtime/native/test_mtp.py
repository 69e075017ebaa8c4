"""The multi-token prediction layer by native code: near what torch computes, its hidden rows read in time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ling_cases import ids_of
from make_ling import ling_config, random_tensors, write_ling_gguf
from runtime.helpers import NATIVE, open_ops

from lingchat.runtime.models.hybrid import HybridModel
from lingchat.runtime.models.mtp import MTPLayer
from lingchat.runtime.ops.native_memory import StaleResult
from lingchat.runtime.ops.protocol import BufferSpec, Ops
from lingchat.runtime.state import State
from lingchat.runtime.weights.load import open_weights

IDS = ids_of(33, 6)


class Pair:
    """A model with its MTP layer."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.ops: Ops = open_ops(dtype)
        with self.ops.session():
            weights = open_weights(path)
            self.model = HybridModel(weights, self.ops)
            self.layer = MTPLayer(weights, self.model)
            specs = self.model.state_spec(64), self.layer.state_spec(64)
            self.state = State(*specs, self.ops, 2 if dtype == NATIVE else 4, width=8)

    def integers(self, values: list[int]) -> object:
        buffer = self.ops.allocate(BufferSpec("integers", (len(values),), "i32"))
        self.ops.fill(buffer, values)
        return buffer

    def logits(self, chunk: int) -> torch.Tensor:
        """Of the token after next, at every position."""
        self.state.forget()
        found = []
        with self.ops.session():
            for start in range(0, len(IDS) - 1, chunk):
                part = IDS[start : min(start + chunk, len(IDS) - 1)]
                after = IDS[start + 1 : start + 1 + len(part)]
                _, taps = self.model.verify(self.integers(part), len(part), self.state)
                logits, _ = self.layer.forward(self.integers(after), taps.hidden, len(part), self.state)
                values = torch.frombuffer(bytearray(self.ops.read(logits)), dtype=torch.float32)
                found.append(values.view(len(part), -1))
                self.state.commit(self.integers([len(part)]))
        return torch.cat(found)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = ling_config(period=4, layers=5, q_rank=32, dense=2, limits=True, mtp=1)
    tensors = random_tensors(config, 30, steady=True)
    return write_ling_gguf(tmp_path_factory.mktemp("mtp") / "model.gguf", config, tensors=tensors).path


def test_logits_are_near_torch_s_and_the_same_bits_for_every_chunk(path: Path) -> None:
    want, native = Pair(path, "fp32").logits(8), Pair(path, NATIVE)
    got = native.logits(32)
    p, q = want.double().log_softmax(-1), got.double().log_softmax(-1)
    assert (p.exp() * (p - q)).sum(-1).mean() < 4e-3
    for chunk in (1, 5):
        assert torch.equal(native.logits(chunk), got)


def test_hidden_rows_of_the_model_are_stale_after_the_layer_ran(path: Path) -> None:
    pair = Pair(path, NATIVE)
    _, taps = pair.model.verify(pair.integers(IDS[:4]), 4, pair.state)
    pair.layer.forward(pair.integers(IDS[1:5]), taps.hidden, 4, pair.state)
    with pytest.raises(StaleResult, match="final_norm"):
        pair.layer.forward(pair.integers(IDS[1:5]), taps.hidden, 4, pair.state)
