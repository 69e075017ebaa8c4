"""What the conversation and the latency panel cost while tokens stream, in a real terminal driver.

Starts a small app with both and an input line in a pseudo terminal of 120x40, feeds it text and rounds at a fixed rate,
with --keys types one every 150 ms, and prints one JSON object: CPU share of the front end (the feeder's some 2.5 % included),
longest hold of the event loop, flush cost, bytes to the terminal, and the time from a key to its echo on the terminal.

    python benchmarks/ui_stream.py [--rate 200] [--seconds 5] [--messages 0] [--text prose|list|table|fence] [--keys]
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pty
import select
import struct
import sys
import tempfile
import time
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.widgets import Input

from lingchat.events import Decode, Engine, TurnEnd, TurnFirst, TurnStart, now_ns
from lingchat.stats import RunStats
from lingchat.ui.widgets.conversation import Conversation, TurnView
from lingchat.ui.widgets.latency import LatencyPanel

PROSE = """The cache keeps one entry per token, and it **grows** with every step of the decode loop until the context is full.
Reading it costs memory bandwidth, so a *long* context is slower than a short one; see `state.py` for the layout of rows.

"""
TEXTS = {
    "prose": PROSE * 200,
    "list": "".join(f"- item {number} of the list with **bold** text and `code`\n" for number in range(3000)),
    "table": "| a | b | c |\n|---|---|---|\n" + "".join(f"| {n} | value {n} | more text {n} |\n" for n in range(3000)),
    "fence": "```python\n" + "".join(f"value_{n} = compute({n}, 'text')  # line {n}\n" for n in range(3000)),
}


KEY = "§".encode()  # no text of the benchmark holds it


class Bench(App[None]):
    CSS = "Horizontal { height: 1fr; }"

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.options = options
        self.result: dict[str, float] = {}

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Conversation()
            yield LatencyPanel()
        yield Input(max_length=60)

    async def on_ready(self) -> None:
        self.query_one(Input).focus()
        self.run_worker(self.stream())

    async def stream(self) -> None:
        talk, panel = self.query_one(Conversation), self.query_one(LatencyPanel)
        rate, seconds = self.options.rate, self.options.seconds
        turn = [TurnView("user", "question"), TurnView("assistant", PROSE * 3, footer="412 tok")]
        start = time.perf_counter()
        await talk.show_turns(turn * (self.options.messages // 2))
        opened = time.perf_counter() - start
        await asyncio.sleep(0.3)
        run = RunStats()

        def fold(event: object) -> None:
            run.add(event)  # type: ignore[arg-type]
            panel.fold(run, event, now_ns())  # type: ignore[arg-type]

        fold(Engine(t_ns=now_ns(), phase="ready", weights=98_000_000, context=8192))
        talk.add_user("go on")
        reply = talk.begin_reply("#1")
        text, at = TEXTS[self.options.text], 0
        now = now_ns()
        fold(TurnStart(t_ns=now, turn=1, prompt_tokens=100, reused=0))
        instants = {name: now for name in ("accepted", "started", "tokenized", "prefill_start", "prefill_end")}
        fold(TurnFirst(t_ns=now, turn=1, first_token=now, prompt_tokens=100, reused=0, **instants))
        cpu, begun, ticks, holds = time.process_time(), time.perf_counter(), 0, []
        costs: list[float] = []
        last_ns, sent = now, 0
        while (elapsed := time.perf_counter() - begun) < seconds:
            tick = time.perf_counter()
            await asyncio.sleep(0.005)
            holds.append(time.perf_counter() - tick - 0.005)
            due = int(elapsed * rate) - sent
            if due > 0:
                now = now_ns()
                dt = (now - last_ns) // 1000 // due
                fold(
                    Decode(t_ns=now, turn=1, t0_ns=last_ns, dt_us=(dt,) * due, k=(1,) * due, m=(0,) * due, a=(0,) * due)
                )
                last_ns, sent = now, sent + due
                reply.append(text[at : at + 4 * due])
                at += 4 * due
                costs.append(talk.pace.cost)
                ticks += 1
        used = time.process_time() - cpu
        finish = time.perf_counter()
        reply.finish("footer")
        finish = time.perf_counter() - finish
        fold(TurnEnd(t_ns=now_ns(), turn=1, stop="eos"))
        holds.sort()
        costs.sort()
        self.result = {
            "rate": rate,
            "messages": self.options.messages,
            "open_ms": round(opened * 1e3, 1),
            "cpu_percent": round(used / seconds * 100, 1),
            "feeder_wakes": len(holds),
            "hold_p95_ms": round(holds[int(len(holds) * 0.95)] * 1e3, 1),
            "hold_max_ms": round(holds[-1] * 1e3, 1),
            "flush_p50_ms": round(costs[len(costs) // 2] * 1e3, 2),
            "flush_max_ms": round(costs[-1] * 1e3, 2),
            "finish_ms": round(finish * 1e3, 1),
            "characters": at,
        }
        self.exit()


def watch(terminal: int, seconds: float, keys: bool) -> tuple[int, list[float]]:
    """Reads the terminal until the app ends, typing as it goes; returns bytes read and sorted echo times in seconds."""
    received, echoes = 0, []
    start = time.monotonic()
    typed: float | None = None
    next_key = start + 1.5
    while time.monotonic() - start < seconds + 60:
        now = time.monotonic()
        if keys and typed is None and now >= next_key and now - start < seconds + 0.5:
            os.write(terminal, KEY)
            typed = now
            next_key = now + 0.15
        if not select.select([terminal], [], [], 0.01)[0]:
            continue
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the app has gone and the pseudo terminal with it
            break
        received += len(data)
        if typed is not None and KEY in data:
            echoes.append(time.monotonic() - typed)
            typed = None
    return received, sorted(echoes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--messages", type=int, default=0)
    parser.add_argument("--text", choices=sorted(TEXTS), default="prose")
    parser.add_argument(
        "--keys", action="store_true", help="type, and measure the echo (costs CPU and bytes of its own)"
    )
    parser.add_argument("--profile", help="write a cProfile of the front end here")
    parser.add_argument("--result", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.result:
        app = Bench(options)
        if options.profile:
            profile = cProfile.Profile()
            profile.runcall(app.run)
            profile.dump_stats(options.profile)
        else:
            app.run()
        Path(options.result).write_text(json.dumps(app.result))
        return
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.execv(sys.executable, [sys.executable, __file__, *sys.argv[1:], "--result", str(result)])
        ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        received, echoes = watch(terminal, options.seconds, options.keys)
        os.waitpid(pid, 0)
        figures = json.loads(result.read_text())
        figures["kbytes_per_s"] = round(received / 1000 / options.seconds, 1)
        figures["keys"] = len(echoes)
        if echoes:
            figures["key_echo_p50_ms"] = round(echoes[len(echoes) // 2] * 1e3, 1)
            figures["key_echo_p95_ms"] = round(echoes[int(len(echoes) * 0.95)] * 1e3, 1)
        print(json.dumps({"text": options.text, **figures}))


if __name__ == "__main__":
    main()
