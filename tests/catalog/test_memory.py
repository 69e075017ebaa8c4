"""Free memory, from recorded files of every kind of system."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lingchat.catalog.memory import cgroup_free, free_memory, meminfo_available, total, vm_stat_free
from lingchat.errors import EngineError


def test_this_machine_has_free_memory() -> None:
    assert 10**7 < free_memory() <= total() < 10**14


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
    monkeypatch.setattr("lingchat.catalog.memory.cgroup_free", lambda *_: 12345)
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
