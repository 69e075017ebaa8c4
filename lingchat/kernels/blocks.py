"""Sizes of the number formats weight files use: how many values a block holds, and in how many bytes.

Facts of the file formats, without torch, so that a header can be checked before anything heavy is imported.
Knows no files and no models. The decoding itself is `quant.py`.
"""

from __future__ import annotations

from typing import NamedTuple


class Block(NamedTuple):
    """`values` consecutive values of a row take `nbytes` bytes."""

    values: int
    nbytes: int


# ggml's types by their number in a GGUF file (ggml.h, `enum ggml_type`).
GGML_TYPES: dict[int, tuple[str, Block]] = {
    0: ("F32", Block(1, 4)),
    1: ("F16", Block(1, 2)),
    2: ("Q4_0", Block(32, 18)),
    3: ("Q4_1", Block(32, 20)),
    6: ("Q5_0", Block(32, 22)),
    7: ("Q5_1", Block(32, 24)),
    8: ("Q8_0", Block(32, 34)),
    9: ("Q8_1", Block(32, 36)),
    10: ("Q2_K", Block(256, 84)),
    11: ("Q3_K", Block(256, 110)),
    12: ("Q4_K", Block(256, 144)),
    13: ("Q5_K", Block(256, 176)),
    14: ("Q6_K", Block(256, 210)),
    15: ("Q8_K", Block(256, 292)),
    16: ("IQ2_XXS", Block(256, 66)),
    17: ("IQ2_XS", Block(256, 74)),
    18: ("IQ3_XXS", Block(256, 98)),
    19: ("IQ1_S", Block(256, 50)),
    20: ("IQ4_NL", Block(32, 18)),
    21: ("IQ3_S", Block(256, 110)),
    22: ("IQ2_S", Block(256, 82)),
    23: ("IQ4_XS", Block(256, 136)),
    24: ("I8", Block(1, 1)),
    25: ("I16", Block(1, 2)),
    26: ("I32", Block(1, 4)),
    27: ("I64", Block(1, 8)),
    28: ("F64", Block(1, 8)),
    29: ("IQ1_M", Block(256, 56)),
    30: ("BF16", Block(1, 2)),
    34: ("TQ1_0", Block(256, 54)),
    35: ("TQ2_0", Block(256, 66)),
    39: ("MXFP4", Block(32, 17)),
    40: ("NVFP4", Block(64, 36)),
    41: ("Q1_0", Block(128, 18)),
}

SAFETENSORS_TYPES: dict[str, Block] = {
    "F64": Block(1, 8),
    "F32": Block(1, 4),
    "F16": Block(1, 2),
    "BF16": Block(1, 2),
    "F8_E4M3": Block(1, 1),
    "F8_E5M2": Block(1, 1),
    "F8_E8M0": Block(1, 1),
    "I64": Block(1, 8),
    "I32": Block(1, 4),
    "I16": Block(1, 2),
    "I8": Block(1, 1),
    "U64": Block(1, 8),
    "U32": Block(1, 4),
    "U16": Block(1, 2),
    "U8": Block(1, 1),
    "BOOL": Block(1, 1),
}

# Types whose scales lie in a tensor beside them: safetensors' 8-bit floats in blocks of 128 x 128, and nibbles packed
# into int32, which compressed-tensors calls pack-quantized.
SCALED = ("F8_E4M3", "I4")
FP8_BLOCK = 128  # rows and columns that share a scale
INT4_GROUP = 32  # values of a row that share one in published files

BLOCKS: dict[str, Block] = dict(GGML_TYPES.values()) | {"F8_E4M3": Block(1, 1), "I4": Block(8, 4)}

# The types `quant.py` turns into numbers by themselves. A test holds the two together.
DECODABLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
