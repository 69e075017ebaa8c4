"""Which model file serves an architecture. Dispatch is on `architectures`, never on `model_type`."""

from __future__ import annotations

from lingchat.errors import UnsupportedModel
from lingchat.runtime.models.base import Model
from lingchat.runtime.models.decoder import Weights
from lingchat.runtime.models.dense import DenseModel
from lingchat.runtime.models.hybrid import HybridModel
from lingchat.runtime.ops.protocol import Ops

MODELS = {
    "LlamaForCausalLM": DenseModel,
    "Qwen2ForCausalLM": DenseModel,
    "Qwen3ForCausalLM": DenseModel,
    "BailingMoeV3ForCausalLM": HybridModel,
    "KimiLinearForCausalLM": HybridModel,
}


def build(weights: Weights, ops: Ops) -> Model:
    architecture = weights.config.architecture
    if architecture not in MODELS:
        known = ", ".join(sorted(MODELS))
        raise UnsupportedModel(f"The architecture {architecture} is not supported; these are: {known}.")
    return MODELS[architecture](weights, ops)
