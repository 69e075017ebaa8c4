"""Processor and GPU facts, from the texts that systems give."""

from __future__ import annotations

import stat
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from lingchat.doctor import device

INTEL = "".join(
    f"processor\t: {i}\nmodel name\t: Intel(R)  Xeon(R) CPU\nphysical id\t: 0\ncore id\t\t: {i // 2}\n"
    "flags\t\t: fpu sse2 fma avx2 avx512f avx512bw avx512_vnni amx_int8\n\n"
    for i in range(4)
)
ARM = "".join(
    f"processor\t: {i}\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd asimddp i8mm bf16 sve\nCPU implementer\t: 0x41\n\n"
    for i in range(3)
)


def test_hyperthreads_are_not_cores() -> None:
    found = device.parse_cpuinfo(INTEL)
    assert found["cores"] == 2
    assert found["instruction_sets"] == ["AVX2", "FMA", "AVX-512F", "AVX-512BW", "AVX-512 VNNI", "AMX INT8"]


def test_arm_has_features_and_no_core_ids() -> None:
    found = device.parse_cpuinfo(ARM)
    assert found["cores"] == 3
    assert found["instruction_sets"] == ["NEON", "dot product", "I8MM", "BF16", "SVE"]


def test_an_empty_cpuinfo() -> None:
    assert device.parse_cpuinfo("") == {"cores": 0, "instruction_sets": []}


@pytest.mark.parametrize(
    ("text", "cores"), [("200000 100000\n", 2.0), ("max 100000\n", 0.0), ("odd", 0.0), (None, 0.0)]
)
def test_core_limit(tmp_path: Path, text: str | None, cores: float) -> None:
    if text is not None:
        (tmp_path / "cpu.max").write_text(text)
    assert device.core_limit(tmp_path / "cpu.max") == cores


def test_this_machine() -> None:
    found = device.processor()
    assert found["name"] and 0 < found["usable_threads"] <= found["threads"] and found["cores"] > 0


def smi(folder: Path, body: str) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!{sys.executable}\n{body}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)


def test_gpus_by_the_driver_s_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    smi(tmp_path, "print('NVIDIA H200, 143771, 580.95.05')")
    found = device.gpus()
    assert found["cuda"] and found["driver"] == "580.95.05"
    assert found["devices"] == [{"name": "NVIDIA H200", "memory": 143771 << 20}]
    smi(tmp_path, "raise SystemExit('No devices were found')")
    assert device.gpus()["devices"] == []


def test_gpus_by_what_the_driver_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no tool
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n")
    monkeypatch.setattr(device, "NVIDIA_VERSION", version)
    assert device.gpus()["driver"] == "580.95.05"


HERE = {"cuda": True, "devices": [{"name": "NVIDIA H200", "memory": 1}], "nodes": [], "driver": "570.1"}
NONE = {"cuda": False, "devices": [], "nodes": [], "driver": ""}


@pytest.mark.parametrize(
    ("asked", "gpu", "cuda", "uses", "why"),
    [
        ("auto", HERE, "12.8", "cuda", "built for CUDA 12.8"),
        ("auto", HERE, "", "cpu", "a build for the CPU only"),
        ("auto", HERE, None, "cpu", "no torch"),
        ("auto", NONE, "12.8", "cpu", "no NVIDIA GPU"),
        ("cpu", HERE, "12.8", "cpu", "as set"),
        ("cuda", HERE, "12.8", "cuda", "built for CUDA 12.8"),
        ("cuda", NONE, "12.8", "", "no NVIDIA GPU"),
        ("cuda", HERE, "", "", "a build for the CPU only"),
    ],
)
def test_the_device_that_will_be_used(asked: str, gpu: dict, cuda: str | None, uses: str, why: str) -> None:
    found = device.chosen(asked, gpu, cuda)
    assert found[0] == uses and why in found[1]


def test_torch_is_asked_without_importing_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its version file tells: CUDA's number, nothing for a CPU build; a broken one is as good as none."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('a doctor must not do this')")
    monkeypatch.setattr(device, "find_spec", lambda name: spec_from_file_location(name, package / "__init__.py"))
    assert device.torch_cuda() is None
    for text, told in (
        ("cuda: Optional[str] = '12.8'\n", "12.8"),
        ("cuda: Optional[str] = None\n", ""),
        ("cuda = (\n", None),
    ):
        (package / "version.py").write_text(text)
        assert device.torch_cuda() == told
