"""The variants of tiny hybrid models that every judge sees, each with its file and the judges' numbers, made once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from ling_reference import Reference
from llama_cpp_judge import llama_cpp
from make_ling import Tiny, kimi_config, ling_config, random_tensors, write_kimi_gguf, write_ling_gguf

from lingchat.architectures.hybrid import HybridConfig

POSITIONS = 64
# Period 4 and 6, layer counts on and off the period, with and without query LoRA, 16 and 32 experts, limits, MTP,
# heads of the published sizes.
VARIANTS: dict[str, tuple[int, HybridConfig]] = {
    "period-4": (1, ling_config(period=4, layers=8, q_rank=32)),
    "period-4-off": (2, ling_config(period=4, layers=9, experts=32)),
    "period-6-limits": (3, ling_config(period=6, layers=6, dense=2, limits=True)),
    "period-6-off-limits": (4, ling_config(period=6, layers=8, q_rank=32, experts=32, dense=2, limits=True)),
    "mtp": (5, ling_config(period=4, layers=4, mtp=1)),
    "published-heads": (8, ling_config(period=4, layers=4, q_rank=32, published_heads=True)),
    "kimi": (6, kimi_config(layers=5)),
    "kimi-two-periods": (7, kimi_config(layers=8, experts=32)),
    "kimi-published-heads": (9, kimi_config(layers=4, published_heads=True)),
}


def ids_of(count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, 498, count)]


def log_softmax(logits: Any) -> np.ndarray:
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def distance(got: Any, want: Any) -> np.ndarray:
    """How far log-probabilities or logits [T, V] are from others, a position: |got - want| / |want|, both centred, so
    that a constant added to all logits of a row counts for nothing."""
    got, want = (x - x.mean(-1, keepdims=True) for x in (np.asarray(got, np.float64), np.asarray(want, np.float64)))
    return np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)


@dataclass
class Case:
    """A GGUF file of a variant, `POSITIONS` ids, and what fp64 and llama.cpp make of them: [T, vocab].

    llama.cpp rounds activations where weights are not F32, and where that made an expert change no bound would hold:
    such files have steady routers.
    """

    name: str
    folder: Path
    qtype: str = "F32"

    @cached_property
    def tiny(self) -> Tiny:
        seed, config = VARIANTS[self.name]
        write = write_kimi_gguf if self.name.startswith("kimi") else write_ling_gguf
        tensors = random_tensors(config, seed, steady=self.qtype != "F32")
        return write(self.folder / f"{self.name}-{self.qtype}.gguf", config, tensors=tensors, qtype=self.qtype)

    @cached_property
    def ids(self) -> list[int]:
        return ids_of(POSITIONS, VARIANTS[self.name][0])

    @cached_property
    def reference(self) -> Reference:
        """The fp64 model after all of `ids`."""
        model = Reference(self.tiny.config, self.tiny.tensors)
        self.logits = model.logits(self.ids)
        return model

    @cached_property
    def fp64(self) -> np.ndarray:
        assert self.reference.position == POSITIONS
        return self.logits

    @cached_property
    def llama_cpp(self) -> np.ndarray:
        """Log-probabilities, decoded one by one."""
        self.prefilled: dict[int, np.ndarray]
        with llama_cpp(self.tiny.path) as judge:
            decoded = judge.logprobs(self.ids)
            self.prefilled = {count: judge.next_token(self.ids[:count]) for count in (1, 5, 63, 64)}
        return decoded
