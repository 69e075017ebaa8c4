"""The installed command in a pseudo terminal, as the UI benchmarks drive it: spawn, read, type, look, weigh, end.

Linux only (/proc). Every run has a home of its own, so that the user's settings, history and sessions play no part.
"""

from __future__ import annotations

import math
import os
import random
import resource
import select
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import pexpect
import pyte

from lingchat.catalog.models import resolve
from lingchat.catalog.store import stamp_path
from lingchat.config import paths
from lingchat.kernels.cpu import library
from lingchat.kernels.cpu.build import BuildError

COLUMNS, ROWS = 120, 40
PROMPT_ROW, STATUS_ROW, TEXT_COLUMN = ROWS - 2, ROWS - 1, 3
COMMAND = (sys.executable, "-m", "lingchat")
CTRL_D, CTRL_U, ESCAPE = b"\x04", b"\x15", b"\x1b"
FULL_CLEAR = b"\x1b[2J"
START_LIMIT_S, CLOSE_LIMIT_S = 60.0, 10.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def environment(home: Path, script: Path | None = None, *, own_process: bool = False) -> dict[str, str]:
    """Variables of a run in `home`; with `script` a scripted engine plays it, else the real engine loads.

    The scripted engine lives in the front end, or with `own_process` behind the pipe, as the real one does.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        # Without kept byte code every start would compile the whole package, which an installed one never does.
        if not name.startswith("LINGCHAT_") and name not in ("NO_COLOR", "PYTHONDONTWRITEBYTECODE")
    }
    kept |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LINGCHAT_HOME": str(home)}
    kind = "played" if own_process else "scripted"
    return kept | ({"LINGCHAT_ENGINE": f"{kind}:{script}"} if script is not None else {})


@contextmanager
def new_home(*, model: bool = False) -> Iterator[Path]:
    """A home that lasts for the block. With `model` the default model lies there, checked, and the native code is there
    too, built by now where a compiler is: no start fetches, hashes or builds."""
    with tempfile.TemporaryDirectory(prefix="lingchat-bench-") as folder:
        home = Path(folder)
        if model:
            found = resolve(None, lambda progress: None).path
            models = paths(environment(home)).models
            models.mkdir(parents=True)
            (models / found.name).symlink_to(found)
            shutil.copy(stamp_path(found), models)
            with suppress(BuildError):  # what computed stands in the results
                library.build()
            cache = paths(environment(home)).cache
            cache.mkdir(parents=True)
            (cache / "native").symlink_to(library.cache_folder())
        yield home


def newest_trace(home: Path) -> Path | None:
    """The trace of the run that began last in `home`."""
    found = paths(environment(home)).runs.glob("*.jsonl")
    return max(found, key=lambda file: file.stat().st_mtime_ns, default=None)


def reply_ended(home: Path) -> bool:
    """Whether the newest trace holds the end of a reply (which is on the disk as soon as it happens)."""
    trace = newest_trace(home)
    return trace is not None and b'"type":"turn.end"' in trace.read_bytes()[-8192:]


def cpu_seconds(pid: int) -> float:
    """Processor time that process `pid` has used with all its threads, its children not counted."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


class Others:
    """What everything but this benchmark took of the machine since construction: it tells a quiet run from another."""

    def __init__(self) -> None:
        self._begun, self._busy, self._ours = time.monotonic(), _busy_s(), _ours_s()

    def percent(self) -> float:
        """Of one core. Processes that we started count as ours once they have ended."""
        others = (_busy_s() - self._busy) - (_ours_s() - self._ours)
        return max(0.0, 100 * others / (time.monotonic() - self._begun))


def _busy_s() -> float:
    """Seconds that the cores have worked, or were taken from this machine, since it started."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def _ours_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


class Terminal:
    """`lingchat` with `arguments` in a terminal of 120x40. With `look` an emulator keeps its screen; else bytes are drained.

    Use it as a context: on the way out the app is asked to leave, then made to.
    """

    def __init__(self, arguments: Sequence[str], env: dict[str, str], *, look: bool = True) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._look = look
        self.received = 0
        self.full_clears = 0
        self.feeding_s = 0.0  # what the emulator itself took
        self.read_ns = 0  # when the newest bytes arrived
        self._tail = b""
        self.started_ns = time.monotonic_ns()
        self._child = pexpect.spawn(COMMAND[0], [*COMMAND[1:], *arguments], env=env, dimensions=(ROWS, COLUMNS))
        self.pid: int = self._child.pid

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._leave()
        finally:
            self._child.close(force=True)

    def _leave(self) -> None:
        """Stop what runs, clear the prompt, and leave as a user does."""
        deadline = time.monotonic() + CLOSE_LIMIT_S
        for key in (ESCAPE, CTRL_U, CTRL_D):
            self.type(key)
            self.read_for(0.2)
        while self._child.isalive():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the app did not leave within {CLOSE_LIMIT_S:g} s of ctrl+d")
            self.read(0.05)

    def type(self, keys: bytes) -> int:
        """Write `keys`; the instant (monotonic ns) just before."""
        at = time.monotonic_ns()
        try:
            os.write(self._child.child_fd, keys)
        except OSError:
            if self._child.isalive():
                raise
        return at

    def read(self, seconds: float) -> bool:
        """Take what arrives first within `seconds`; False when nothing did."""
        fd = self._child.child_fd
        if not select.select([fd], [], [], max(0.0, seconds))[0]:
            return False
        try:
            data = os.read(fd, 1 << 16)
        except OSError:  # the app has gone, and the terminal with it
            self._child.wait()
            return False
        self.read_ns = time.monotonic_ns()
        self.received += len(data)
        self.full_clears += (self._tail[-len(FULL_CLEAR) + 1 :] + data).count(FULL_CLEAR)
        self._tail = (self._tail + data)[-4096:]
        if self._look:
            self._stream.feed(data)
            self.feeding_s += (time.monotonic_ns() - self.read_ns) / 1e9
        return True

    def read_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self._child.isalive():
            self.read(left)

    def until(self, holds: Callable[[], bool], limit_s: float = START_LIMIT_S, poll_s: float = 0.05) -> int:
        """Read until `holds()`; the instant (monotonic ns) of the bytes that made it so."""
        deadline = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > deadline or not self._child.isalive():
                state = "is alive" if self._child.isalive() else f"ended with {self._child.exitstatus}"
                raise RuntimeError(
                    f"waited in vain; the app {state}; the screen:\n{self.text()}\n{self._tail[-2000:]!r}"
                )
            self.read(poll_s)
        return self.read_ns

    # what is on the screen

    def row(self, number: int) -> str:
        cells = self._screen.buffer[number]
        return "".join(cells[column].data for column in range(COLUMNS))

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    def painted(self) -> bool:
        """Whether anything at all stands on the screen."""
        return any(line.strip() for line in self._screen.display)

    def prompt_stands(self) -> bool:
        return self.row(PROMPT_ROW).startswith(" › ")

    def typed(self) -> str:
        """What the (one-line) prompt shows."""
        return self.row(PROMPT_ROW)[TEXT_COLUMN:].rstrip()

    def status(self) -> str:
        """First word of the status line: ready, decoding, ..."""
        return (self.row(STATUS_ROW).split() or [""])[0]


def echo_times(
    terminal: Terminal, keys: int, more: Callable[[], bool] = lambda: True, *, seed: int = 7, limit_s: float = 10.0
) -> list[float]:
    """Type up to `keys` letters while `more()`; for each the ms from writing it to its standing at the prompt.

    Pauses between keys vary (60 to 160 ms), so that keys meet every phase of the screen's own timers.
    """
    chance = random.Random(seed)
    echoes: list[float] = []
    shown = ""
    while len(echoes) < keys and more():
        if len(shown) == 40:
            terminal.type(CTRL_U)
            terminal.until(lambda old=shown: not terminal.typed().startswith(old), limit_s)
            shown = ""
        shown += chance.choice("abcdefghijklmnopqrstuvwxyz")
        at = terminal.type(shown[-1].encode())
        echoes.append((terminal.until(lambda text=shown: terminal.typed() == text, limit_s) - at) / 1e6)
        terminal.read_for(chance.uniform(0.06, 0.16))
    terminal.type(CTRL_U)
    terminal.read_for(0.1)
    return echoes


def percentile(values: Sequence[float], q: float) -> float:
    """The value with a share `q` of the values at or below it (nearest rank, exact)."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
