"""`lingchat stats RUN...`: the figures of one run, or several compared.

Knows traces and reports; knows nothing of how a figure is made.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from lingchat.arguments import Parser
from lingchat.stats.report import Named, as_json, compare, report
from lingchat.trace import Trace, find_run, read_trace


def main(argv: Sequence[str]) -> int:
    """Run `lingchat stats` with the words after it; the exit code."""
    parse = Parser(
        "lingchat stats",
        usage="lingchat stats RUN... [--turn N] [--exact] [--output text|json]",
        description="The latency figures of a run, as the screen showed them; of several runs, side by side.",
    )
    parse.add_argument(
        "runs", nargs="*", metavar="RUN", help="a run's id, the beginning or end of one, a file, or last"
    )
    parse.add_argument("--turn", type=int, metavar="N", help="only turn N")
    parse.add_argument("--exact", action="store_true", help="exact quantiles, where the screen's are within 1 %%")
    parse.add_argument("--output", choices=("text", "json"), default="text", help="form of the result")
    found = parse.parse(argv)
    names: list[str] = found.runs or ["last"]
    runs = []
    for name in names:
        trace = read_trace(find_run(name))
        _warn(name, trace)
        runs.append(Named(name, trace.fold(exact=found.exact)))
    if found.output == "json":
        print(msgspec.json.format(msgspec.json.encode(as_json(runs, found.turn)), indent=1).decode())
    elif len(runs) == 1:
        print(report(runs[0].run, found.turn))
    else:
        print(compare(runs, found.turn))
    return 0


def _warn(name: str, trace: Trace) -> None:
    passed_over = {
        "the last line is torn": trace.torn,
        f"{trace.damaged} damaged lines": trace.damaged,
        f"{trace.unknown} events of a newer version": trace.unknown,
    }
    said = [text for text, holds in passed_over.items() if holds]
    if said:
        print(f"lingchat: {name}: passed over {', '.join(said)}", file=sys.stderr)
