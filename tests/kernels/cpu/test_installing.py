"""What an installation holds, with a compiler, without one and with one that fails: setup.py, as pip runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from kernels.cpu.fakes import Make

from lingchat.kernels.cpu import sources

ROOT = Path(__file__).parents[3]
BUILT = "lingchat/kernels/cpu/built"
TIMEOUT_S = 120.0


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("__pycache__", "built", ".building-*")
    shutil.copytree(ROOT / "lingchat", folder / "lingchat", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder)
    return folder


def make(what: str, checkout: Path, **environment: str) -> tuple[Path, str]:
    """The archive that pip would have made, and what is said meanwhile."""
    out = checkout.parent / "made"
    program = f"from setuptools import build_meta; print(build_meta.build_{what}({str(out)!r}))"
    out.mkdir(exist_ok=True)
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=checkout,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stderr
    return out / result.stdout.splitlines()[-1], result.stderr


def found_from(folder: Path, cache: Path) -> str:
    """What an installation in `folder` finds."""
    program = f"""
from pathlib import Path
from lingchat.kernels.cpu import library
status = library.status(Path({str(cache)!r}))
print(status.native.path if status.native and status.native.is_installed else status.why)
"""
    command = [sys.executable, "-c", program]  # which imports from the folder where it is run
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    return result.stdout.strip()


def test_a_wheel_with_the_library_is_for_every_python(
    checkout: Path, good: Path, compiler: Make, tmp_path: Path
) -> None:
    compiler(good)
    wheel, _ = make("wheel", checkout)
    assert "-py3-none-" in wheel.name and not wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
        about = next(name for name in names if name.endswith("/WHEEL"))
        assert "Root-Is-Purelib: false" in archive.read(about).decode()
    assert {f"{BUILT}/{sources.LIBRARY}", f"{BUILT}/{sources.SEAL}"} <= set(names)
    assert {f"lingchat/kernels/cpu/{path.name}" for path in sources.sources()} <= set(names)
    assert found_from(tmp_path / "installed", tmp_path / "cache") == str(
        tmp_path / "installed" / BUILT / sources.LIBRARY
    )
    # The sources are changed: the library is stale, and is not used.
    with (tmp_path / "installed/lingchat/kernels/cpu/types.h").open("a") as file:
        file.write("\n")
    assert found_from(tmp_path / "installed", tmp_path / "cache") == "it is not built yet"


@pytest.mark.parametrize(
    ("words", "said"), [("", "there is no C++ compiler"), ("x.cpp:1: error: no", "x.cpp:1: error: no")]
)
def test_a_wheel_without_the_library_is_for_all(
    words: str, said: str, checkout: Path, good: Path, compiler: Make, tmp_path: Path
) -> None:
    compiler(good, words=words)
    without = {} if words else {"CXX": "", "PATH": str(tmp_path)}
    # What an earlier build left, perhaps of other sources, is not packed.
    (checkout / "build/lib" / BUILT).mkdir(parents=True)
    (checkout / "build/lib" / BUILT / sources.LIBRARY).write_text("old")
    wheel, told = make("wheel", checkout, **without)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert f"no native CPU library: {said}" in told
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert not [name for name in names if name.startswith(BUILT)]
    assert {f"lingchat/kernels/cpu/{path.name}" for path in sources.sources()} <= set(names)


def test_an_editable_installation_builds_in_place(checkout: Path, good: Path, compiler: Make, tmp_path: Path) -> None:
    compiler(good)
    wheel, _ = make("editable", checkout)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert found_from(checkout, tmp_path / "cache") == str(checkout / BUILT / sources.LIBRARY)
    source, _ = make("sdist", checkout)
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"lingchat/kernels/cpu/{path.name}" for path in sources.sources()} | {"setup.py"} <= names
    assert not [name for name in names if name.startswith(BUILT)]
