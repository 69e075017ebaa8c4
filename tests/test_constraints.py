"""constraints.txt resolves where the README says lingchat runs, against the index that pip is set up with.

uv resolves for a platform other than this one from the index's metadata alone, without downloading a wheel. What is
installed on this machine, and any wheel that pip is told of by `find-links`, plays no part: a local build of torch for
the CPU asks for less than the public one. No index is named here; the one pip uses is asked for when the test runs.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import uv

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
# torch 2.13 on macOS is built for macOS 14; glibc 2.28 is that of its Linux wheels.
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "aarch64-apple-darwin")
PYTHONS = ("3.11", "3.12", "3.13")
EXTRAS = ("", "gpu", "dev")
# The only packages that constraints.txt leaves open: the installer, and what torch's CUDA build pins or bounds itself.
OPEN = re.compile(r"pip|nvidia-.*|cuda-.*")


def pip_setting(name: str) -> str | None:
    """A setting of pip's, from its environment or files, in its own order; None when it is left at its default."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    said = dict(re.findall(rf"^(:env:|install|global|user|site)\.{name}='(.*)'$", text, re.MULTILINE))
    return next((said[section] for section in (":env:", "install", "site", "user", "global") if section in said), None)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """uv, told what pip knows, and nothing of uv's own configuration."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    kept |= {
        "UV_CACHE_DIR": str(tmp_path_factory.mktemp("uv")),
        "MACOSX_DEPLOYMENT_TARGET": "14.0",
        "UV_NO_CONFIG": "1",
    }
    for setting, variable in (("index-url", "UV_DEFAULT_INDEX"), ("cert", "SSL_CERT_FILE"), ("proxy", "ALL_PROXY")):
        value = pip_setting(setting)
        if value:
            kept[variable] = value
    return kept


def resolve(
    environment: dict[str, str], platform: str, python: str, extra: str, constraints: Path = CONSTRAINTS
) -> dict[str, str]:
    """Versions by name, of wheels only. Raises AssertionError with uv's explanation when there is no solution."""
    command = [uv.find_uv_bin(), "pip", "compile", "pyproject.toml", "--constraint", str(constraints), "--quiet"]
    command += ["--python-platform", platform, "--python", sys.executable, "--python-version", python]
    command += ["--only-binary", ":all:", "--no-header", "--no-annotate"]
    command += ["--extra", extra] if extra else []
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[.*\])?==(\S+)", result.stdout, re.MULTILINE))


def pinned() -> dict[str, str]:
    return dict(line.split("==") for line in lines())


def lines() -> list[str]:
    return [line for line in CONSTRAINTS.read_text().splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize(("platform", "python"), list(itertools.product(PLATFORMS, PYTHONS)))
def test_it_resolves(environment: dict[str, str], platform: str, python: str) -> None:
    wanted = pinned()
    for extra in EXTRAS:
        found = resolve(environment, platform, python, extra)
        free = {name: version for name, version in found.items() if wanted.get(name) != version}
        assert all(OPEN.fullmatch(name) for name in free), f"not pinned: {free}"
        assert found["torch"] == "2.13.0"
        linux = "linux" in platform
        # Otherwise it was not the public build of torch that was looked at.
        assert (found.get("triton") == "3.7.1") == linux
        assert any(name.startswith("nvidia-") for name in found) == linux
        assert ("pytest" in found) == (extra == "dev")


def test_nothing_is_pinned_that_nobody_needs(environment: dict[str, str]) -> None:
    needed = {name for platform in PLATFORMS for name in resolve(environment, platform, "3.11", "dev")}
    assert set(pinned()) - needed == set()


def test_the_check_can_fail(environment: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / "constraints.txt"
    other.write_text(CONSTRAINTS.read_text().replace("triton==3.7.1", "triton==3.6.0"))
    with pytest.raises(AssertionError, match="triton"):
        resolve(environment, PLATFORMS[0], "3.11", "", other)


def test_it_holds_names_and_versions_only() -> None:
    odd = [line for line in lines() if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*==[0-9][0-9A-Za-z.]*", line)]
    assert odd == [], "neither addresses nor hashes nor markers"
    assert lines() == sorted(lines(), key=lambda line: line.split("==")[0])
