"""Does it fit? The bytes a dense model will take, from its shapes alone, against the memory that is free.

Asked before anything is allocated. Knows no back end: a dtype is a name with a number of bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lingchat.errors import DoesNotFit
from lingchat.architectures.dense import DenseConfig
from lingchat.architectures.dense_names import expected_shapes

# Bytes a value: of matrices, and of KV rows. int8 has a bf16 scale a row besides; its KV rows are bf16.
_MATRIX = {"fp32": 4, "bf16": 2, "int8": 1}
_KV = {"fp32": 4, "bf16": 2, "int8": 2}
_INT8_COLUMNS = 32  # rows of int8 are padded to a multiple of this (kernels/gemv.py)
_FP32 = 4  # vectors (norms, biases), activations and logits
_LOGIT_ROWS = 32  # verified rows whose logits, and as many of their probabilities, exist at once
RESERVE = 384 << 20  # the process itself: the interpreter, torch's libraries, a tokenizer


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by purpose. `state` is what does not grow with the context (none in dense models)."""

    weights: int
    kv: int
    state: int
    workspace: int
    context: int  # tokens that `kv` holds

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.state + self.workspace


def plan(config: DenseConfig, dtype: str, context: int, *, rows: int = 256, kv_bytes: int | None = None) -> MemoryPlan:
    """The plan for matrices in `dtype` (fp32, bf16 or int8), `context` tokens, prefill in chunks of `rows`.

    `kv_bytes` is the width of a cached value where the back end does not take the one that goes with `dtype`.
    """
    return MemoryPlan(
        weights=sum(_tensor_bytes(shape, dtype) for shape in expected_shapes(config).values()),
        kv=2 * config.layers * context * config.kv_heads * config.head_dim * (kv_bytes or _KV[dtype]),
        state=0,
        workspace=_workspace(config, rows),
        context=context,
    )


def check_fits(needed: MemoryPlan, free_bytes: int, *, reserve: int = RESERVE) -> None:
    """Raises DoesNotFit, with needed and free bytes, when `needed` and the process's own `reserve` exceed them."""
    total = needed.total + reserve
    if total <= free_bytes:
        return
    message = (
        f"The model needs {_gb(total)} of memory (weights {_gb(needed.weights)}, "
        f"context of {needed.context} tokens {_gb(needed.kv)}), {_gb(free_bytes)} are free."
    )
    left = free_bytes - (total - needed.kv)
    fitting = left * needed.context // needed.kv if needed.kv else 0
    if fitting >= 256:
        advice = f"A context of at most {fitting} tokens would fit."
    else:
        advice = "Close other programs, or use a smaller model or a smaller quantisation."
    raise DoesNotFit(f"{message} {advice}")


def _tensor_bytes(shape: tuple[int, ...], dtype: str) -> int:
    if len(shape) == 1:
        return shape[0] * _FP32
    if dtype == "int8":  # whole vectors of the kernel, and a scale a row
        return shape[0] * (-(-shape[1] // _INT8_COLUMNS) * _INT8_COLUMNS + 2)
    return math.prod(shape) * _MATRIX[dtype]


def _workspace(config: DenseConfig, rows: int) -> int:
    """Activations of one block for `rows` rows, and logits with their probabilities for the verified rows."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    # residual, normed, out-projection; q, k, v and attention's output; gate, up and their product
    a_row = 3 * config.hidden + 2 * q + 2 * kv + 3 * config.ffn
    return _FP32 * (rows * a_row + 2 * min(rows, _LOGIT_ROWS) * config.vocab)


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB"
