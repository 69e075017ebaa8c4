"""Standard input as data for a prompt, whatever it is: a file, a pipe that speaks, one that never does, or nothing.

A script that starts lingchat often leaves it a pipe that nobody writes to; waiting for its end would hang for ever.
So a silent pipe is named after a second and left alone after ten. Knows nothing of prompts.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable

from lingchat.errors import UsageError

WARN_AFTER_S = 1.0
GIVE_UP_AFTER_S = 10.0
BLOCK = 1 << 16


async def read_stdin(
    say: Callable[[str], None],
    *,
    whole: bool,
    fd: int = 0,
    warn_after_s: float = WARN_AFTER_S,
    give_up_after_s: float = GIVE_UP_AFTER_S,
) -> str:
    """The text that stands in `fd`, "" where there is none.

    A terminal, a device or a closed descriptor holds no data. With `whole` (for `-p -`) the end is waited for whatever
    it is. `say` gets the note about a silent pipe. Raises UsageError for what is not UTF-8 text.
    """
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return ""  # closed
    if stat.S_ISREG(mode) or (whole and stat.S_ISCHR(mode) and not os.isatty(fd)):
        return _text(_read_all(fd))
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (whole and os.isatty(fd))):
        return ""
    stream = _Stream(fd)
    try:
        if not whole and not await stream.speaks(warn_after_s):
            left = give_up_after_s - warn_after_s
            say(
                "standard input is a pipe in which nothing arrives. Waiting "
                f"{left:g} s more for it; </dev/null or --no-stdin goes on at once"
            )
            if not await stream.speaks(left):
                say("going on without standard input")
                return ""
        return _text(await stream.rest())
    finally:
        stream.close()


def _read_all(fd: int) -> bytes:
    blocks = []
    while block := os.read(fd, BLOCK):
        blocks.append(block)
    return b"".join(blocks)


def _text(data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        raise UsageError(
            f"standard input is not UTF-8 text (byte {cause.start:,}): convert it, or give --no-stdin"
        ) from cause
    if "\0" in text:
        raise UsageError("standard input is not text, it holds NUL bytes: convert it, or give --no-stdin")
    return text


class _Stream:
    """A descriptor read as bytes arrive, without making it non-blocking: others may share it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._blocks: list[bytes] = []
        self._spoke = asyncio.Event()  # the first bytes, or the end
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(fd, self._readable)

    def _readable(self) -> None:
        try:
            block = os.read(self._fd, BLOCK)
        except OSError as cause:
            self.close()
            self._ended.set_exception(UsageError(f"cannot read standard input: {cause.strerror}"))
            self._spoke.set()
            return
        if block:
            self._blocks.append(block)
        else:
            self.close()
            self._ended.set_result(None)
        self._spoke.set()

    async def speaks(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._spoke.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def rest(self) -> bytes:
        await self._ended
        return b"".join(self._blocks)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
