"""The library that these tests run, built once from the sources as they are."""

from __future__ import annotations

import pytest
from kernels.cpu import native

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
