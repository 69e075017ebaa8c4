"""The folders that lingchat uses. They follow XDG, and `LINGCHAT_HOME` moves all of them under one.

Whoever starts the engine's process needs to know where its log goes, before anything else is imported: so this file
imports next to nothing. None of the folders is created by asking.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

NAME = "lingchat"


class Paths(NamedTuple):
    """The four folders, and what lies in them."""

    config: Path
    data: Path
    state: Path
    cache: Path

    @property
    def config_file(self) -> Path:
        return self.config / "config.toml"

    @property
    def sessions(self) -> Path:
        return self.data / "sessions"

    @property
    def runs(self) -> Path:
        """Trace files."""
        return self.data / "runs"

    @property
    def models(self) -> Path:
        return self.data / "models"

    @property
    def history(self) -> Path:
        """What was typed at the prompt, as JSONL."""
        return self.state / "history.jsonl"


def paths(env: Mapping[str, str] | None = None) -> Paths:
    """The folders of this user; `LINGCHAT_HOME` in `env` (default: the process's) puts them all under it."""
    own = (os.environ if env is None else env).get("LINGCHAT_HOME")
    if own:
        root = Path(own).expanduser().absolute()
        return Paths(root / "config", root / "data", root / "state", root / "cache")
    home = os.environ.get("HOME", "")
    if sys.platform == "linux" and os.path.isabs(home):
        return Paths(
            _xdg("CONFIG", home, ".config"),
            _xdg("DATA", home, ".local/share"),
            _xdg("STATE", home, ".local/state"),
            _xdg("CACHE", home, ".cache"),
        )
    import platformdirs  # milliseconds of a start, and Linux's rule is a few lines

    dirs = platformdirs.PlatformDirs(NAME, appauthor=False)
    return Paths(dirs.user_config_path, dirs.user_data_path, dirs.user_state_path, dirs.user_cache_path)


def _xdg(kind: str, home: str, usual: str) -> Path:
    """A folder as the XDG Base Directory Specification has it: a relative path in the variable counts as none."""
    base = os.environ.get(f"XDG_{kind}_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.join(home, usual), NAME)
