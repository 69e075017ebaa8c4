"""Which code computes on the CPU, as doctor tells it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lingchat import doctor
from lingchat.kernels.cpu import library
from lingchat.kernels.cpu.native import BESIDE, Native, Status


def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, status: Status) -> str:
    monkeypatch.setenv("LINGCHAT_DEVICE", "cpu")
    monkeypatch.setattr(library, "status", lambda: status)
    assert doctor.main([]) == 0
    return capsys.readouterr().out


def native(path: Path) -> Native:
    made = object.__new__(Native)
    made.path, made.isa = path, "avx2"
    return made


@pytest.mark.parametrize(("folder", "origin"), [(BESIDE, "at installation"), (Path("elsewhere"), "at first use")])
def test_native_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path, origin: str
) -> None:
    text = told(capsys, monkeypatch, Status(native(folder / "library.so")))
    line = next(line for line in text.splitlines() if "CPU code" in line)
    assert line.split("CPU code")[1].strip() == f"native, avx2, built {origin} ({folder / 'library.so'})"
    assert "torch computes" not in text


@pytest.mark.parametrize(
    ("status", "do"),
    [
        (Status(None, "there is no C++ compiler (c++)", compiler=False), "install a C++ compiler"),
        (Status(None, "building it failed: x.cpp:1: error: y", failed=True), "tries again"),
        (Status(None, "it is not built yet"), "in the background when a model is next loaded"),
    ],
)
def test_no_native_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, status: Status, do: str
) -> None:
    text = told(capsys, monkeypatch, status)
    line = next(line for line in text.splitlines() if "CPU code" in line)
    assert line.split("CPU code")[1].strip() == f"torch int8, no native code: {status.why}"
    assert do in next(line for line in text.splitlines() if line.startswith("Note: ") and "torch computes" in line)


def test_the_facts_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "status", lambda: Status(None, "it is not built yet"))
    assert doctor.main(["--output", "json"]) == 0
    code = json.loads(capsys.readouterr().out)["device"]["cpu_code"]
    assert (code["native"], code["why"]) == (False, "it is not built yet")
