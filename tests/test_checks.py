"""The linter and the type checker, as part of the suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run(*command: str) -> None:
    result = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_ruff() -> None:
    run("ruff", "check", ".")
    run("ruff", "format", "--check", ".")


def test_mypy() -> None:
    run("mypy")
