"""Engines compute natively where that is the default: the library is built before the first of them."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def native_is_there(native_library: None) -> None:
    """For every test below this folder."""
