"""LocalEngine: the built-in runtime in a process of its own, behind a pair of pipes.

`spawn` starts the worker (see `process`) unless it was given one, and must be called before a Textual app takes the
standard streams; everything else is asyncio. Knows the wire, no torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from lingchat.engines import wire
from lingchat.engines.api import ChatRequest, ModelInfo
from lingchat.engines.process import WORKER, Worker, start_worker
from lingchat.errors import EngineCrashed, LingchatError, from_code
from lingchat.events import AnyEvent, Error, TurnEnd, now_ns

_CLOSE_SECONDS = 2.0
_READ_S = 1 / 30  # while a reply streams the pipe is read no more often: what came meanwhile is one piece of work
_READ_MOST = 1 << 16


class LocalEngine:
    """One worker process. `device` "auto" and None for `dtype`, `threads` and `context` let the engine choose."""

    def __init__(
        self,
        model: str | None = None,
        *,
        device: str = "auto",
        dtype: str | None = None,
        threads: int | None = None,
        context: int | None = None,
        native: bool = True,
        worker: Worker | None = None,
        program: Sequence[str] = WORKER,
    ) -> None:
        """`worker` was started already and has been told nothing yet; `program` is what is started otherwise."""
        self.options = wire.Options(model, dtype, threads, context, device, native)
        self._process: subprocess.Popen[bytes] | None = None
        self._read_fd = self._write_fd = -1
        self._attached = False
        self._resting: asyncio.TimerHandle | None = None  # until the pipe is read again
        self._frames = wire.Frames()
        self._unsent = bytearray()
        self._engine_reports: asyncio.Queue[wire.Report | LingchatError] = asyncio.Queue()
        self._chats: dict[int, asyncio.Queue[AnyEvent | LingchatError]] = {}
        self._counts: dict[int, asyncio.Future[int]] = {}
        self._last_id = 0
        self._info: ModelInfo | None = None
        self._log: Path | None = None
        self._given = worker
        self._program = program

    def spawn(self) -> None:
        """Start the worker and let it load; without effect while one is alive.

        Raises `DiskError` when the folder of its log cannot be made.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self._release()
        worker, self._given = self._given or start_worker(self._program), None
        self._process, self._log = worker.process, worker.log
        self._read_fd, self._write_fd = worker.read_fd, worker.write_fd
        self._frames, self._unsent, self._info = wire.Frames(), bytearray(), None
        # Not yet attached to a loop: the pipe holds these few bytes. A worker that is dead already is told of by its end.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write_fd, wire.pack(wire.Load(self.options)))

    @property
    def pid(self) -> int | None:
        """The worker's process id, while there is one."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    async def start(self, model: str | None = None) -> AsyncIterator[AnyEvent]:
        if model is not None and model != self.options.model:
            await self.close()
            self.options = msgspec.structs.replace(self.options, model=model)
        self._engine_reports = asyncio.Queue()
        if self._read_fd < 0 or self._attached:
            self.spawn()
        # else: it was started and nobody has listened yet; should it be dead already, the pipe says why
        self._attach()
        while True:
            report = await self._engine_reports.get()
            match report:
                case LingchatError():
                    raise report
                case wire.Failed(code=code, message=message):
                    raise from_code(code, message)
                case wire.Ready(info=info):
                    self._info = info
                    return
                case wire.Happened(event=event):
                    yield event

    async def chat(self, request: ChatRequest) -> AsyncIterator[AnyEvent]:
        request_id = self._next_id()
        events: asyncio.Queue[AnyEvent | LingchatError] = asyncio.Queue()
        if self.pid is None or not self._attached:
            events.put_nowait(self._death())
        else:
            self._chats[request_id] = events
            self._send(wire.Chat(request_id, request, now_ns()))
        ended = False
        try:
            while not ended:
                event = await events.get()
                if isinstance(event, LingchatError):
                    yield Error(t_ns=now_ns(), code=event.code, message=str(event), turn=request.turn)
                    event = TurnEnd(t_ns=now_ns(), turn=request.turn, stop="error")
                ended = isinstance(event, TurnEnd)
                yield event
        finally:
            self._chats.pop(request_id, None)
            if not ended:
                self._send(wire.Cancel(request_id))  # whoever asked has left

    async def count(self, what: ChatRequest | str) -> int:
        request = ChatRequest(text=what) if isinstance(what, str) else what
        if self.pid is None or not self._attached:
            raise self._death()
        request_id = self._next_id()
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._counts[request_id] = answer
        try:
            self._send(wire.Count(request_id, request))
            return await answer
        finally:
            self._counts.pop(request_id, None)

    def cancel(self) -> None:
        if self._chats:
            self._send(wire.Cancel(min(self._chats)))

    async def info(self) -> ModelInfo:
        if self._info is None:
            raise EngineCrashed("The engine is not ready yet.")
        return self._info

    async def close(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            self._send(wire.Quit())
            self._release()  # the end of the pipe is the same word, should the first be stuck
            try:
                await asyncio.to_thread(process.wait, _CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)
        self._release()
        self._tell_everyone(EngineCrashed("The engine was closed while it answered. /restart starts it again."))
        self._process = None
        if process is not None and process.returncode == 0:
            assert self._log is not None
            self._log.unlink(missing_ok=True)  # what it printed matters only after a death

    def kill(self) -> None:
        """End the worker at once, from a signal handler or an exit path without a loop."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    # the pipe

    def _attach(self) -> None:
        if not self._attached:
            self._attached = True
            asyncio.get_running_loop().add_reader(self._read_fd, self._readable)

    def _release(self) -> None:
        """Close the pipe and forget the loop."""
        if self._read_fd < 0:
            return
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if self._attached:
            self._attached = False
            with contextlib.suppress(RuntimeError):  # the loop may be gone already
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._read_fd)
                loop.remove_writer(self._write_fd)
        os.close(self._read_fd)
        os.close(self._write_fd)
        self._read_fd = self._write_fd = -1

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _send(self, command: wire.Command) -> None:
        if self._write_fd < 0:
            return
        self._unsent += wire.pack(command)
        self._writable()

    def _writable(self) -> None:
        """Write what the pipe takes; the rest waits for the loop."""
        try:
            while self._unsent:
                del self._unsent[: os.write(self._write_fd, self._unsent)]
        except BlockingIOError:
            asyncio.get_running_loop().add_writer(self._write_fd, self._writable)
            return
        except BrokenPipeError:
            self._unsent.clear()  # the reader's end of file tells everyone
        if self._attached:
            asyncio.get_running_loop().remove_writer(self._write_fd)

    def _readable(self) -> None:
        """Take what has come. While a reply streams the pipe rests between two reads instead of waking us each time."""
        loop, resting = asyncio.get_running_loop(), self._resting is not None
        self._resting = None
        try:
            data = os.read(self._read_fd, _READ_MOST)
        except BlockingIOError:
            if resting:
                loop.add_reader(self._read_fd, self._readable)
            return
        if not data:
            self._died()
            return
        for body in self._frames.feed(data):
            self._dispatch(wire.read_report(body))
        if self._chats:
            if not resting:
                loop.remove_reader(self._read_fd)
            self._resting = loop.call_later(_READ_S if len(data) < _READ_MOST else 0.0, self._readable)
        elif resting:
            loop.add_reader(self._read_fd, self._readable)

    def _dispatch(self, report: wire.Report) -> None:
        match report:
            case wire.Happened(id=request_id, event=event) if request_id:
                if request_id in self._chats:
                    self._chats[request_id].put_nowait(event)
                if isinstance(event, TurnEnd):
                    self._chats.pop(request_id, None)
            case wire.Counted(id=request_id, tokens=tokens):
                self._answer(request_id, tokens)
            case wire.Failed(id=request_id, code=code, message=message) if request_id:
                self._answer(request_id, from_code(code, message))
            case _:
                self._engine_reports.put_nowait(report)

    def _answer(self, request_id: int, result: int | LingchatError) -> None:
        answer = self._counts.get(request_id)
        if answer is None or answer.done():
            return
        if isinstance(result, LingchatError):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def _died(self) -> None:
        assert self._process is not None
        self._process.wait()
        self._release()
        self._tell_everyone(self._death())

    def _tell_everyone(self, end: LingchatError) -> None:
        """Whoever waits for the engine hears that it is gone."""
        for events in self._chats.values():
            events.put_nowait(end)
        self._chats.clear()
        for request_id in list(self._counts):
            self._answer(request_id, end)
        self._engine_reports.put_nowait(end)

    def _death(self) -> EngineCrashed:
        process = self._process
        status = None if process is None else process.poll()
        if status is None:
            return EngineCrashed("The engine is not running. /restart brings it back.")
        how = f"with status {status}" if status >= 0 else f"by signal {signal.Signals(-status).name}"
        hint = " (perhaps the system ran out of memory)" if status == -signal.SIGKILL else ""
        return EngineCrashed(f"The engine ended {how}{hint}. /restart brings it back; its log is {self._log}.")
