"""The worker's process on the native path: neither torch nor numpy is ever imported, and a cancel is heard at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from make_endless import write_endless_dense, write_endless_ling

from lingchat.engines import wire
from lingchat.engines.api import ChatRequest, Message, Sampling
from lingchat.events import AnyEvent, Decode, Prefill, TurnEnd, now_ns

HEAVY = {"torch", "numpy", "triton", "safetensors", "gguf", "transformers"}


class Process:
    """A worker, spoken to as a front end does. Its imports go to `log`."""

    def __init__(self, model: Path, log: Path) -> None:
        self._log = log
        read_fd, self._to = os.pipe()
        self._from, write_fd = os.pipe()
        command = [sys.executable, "-X", "importtime", "-m", "lingchat.runtime.worker", str(read_fd), str(write_fd)]
        with log.open("w") as file:
            self.process = subprocess.Popen(command, pass_fds=(read_fd, write_fd), stderr=file, stdout=file)
        os.close(read_fd)
        os.close(write_fd)
        self._frames, self._reports = wire.Frames(), list[wire.Report]()
        self.send(wire.Load(wire.Options(model=str(model), threads=2)))
        while not isinstance(report := self.next(), wire.Ready):
            assert not isinstance(report, wire.Failed), report
        self.info = report.info

    def send(self, command: wire.Command) -> None:
        os.write(self._to, wire.pack(command))

    def next(self) -> wire.Report:
        while not self._reports:
            data = os.read(self._from, 1 << 16)
            assert data, self._log.read_text()
            self._reports += map(wire.read_report, self._frames.feed(data))
        return self._reports.pop(0)

    def ask(self, id: int, text: str, tokens: int) -> Iterator[AnyEvent]:
        sampling = Sampling(temperature=0.0, max_tokens=tokens)
        request = ChatRequest(messages=(Message("user", text),), sampling=sampling, spec="off")
        self.send(wire.Chat(id, request, now_ns()))
        while True:
            report = self.next()
            if isinstance(report, wire.Happened) and report.id == id:
                yield report.event
                if isinstance(report.event, TurnEnd):
                    return

    def close(self) -> set[str]:
        """The packages that were imported."""
        self.send(wire.Quit())
        assert self.process.wait(60) == 0
        os.close(self._to)
        os.close(self._from)
        found = re.findall(r"^import time:.*\|\s+([\w.]+)$", self._log.read_text(), re.MULTILINE)
        return {name.split(".")[0] for name in found}


@pytest.fixture(params=["dense", "hybrid"])
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Process:
    write = write_endless_dense if request.param == "dense" else write_endless_ling
    return Process(write(tmp_path / "model"), tmp_path / "log")


def test_nothing_heavy_is_imported_and_a_cancel_is_heard(worker: Process) -> None:
    assert worker.info.backend.startswith("native ") and worker.info.backend.endswith(", 2 threads")
    events = list(worker.ask(1, "the cat", 20))
    assert isinstance(events[-1], TurnEnd) and events[-1].stop == "length"

    # In the middle of a reply, and of a prompt: the next request is answered as if there had been none.
    for id, text, kind in ((2, "the cat", Decode), (3, "the cat and the hat " * 60, Prefill)):
        cancelled = False
        for event in worker.ask(id, text, 3000):
            if isinstance(event, kind) and not cancelled:
                cancelled = True
                worker.send(wire.Cancel(id))
        assert isinstance(event, TurnEnd) and event.stop == "cancel"
    again = list(worker.ask(4, "the cat", 20))
    assert tokens(again) == tokens(events)

    imported = worker.close()
    assert "lingchat" in imported and not imported & HEAVY, imported & HEAVY


def tokens(events: list[AnyEvent]) -> int:
    return sum(sum(event.k) for event in events if isinstance(event, Decode))
