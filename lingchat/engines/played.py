"""A script played in a process of its own, behind the same pipe as the built-in engine: `LINGCHAT_ENGINE=played:FILE`.

For tests and measurements of a whole front end: what its process costs holds nothing of an engine then.
Knows scripts and the wire; knows nothing of the runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

from lingchat.engines import wire
from lingchat.engines.scripted import Script, ScriptedEngine
from lingchat.errors import LingchatError


class _Played:
    def __init__(self, script: Script, write_fd: int) -> None:
        self._engine = ScriptedEngine(script)
        self._write_fd = write_fd
        self._chats: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, command: wire.Command) -> None:
        match command:
            case wire.Load():
                self._run(self._load())
            case wire.Chat(id=number):
                self._chats[number] = self._run(self._chat(command))
            case wire.Count(id=number):
                self._run(self._count(command))
            case wire.Cancel(id=number):
                if number in self._chats and not self._chats[number].done():
                    self._engine.cancel()
            case wire.Quit():
                os._exit(0)

    def _run(self, work: object) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task  # type: ignore[no-any-return]

    def _send(self, report: wire.Report) -> None:
        os.write(self._write_fd, wire.pack(report))

    async def _load(self) -> None:
        try:
            async for event in self._engine.start():
                self._send(wire.Happened(0, event))
        except LingchatError as problem:
            self._send(wire.Failed(0, problem.code, str(problem)))
            os._exit(4)
        self._send(wire.Ready(await self._engine.info()))

    async def _chat(self, command: wire.Chat) -> None:
        async for event in self._engine.chat(command.request):
            self._send(wire.Happened(command.id, event))

    async def _count(self, command: wire.Count) -> None:
        self._send(wire.Counted(command.id, await self._engine.count(command.request)))


async def play(script: Script, read_fd: int, write_fd: int) -> None:
    """Answer the commands that come through `read_fd`, until there are no more."""
    played, frames, over = _Played(script, write_fd), wire.Frames(), asyncio.Event()

    def readable() -> None:
        data = os.read(read_fd, 1 << 16)
        if not data:
            over.set()
        for body in frames.feed(data):
            played.handle(wire.read_command(body))

    asyncio.get_running_loop().add_reader(read_fd, readable)
    await over.wait()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(play(Script.read(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
    os._exit(0)
