"""The multi-token prediction layer against the reference: teacher-forced over a prompt, and chained onto itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ling_cases import distance, ids_of
from ling_reference import DraftLayer, Reference
from make_ling import Tiny, ling_config, random_tensors, write_ling_gguf, write_ling_hf

from lingchat.architectures.hybrid_names import expected_shapes
from lingchat.runtime.models.hybrid import HybridModel
from lingchat.runtime.models.mtp import MTPLayer
from lingchat.runtime.ops.protocol import BufferSpec
from lingchat.runtime.ops.torch_ops import TorchOps
from lingchat.runtime.state import State
from lingchat.runtime.weights.load import open_weights

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = ids_of(33, 6)
EXACT = 5e-5


@dataclass
class Pair:
    """A model with its MTP layer, both keeping step in one state."""

    tiny: Tiny
    ops: TorchOps
    model: HybridModel
    layer: MTPLayer

    def state(self) -> State:
        return State(self.model.state_spec(64), self.layer.state_spec(64), self.ops, 4, width=8)

    def commit(self, state: State, count: int) -> None:
        buffer = self.ops.allocate(BufferSpec("count", (1,), "i32"))
        self.ops.fill(buffer, [count])
        state.commit(buffer)


@pytest.fixture(scope="module", params=["gguf", "hf"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("mtp")
    config = ling_config(period=4, layers=5, q_rank=32, dense=2, limits=True, mtp=1)
    if request.param == "gguf":
        tiny = write_ling_gguf(folder / "model.gguf", config, seed=30)
    else:
        tiny = write_ling_hf(folder, config, seed=30, shards=2)
    ops = TorchOps("fp32")
    weights = open_weights(tiny.path)
    with torch.inference_mode():
        model = HybridModel(weights, ops)
        return Pair(tiny, ops, model, MTPLayer(weights, model))


def tensor(ids: list[int]) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int32)


def reference(tiny: Tiny) -> tuple[Reference, DraftLayer]:
    model = Reference(tiny.config, tiny.tensors)
    model.logits(IDS)
    return model, DraftLayer(tiny.config, tiny.tensors)


@pytest.mark.parametrize("chunk", [1, 5, 32])
def test_logits_and_hidden_rows_of_a_prompt(pair: Pair, chunk: int) -> None:
    """Row t: the token after t and the model's final hidden row of t; its logits are of the token after next."""
    model, draft = reference(pair.tiny)
    want = [draft.step(IDS[t + 1], model.hidden[t], t) for t in range(len(IDS) - 1)]
    state = pair.state()
    logits, hidden = [], []
    with torch.inference_mode():
        for start in range(0, len(IDS) - 1, chunk):
            part = IDS[start : start + chunk + 1][:-1] if start + chunk >= len(IDS) else IDS[start : start + chunk]
            after = IDS[start + 1 : start + 1 + len(part)]
            _, taps = pair.model.verify(tensor(part), len(part), state)
            got = pair.layer.forward(tensor(after), taps.hidden, len(part), state)
            logits.append(got[0])
            hidden.append(got[1])
            pair.commit(state, len(part))
    assert distance(torch.cat(logits), [row[0] for row in want]).max() < EXACT
    np.testing.assert_allclose(torch.cat(hidden), np.array([row[1] for row in want]), rtol=1e-3, atol=2e-5)


def test_a_chain_of_drafts(pair: Pair) -> None:
    """Its hidden row takes the model's place for the next token, four times."""
    model, draft = reference(pair.tiny)
    for t in range(len(IDS) - 1):
        row = draft.step(IDS[t + 1], model.hidden[t], t)
    state = pair.state()
    chain, want = ids_of(4, 7), []
    for i, token in enumerate(chain):
        row = draft.step(token, row[1], len(IDS) - 1 + i)
        want.append(row[0])
    got = []
    with torch.inference_mode():
        _, taps = pair.model.verify(tensor(IDS[:-1]), len(IDS) - 1, state)
        hidden = pair.layer.forward(tensor(IDS[1:]), taps.hidden, len(IDS) - 1, state)[1][-1:]
        pair.commit(state, len(IDS) - 1)
        for token in chain:
            logits, hidden = pair.layer.forward(tensor([token]), hidden, 1, state)
            pair.ops.advance(state.length, torch.ones(1, dtype=torch.int32))
            got.append(logits)
    assert distance(torch.cat(got), want).max() < EXACT


def test_the_model_without_its_layer_is_the_same(tmp_path: Path) -> None:
    """Tensors of the layer play no part in a plain forward; a model that has none is read without them."""
    with_layer = ling_config(period=4, layers=4, mtp=1)
    tensors = random_tensors(with_layer, 31)
    without = replace(with_layer, mtp_layers=0)
    shapes = expected_shapes(replace(without, stacked_experts=True))
    some = {name: value for name, value in tensors.items() if name in shapes}
    assert len(some) == len(shapes) < len(tensors)
    a = Reference(with_layer, tensors).logits(IDS[:8])
    write_ling_hf(tmp_path / "a", with_layer, tensors=tensors)
    write_ling_hf(tmp_path / "b", without, tensors=some)
    from runtime.helpers import Bench

    for folder in ("a", "b"):
        assert distance(Bench(tmp_path / folder).verify_logits(IDS[:8], 8), a).max() < EXACT


def test_a_model_without_the_layer_has_none_to_load(tmp_path: Path) -> None:
    tiny = write_ling_gguf(tmp_path / "model.gguf", ling_config(period=4, layers=4))
    weights = open_weights(tiny.path)
    with pytest.raises(ValueError, match="0 MTP layers"):
        MTPLayer(weights, HybridModel(weights, TorchOps("fp32")))
