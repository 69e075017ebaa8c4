"""The whole report: what it tells, what it finds wrong, and the exit code."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from lingchat import doctor
from lingchat.catalog import fetch, memory
from lingchat.config import paths
from lingchat.errors import UsageError


def report(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = doctor.main(["--output", "json"])
    return code, json.loads(capsys.readouterr().out)


def wrong(told: dict[str, Any]) -> str:
    return " | ".join(f"{one['what']} -> {one['mend']}" for one in told["wrong"])


def test_a_machine_where_nothing_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = report(capsys)
    assert (code, told["wrong"]) == (0, [])
    assert told["model"]["default"]["state"] == "absent"
    assert any("fetched on first use (93 MB" in note for note in told["notes"])
    assert told["versions"]["torch"] and told["versions"]["msgspec"] and told["sqlite"]["fts5"]
    assert told["memory"]["total"] >= told["memory"]["available"] > 0
    assert not paths().data.exists()  # it looks and makes nothing
    assert doctor.main([]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == "Nothing is wrong." and "\x1b" not in text


def test_the_default_model_is_verified(capsys: pytest.CaptureFixture[str], default_model: Path) -> None:
    folder = paths().models
    folder.mkdir(parents=True)
    (folder / default_model.name).symlink_to(default_model)
    assert fetch.default_state(folder) == "unverified"
    assert report(capsys)[1]["model"]["default"]["state"] == "verified"


@pytest.mark.parametrize("size", [10, fetch.DEFAULT.gguf_bytes])
def test_a_damaged_default_model(capsys: pytest.CaptureFixture[str], size: int) -> None:
    paths().models.mkdir(parents=True)
    with (paths().models / fetch.DEFAULT.filename).open("wb") as file:
        file.truncate(size)
    code, told = report(capsys)
    assert code == 1 and told["model"]["default"]["state"] == "damaged" and "fetched again" in wrong(told)


def test_a_configured_model_that_is_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, default_model: Path
) -> None:
    monkeypatch.setenv("LINGCHAT_MODEL", "/nowhere/model.gguf")
    code, told = report(capsys)
    assert code == 1 and "/nowhere/model.gguf" in wrong(told) and "lingchat models" in wrong(told)
    monkeypatch.setenv("LINGCHAT_MODEL", "org/name")
    code, told = report(capsys)
    assert code == 0 and any("org/name" in note for note in told["notes"])
    monkeypatch.setenv("LINGCHAT_MODEL", str(default_model))
    code, told = report(capsys)
    assert code == 0 and told["model"]["configured"]["runs"]


def test_settings_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    paths().config.mkdir(parents=True)
    paths().config_file.write_text("model = [")
    code, told = report(capsys)
    assert code == 1 and "config.toml" in wrong(told)


def test_a_home_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LINGCHAT_HOME", str(tmp_path / "file"))
    code, told = report(capsys)
    assert code == 1 and "LINGCHAT_HOME" in wrong(told) and not told["paths"]["data"]["writable"]


def test_too_little_memory_disk_and_packages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 1_000_000)
    monkeypatch.setattr(doctor, "_free", lambda path: 1_000_000)
    monkeypatch.setattr(doctor, "_required", lambda: ["no-such-package-here"])
    code, told = report(capsys)
    text = wrong(told)
    assert code == 1 and "only 1 MB of memory" in text and "1 MB are free at" in text and "no-such-package-here" in text


def test_sqlite_without_full_text_search(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(sqlite3.Connection):
        def execute(self, *_: Any) -> Any:
            raise sqlite3.OperationalError("no such module: fts5")

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda name: real(name, factory=Plain))
    code, told = report(capsys)
    assert code == 1 and "FTS5" in wrong(told)


def test_a_screen_that_cannot_be_drawn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    bad = {
        "stdout": True,
        "TERM": "dumb",
        "encoding": "ascii",
        "columns": 30,
        "lines": 10,
        "escape_time_ms": 0,
        "osc52": "",
    }
    monkeypatch.setattr(doctor.terminal, "facts", lambda: bad)
    code, told = report(capsys)
    text = wrong(told)
    assert code == 1 and "TERM is dumb" in text and "UTF-8" in text and "30x10" in text and "--plain" in text
    assert doctor.main([]) == 1
    assert "To mend it:" in capsys.readouterr().out.splitlines()[-1]


def test_a_typo_in_an_option() -> None:
    with pytest.raises(UsageError, match="--output"):
        doctor.main(["--outptu", "json"])


def test_the_device_that_the_engine_will_use(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        doctor.device,
        "gpus",
        lambda: {
            "cuda": True,
            "devices": [{"name": "NVIDIA H200", "memory": 143 << 30}],
            "nodes": [],
            "driver": "570.1",
        },
    )
    monkeypatch.setattr(doctor.device, "torch_cuda", lambda: "12.8")
    assert doctor.main([]) == 0
    text = capsys.readouterr().out
    assert "NVIDIA H200 (153.5 GB), driver 570.1" in text
    assert "cuda (device auto: torch is built for CUDA 12.8)" in text
    monkeypatch.setattr(doctor.device, "torch_cuda", lambda: "")
    monkeypatch.setenv("LINGCHAT_DEVICE", "cuda")
    code, told = report(capsys)
    assert code == 1 and told["device"]["uses"] == ""
    assert "the device is set to cuda, but the installed torch is a build for the CPU only -> set it to auto" in wrong(
        told
    )
