"""What no file of this repository may say: a registry's host, or a path that exists on one machine only.

The words looked for are put together here, so that this file does not hold them.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

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
PLACES = ["root", "work", "opt/wheels", "opt/pypi", "etc/xdg/pip"]
LOCKS = {"uv.lock", "poetry.lock", "Pipfile.lock", "pdm.lock", "pixi.lock", "pylock.toml"}
PIP_ADDRESSES = "|".join(f"--{word}" for word in ("index" + "-url", "extra-index" + "-url", "find" + "-links"))


def tracked() -> list[str]:
    command = ["git", "ls-files", "-z"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        pytest.skip("not a git checkout")
    return [name for name in result.stdout.split("\0") if name and (ROOT / name).is_file()]


def lines_that_say(pattern: str) -> list[str]:
    found = []
    for name in tracked():
        text = (ROOT / name).read_bytes().decode("utf-8", "replace")
        found += [
            f"{name}:{number}: {line.strip()[:120]}"
            for number, line in enumerate(text.splitlines(), 1)
            if re.search(pattern, line, re.IGNORECASE)
        ]
    return found


def test_no_registry_host() -> None:
    assert lines_that_say("|".join(HOSTS)) == []


def test_no_index_address_for_pip() -> None:
    assert lines_that_say(rf"({PIP_ADDRESSES})[= ]+\S*://") == []


def test_no_path_of_one_machine() -> None:
    assert lines_that_say(rf"(?<![\w.~/-])/({'|'.join(PLACES)})/") == []


def test_no_lock_file_with_addresses() -> None:
    assert [name for name in tracked() if Path(name).name in LOCKS] == []


def test_the_words_are_found_where_they_are() -> None:
    assert re.search("|".join(HOSTS), "https://" + "files.python" + "hosted.org/x")
    assert re.search("|".join(HOSTS), "pypi" + ".org")
