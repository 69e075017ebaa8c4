"""Memory: bytes against those of real tensors, free memory from recorded files, and what a refusal says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from make_models import FAMILIES, tiny_config, write_gguf

from lingchat.architectures.dense_names import expected_shapes
from lingchat.architectures.plan import MemoryPlan, check_fits, plan
from lingchat.errors import DoesNotFit
from lingchat.kernels.gemv import Int8Weight
from lingchat.kernels.quant import int8_rows, to_torch
from lingchat.runtime.weights.load import open_weights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
GB = 10**9


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_weight_bytes_are_those_of_the_tensors(family: str, dtype: str, tmp_path: Path) -> None:
    weights = open_weights(write_gguf(tmp_path / "m.gguf", family).path)
    total = 0
    for raw in map(weights.tensor, weights.names()):
        if len(raw.shape) == 1:
            total += to_torch(raw).nbytes
        elif dtype == "int8":
            total += sum(tensor.nbytes for tensor in int8_rows(raw))
        else:
            total += to_torch(raw, DTYPES[dtype]).nbytes
    assert plan(weights.config, dtype, 100).weights == total


def test_int8_rows_of_odd_length_take_the_room_that_the_kernel_gives_them() -> None:
    config = tiny_config("qwen2", hidden=70, ffn=33, tied=False)
    shapes = expected_shapes(config).values()
    total = sum(Int8Weight.quantize(torch.ones(shape)).nbytes if len(shape) == 2 else 4 * shape[0] for shape in shapes)
    assert plan(config, "int8", 1).weights == total


@pytest.mark.parametrize(("dtype", "width"), [("fp32", 4), ("bf16", 2), ("int8", 2)])
def test_kv_bytes_are_those_of_the_cache(dtype: str, width: int) -> None:
    config = tiny_config("qwen3")
    assert plan(config, dtype, 1000).kv == 2 * config.layers * 1000 * config.kv_heads * config.head_dim * width
    assert plan(config, dtype, 1000, kv_bytes=4).kv == 2 * config.layers * 1000 * config.kv_heads * config.head_dim * 4
    assert plan(config, dtype, 0).kv == 0


def test_workspace_grows_with_rows_and_not_with_the_context() -> None:
    config = tiny_config("llama")
    assert plan(config, "fp32", 10).workspace == plan(config, "fp32", 10**6).workspace
    assert plan(config, "fp32", 10, rows=512).workspace > plan(config, "fp32", 10, rows=64).workspace
    assert plan(config, "fp32", 10).total == sum(
        getattr(plan(config, "fp32", 10), part) for part in ("weights", "kv", "state", "workspace")
    )


def test_what_fits_says_nothing_and_one_byte_less_does() -> None:
    needed = MemoryPlan(weights=3 * GB, kv=2 * GB, state=0, workspace=GB, context=8000)
    check_fits(needed, 7 * GB, reserve=GB)
    with pytest.raises(DoesNotFit):
        check_fits(needed, 7 * GB - 1, reserve=GB)


def test_a_refusal_has_needed_and_free_bytes_and_the_way_out() -> None:
    needed = MemoryPlan(weights=3 * GB, kv=2 * GB, state=0, workspace=GB, context=8000)
    with pytest.raises(DoesNotFit) as caught:
        check_fits(needed, 6 * GB, reserve=GB)
    text = str(caught.value)
    assert (
        "needs 7.00 GB of memory (weights 3.00 GB, context of 8000 tokens 2.00 GB, workspace 2.00 GB), 6.00 GB are free"
    ) in text
    assert "A context of at most 4000 tokens would fit." in text
    check_fits(MemoryPlan(weights=3 * GB, kv=GB, state=0, workspace=GB, context=4000), 6 * GB, reserve=GB)
    with pytest.raises(DoesNotFit, match=r"1\.00 GB are free\. .*smaller model"):
        check_fits(needed, GB, reserve=GB)
