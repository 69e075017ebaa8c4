"""The engine's own process: a request queue, cancel, token counts, and a clean death.

Two threads. The main one loads and decodes; the control thread reads the pipe, answers counts while a reply runs, notes
cancels and stops what is being computed for them. While nothing is asked the main one does what its runtime put off, a
few milliseconds at a time, and leaves it for whatever comes. When the pipe closes, the front end is gone and the
process ends at once, whatever it was doing.
Standard output is not the pipe: libraries may print there (it goes to the log).
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import queue
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from lingchat import events
from lingchat.engines import wire
from lingchat.errors import EngineError, LingchatError
from lingchat.events import AnyEvent, now_ns

if TYPE_CHECKING:
    from lingchat.catalog.store import Progress
    from lingchat.runtime.engine import Runtime

_NOBODY, _RESTING = 0, -1  # whom the runtime computes for, when not for a request


class Worker:
    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._write_lock = threading.Lock()
        self._inbox: queue.Queue[wire.Chat | wire.Load] = queue.Queue()
        self._cancelled: set[int] = set()
        self._computing = _NOBODY  # id of the request
        self._computing_lock = threading.Lock()  # for both
        self._early_counts: list[wire.Count] = []
        self._counts_lock = threading.Lock()
        self._runtime: Runtime | None = None
        self._fetching = ("", 0)  # what was last reported of a download, and when

    def run(self) -> None:
        threading.Thread(target=self._control, name="control", daemon=True).start()
        while True:
            command = self._next()
            if isinstance(command, wire.Load):
                self._load(command.options)
            else:
                self._chat(command)

    # the main thread

    def _next(self) -> wire.Chat | wire.Load:
        while self._rest():
            with contextlib.suppress(queue.Empty):
                return self._inbox.get_nowait()
        return self._inbox.get()

    def _rest(self) -> bool:
        """Use the time in which nothing is asked; whether there is more to do in it."""
        if self._runtime is None or not self._compute_for(_RESTING):
            return False
        try:
            return self._runtime.rest()
        except Exception as error:  # nobody asked for it, so nobody need hear of it; the log has it
            traceback.print_exception(error)
            return False
        finally:
            self._compute_for(_NOBODY)

    def _compute_for(self, whom: int) -> bool:
        """What is computed from now on is for this request; False when nobody wants it any more, or another waits."""
        assert self._runtime is not None
        with self._computing_lock:
            self._runtime.go_on()
            if whom in self._cancelled or (whom == _RESTING and not self._inbox.empty()):
                return False
            self._computing = whom
        return True

    def _stop(self, whom: int) -> None:
        """From the control thread: what is computed for this request is not wanted any more."""
        if self._runtime is not None and self._computing == whom:
            self._runtime.stop()

    def _load(self, options: wire.Options) -> None:
        # Nearly all that is made from here on stays, so looking through it again and again finds nothing.
        gc.disable()
        try:
            # Finding and fetching need no torch; importing it comes after, since it takes more than a second.
            from lingchat.catalog.models import resolve

            self._send_event(0, events.Engine(t_ns=now_ns(), phase="start"))
            found = resolve(options.model, self._report_fetch)
            self._send_event(
                0,
                events.Engine(
                    t_ns=now_ns(), phase="load", message="starting the runtime", model=found.name, progress=0.0
                ),
            )
            from lingchat.kernels.devices import choose_device
            from lingchat.runtime.engine import Runtime
            from lingchat.runtime.loading import Loading

            loading = Loading(
                device=choose_device(options.device),
                dtype=options.dtype,
                threads=options.threads,
                context=options.context,
                name=found.name,
                demo=found.demo,
                native=options.native,
            )
            runtime = Runtime(found.path, loading, lambda event: self._send_event(0, event))
        except Exception as error:
            self._fail(0, error)
            raise SystemExit(4) from error
        gc.enable()
        with self._counts_lock:
            self._runtime = runtime
            early, self._early_counts = self._early_counts, []
        self._send(wire.Ready(runtime.info))
        for count in early:
            self._count(count)

    def _report_fetch(self, progress: Progress) -> None:
        """Download progress of the catalog as an engine event, ten times a second at most."""
        now = now_ns()
        if progress.message == self._fetching[0] and now - self._fetching[1] < 100_000_000:
            return
        self._fetching = (progress.message, now)
        self._send_event(
            0,
            events.Engine(
                t_ns=now,
                phase="download",
                message=progress.message,
                done_bytes=progress.done,
                total_bytes=progress.total,
                progress=progress.fraction,
            ),
        )

    def _chat(self, command: wire.Chat) -> None:
        assert self._runtime is not None, "a front end sends Load first"

        def cancelled() -> bool:
            return command.id in self._cancelled

        def emit(event: AnyEvent) -> None:
            self._send_event(command.id, event)

        turn = command.request.turn
        try:
            if not self._compute_for(command.id):
                emit(events.TurnEnd(t_ns=now_ns(), turn=turn, stop="cancel"))
            else:
                self._runtime.chat(command.request, command.accepted_ns, emit, cancelled)
        except Exception as error:
            known = _typed(error)
            emit(events.Error(t_ns=now_ns(), code=known.code, message=str(known), turn=turn))
            emit(events.TurnEnd(t_ns=now_ns(), turn=turn, stop="error"))
        self._compute_for(_NOBODY)
        self._cancelled.discard(command.id)

    # the control thread

    def _control(self) -> None:
        frames = wire.Frames()
        while data := os.read(self._read_fd, 1 << 16):
            for body in frames.feed(data):
                self._handle(wire.read_command(body))
        os._exit(0)

    def _handle(self, command: wire.Command) -> None:
        match command:
            case wire.Cancel(id=request_id):
                with self._computing_lock:
                    self._cancelled.add(request_id)
                    self._stop(request_id)
            case wire.Count():
                with self._counts_lock:
                    if self._runtime is None:
                        self._early_counts.append(command)
                        return
                self._count(command)
            case wire.Quit():
                os._exit(0)
            case wire.Chat() | wire.Load():
                with self._computing_lock:
                    self._inbox.put(command)
                    self._stop(_RESTING)

    def _count(self, command: wire.Count) -> None:
        assert self._runtime is not None
        try:
            self._send(wire.Counted(command.id, self._runtime.count(command.request)))
        except Exception as error:
            self._fail(command.id, error)

    # both

    def _fail(self, request_id: int, error: Exception) -> None:
        known = _typed(error)
        self._send(wire.Failed(request_id, known.code, str(known)))

    def _send_event(self, request_id: int, event: AnyEvent) -> None:
        self._send(wire.Happened(request_id, event))

    def _send(self, report: wire.Report) -> None:
        data = memoryview(wire.pack(report))
        with self._write_lock:
            try:
                while data:
                    data = data[os.write(self._write_fd, data) :]
            except BrokenPipeError:
                os._exit(0)  # no one is left to tell


def _typed(error: Exception) -> LingchatError:
    """An expected error as it is; any other is logged whole and named in one line."""
    if isinstance(error, LingchatError):
        return error
    traceback.print_exception(error)
    if isinstance(error, MemoryError) or "alloc" in str(error).lower():
        return EngineError(f"The engine ran out of memory ({error}). Use a shorter --context or a smaller model.")
    return EngineError(f"The engine failed: {type(error).__name__}: {error}. The log has the details.")


def main() -> None:
    read_fd, write_fd = (int(argument) for argument in sys.argv[1:3])
    faulthandler.enable()
    Worker(read_fd, write_fd).run()


if __name__ == "__main__":
    main()
