"""The library that these tests run, built once from the sources as they are; and false ones, with false compilers."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernels.cpu import native
from kernels.cpu.fakes import Make, make_compiler, make_library

from lingchat.kernels.cpu.native import Native


@pytest.fixture(scope="session")
def library() -> Native:
    return native.library()


@pytest.fixture(params=["plain", "avx2", "avx512", "neon"])
def isa(request: pytest.FixtureRequest) -> str:
    """Each instruction set that runs here."""
    if request.param not in native.library().isas:
        pytest.skip(f"no {request.param} here")
    return str(request.param)


@pytest.fixture(scope="session")
def empty_library(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """`empty_library(stamp=..., alike=..., leave_out=...)`: a library whose functions do nothing."""
    return lambda **how: make_library(tmp_path_factory.mktemp("empty") / "library", **how)


@pytest.fixture(scope="session")
def good(empty_library: Make) -> Path:
    return empty_library()


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """`compiler(library, words=..., name=...)` is the one in use from then on; see `fakes.make_compiler`."""

    def make(gives: Path, words: str = "", name: str = "compiler") -> Path:
        monkeypatch.setenv("CXX", str(tmp_path / name))
        return make_compiler(tmp_path / name, gives, words)

    return make
