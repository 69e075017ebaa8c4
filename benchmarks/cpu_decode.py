"""Decoding on the CPU beside llama.cpp: same GGUF, same threads, same run, A B A B, medians.

The default model: decode (ms a token, greedy, no drafting), what verifying 4 and 8 rows costs in steps, a token at 100
and at 1,900 positions, prefill of 512 tokens, TTFT of a 50-token prompt, loading, drafting on a text that repeats; by
native code, by native code without vector instructions, and by torch. With `--shapes` also Qwen3-0.6B's shape in Q8_0
and Q4_K (random weights, written here). No prompt reuses a prefix. Ratios are what counts; the read bandwidth of the
run stands beside the absolute figures.

    python benchmarks/cpu_decode.py [--threads 2] [--repeats 5] [--name cpu_decode] [--shapes]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from common import machine, read_bandwidth, save, spread
from peers import REPEAT_TASK, Peer, alternate, renewed
from random_gguf import write_qwen3

from lingchat.catalog.models import resolve

Figures = dict[str, dict[str, float]]
NEAR, FAR = 100, 1900  # positions


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--repeats", type=int, default=5)
    parse.add_argument("--name", default="cpu_decode")
    parse.add_argument("--shapes", action="store_true", help="Qwen3-0.6B's shape too, 1.1 GB of temporary files")
    found = parse.parse_args()
    result: dict[str, Any] = {"benchmark": "cpu_decode", "machine": machine(), "threads": found.threads}
    result["read_gb_s"] = read_bandwidth(found.threads) / 1e9
    result |= default_model(found.threads, found.repeats)
    if found.shapes:
        with tempfile.TemporaryDirectory() as folder:
            for kind in ("Q8_0", "Q4_K"):
                path = Path(folder) / f"qwen3-0.6b-{kind}.gguf"
                write_qwen3(path, kind)
                result[f"qwen3-0.6b shape {kind}"] = shape(path, found.threads, found.repeats)
                path.unlink()
    result["share_of_read_roof"] = {
        name: round(result["peers"][name]["bytes_per_token"] / result["read_gb_s"] / 1e6 / figures["median"], 3)
        for name, figures in result["decode_ms_per_token"].items()
    }
    tell(result)
    save(found.name, result)


def default_model(threads: int, repeats: int) -> dict[str, Any]:
    path = resolve(None, lambda progress: None).path
    peers = {kind: Peer(kind, path, threads, 2048) for kind in ("llama.cpp", "native", "native plain", "torch int8")}
    draw = random.Random(7)
    prompts = {n: [draw.randrange(100, 49_000) for _ in range(n)] for n in (16, 50, NEAR, 512, FAR)}
    result: dict[str, Any] = {}
    result["decode_ms_per_token"] = renewed(path, peers, threads, 2048, repeats, "decode_ms", ids=prompts[16])
    result["prefill_512_ms"] = alternate(peers, repeats, "prompt_ms", ids=prompts[512])
    result["ttft_50_ms"] = alternate(peers, repeats, "prompt_ms", ids=prompts[50])
    result["verify_ms"] = verify(peers["native"], prompts[NEAR], repeats)
    result["verify_ms_torch_int8"] = verify(peers["torch int8"], prompts[NEAR], repeats)
    here, there = (
        alternate({k: peers[k] for k in ("llama.cpp", "native")}, repeats, "decode_ms", ids=prompts[n], tokens=32)
        for n in (NEAR, FAR)
    )
    result["decode_ms_by_position"] = {
        kind: {f"at {NEAR}": here[kind], f"at {FAR}": there[kind]} for kind in ("native", "llama.cpp")
    }
    result["drafted_repeat_task"] = drafted(peers["native"], repeats)
    result["peers"] = {name: peer.facts for name, peer in peers.items()}
    for peer in peers.values():
        peer.close()
    for key in ("decode_ms_per_token", "prefill_512_ms", "ttft_50_ms"):
        result.setdefault("ratios", {})[key] = ratios(result[key])
    steps = {n: result["verify_ms"][n]["median"] / result["verify_ms"]["1"]["median"] for n in ("4", "8")}
    result["ratios"]["verify_in_steps"] = {n: round(value, 3) for n, value in steps.items()}
    result["ratios"]["far_over_near"] = {
        kind: round(at[f"at {FAR}"]["median"] / at[f"at {NEAR}"]["median"], 3)
        for kind, at in result["decode_ms_by_position"].items()
    }
    result["default_file_bytes"] = path.stat().st_size
    result["ratios"]["peak_over_file"] = result["peers"]["native"]["peak_over_idle_bytes"] / path.stat().st_size
    return result


def verify(peer: Peer, ids: list[int], repeats: int) -> Figures:
    """Passes over 1, 2, 4 and 8 rows in turn."""
    values: dict[int, list[float]] = {1: [], 2: [], 4: [], 8: []}
    for turn in range(repeats + 1):
        for rows, found in values.items():
            value = peer.ask("verify_ms", ids=ids, rows=rows)
            if turn:
                found.append(value)
    return {str(rows): spread(found) for rows, found in values.items()}


def drafted(peer: Peer, repeats: int) -> dict[str, Any]:
    runs = [peer.ask("drafted") for _ in range(repeats + 1)][1:]
    return {
        "text": REPEAT_TASK,
        "off_ms": spread([run["off_ms"] for run in runs]),
        "on_ms": spread([run["on_ms"] for run in runs]),
        "speedup": statistics.median(run["off_ms"] / run["on_ms"] for run in runs),
        "accept_len": runs[0]["accept_len"],
    }


def shape(path: Path, threads: int, repeats: int) -> dict[str, Any]:
    """A model of random weights beside llama.cpp: decode and prefill."""
    peers = {kind: Peer(kind, path, threads) for kind in ("llama.cpp", "native")}
    draw = random.Random(7)
    prompts = {n: [draw.randrange(300, 150_000) for _ in range(n)] for n in (16, 256)}
    result: dict[str, Any] = {"provenance": "random weights", "file_bytes": path.stat().st_size}
    result["decode_ms_per_token"] = renewed(
        path, peers, threads, 1024, repeats, "decode_ms", ids=prompts[16], tokens=24
    )
    result["prefill_256_ms"] = alternate(peers, repeats, "prompt_ms", ids=prompts[256])
    result["ratios"] = {key: ratios(result[key]) for key in ("decode_ms_per_token", "prefill_256_ms")}
    result["peers"] = {kind: peer.facts for kind, peer in peers.items()}
    for peer in peers.values():
        peer.close()
    return result


def ratios(figures: Figures) -> dict[str, float]:
    """How many times as fast as llama.cpp."""
    base = figures["llama.cpp"]["median"]
    return {name: round(base / found["median"], 3) for name, found in figures.items() if name != "llama.cpp"}


def tell(result: dict[str, Any]) -> None:
    for key in ("decode_ms_per_token", "prefill_512_ms", "ttft_50_ms", "verify_ms"):
        for name, figures in result[key].items():
            print(f"{key:22} {name:14} {figures['median']:9.3f}  ({figures['min']:.3f}..{figures['max']:.3f})")
    print("ratios", result["ratios"], "drafted", result["drafted_repeat_task"]["speedup"])
    for name, found in result.items():
        if "shape" in name:
            print(name, found["ratios"], {k: v["median"] for k, v in found["decode_ms_per_token"].items()})
    print("read", result["read_gb_s"], "GB/s, shares", result["share_of_read_roof"])
    print({name: (facts.get("ready_s"), facts.get("peak_over_idle_bytes")) for name, facts in result["peers"].items()})


if __name__ == "__main__":
    main()
