"""transformers as a judge of hybrid models, always by its own plain torch code.

Where fla is installed, transformers calls its Triton kernels even without a device to run them on. Its class of
Ling-3.0 is newer than the oldest transformers that the tests run with: what needs it has the mark `needs_ling`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

# CI has the pinned one: there a missing class is a failure.
needs_ling = pytest.mark.skipif(
    os.environ.get("CI") != "true" and not hasattr(transformers, "BailingHybridForCausalLM"),
    reason=f"transformers {transformers.__version__} has no class of Ling-3.0, BailingHybridForCausalLM",
)
_MODULES: tuple[Any, ...] = tuple(
    importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    for name in ("bailing_hybrid", "kimi_linear", "glm5_next")
    if importlib.util.find_spec(f"transformers.models.{name}")
)
_FUNCTIONS = (
    "chunk_kimi_delta_attention",
    "recurrent_kimi_delta_attention",
    "causal_conv1d_fn",
    "causal_conv1d_update",
)


@contextmanager
def plain_torch() -> Iterator[None]:
    """Within, transformers' delta attention is computed by torch alone."""
    before = [(module, name, getattr(module, name)) for module in _MODULES for name in _FUNCTIONS]
    for module, name, function in before:
        setattr(module, name, inspect.unwrap(function))
    try:
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


def hf_logits(kind: Any, folder: Path, ids: Sequence[int]) -> np.ndarray:
    """Logits [T, vocab] of a folder by the transformers class `kind`, fp32; every tensor of the model is in the file."""
    model, report = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"], report
    return model_logits(model, ids)


def model_logits(model: Any, ids: Sequence[int]) -> np.ndarray:
    with torch.no_grad(), plain_torch():
        return model.eval()(torch.tensor([list(ids)])).logits[0].double().numpy()


def scatter_weights(model: Any, seed: int = 0) -> None:
    """Fresh weights that keep values near 1, but for A_log and dt_bias: those stay transformers' own initialisation."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("e_score_correction_bias"):
                tensor.uniform_(-0.3, 0.3)
            elif name.endswith("norm.weight"):
                tensor.normal_(1.0, 0.1)
            elif not name.endswith(("A_log", "dt_bias", "inv_freq")):
                tensor.normal_(std=0.5 if "conv1d" in name else tensor.shape[-1] ** -0.5)
