"""What many tests share: the real default model, the native library, a home of their own, and tools that CI must have."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs
import pytest

from lingchat.catalog.fetch import fetch_default
from lingchat.catalog.store import stamp_path
from lingchat.config import paths
from lingchat.kernels.cpu.sources import stamp

IN_CI = os.environ.get("CI") == "true"
# Read at import, before any test changes the environment.
TEST_CACHE = Path(os.environ.get("LINGCHAT_TEST_CACHE") or platformdirs.user_cache_path("lingchat") / "tests")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's GGUF, fetched through the catalog once and kept between runs. Never skipped."""
    return fetch_default(TEST_CACHE / "models")


@pytest.fixture(scope="session", autouse=True)
def session_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of what is made for more than one test."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield _make_home(tmp_path_factory.mktemp("home"), monkeypatch)


@pytest.fixture(scope="session")
def native_library(session_home: Path) -> None:
    """The native CPU library of the sources as they are, built once and kept between runs: engines find it."""
    from kernels.cpu import native

    native.library()
    _lend_library(session_home)


@pytest.fixture(autouse=True)
def lingchat_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Config, data, state and cache of every test lie in a folder of its own; the user's settings play no part. The
    native library is everybody's, if it was built."""
    return _make_home(tmp_path_factory.mktemp("home"), monkeypatch)


def _make_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("LINGCHAT_") and name != "LINGCHAT_TEST_CACHE"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LINGCHAT_HOME", str(home))
    _lend_library(home)
    return home


def _lend_library(home: Path) -> None:
    built, lent = TEST_CACHE / "native" / _stamp(), home / "cache" / "native" / _stamp()
    if built.is_dir() and not lent.exists():
        lent.parent.mkdir(parents=True, exist_ok=True)
        lent.symlink_to(built)


_stamp = functools.cache(stamp)


@pytest.fixture
def home_with_model(native_library: None, default_model: Path, lingchat_home: Path) -> Path:
    """This test's home already has the default model, checked: a start fetches nothing and hashes nothing. Nor does it
    build anything."""
    folder = paths().models
    folder.mkdir(parents=True, exist_ok=True)
    (folder / default_model.name).symlink_to(default_model)
    shutil.copy(stamp_path(default_model), folder)
    return lingchat_home


@pytest.fixture
def need_tool() -> Callable[[str], str]:
    """`need_tool("tmux")` gives its path; a missing tool fails in CI and skips, by name, elsewhere."""
    return _need_tool


def _need_tool(name: str) -> str:
    found = shutil.which(name)
    if found is None and IN_CI:
        pytest.fail(f"{name} is not installed: add it to tests/system-packages.txt", pytrace=False)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found
