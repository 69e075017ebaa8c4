"""The terminal under the app: Textual's driver, made safe for pastes, for a terminal that goes away, and for leaving.

Three things a plain driver gets wrong. A bracketed paste that holds an escape character is re-read as key presses,
so its line ends would press enter. A terminal that is gone (end of file, write error) is polled for ever or blocks
the writer. And nothing outside the driver knows whether the terminal is in application mode, which `signals` needs.

Knows nothing of chats and engines.
"""

from __future__ import annotations

import os
import selectors
import threading
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from textual import events
from textual._parser import ParseError
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

PASTE_START = "\x1b[200~"
PASTE_END = "\x1b[201~"

# What application mode switched on, off again: synchronised output, pastes, mouse (all encodings), in-band resize,
# focus reports, the keyboard protocol; then line wrap, colours, the normal screen and the cursor on.
LEAVE_SEQUENCE = (
    "\x1b[?2026l\x1b[?2004l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?2048l\x1b[?1004l"
    "\x1b[<u\x1b[?7h\x1b[0m\x1b[?1049l\x1b[?25h"
)


class PasteParser(XTermParser):
    """Reads terminal input; what stands between the paste marks becomes one `Paste`, whatever it holds."""

    def __init__(self, debug: bool = False) -> None:
        self._tail = ""  # the last characters outside a paste: a mark may be split between two reads
        self._paste: list[str] | None = None
        self._held = ""  # inside a paste: the start of what may be the end mark
        super().__init__(debug)

    def feed(self, data: str) -> Iterable[Message]:
        if not data:
            yield from super().feed(data)
            return
        while data:
            if self._paste is None:
                window = self._tail + data
                at = window.find(PASTE_START)
                if at < 0:
                    self._tail = window[-(len(PASTE_START) - 1) :]
                    yield from super().feed(data)
                    return
                end = at + len(PASTE_START) - len(self._tail)
                self._tail = ""
                yield from super().feed(data[:end])
                data = data[end:]
                self._paste = []
                continue
            window = self._held + data
            at = window.find(PASTE_END)
            if at < 0:
                keep = next((n for n in range(len(PASTE_END) - 1, 0, -1) if window.endswith(PASTE_END[:n])), 0)
                self._paste.append(window[: len(window) - keep])
                self._held = window[len(window) - keep :]
                return
            text = "".join(self._paste) + window[:at]
            self._paste, self._held = None, ""
            data = window[at + len(PASTE_END) :]
            for message in super().feed(PASTE_END):  # the base class is in its paste state too; its text is empty
                if not isinstance(message, events.Paste):
                    yield message
            yield events.Paste(text.replace("\x00", ""))


class LossyFile:
    """The terminal as a file that reports its end once and then swallows everything."""

    def __init__(self, file: TextIO, on_lost: Callable[[], None]) -> None:
        self._file = file
        self._on_lost = on_lost
        self.lost = False

    def _lose(self) -> None:
        if not self.lost:
            self.lost = True
            self._on_lost()

    def write(self, text: str) -> int:
        if not self.lost:
            try:
                return self._file.write(text)
            except (OSError, ValueError):
                self._lose()
        return len(text)

    def flush(self) -> None:
        if not self.lost:
            try:
                self._file.flush()
            except (OSError, ValueError):
                self._lose()

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()


class TerminalDriver(LinuxDriver):
    """Textual's driver with `active`, a mouse switch, whole pastes, and an end when the terminal goes away."""

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **options)
        self._file = LossyFile(self._file, self._terminal_lost)  # type: ignore[assignment]
        self.active = False

    def start_application_mode(self) -> None:
        self.active = True
        super().start_application_mode()

    def stop_application_mode(self) -> None:
        super().stop_application_mode()
        self.active = False

    def set_mouse(self, on: bool) -> None:
        """Report the mouse to the app, or leave it to the terminal's own selection."""
        if on:
            self._mouse = True
            self._enable_mouse_support()
        else:
            self._disable_mouse_support()
            if self._mouse_pixels:
                self.write("\x1b[?1016l")
            self._mouse = False
        self.flush()

    def _terminal_lost(self) -> None:
        on_lost = getattr(self._app, "terminal_lost", None)
        if on_lost is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(on_lost)

    def run_input_thread(self) -> None:
        """Read the terminal until told to stop; an end of file or a read error means it is gone."""
        selector = selectors.SelectSelector()
        selector.register(self.fileno, selectors.EVENT_READ)
        parser = PasteParser(self._debug)
        decode = getincrementaldecoder("utf-8")("replace").decode
        try:
            while not self.exit_event.is_set():
                if selector.select(0.1):
                    try:
                        data = os.read(self.fileno, 65536)
                    except OSError:
                        data = b""
                    if not data:
                        self._terminal_lost()
                        return
                    for message in parser.feed(decode(data)) if data else ():
                        self.process_message(message)
                for message in parser.tick():
                    self.process_message(message)
        finally:
            selector.close()
            try:
                for _ in parser.feed(""):
                    pass
            except (EOFError, ParseError):
                pass


def write_directly(fd: int, text: str, timeout_s: float = 0.5) -> None:
    """Write past every buffer, giving up after `timeout_s`: a terminal that is stopped must not keep us alive."""

    def write() -> None:
        try:
            os.write(fd, text.encode())
        except OSError:
            return  # the terminal is gone: there is nothing left to put in order

    thread = threading.Thread(target=write, name="lingchat-leave", daemon=True)
    thread.start()
    thread.join(timeout_s)
