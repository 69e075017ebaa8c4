"""How soon one can type, and how soon the first token comes, from the start of the process. Files are warm,
byte code is there: one run of each kind comes first and is not counted.

`screen`: `python -m lingchat` in a pseudo terminal of 120x40 while the real engine loads in the background: the first
paint, the first key echoed (typed the moment the prompt stands there), and the engine ready.
`cold`: `-p` with the default model, from the start of the process to the first byte on standard output, split by the
trace: each phase ends where the next begins, and together they are the whole. `front end` is what comes before the
engine's process is started: the interpreter and a few imports. `start engine` lasts until that process speaks; `find
model`, `import`, `load`, ... are its own phases. Nothing is asked of the engine: what computes is what computes for a
user, and `backend` says what that was.
Beside it, in turns, llama.cpp by the xllamacpp wheel: a Python process that loads the same file and asks for one token of
the same prompt, from its start to that token.
`warm`: the same request with a scripted engine that answers at once: what `-p` itself costs when nothing is loaded.
`python` is the bare interpreter, for comparison.

    python benchmarks/startup.py [--repeats 7] [--only screen] [--name startup]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from common import machine, save, spread
from peers import MARK
from terminal import COMMAND, Others, Terminal, environment, new_home, newest_trace

from lingchat.catalog.models import resolve
from lingchat.engines.script import Script, ScriptTurn
from lingchat.events import AnyEvent, Engine, TurnFirst, TurnStart
from lingchat.trace import Trace, read_trace

PROMPT = "What is an ocean?"
LIMITS = {"first_paint_ms": 400.0, "usable_ms": 1000.0}
COLD_LIMIT_MS = 1000.0
SPAWN_LIMIT_MS = 60.0  # until the engine's process is started
WARM_LIMIT_MS = 150.0
# The message of a `load` event, and what the time from it to the next event is called.
LOADING = {
    "starting the runtime": "import",
    "reading the file": "read file and tokenizer",
    "packing weights": "load",
    "warming up": "warm up",
}


# argv: the file, the prompt. The library itself writes to standard output, too.
LLAMA_CPP = f"""
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = 4096
params.n_parallel = 1
params.verbosity = -1
server = xllamacpp.Server(params)
asked = dict(messages=[dict(role="user", content=sys.argv[2])], temperature=0, max_tokens=1)
answer = server.handle_chat_completions(asked)
print({MARK!r}, answer, flush=True)
"""


def screen(home: Path) -> dict[str, float]:
    """One start of the chat screen; ms from the start of the process."""
    with Terminal([], environment(home)) as terminal:
        begin = terminal.started_ns
        paint = terminal.until(terminal.painted)
        terminal.until(terminal.prompt_stands)
        terminal.type(b"x")
        usable = terminal.until(lambda: terminal.typed() == "x")
        ready = terminal.until(lambda: terminal.status() == "ready")
    return {
        "first_paint_ms": (paint - begin) / 1e6,
        "usable_ms": (usable - begin) / 1e6,
        "ready_ms": (ready - begin) / 1e6,
    }


class Reply:
    """One run of `-p`: ms from the start of the process to its first byte and to its end, and its trace."""

    def __init__(self, home: Path, script: Path | None = None) -> None:
        self.begin_wall = time.time()
        begin = time.perf_counter()
        process = subprocess.Popen(
            [*COMMAND, "-p", PROMPT, "--temperature", "0", "--max-tokens", "8"],
            env=environment(home, script),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        first = process.stdout.read(1)
        self.first_ms = (time.perf_counter() - begin) * 1e3
        _, errors = process.communicate()
        self.exit_ms = (time.perf_counter() - begin) * 1e3
        if process.returncode or not first:
            raise RuntimeError(errors.decode())
        path = newest_trace(home)
        assert path is not None
        self.trace: Trace = read_trace(path)


def phases(reply: Reply) -> dict[str, float]:
    """Where the time to the first token went, in order; ms, their sum is `first_ms`."""
    # Times of a trace count from run start, whose time of day it holds to the millisecond.
    offset = (datetime.fromisoformat(reply.trace.start.wall).timestamp() - reply.begin_wall) * 1e3
    marks: list[tuple[str, float]] = [("front end", 0.0), ("start engine", offset)]
    for event in reply.trace:
        marks += [(name, offset + at / 1e6) for name, at in _marks(event)]
    ends = [*(at for _, at in marks[1:]), reply.first_ms]
    split: dict[str, float] = {}
    for (name, at), end in zip(marks, ends, strict=True):
        split[name] = split.get(name, 0.0) + end - at
    return split


def _marks(event: AnyEvent) -> list[tuple[str, int]]:
    """Which phases begin with an event, and when (ns from run start)."""
    match event:
        case Engine(phase="start"):
            return [("find model", event.t_ns)]
        case Engine(phase="load") if event.message in LOADING:
            return [(LOADING[event.message], event.t_ns)]
        case Engine(phase="ready"):
            return [("ask", event.t_ns)]
        case TurnStart():
            return []  # `turn.first` tells the instants more finely
        case TurnFirst():
            return [
                ("tokenize", event.started),
                ("prefill", event.tokenized),
                ("first round", event.prefill_end),
                ("to standard output", event.first_token),
            ]
    return []


def llama_cpp(model: Path) -> float:
    """One token by a process that has nothing yet; ms from its start."""
    begin = time.perf_counter()
    command = [sys.executable, "-c", LLAMA_CPP, str(model), PROMPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(MARK.encode()):
                return (time.perf_counter() - begin) * 1e3
    raise RuntimeError("llama.cpp gave no answer")


def cold(home: Path, backends: set[str]) -> dict[str, float]:
    """One run with a real load; what computed goes to `backends`."""
    reply = Reply(home)
    backends |= {event.backend for event in reply.trace if isinstance(event, Engine) and event.phase == "ready"}
    found = {"first_token": reply.first_ms, **phases(reply)}
    return {**found, "llama.cpp": llama_cpp(resolve(None, lambda progress: None).path)}


def warm(home: Path) -> dict[str, float]:
    script = home / "script.json"
    script.write_bytes(msgspec.json.encode(Script(turns=(ScriptTurn(text="Water.", round_ms=0.0, prefill_ms=0.0),))))
    reply = Reply(home, script)
    return {"first_token_ms": reply.first_ms, "exit_ms": reply.exit_ms}


def python() -> float:
    """The interpreter alone, start to end; ms."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return (time.perf_counter() - begin) * 1e3


def repeated(run: Callable[[Path], dict[str, float]], repeats: int, *, model: bool) -> dict[str, dict[str, float]]:
    """`run` in a new home each time; one run warms the files and is not counted."""
    runs = []
    for number in range(repeats + 1):
        with new_home(model=model) as home:
            found = run(home)
        if number:
            runs.append(found)
    names = dict.fromkeys(name for found in runs for name in found)
    return {name: spread([found.get(name, 0.0) for found in runs]) for name in names}


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--repeats", type=int, default=7)
    parse.add_argument("--only", choices=("screen", "cold", "warm"), action="append")
    parse.add_argument("--name", default="startup")
    found = parse.parse_args()

    result: dict[str, Any] = {"benchmark": "startup", "machine": machine()}
    others = Others()
    chosen = found.only or ("screen", "cold", "warm")
    if "screen" in chosen:
        result["screen"] = repeated(screen, found.repeats, model=True)
        for name, limit in LIMITS.items():
            result["screen"][name]["limit"] = limit
    if "cold" in chosen:
        backends: set[str] = set()
        split = repeated(lambda home: cold(home, backends), found.repeats, model=True)
        split["front end"]["limit"] = SPAWN_LIMIT_MS
        result["cold"] = {
            "first_token_ms": split.pop("first_token") | {"limit": COLD_LIMIT_MS},
            "llama_cpp_first_token_ms": split.pop("llama.cpp"),
            "phases_ms": split,
        }
        result["cold"]["ratio_to_llama_cpp"] = (
            result["cold"]["first_token_ms"]["median"] / result["cold"]["llama_cpp_first_token_ms"]["median"]
        )
        result["cold"]["backend"] = " and ".join(sorted(backends))
    if "warm" in chosen:
        result["warm"] = repeated(warm, found.repeats, model=False)
        result["warm"]["first_token_ms"]["limit"] = WARM_LIMIT_MS
        result["warm"]["python_ms"] = spread([python() for _ in range(found.repeats)])
    for part in chosen:
        of = result[part]
        for name, figures in {**of, **of.get("phases_ms", {})}.items():
            if name == "backend":
                print(f"{part:7} computed by {figures}")
            elif isinstance(figures, dict) and "median" in figures:
                print(f"{part:7} {name:26} {figures['median']:9.1f}  ({figures['min']:.1f}..{figures['max']:.1f})")
    result["others_percent_of_a_core"] = others.percent()
    save(found.name, result)


if __name__ == "__main__":
    main()
