"""Bytes that a model's weights take in memory, tensor by tensor, as the back end packs them. Knows no machine.

Native code (kernels/cpu/types.h) takes panels of rows in a kind that follows from a tensor's type; see `_native_bytes`.
What follows is torch's. Matrices become what the dtype says. Routed experts stay as their file has them where it quantises them, and so do fp8
matrices of an fp8 file; vectors, convolutions and routers are fp32. With int8, experts of up to 5 bits a value take 5
(kernels/int4.py); a processor without the product for them, neither AVX2 nor AVX-512, takes the file's bytes, which
are at most a tenth less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from lingchat.architectures import dense_names, hybrid_names
from lingchat.architectures.dense import DenseConfig
from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.states import FP32
from lingchat.kernels.cpu import structs

StoredBytes = Mapping[str, int]  # bytes in the file by canonical name, scales included
StoredTypes = Mapping[str, str]  # and types

# What native code makes of a file's types, as `lc_kind` in kernels/cpu/pack.cpp has it.
NATIVE_KINDS = {
    **dict.fromkeys(("F32", "F16", "BF16", "F8_E4M3", "Q8_0"), structs.W8),
    **dict.fromkeys(("Q4_0", "I4"), structs.W4Z),
    **dict.fromkeys(("Q4_1", "Q4_K"), structs.W4M),
    **{"Q5_0": structs.W5Z, "Q5_1": structs.W5M, "Q5_K": structs.W5M, "Q6_K": structs.W6},
}
# And where only the bits a value are known, estimated for want of a file: up to so many become this kind.
_KINDS_BY_BITS = ((5.1, structs.W4M), (6.1, structs.W5M), (7.0, structs.W6))

# Bytes a value of a matrix. int8 has a bf16 scale a row besides. fp8 and int4 are what a file holds and nothing else
# becomes: the rest of such a model is bf16.
_MATRIX = {"fp32": 4, "bf16": 2, "fp8": 2, "int4": 2, "int8": 1}
_INT8_COLUMNS = 32  # rows of int8 are padded to a multiple of this (kernels/gemv.py)
_INT4_ROWS, _INT4_COLUMNS, _INT4_BITS = 64, 32, 5  # experts of whole blocks of this shape take so many bits a value
_LATENT_UP = ("kv_b_proj.weight", "mla.k_b_proj.weight", "mla.v_b_proj.weight")
_FLOAT = 2  # bytes a value from which on a file's type is a plain float


def weight_bytes(
    config: DenseConfig | HybridConfig,
    dtype: str,
    stored: StoredBytes | None,
    *,
    on_host: bool,
    mtp: bool = False,
    native: bool = False,
    types: StoredTypes | None = None,
) -> int:
    """All weights of the main model, and of the drafting layer with `mtp`. `stored` must be there for hybrid models; a
    dense one without it has none that are quantised. `native`: for native code, which knows `types`, or guesses them."""
    if native:
        return _native_bytes(config, stored, types, mtp)
    if isinstance(config, DenseConfig):
        dense = dense_names.expected_shapes(config)
        return sum(_dense_bytes(name, shape, dtype, stored) for name, shape in dense.items())
    assert stored is not None
    shapes = hybrid_names.expected_shapes(config, mtp=mtp)
    return sum(_hybrid_bytes(name, shape, dtype, stored[name], on_host) for name, shape in shapes.items())


def largest_tensor(config: DenseConfig | HybridConfig, stored: StoredBytes | None) -> int:
    """Bytes of the largest tensor of the file: what is in memory twice while it is packed. 0 for dense models, whose
    matrices are decoded piece by piece."""
    return 0 if isinstance(config, DenseConfig) or stored is None else max(stored.values())


def _native_bytes(
    config: DenseConfig | HybridConfig, stored: StoredBytes | None, types: StoredTypes | None, mtp: bool
) -> int:
    """Panels of 16 rows, in blocks of 32 columns; fp32 vectors, convolutions and routers; fp16 where queries and
    outputs are taken through a latent's up-projections, head by head."""
    if isinstance(config, DenseConfig):
        shapes = dense_names.expected_shapes(config)
    else:
        shapes = hybrid_names.expected_shapes(config, mtp=mtp)
    return sum(
        native_tensor_bytes(
            config, name, shape, None if types is None else types[name], None if stored is None else stored[name]
        )
        for name, shape in shapes.items()
    )


def native_tensor_bytes(
    config: DenseConfig | HybridConfig, name: str, shape: tuple[int, ...], type_: str | None, stored: int | None = None
) -> int:
    """One tensor's, of a file's `type_`, or where that is not known, of `stored` bytes."""
    *front, rows, columns = (1, *shape)
    if len(shape) == 1 or name.endswith("_conv.weight"):
        return math.prod(shape) * FP32
    if name.endswith("router.weight"):
        return _panels(structs.F32, rows, columns)
    if isinstance(config, HybridConfig) and name.endswith(_LATENT_UP):
        mla = config.mla
        keys, values = _panels(structs.F16, mla.kv_rank, mla.nope), _panels(structs.F16, mla.value, mla.kv_rank)
        parts = (("k_b_proj", keys), ("v_b_proj", values))
        return mla.heads * sum(each for part, each in parts if part in name or "kv_b_proj" in name)
    bits = None if stored is None else 8 * stored / math.prod(shape)
    return math.prod(front) * _panels(_native_kind(config, type_, bits), rows, columns)


def _native_kind(config: DenseConfig | HybridConfig, type_: str | None, bits: float | None) -> int:
    if type_ is not None:
        return NATIVE_KINDS[type_]
    if bits is None:
        return structs.W8
    if bits < 5 and config.quantization == "int4":
        return structs.W4Z
    return next((kind for most, kind in _KINDS_BY_BITS if bits <= most), structs.W8)


def _panels(kind: int, rows: int, columns: int) -> int:
    return -(-rows // structs.PANEL) * structs.panel_bytes(kind, columns)


def _dense_bytes(name: str, shape: tuple[int, ...], dtype: str, stored: StoredBytes | None) -> int:
    if dtype in ("fp8", "int4") and stored is not None and stored[name] < _FLOAT * math.prod(shape):
        return stored[name]
    return _matrix_bytes(shape, dtype)


def _hybrid_bytes(name: str, shape: tuple[int, ...], dtype: str, stored: int, on_host: bool) -> int:
    values = math.prod(shape)
    quantised = stored < _FLOAT * values
    if hybrid_names.is_routed_expert(name):
        fits = shape[-2] % _INT4_ROWS == 0 and shape[-1] % _INT4_COLUMNS == 0
        if dtype == "int8" and fits and 8 * stored <= _INT4_BITS * values:
            return _INT4_BITS * values // 8
        if quantised or dtype == "fp32":
            return stored
        return _matrix_bytes(shape, dtype)
    if name.endswith(("_conv.weight", "router.weight")) or len(shape) == 1:
        return values * FP32
    if name.endswith(_LATENT_UP):
        # Queries and outputs are taken through these in fp32 on a host.
        return values * (FP32 if on_host else _MATRIX[dtype])
    if dtype == "fp8" and quantised:
        return stored
    return _matrix_bytes(shape, dtype)


def _matrix_bytes(shape: tuple[int, ...], dtype: str) -> int:
    if len(shape) == 1:
        return shape[0] * FP32
    if dtype == "int8":  # whole vectors of the kernel, and a scale a row
        return math.prod(shape[:-1]) * (-(-shape[-1] // _INT8_COLUMNS) * _INT8_COLUMNS + 2)
    return math.prod(shape) * _MATRIX[dtype]
