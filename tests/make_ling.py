"""Tiny random checkpoints of the Ling-3.0 and Kimi-Linear architectures, complete: weights, tokenizer, chat template.

`write_ling_hf` and `write_kimi_hf` write safetensors folders in the published naming, `write_ling_gguf` and
`write_kimi_gguf` what llama.cpp's converter writes. All of one seed and size hold the same weights. Each returns a
`Tiny`: the configuration that reading must give, and by canonical name the fp32 values that the file's bytes stand
for, with the experts of a layer stacked and the latent's up-projection whole, however the file has them.

The names of `hybrid_names.py` are used here, those of files are written down anew.
"""

from __future__ import annotations

from ling_models import (
    EOS,
    FIRST_SPECIAL,
    PAD,
    SPECIAL,
    TEMPLATE,
    VOCAB,
    Tiny,
    Values,
    kimi_config,
    ling_config,
    ling_kinds,
    looping_tensors,
    random_tensors,
    tokens,
    write_tokenizer,
)
from make_ling_gguf import write_kimi_gguf, write_ling_gguf
from make_ling_hf import fp8_blocks, int4_groups, kimi_raw, ling_raw, write_kimi_hf, write_ling_hf

__all__ = [
    "EOS",
    "FIRST_SPECIAL",
    "PAD",
    "SPECIAL",
    "TEMPLATE",
    "VOCAB",
    "Tiny",
    "Values",
    "fp8_blocks",
    "int4_groups",
    "kimi_config",
    "kimi_raw",
    "ling_config",
    "ling_kinds",
    "ling_raw",
    "looping_tensors",
    "random_tensors",
    "tokens",
    "write_kimi_gguf",
    "write_kimi_hf",
    "write_ling_gguf",
    "write_ling_hf",
    "write_tokenizer",
]
