"""Which precision is computed in: what was asked for, what a quantised file holds, and what cannot be had."""

from __future__ import annotations

import pytest

from lingchat.architectures.hybrid import Quantization
from lingchat.errors import UsageError
from lingchat.runtime.loading import DTYPES, choose_dtype


@pytest.mark.parametrize(
    ("device", "stored", "dtype"),
    [
        ("cpu", "none", "int8"),
        ("cpu", "fp8", "int8"),
        ("cuda", "none", "bf16"),
        ("cuda", "fp8", "fp8"),
        ("cuda", "int4", "int4"),
    ],
)
def test_by_itself_a_gpu_takes_what_a_file_holds(device: str, stored: Quantization, dtype: str) -> None:
    assert choose_dtype(None, device, stored) == dtype


def test_what_is_asked_for_is_taken() -> None:
    assert [choose_dtype(dtype, "cpu", "none") for dtype in ("int8", "fp32", "bf16")] == ["int8", "fp32", "bf16"]
    assert choose_dtype("fp8", "cpu", "fp8") == "fp8"


@pytest.mark.parametrize(
    ("asked", "device", "stored", "text"),
    [
        ("fp64", "cpu", "none", f"--dtype fp64 is not known; choose one of {', '.join(DTYPES)}."),
        ("int8", "cuda", "none", "runs on the CPU only"),
        ("fp8", "cuda", "none", "needs a model file with fp8 weights; this one is not quantised"),
        ("int4", "cpu", "fp8", "needs a model file with int4 weights; this one holds fp8"),
    ],
)
def test_what_cannot_be_had_is_refused(asked: str, device: str, stored: Quantization, text: str) -> None:
    with pytest.raises(UsageError) as refused:
        choose_dtype(asked, device, stored)
    assert text in str(refused.value)
