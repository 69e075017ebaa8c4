"""The machine's name, from the texts that systems give."""

from __future__ import annotations

from pathlib import Path

import pytest

from lingchat import machine
from lingchat.doctor import device

X86 = "processor\t: 0\nmodel name\t: Intel(R)  Xeon(R) CPU\n\nprocessor\t: 1\nmodel name\t: another\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd\n"


def test_a_processor_has_the_name_that_linux_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text(X86)
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    assert machine.processor_name() == "Intel(R) Xeon(R) CPU"
    assert machine.machine().startswith(f"Intel(R) Xeon(R) CPU, {machine.usable_threads()} threads, ")
    assert device.processor()["name"] == machine.processor_name()


@pytest.mark.parametrize("cpuinfo", [ARM, None])
def test_without_a_name_it_is_the_kind(cpuinfo: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "output", lambda *command: "")
    monkeypatch.setattr(machine.platform, "processor", lambda: "")
    monkeypatch.setattr(machine.platform, "machine", lambda: "aarch64")
    assert machine.processor_name() == "aarch64"
