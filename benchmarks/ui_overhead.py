"""What the screen costs the model: TPOT and tokens/s with the chat screen against `-p`, same prompt, greedy, same tokens.

Both sides are the installed command with the default model and the real engine, each a process of its own, one after
the other: A B A B. The screen side runs in a pseudo terminal of 120x40 with the latency panel; its bytes are read at
once, as a fast terminal does. Figures come from the traces that both write (exact, not from the histogram). Three
settings: `one_core_free` (threads = cores - 1), `all_cores` (threads = cores), `default` (no --threads and no other
option: threads, number type and back end are the engine's choice, as they are for a user). The tokens/s of `default`
with the screen on is the speed of the product on a machine; what computed it stands beside it.

    python benchmarks/ui_overhead.py [--pairs 5] [--tokens 600] [--only default] [--spec on] [--name ui_overhead]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from common import machine, save, spread
from terminal import COMMAND, Others, Terminal, environment, new_home, newest_trace, reply_ended

from lingchat.events import Engine, Text, Ui
from lingchat.trace import read_trace

PROMPT = "Tell me a long story about a lighthouse keeper and the sea."
LIMITS = {"p50": 1.01, "p95": 1.03}  # with one core free of decode threads
REPLY_LIMIT_S = 180.0


class Figures(NamedTuple):
    """Of one reply: TPOT in ms, its rate and text, and what the screen said of its own lag (None for `-p`)."""

    p50: float
    p95: float
    tok_s: float
    text: str
    backend: str  # and its threads, as the engine names them
    ui_lag_p95: float | None
    others_percent: float = 0.0  # of a core, by everything else on the machine, meanwhile


def figures(home: Path, tokens: int) -> Figures:
    """From the newest trace in `home`."""
    path = newest_trace(home)
    assert path is not None
    trace = read_trace(path)
    turn = trace.fold(exact=True).turns[1]
    if turn.tokens != tokens or turn.stop != "length":
        raise RuntimeError(f"the reply ended with {turn.stop} after {turn.tokens} of {tokens} tokens: another prompt")
    p50, p95, tok_s = turn.tpot(0.5), turn.tpot(0.95), turn.tok_s
    assert p50 is not None
    assert p95 is not None
    assert tok_s is not None
    lags = [event.lag_p95_ms for event in trace if isinstance(event, Ui)]
    text = "".join(event.delta for event in trace if isinstance(event, Text))
    backend = next(event.backend for event in trace if isinstance(event, Engine) and event.phase == "ready")
    return Figures(p50, p95, tok_s, text, backend, lags[-1] if lags else None)


def on_screen(home: Path, options: list[str], tokens: int) -> Figures:
    with Terminal([PROMPT, *options], environment(home), look=False) as terminal:
        terminal.until(lambda: reply_ended(home), REPLY_LIMIT_S)
    return figures(home, tokens)


def headless(home: Path, options: list[str], tokens: int) -> Figures:
    run = subprocess.run(
        [*COMMAND, "-p", PROMPT, *options],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=REPLY_LIMIT_S,
    )
    if run.returncode:
        raise RuntimeError(run.stderr.decode())
    return figures(home, tokens)


def pairs(count: int, tokens: int, threads: int | None, spec: str) -> dict[str, Any]:
    """`count` times `-p`, then the screen; medians, spreads and the ratio of medians."""
    options = ["--temperature", "0", "--max-tokens", str(tokens), "--spec", spec]
    options += ["--threads", str(threads)] if threads else []
    found: dict[str, list[Figures]] = {"headless": [], "tui": []}
    for _ in range(count):
        for side, run in (("headless", headless), ("tui", on_screen)):
            with new_home(model=True) as home:
                others = Others()
                figure = run(home, options, tokens)
                found[side].append(figure._replace(others_percent=others.percent()))
    texts, backends = ({figure[at] for side in found.values() for figure in side} for at in (3, 4))
    result: dict[str, Any] = {"threads": threads or "chosen by the engine", "same_text": len(texts) == 1}
    result["backend"] = " and ".join(sorted(backends))
    for name, key in (("p50", "tpot_p50_ms"), ("p95", "tpot_p95_ms"), ("tok_s", "tok_s")):
        values = {side: [getattr(figure, name) for figure in runs] for side, runs in found.items()}
        result[key] = {side: spread(runs) for side, runs in values.items()}
        result[f"{key.removesuffix('_ms')}_ratio"] = {
            "ratio_of_medians": statistics.median(values["tui"]) / statistics.median(values["headless"]),
            "pairs": spread([tui / bare for tui, bare in zip(values["tui"], values["headless"], strict=True)]),
        }
    result["others_percent_of_a_core"] = {
        side: spread([figure.others_percent for figure in runs]) for side, runs in found.items()
    }
    lags = [figure.ui_lag_p95 for figure in found["tui"] if figure.ui_lag_p95 is not None]
    if lags:
        result["ui_lag_p95_ms"] = spread(lags)
    return result


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    settings = {"one_core_free": max(1, cores - 1), "all_cores": cores, "default": None}
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--pairs", type=int, default=5)
    parse.add_argument("--tokens", type=int, default=600)
    parse.add_argument("--spec", default="off", help="drafting; off by default, so that every round is one token")
    parse.add_argument("--only", choices=settings, action="append")
    parse.add_argument("--name", default="ui_overhead")
    found = parse.parse_args()

    result: dict[str, Any] = {"benchmark": "ui_overhead", "machine": machine(), "prompt": PROMPT}
    result |= {"tokens": found.tokens, "spec": found.spec}
    for name in found.only or settings:
        part = result[name] = pairs(found.pairs, found.tokens, settings[name], found.spec)
        for percentile in ("p50", "p95"):
            ratio = part[f"tpot_{percentile}_ratio"]
            if name == "one_core_free":
                ratio["limit"] = LIMITS[percentile]
            medians = {side: round(of["median"], 2) for side, of in part[f"tpot_{percentile}_ms"].items()}
            print(f"{name:13} TPOT {percentile} {medians} ms, ratio {ratio['ratio_of_medians']:.3f}", flush=True)
        rates = {side: round(of["median"], 1) for side, of in part["tok_s"].items()}
        print(f"{name:13} {rates} tok/s, ratio {part['tok_s_ratio']['ratio_of_medians']:.3f}, {part['backend']}")
        others = {side: round(of["median"]) for side, of in part["others_percent_of_a_core"].items()}
        print(f"{name:13} others took {others} % of a core", flush=True)
    save(found.name, result)


if __name__ == "__main__":
    main()
