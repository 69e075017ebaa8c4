"""Memory: bytes against those of real tensors, free memory from recorded files, and what a refusal says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from make_models import FAMILIES, tiny_config, write_gguf

from lingchat.errors import DoesNotFit, EngineError
from lingchat.kernels.gemv import Int8Weight
from lingchat.kernels.quant import int8_rows, to_torch
from lingchat.runtime.weights.load import open_weights
from lingchat.runtime.weights.names import expected_shapes
from lingchat.runtime.weights.plan import (
    MemoryPlan,
    cgroup_free,
    check_fits,
    free_memory,
    meminfo_available,
    plan,
    vm_stat_free,
)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
GB = 10**9


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "int8"])
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
    assert "needs 7.00 GB of memory (weights 3.00 GB, context of 8000 tokens 2.00 GB), 6.00 GB are free" in text
    assert "A context of at most 4000 tokens would fit." in text
    check_fits(MemoryPlan(weights=3 * GB, kv=GB, state=0, workspace=GB, context=4000), 6 * GB, reserve=GB)
    with pytest.raises(DoesNotFit, match=r"1\.00 GB are free\. .*smaller model"):
        check_fits(needed, GB, reserve=GB)


def test_this_machine_has_free_memory() -> None:
    assert 10**7 < free_memory() < 10**14


def test_meminfo(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       8000000 kB\nMemFree:   100 kB\nMemAvailable:    5000 kB\n")
    assert meminfo_available(tmp_path / "meminfo") == 5_120_000
    assert meminfo_available(tmp_path / "none") is None


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_cgroup_2_the_tightest_group_above_counts(tmp_path: Path) -> None:
    (tmp_path / "me").write_text("0::/user/session\n")
    mount = tmp_path / "fs"
    group(mount / "user/session", memory__max="max", memory__current="500")
    assert cgroup_free(tmp_path / "me", mount) is None
    group(mount / "user", memory__max="10000", memory__current="4000", memory__stat="anon 1\ninactive_file 300")
    assert cgroup_free(tmp_path / "me", mount) == 6300
    group(mount / "user/session", memory__max="2000", memory__current="2500")
    assert cgroup_free(tmp_path / "me", mount) == 0
    # Inside a container the process's path is the host's, and only the group's own folder is mounted.
    (tmp_path / "me").write_text("0::/docker/123\n")
    group(mount, memory__max="900", memory__current="100")
    assert cgroup_free(tmp_path / "me", mount) == 800


def test_cgroup_1(tmp_path: Path) -> None:
    (tmp_path / "me").write_text("9:cpu,cpuacct:/x\n4:memory:/jobs/a\n0::/\n")
    mount = tmp_path / "fs"
    group(mount / "memory" / "jobs", memory__limit_in_bytes=str(2**63 - 4096), memory__usage_in_bytes="10")
    assert cgroup_free(tmp_path / "me", mount) is None
    group(
        mount / "memory" / "jobs" / "a",
        memory__limit_in_bytes="1000",
        memory__usage_in_bytes="400",
        memory__stat="inactive_file 1\ntotal_inactive_file 50",
    )
    assert cgroup_free(tmp_path / "me", mount) == 650
    assert cgroup_free(tmp_path / "none", mount) is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_control_group_limits_what_the_system_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lingchat.runtime.weights.plan.cgroup_free", lambda *_: 12345)
    assert free_memory() == 12345


def test_vm_stat_of_macos() -> None:
    text = (
        "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n"
        "Pages free:                               10.\nPages active:                             99.\n"
        "Pages inactive:                           20.\nPages speculative:                         3.\n"
        "Pages wired down:                         50.\nPages purgeable:                           4.\n"
    )
    assert vm_stat_free(text) == 37 * 16384
    with pytest.raises(EngineError, match="vm_stat"):
        vm_stat_free("surprise")
