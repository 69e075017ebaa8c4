"""Tiny models that never stop by themselves: they say abcabc... until their context is full."""

from __future__ import annotations

from pathlib import Path

import make_ling
import make_models
import torch
from safetensors.torch import load_file, save_file

CONTEXT = 16384  # thousands of rounds, however fast


def write_endless_dense(folder: Path, *, layers: int = 1, context: int = CONTEXT) -> Path:
    """A llama. More layers say the same, more slowly."""
    make_models.write_hf(folder, "llama", layers=layers, tied=False, context=context)
    file = folder / "model.safetensors"
    values = load_file(file)
    _say(values, "model.embed_tokens.weight", make_models.tokens(), "Ċ")  # a newline ends the prompt
    save_file(values, file)
    return folder


def write_endless_ling(folder: Path) -> Path:
    """A Ling-3.0 of four layers; its context holds 2,048 tokens."""
    config = make_ling.ling_config(layers=4, heads=1)
    values = make_ling.random_tensors(config)
    _say(values, "embed_tokens.weight", make_ling.tokens(), "<think>", "</think>")
    make_ling.write_ling_hf(folder, config, tensors=values)
    return folder


def _say(values: dict[str, torch.Tensor], embedding: str, vocabulary: list[str], *starts: str) -> None:
    for name in values:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            values[name] *= 0  # the residual stays the token's embedding
    head, rows = values["lm_head.weight"], values[embedding]
    head *= 0
    for before, after in (*((start, "a") for start in starts), ("a", "b"), ("b", "c"), ("c", "a")):
        head[vocabulary.index(after)] += rows[vocabulary.index(before)]
