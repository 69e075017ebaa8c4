"""The three standard streams of a command: kept open, good for a screen or not, and what a failed write means.

Knows descriptors and terminals; knows nothing of what is written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

from lingchat.errors import DiskError, UsageError

# For these reasons of its own a write to standard output fails; anything else would be a fault of ours.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class StdoutFailed(DiskError):
    """Standard output cannot be written, so nobody can be told anything there."""


def keep_open() -> None:
    """A closed standard descriptor becomes the null device, so that no file of ours is taken for it."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor: this one


def stdout_failure(cause: OSError) -> StdoutFailed | None:
    """What a failed write to standard output says; None when the failure is a file's, or the reader has gone."""
    if cause.filename is not None or cause.errno not in _UNWRITABLE:
        return None
    return StdoutFailed(f"cannot write standard output: {cause.strerror}")


def write_stdout(text: str) -> None:
    """Text, at once. Raises BrokenPipeError when the reader has gone, StdoutFailed when it cannot be written."""
    try:
        print(text, end="", flush=True)
    except OSError as cause:
        failure = stdout_failure(cause)
        if failure is None:
            raise
        raise failure from cause


@contextlib.contextmanager
def guarded_stdout() -> Iterator[None]:
    """Everything printed inside is written at the end, or the failure raised: BrokenPipeError or StdoutFailed.

    At the interpreter's own end it could neither be told nor give an exit code.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as cause:
        failure = stdout_failure(cause)
        if failure is None and not isinstance(cause, BrokenPipeError):
            raise
        _drop_stdout()
        if failure is None:
            raise
        raise failure from cause
    except StdoutFailed:
        _drop_stdout()
        raise


def _drop_stdout() -> None:
    """What is still buffered would fail once more at the interpreter's end, so it goes to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def need_screen(otherwise_output: str, otherwise_input: str) -> None:
    """Raises UsageError with what to do instead when this process cannot show a screen and read keys."""
    if not sys.stdout.isatty():
        raise UsageError(f"standard output is not a terminal, so there is no screen: {otherwise_output}")
    if not sys.stdin.isatty():
        raise UsageError(f"standard input is not a terminal, so no keys can be read: {otherwise_input}")
    if os.environ.get("TERM", "") in ("", "dumb"):
        raise UsageError(f"this terminal (TERM=dumb) cannot show a screen: {otherwise_output}")
