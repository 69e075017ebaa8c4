"""What `-p` is asked to do, and the message that prompt, files and standard input make together.

Knows nothing of engines or streams.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from lingchat.errors import UsageError

Output = Literal["text", "json", "jsonl"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str  # "-": standard input is the prompt
    output: Output = "text"
    stats: bool = False
    out: str | None = None  # the result goes into this file instead of standard output
    attachments: tuple[str, ...] = ()
    stdin: bool = True
    timeout_s: float | None = None

    @property
    def prompt_is_stdin(self) -> bool:
        return self.prompt == "-"


def read_attachments(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """(name, text) of each file. Raises UsageError naming the one that cannot be read or is not text."""
    found = []
    for name in names:
        try:
            text = Path(name).read_bytes().decode("utf-8-sig")
        except OSError as cause:
            raise UsageError(f"cannot attach {name}: {cause.strerror}") from cause
        except UnicodeDecodeError as cause:
            raise UsageError(f"cannot attach {name}: it is not UTF-8 text") from cause
        if "\0" in text:
            raise UsageError(f"cannot attach {name}: it is not text")
        found.append((name, text))
    return found


def message(prompt: str, attachments: list[tuple[str, str]], data: str) -> str:
    """The user message: the prompt, then each file under its name, then what stood in standard input."""
    parts = [prompt] if prompt.strip() else []
    parts += [f"{name}:\n{_fenced(text)}" for name, text in attachments]
    if data.strip():
        parts.append(data.removesuffix("\n"))
    text = "\n\n".join(parts)
    if not text.strip():
        raise UsageError('the prompt is empty: give one as in lingchat -p "Hello", or -p - with text on standard input')
    return text


def _fenced(text: str) -> str:
    """The text between fences longer than any run of backticks in it."""
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text.removesuffix(chr(10))}\n{fence}"
