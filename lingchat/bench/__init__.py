"""`lingchat bench`: how fast a published model's true shape runs here, on random weights made on the device.

No checkpoint is needed, and no figure is a real model's: every result says "random weights". Arguments and output
here; what is measured is `run.py`. Imports no torch until it measures.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from lingchat.arguments import Parser
from lingchat.bench.job import DTYPES, SCHEMA_VERSION, SHAPES, Job
from lingchat.errors import LingchatError, UsageError
from lingchat.notes import Notes


def parser() -> Parser:
    parse = Parser(
        "lingchat bench",
        description="Prefill and decode of a published model's shape on random weights, beside the memory's speed.",
    )
    parse.add_argument("--shape", choices=SHAPES, metavar="NAME", help=", ".join(SHAPES))
    parse.add_argument(
        "--dtype",
        choices=DTYPES,
        metavar="TYPE",
        help="bf16 (a GPU's), fp8, int4 (experts alone), fp32, int8 (a CPU's)",
    )
    parse.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto, cpu or cuda")
    parse.add_argument("--prompt", type=_count, default=1024, metavar="TOKENS", help="tokens of prefill (1024)")
    parse.add_argument("--new", type=_count, default=256, metavar="TOKENS", help="tokens to decode (256)")
    parse.add_argument("--layers", type=_count, metavar="N", help="the first N layers alone, for a small machine")
    parse.add_argument("--seed", type=int, default=0, metavar="S", help="which random weights (0)")
    parse.add_argument("--threads", type=_count, metavar="N", help="threads on a CPU")
    parse.add_argument("--output", choices=("text", "json"), default="text", help="text (default) or json")
    return parse


def main(argv: Sequence[str]) -> int:
    """Run `lingchat bench ARGV`; the exit code. Raises `LingchatError`, unless JSON is asked for, which tells it."""
    found = parser().parse(argv)
    if found.shape is None:
        raise UsageError(f"--shape is missing; choose one of {', '.join(SHAPES)}.")
    as_json = found.output == "json"
    try:
        result = _measure(found)
    except LingchatError as error:
        if not as_json:
            raise
        told = {"schema_version": SCHEMA_VERSION, "error": {"code": error.code, "message": str(error)}}
        print(json.dumps(told, indent=1))
        return error.exit_code
    print(json.dumps(result, indent=1) if as_json else text(result))
    return 0


def _measure(found: argparse.Namespace) -> dict[str, Any]:
    from lingchat.bench.run import run

    options = {name: value for name, value in vars(found).items() if name != "output"}
    notes = Notes()
    try:
        return run(Job(**options), notes)
    finally:
        notes.clear()  # ctrl-c leaves no half line behind


def _count(given: str) -> int:
    number = int(given)
    if not 0 < number < 2**31:
        raise argparse.ArgumentTypeError("must be a whole number above 0")
    return number


def text(result: dict[str, Any]) -> str:
    """The result for people, a line a fact."""
    prefill, decode, memory, roof = result["prefill"], result["decode"], result["memory"], result["roof"]
    layers = f"{result['layers']} layers"
    if result["layers"] != result["layers_of_shape"]:
        layers = f"only {result['layers']} of {result['layers_of_shape']} layers"
    device = result["device"]
    where = device["name"] + (f", {device['threads']} threads" if "threads" in device else "")
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    lines = [
        ("shape", f"{result['shape']}, RANDOM WEIGHTS (seed {result['seed']}), {layers}, {result['dtype']}"),
        ("size", f"{result['parameters'] / 1e9:.3f} billion parameters"),
        ("runs on", f"{result['backend']}: {where}"),
        ("with", versions),
        (
            "prefill",
            f"{prefill['tokens']} tokens in {prefill['seconds'] * 1e3:,.1f} ms, {prefill['tokens_per_s']:,.0f} tok/s "
            f"(the first time {prefill['first_seconds'] * 1e3:,.0f} ms)",
        ),
        (
            "decode",
            f"{decode['tokens']} tokens, {decode['tokens_per_s']:,.2f} tok/s, one at a time, nothing drafted",
        ),
        ("TPOT", f"p50 {decode['tpot_p50_ms']:.3f} ms, p95 {decode['tpot_p95_ms']:.3f} ms"),
        (
            "roof",
            f"{roof['read_bytes_per_s'] / 1e9:,.0f} GB/s read ({roof['how']}), {roof['copy_bytes_per_s'] / 1e9:,.0f} "
            f"copied; {result['weight_bytes_per_token'] / 1e9:.3f} GB of weights a token, {result['floor_ms']:.3f} ms",
        ),
        ("share", f"{100 * result['share_of_roof']:.1f} % of the read roof"),
        ("memory", _memory(memory)),
    ]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {fact}" for name, fact in lines)


def _memory(memory: dict[str, Any]) -> str:
    planned = f"planned {_gb(memory['plan']['total'])} (weights {_gb(memory['plan']['weights'])})"
    if memory["peak"] is None:
        return f"{planned}; the peak cannot be told on this system"
    parts = ", ".join(f"{name.replace('_', ' ')} {_gb(taken)}" for name, taken in memory["peaks"].items())
    return f"{planned}, peak {_gb(memory['peak'])}, {100 * (memory['peak_over_plan'] - 1):+.1f} % ({parts})"


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.3f} GB"
