"""transformers as a judge of hybrid models, always by its own plain torch code.

Where fla is installed, transformers calls its Triton kernels even without a device to run them on.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.models.bailing_hybrid import modeling_bailing_hybrid
from transformers.models.glm5_next import modeling_glm5_next
from transformers.models.kimi_linear import modeling_kimi_linear

_MODULES: tuple[Any, ...] = (modeling_bailing_hybrid, modeling_kimi_linear, modeling_glm5_next)
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
    """Logits [T, vocab] of a folder by the transformers class `kind`, in fp32; every tensor of the model is in the file."""
    model, report = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"], report
    return model_logits(model, ids)


def model_logits(model: Any, ids: Sequence[int]) -> np.ndarray:
    with torch.no_grad(), plain_torch():
        return model.eval()(torch.tensor([list(ids)])).logits[0].double().numpy()
