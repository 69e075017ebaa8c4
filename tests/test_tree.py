"""What no file of this repository may say: a registry's host, or a path that exists on one machine only.

The words looked for are put together here, so that this file does not hold them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs
import pytest

ROOT = Path(__file__).parent.parent
DOT = re.escape(".")
HOSTS = [
    f"pypi{DOT}org",
    f"pythonhosted{DOT}org",
    f"pytorch{DOT}org/whl",
    f"npmjs{DOT}(org|com)",
    f"debian{DOT}org",
    f"ubuntu{DOT}com",
    f"crates{DOT}io",
    f"conda{DOT}anaconda",
    f"ollama{DOT}ai",
]
LOCKS = {"uv.lock", "poetry.lock", "Pipfile.lock", "pdm.lock", "pixi.lock", "pylock.toml"}
PIP_ADDRESSES = "|".join(f"--{word}" for word in ("index" + "-url", "extra-index" + "-url", "find" + "-links"))


Say = Callable[[str], list[str]]


def places() -> list[str]:
    """Folders of this very machine: home, checkout, environment, pip's settings."""
    found = {Path.home(), ROOT, Path(sys.prefix), platformdirs.site_config_path("pip")}
    everyones = {Path("/"), Path(tempfile.gettempdir())}
    return sorted(str(path) for path in found - everyones)


def check_out(need_tool: Callable[[str], str]) -> list[str]:
    """The tracked files. In CI there must be a git and a checkout; elsewhere their lack skips, by name."""
    command = [need_tool("git"), "ls-files", "-z"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no git checkout: {result.stderr.strip()}")
    return [name for name in result.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture
def tracked(need_tool: Callable[[str], str]) -> list[str]:
    return check_out(need_tool)


@pytest.fixture
def lines_that_say(tracked: list[str]) -> Say:
    """`lines_that_say(pattern)` gives file, number and text of every line in the tree with a match."""

    def search(pattern: str) -> list[str]:
        found = []
        for name in tracked:
            text = (ROOT / name).read_bytes().decode("utf-8", "replace")
            found += [
                f"{name}:{number}: {line.strip()[:120]}"
                for number, line in enumerate(text.splitlines(), 1)
                if re.search(pattern, line, re.IGNORECASE)
            ]
        return found

    return search


def test_no_registry_host(lines_that_say: Say) -> None:
    assert lines_that_say("|".join(HOSTS)) == []


def test_no_index_address_for_pip(lines_that_say: Say) -> None:
    assert lines_that_say(rf"({PIP_ADDRESSES})[= ]+\S*://") == []


def of_this_machine() -> str:
    return rf"(?<![\w.~/-])({'|'.join(map(re.escape, places()))})\b"


def test_no_path_of_one_machine(lines_that_say: Say) -> None:
    assert lines_that_say(of_this_machine()) == []


def test_no_lock_file_with_addresses(tracked: list[str]) -> None:
    assert [name for name in tracked if Path(name).name in LOCKS] == []


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_a_checkout_ci_fails(
    ci: str, outcome: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(outcome, match="no git checkout"):
        check_out(lambda name: name)


def test_the_words_are_found_where_they_are() -> None:
    assert re.search("|".join(HOSTS), "https://" + "files.python" + "hosted.org/x")
    assert re.search("|".join(HOSTS), "pypi" + ".org")
    assert all(re.search(of_this_machine(), f"in {place}/file") for place in places())
