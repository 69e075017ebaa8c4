"""All results as one Markdown table: `python benchmarks/table.py`.

Every distribution (an object with a `median`) in `results/*.json` is a row, named by its place in the file. A `limit`
stands beside the value it limits; distributions under one name, such as the sides of a comparison, also show their
ratio to the first. Single numbers that are results by themselves are declared in `SINGLE`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from common import RESULTS


class AtLeast(float):
    """A limit from below; any other number is one from above."""


# Benchmark -> (place in the file, limit or None).
SINGLE: dict[str, tuple[tuple[str, float | None], ...]] = {
    "cpu_decode": (
        ("read_gb_s", None),
        ("ratios.decode_ms_per_token.native", AtLeast(1.7)),
        ("ratios.decode_ms_per_token.native plain", None),
        ("ratios.decode_ms_per_token.torch int8", None),
        ("ratios.prefill_512_ms.native", AtLeast(3.0)),
        ("ratios.prefill_512_ms.torch int8", None),
        ("ratios.ttft_50_ms.native", AtLeast(1 / 0.6)),
        ("ratios.verify_in_steps.4", 1.6),
        ("ratios.verify_in_steps.8", 2.2),
        ("ratios.far_over_near.native", 1.4),
        ("ratios.far_over_near.llama.cpp", None),
        ("qwen3-0.6b shape Q8_0.ratios.decode_ms_per_token.native", AtLeast(1.3)),
        ("qwen3-0.6b shape Q4_K.ratios.decode_ms_per_token.native", AtLeast(1.3)),
        ("peers.native.ready_s", 1.0),
        ("peers.native.peak_over_idle_bytes", None),
        ("ratios.peak_over_file", 1.3),
        ("drafted_repeat_task.speedup", None),
        ("drafted_repeat_task.accept_len", None),
        *((f"share_of_read_roof.{kind}", None) for kind in ("llama.cpp", "native", "native plain", "torch int8")),
    ),
    "quality": tuple(
        (f"{where}.{kind}.{figure}", limit)
        for where in ("on_text", "on_answers")
        for kind in ("native", "torch int8")
        for figure, limit in (
            ("perplexity", None),
            ("cost_percent", None),
            ("mean_kl_nats", 0.01),
            ("same_top_token", AtLeast(0.97)),
            ("largest_flip_gap", None),
        )
    )
    + tuple((f"first_difference_from_fp32.{kind}.median", None) for kind in ("native", "llama.cpp")),
    "ling_cpu": (
        ("read_gb_s", None),
        ("ratios_to_llama_cpp.decode_ms_per_token", AtLeast(1.2)),
        *((f"{what}.{kind}", None) for what in ("ready_s", "peak_bytes") for kind in ("llama.cpp", "native")),
    ),
    "busy_core": (("speed_kept.native", AtLeast(0.5)), ("speed_kept.llama.cpp", None)),
    "ling_gpu": (
        ("roof.read_by_own_kernel_gb_s", None),
        ("roof.copy_gb_s", None),
        *(
            (f"models.{model}.{figure}", limit)
            for model in (
                "ling-3.0-tiny bf16",
                "ling-3.0-tiny fp8",
                "ling-3.0-tiny int4",
                "ling-3.0-flash fp8",
                "ling-3.0-flash int4",
                "kimi-linear bf16",
                "qwen3-4b bf16",
            )
            for figure, limit in (
                ("decode.tpot_p50_ms", None),
                ("share_of_roof", None),
                ("prefill.tokens_per_s", None),
                ("memory.peak_over_plan", 1.02),
            )
        ),
    ),
    "ui_echo": (("others_percent_of_a_core", None),),
    "startup": (("others_percent_of_a_core", None),),
}
COMPARED = ("headless", "llama.cpp")  # the side that others are compared with


class Row(NamedTuple):
    name: str
    what: str
    median: float
    spread: tuple[float, float] | None = None
    ratio: float | None = None
    limit: float | None = None


def rows(result: dict[str, Any]) -> Iterator[Row]:
    """Of one result file."""
    name = result["run"]
    yield from _distributions(name, result, ())
    for place, limit in SINGLE.get(result["benchmark"], ()):
        value = _at(result, place)
        if value is not None:
            yield Row(name, place, value, limit=limit)


def _distributions(name: str, part: dict[str, Any], place: tuple[str, ...]) -> Iterator[Row]:
    bases = [part[side] for side in COMPARED if isinstance(part.get(side), dict)]
    base = next((of["median"] for of in bases if "median" in of), None)
    if "ratio_of_medians" in part:
        pairs = part["pairs"]
        ratio = part["ratio_of_medians"]
        yield Row(name, ".".join(place), ratio, (pairs["min"], pairs["max"]), ratio, part.get("limit"))
        return
    for key, value in part.items():
        if not isinstance(value, dict):
            continue
        here = (*place, key)
        if not {"median", "min", "max"} <= value.keys():
            yield from _distributions(name, value, here)
            continue
        ratio = value["median"] / base if base and key not in COMPARED else None
        yield Row(name, ".".join(here), value["median"], (value["min"], value["max"]), ratio, value.get("limit"))


def _at(result: dict[str, Any], place: str) -> float | None:
    """The number at a dotted place; keys may hold dots themselves, so the longest that fits goes first."""
    value: Any = result
    while place and isinstance(value, dict):
        key = max((key for key in value if f"{place}.".startswith(f"{key}.")), key=len, default=None)
        if key is None:
            return None
        value, place = value[key], place[len(key) + 1 :]
    return float(value) if isinstance(value, (int, float)) else None


def number(value: float | None) -> str:
    """Four figures that count, thousands whole."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def line(row: Row) -> str:
    low_high = f"{number(row.spread[0])} to {number(row.spread[1])}" if row.spread is not None else ""
    limit = number(row.limit)
    if row.limit is not None:
        below = isinstance(row.limit, AtLeast)
        met = row.median >= row.limit if below else row.median <= row.limit
        limit = f"{'at least ' if below else ''}{limit} ({'met' if met else 'not met'})"
    return f"| {row.name} | {row.what} | {number(row.median)} | {low_high} | {number(row.ratio)} | {limit} |"


def machines(results: list[dict[str, Any]]) -> Iterator[str]:
    for result in results:
        of = result["machine"]
        yield (
            f"- {result['run']}: {of['cpu']}, {of['cores']} cores, {of['system']}, Python {of['python']}, "
            f"{of['time']}, commit {of['commit']}, load before {of['load_average_before']:.1f}"
        )


def main(files: list[str]) -> None:
    """`files`: result files; none: all."""
    paths = [Path(file) for file in files] or sorted(RESULTS.glob("*.json"))
    results = [{**json.loads(path.read_text()), "run": path.stem} for path in paths]
    print("| benchmark | what | median | spread | ratio | limit |")
    print("|---|---|---:|---:|---:|---:|")
    for result in results:
        for row in rows(result):
            print(line(row))
    print()
    for machine in machines(results):
        print(machine)


if __name__ == "__main__":
    main(sys.argv[1:])
