"""The helpers that every test leans on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lingchat.catalog import fetch
from lingchat.config import paths
from lingchat.kernels.cpu.sources import stamp

Need = Callable[[str], str]


def of_conftest(need_tool: Need) -> dict[str, Any]:
    return need_tool.__globals__  # type: ignore[attr-defined, no-any-return]


def test_a_missing_tool_fails_in_ci(need_tool: Need, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(of_conftest(need_tool), "IN_CI", True)
    with pytest.raises(pytest.fail.Exception, match="no-such-tool is not installed"):
        need_tool("no-such-tool")


def test_a_missing_tool_skips_by_name_elsewhere(need_tool: Need, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(of_conftest(need_tool), "IN_CI", False)
    with pytest.raises(pytest.skip.Exception, match="no-such-tool is not installed"):
        need_tool("no-such-tool")
    assert os.access(need_tool("sh"), os.X_OK)


def test_every_test_has_a_home_of_its_own(lingchat_home: Path) -> None:
    here = paths()
    assert all(path.is_relative_to(lingchat_home) for path in (here.config, here.data, here.state, here.cache))
    lent = {"cache", "cache/native", f"cache/native/{stamp()}"}  # the library that this code was built into
    assert {str(path.relative_to(lingchat_home)) for path in lingchat_home.rglob("*")} in (set(), lent)


def test_a_home_with_the_model_needs_no_fetch(home_with_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_download", lambda *_: pytest.fail("fetched again"))
    assert fetch.default_state(paths().models) == "verified"
    assert fetch.fetch_default(paths().models).is_relative_to(home_with_model)
