"""Signals: leave the terminal sane first, then close the engine, then exit with the code the signal asks for.

The first signal asks the app to end in order. If it has not within `grace_s` (a blocked loop, a hung engine), or when
a second one comes, the terminal is put in order past the app and the process ends at once; the engine's worker ends
by itself when its pipe closes.

Knows nothing of what the app shows.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from lingchat.errors import EXIT_UNEXPECTED, SIGNAL_EXITS
from lingchat.ui.terminal import LEAVE_SEQUENCE, write_directly

try:
    import termios
except ImportError:  # not a POSIX system: there are no terminal attributes to keep
    termios = None  # type: ignore[assignment]


class SignalGuard:
    """Holds the signals while an app runs. `on_signal(exit_code)` is called in the main thread, at most once.

    `active()` tells whether the terminal is in application mode; on leaving the `with` block a terminal that still is
    (the app died on the way out) is put in order.
    """

    def __init__(self, on_signal: Callable[[int], None], active: Callable[[], bool], grace_s: float = 3.0) -> None:
        self._on_signal = on_signal
        self._active = active
        self._grace_s = grace_s
        self._done = threading.Event()
        self._before: dict[int, Any] = {}
        self._attributes: list[Any] | None = None
        self.exit_code: int | None = None

    def __enter__(self) -> SignalGuard:
        self._attributes = self._read_attributes()
        for number in SIGNAL_EXITS:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._put_in_order()

    def _read_attributes(self) -> list[Any] | None:
        if termios is None:
            return None
        try:
            return termios.tcgetattr(sys.__stdin__.fileno())  # type: ignore[union-attr]
        except (termios.error, OSError, ValueError, AttributeError):
            return None  # standard input is no terminal

    def _put_in_order(self) -> None:
        """The terminal as it was: modes off if still on, line discipline as before."""
        if self._active():
            write_directly(sys.__stderr__.fileno(), LEAVE_SEQUENCE)  # type: ignore[union-attr]
        if self._attributes is not None and self._read_attributes() not in (None, self._attributes):
            try:
                termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, self._attributes)  # type: ignore[union-attr]
            except termios.error:
                return  # it went away meanwhile (HUP)

    def _end_now(self) -> None:
        try:
            self._put_in_order()
        finally:
            os._exit(self.exit_code or EXIT_UNEXPECTED)

    def _watch(self) -> None:
        if not self._done.wait(self._grace_s):
            self._end_now()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.exit_code is not None:
            self._end_now()
        self.exit_code = SIGNAL_EXITS[number]
        threading.Thread(target=self._watch, name="lingchat-signal", daemon=True).start()
        self._on_signal(self.exit_code)
