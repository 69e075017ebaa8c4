"""Ling-3.0-tiny's true shape in a GGUF at 4 bits on the CPU, beside llama.cpp: same file, same threads, same run.

Weights are random and made here (`random_gguf.py`, 4.5 GB in a temporary folder): bytes, operations and memory are the
real ones, the text is noise. Measures decode (ms a token, greedy, no drafting), prefill of 256 tokens, the most memory
each program held, and how long lingchat takes from the file to the first request. A B A B, medians.

    python benchmarks/ling_cpu.py [--threads 2] [--repeats 3] [--name ling_cpu] [--file GGUF]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from common import machine, read_bandwidth, save
from peers import Peer, alternate
from random_gguf import write


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--repeats", type=int, default=3)
    parse.add_argument("--name", default="ling_cpu")
    parse.add_argument("--file", type=Path, help="a file that random_gguf.py has written")
    found = parse.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = found.file or Path(folder) / "ling-tiny-q4_0.gguf"
        if found.file is None:
            write(path)
        save(found.name, measure(path, found.threads, found.repeats))


def measure(path: Path, threads: int, repeats: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "benchmark": "ling_cpu",
        "provenance": "random weights",
        "machine": machine(),
        "threads": threads,
        "file_bytes": path.stat().st_size,
        "read_gb_s": read_bandwidth(threads) / 1e9,
    }
    peers: dict[str, Peer] = {}
    for kind in ("llama.cpp", "native"):
        begin = time.perf_counter()
        peers[kind] = Peer(kind, path, threads)
        result.setdefault("ready_s", {})[kind] = time.perf_counter() - begin  # imports included
    draw = random.Random(7)
    prompts = {n: [draw.randrange(300, 150_000) for _ in range(n)] for n in (16, 256)}
    result["decode_ms_per_token"] = alternate(peers, repeats, "decode_ms", ids=prompts[16])
    result["prefill_256_ms"] = alternate(peers, repeats, "prompt_ms", ids=prompts[256])
    result["peak_bytes"] = {kind: peer.ask("peak_bytes") for kind, peer in peers.items()}
    result["peers"] = {kind: peer.facts for kind, peer in peers.items()}
    keys = ("decode_ms_per_token", "prefill_256_ms")
    result["ratios_to_llama_cpp"] = {
        key: round(result[key]["llama.cpp"]["median"] / result[key]["native"]["median"], 3) for key in keys
    }
    for peer in peers.values():
        peer.close()
    for key in keys:
        for kind, figures in result[key].items():
            print(f"{key:22} {kind:12} {figures['median']:9.1f}  ({figures['min']:.1f}..{figures['max']:.1f})")
    print(result["ratios_to_llama_cpp"], result["peak_bytes"], result["ready_s"])
    return result


if __name__ == "__main__":
    main()
