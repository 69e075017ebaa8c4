"""Which device is chosen, whatever this machine has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lingchat.errors import NoDevice, UsageError
from lingchat.kernels import devices
from lingchat.kernels.devices import choose_device, may_have_gpu


@pytest.mark.parametrize(("there", "asked", "chosen"), [
    (True, "auto", "cuda"), (True, "cuda", "cuda"), (True, "cpu", "cpu"), (False, "auto", "cpu"), (False, "cpu", "cpu"),
])  # fmt: skip
def test_auto_is_a_gpu_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, there: bool, asked: str, chosen: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(devices, "may_have_gpu", lambda: True)
    assert choose_device(asked) == chosen


def test_torch_is_asked_only_where_the_system_shows_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not may_have_gpu(tmp_path)
    monkeypatch.setattr(devices, "may_have_gpu", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("torch was asked"))
    assert choose_device("auto") == "cpu"
    (tmp_path / "nvidiactl").touch()
    assert may_have_gpu(tmp_path)


def test_a_gpu_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(NoDevice, match=r"--device cuda: this torch is a build for the CPU only\. Use --device auto"):
        choose_device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(NoDevice, match="torch sees no NVIDIA GPU here"):
        choose_device("cuda")
    with pytest.raises(UsageError, match="choose one of auto, cpu, cuda"):
        choose_device("tpu")
    assert NoDevice.exit_code == 4
