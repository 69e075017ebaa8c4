"""How soon a key shows, and what the screen costs: the real app and the real prompt in a pseudo terminal of 120x40.

Key echo: ms from writing a key to the terminal until an emulator (pyte) shows the letter at the prompt, as p50, p95 and
the slowest of each run: `idle`; `stream` while a scripted engine streams 500 tokens/s; `session` the same with a session
of 1,000 messages loaded; `list` and `table` during a reply of 300 items or rows at 500 tokens/s and its end.

Cost, without keys: bytes/s to the terminal and processor share of the front end's process, idle and at 200 tokens/s with
the latency panel, a token a round and with drafts. What was streamed meanwhile is counted in the trace and printed.

The scripted engine lives in a process of its own and speaks through the built-in engine's pipe, in batches as that one
sends them, so the front end's process is measured and nothing else.

    python benchmarks/ui_echo.py [--repeats 3] [--keys 60] [--seconds 8] [--only idle] [--name ui_echo]
"""

from __future__ import annotations

import argparse
import math
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from common import machine, save, spread
from terminal import COMMAND, Others, Terminal, cpu_seconds, echo_times, environment, new_home, newest_trace, percentile

from lingchat.config import paths
from lingchat.engines.api import ModelInfo
from lingchat.engines.script import Script, ScriptTurn, pieces
from lingchat.events import Decode, Ui
from lingchat.session import SessionStore
from lingchat.trace import read_trace

ECHO_LIMIT_MS = 50.0
CPU_LIMITS = {"idle": 1.0, "stream": 8.0, "drafted": 8.0}  # percent of a core
BYTES_LIMIT = 60_000  # a second
FAST, USUAL = 500.0, 200.0  # tokens a second
BATCH_MS = 15.0  # the worker sends what was decoded this often (runtime/outbox.py)
DRAFTS, ACCEPTED = 3, (0, 3, 1, 2, 0, 3)  # a round of `drafted`; L = 2.5
MESSAGES = 1000
PROSE = """The cache keeps one entry per token, and it **grows** with every round of the decode loop until the context is full.
Reading it costs memory bandwidth, so a *long* context is slower than a short one; see `state.py` for the layout of rows.

"""
LIST = "".join(f"- item {number} of the list with **bold** text and `code`\n" for number in range(1, 301))
TABLE = "| a | b | c |\n|---|---|---|\n" + "".join(f"| {n} | value {n} | more *text* {n} |\n" for n in range(1, 301))
CASES = ("idle", "stream", "session", "list", "table")


def write_script(home: Path, text: str, tok_s: float, *, drafted: bool = False) -> Path:
    """A script that answers anything with `text`, sent in batches as the worker sends them; a token a round, or drafted."""
    per_round = 1 + sum(ACCEPTED) / len(ACCEPTED) if drafted else 1.0
    round_ms = 1000.0 * per_round / tok_s
    turn = ScriptTurn(
        tokens=pieces(text),
        m=(DRAFTS,) if drafted else (),
        a=ACCEPTED if drafted else (),
        round_ms=round_ms,
        rounds_an_event=math.ceil(BATCH_MS / round_ms),
    )
    # A context that 1,000 messages fit.
    info = ModelInfo(name="scripted model", backend="scripted", context=1_000_000)
    path = home / "script.json"
    path.write_bytes(msgspec.json.encode(Script(turns=(turn,), info=info)))
    return path


def write_session(home: Path) -> str:
    """A session of 1,000 messages; its id."""
    session = SessionStore(paths(environment(home)).sessions).create("a long conversation")
    for number in range(MESSAGES // 2):
        session.add("user", f"Question {number}: what does a longer context cost?")
        reply = session.begin_reply()
        reply.delta(PROSE, 0)
        reply.finish("eos", footer="52 tok · TTFT 143 · p50 3.90 p95 5.20")
    session.close()
    return session.id


def ready(terminal: Terminal) -> bool:
    return terminal.prompt_stands() and terminal.status() == "ready"


def decoding(terminal: Terminal) -> bool:
    return terminal.status() == "decoding"


def until_over(terminal: Terminal, seconds_after: float = 1.0) -> Callable[[], bool]:
    """True while the reply runs and for a second more: its end, where all of it is parsed once, meets keys too."""
    over: list[float] = []

    def more() -> bool:
        if not over and ready(terminal):
            over.append(time.monotonic())
        return not over or time.monotonic() - over[0] < seconds_after

    return more


def echo(case: str, keys: int, seed: int) -> dict[str, float]:
    """One run of one case."""
    # Long enough for every key at half a second each; a list or a table ends by itself.
    text = {"list": LIST, "table": TABLE}.get(case) or PROSE * math.ceil(FAST * (keys / 2 + 10) / len(pieces(PROSE)))
    with new_home() as home:
        env = environment(home, write_script(home, text, FAST), own_process=True)
        arguments = ["-r", write_session(home)] if case == "session" else []
        with Terminal(arguments, env) as terminal:
            terminal.until(lambda: ready(terminal))
            terminal.read_for(0.5)
            if case == "idle":
                echoes = echo_times(terminal, keys, seed=seed)
            else:
                terminal.type(b"go on\r")
                terminal.until(lambda: decoding(terminal))
                terminal.read_for(0.5)
                begun, fed = time.monotonic(), terminal.feeding_s
                ends = case in ("list", "table")
                more = until_over(terminal) if ends else lambda: True
                echoes = echo_times(terminal, 1_000 if ends else keys, more, seed=seed)
                emulator = (terminal.feeding_s - fed) / (time.monotonic() - begun)
                if not ends and not decoding(terminal):
                    raise RuntimeError("the reply ended before the last key: make the text longer")
        figures = {"p50": percentile(echoes, 0.5), "p95": percentile(echoes, 0.95), "slowest": max(echoes)}
        figures["keys"] = len(echoes)
        if case != "idle":
            figures["emulator_percent"] = 100 * emulator
            figures |= lag(home)
        return figures


def lag(home: Path) -> dict[str, float]:
    """What the app itself said last of its event loop's lag."""
    trace = newest_trace(home)
    assert trace is not None
    said = [event.lag_p95_ms for event in read_trace(trace) if isinstance(event, Ui)]
    return {"ui_lag_p95": said[-1]} if said else {}


def echoes(case: str, repeats: int, keys: int) -> dict[str, Any]:
    runs = [echo(case, keys, seed) for seed in range(repeats)]
    result: dict[str, Any] = {f"{name}_ms": spread([run[name] for run in runs]) for name in ("p50", "p95", "slowest")}
    result["p95_ms"]["limit"] = ECHO_LIMIT_MS
    result["keys"] = sum(int(run["keys"]) for run in runs)
    for name, unit in (("ui_lag_p95", "ms"), ("emulator_percent", "")):
        values = [run[name] for run in runs if name in run]
        if values:
            result[f"{name}_{unit}".rstrip("_")] = spread(values)
    return result


def streamed(home: Path) -> int:
    """Tokens of the reply that the newest trace in `home` holds so far."""
    trace = newest_trace(home)
    assert trace is not None
    return sum(sum(event.k) for event in read_trace(trace) if isinstance(event, Decode))


def cost(kind: str, seconds: float) -> dict[str, float]:
    """Of the front end over `seconds`, without a key: processor share of a core in percent, bytes a second, full clears."""
    text = PROSE * math.ceil(USUAL * (seconds + 10) / len(pieces(PROSE)))
    with new_home() as home:
        env = environment(home, write_script(home, text, USUAL, drafted=kind == "drafted"), own_process=True)
        with Terminal([], env) as terminal:
            terminal.until(lambda: ready(terminal))
            if kind != "idle":
                terminal.type(b"go on\r")
                terminal.until(lambda: decoding(terminal))
            terminal.read_for(2.0)
            received, clears = terminal.received, terminal.full_clears
            tokens = streamed(home)
            used, begun = cpu_seconds(terminal.pid), time.monotonic()
            terminal.read_for(seconds)
            elapsed, used = time.monotonic() - begun, cpu_seconds(terminal.pid) - used
            found = {
                "cpu_percent": 100 * used / elapsed,
                "bytes_per_s": (terminal.received - received) / elapsed,
                "full_clears": terminal.full_clears - clears,
            }
            if kind != "idle":
                found["tokens_per_s"] = (streamed(home) - tokens) / elapsed
                if not decoding(terminal):
                    raise RuntimeError("the reply ended before the measurement: make the text longer")
            return found


def records_share(seconds: float) -> float:
    """Processor share in percent of `-p` with the script of `stream`: pipe, trace and session without a screen."""
    text = PROSE * math.ceil(USUAL * (seconds + 10) / len(pieces(PROSE)))
    with new_home() as home:
        process = subprocess.Popen(
            [*COMMAND, "-p", "go on"],
            env=environment(home, write_script(home, text, USUAL), own_process=True),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            process.stdout.read(1)
            time.sleep(2.0)  # its start is over
            used, begun = cpu_seconds(process.pid), time.monotonic()
            time.sleep(seconds)
            return 100 * (cpu_seconds(process.pid) - used) / (time.monotonic() - begun)
        finally:
            process.kill()
            process.communicate()


def costs(repeats: int, seconds: float) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name in ("idle", "stream", "drafted"):
        runs = [cost(name, seconds) for _ in range(repeats)]
        part = result[name] = {key: spread([run[key] for run in runs]) for key in runs[0]}
        part["cpu_percent"]["limit"] = CPU_LIMITS[name]
        part["full_clears"]["limit"] = 0
        if name != "idle":
            part["bytes_per_s"]["limit"] = BYTES_LIMIT
    result["stream"]["of_cpu_pipe_and_records_percent"] = spread([records_share(seconds) for _ in range(repeats)])
    return result


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--repeats", type=int, default=3)
    parse.add_argument("--keys", type=int, default=60, help="keys a run; a list or a table takes as many as fit")
    parse.add_argument("--seconds", type=float, default=8.0, help="length of a measurement of cost")
    parse.add_argument("--only", choices=(*CASES, "cost"), action="append")
    parse.add_argument("--name", default="ui_echo")
    found = parse.parse_args()

    result: dict[str, Any] = {"benchmark": "ui_echo", "machine": machine()}
    others = Others()
    for case in CASES:
        if found.only is None or case in found.only:
            part = result.setdefault("key_echo", {})[case] = echoes(case, found.repeats, found.keys)
            medians = {name: round(of["median"], 1) for name, of in part.items() if isinstance(of, dict)}
            print(f"echo {case:8} {part['keys']} keys {medians}", flush=True)
    if found.only is None or "cost" in found.only:
        result["cost"] = {"aim_tokens_per_s": USUAL, **costs(found.repeats, found.seconds)}
        for name in CPU_LIMITS:
            print(f"cost {name:8}", {key: round(of["median"], 2) for key, of in result["cost"][name].items()})
    result["others_percent_of_a_core"] = others.percent()
    save(found.name, result)


if __name__ == "__main__":
    main()
