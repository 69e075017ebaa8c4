"""Writing the prompt in the user's own editor: a temporary file, `$VISUAL` or `$EDITOR`, and the text that comes back.

The caller gives the terminal away meanwhile (`App.suspend`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lingchat.errors import UsageError


def editor_command(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The editor as a command line. Raises UsageError when there is none."""
    for name in ("VISUAL", "EDITOR"):
        if environ.get(name, "").strip():
            try:
                command = shlex.split(environ[name])
            except ValueError as cause:
                raise UsageError(f"${name} is not a command line ({cause}); set it to your editor.") from cause
            if shutil.which(command[0], path=environ.get("PATH")) is None:
                raise UsageError(f"${name} names {command[0]}, which is not installed.")
            return command
    for name in ("nano", "vim", "vi"):
        if shutil.which(name, path=environ.get("PATH")):
            return [name]
    raise UsageError("No editor found; set $EDITOR to one.")


def edit_text(text: str, command: list[str]) -> str | None:
    """Let the user edit `text`; the new text, or None when the editor failed (the text then stays as it was)."""
    descriptor, name = tempfile.mkstemp(prefix="lingchat-", suffix=".md")
    path = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        try:
            done = subprocess.run([*command, name], check=False)
        except OSError as cause:
            raise UsageError(f"cannot start {command[0]}: {cause.strerror}") from cause
        if done.returncode != 0:
            return None
        edited = path.read_text(encoding="utf-8", errors="replace")
        return edited.removesuffix("\n") if not text.endswith("\n") else edited
    finally:
        path.unlink(missing_ok=True)
