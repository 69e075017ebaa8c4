"""The default model on the CPU beside llama.cpp: same GGUF, same threads, same run, A B A B, medians.

Measures decode (ms a token, greedy, no drafting), decode with drafting on a text that repeats, prefill of 512 tokens,
and TTFT of a 50-token prompt, each without any reused prefix. Ratios are what counts; the read bandwidth of the run
stands beside the absolute figures.

    python benchmarks/cpu_decode.py [--threads 2] [--repeats 5] [--name cpu_decode]
"""

from __future__ import annotations

import argparse
import random
import statistics
from typing import Any

from common import machine, read_bandwidth, save, spread
from peers import REPEAT_TASK, Peer, alternate

from lingchat.catalog.models import resolve


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--repeats", type=int, default=5)
    parse.add_argument("--name", default="cpu_decode")
    found = parse.parse_args()

    result: dict[str, Any] = {"benchmark": "cpu_decode", "machine": machine(), "threads": found.threads}
    result["read_gb_s"] = read_bandwidth(found.threads) / 1e9
    path = resolve(None, lambda progress: None).path
    peers = {kind: Peer(kind, path, found.threads) for kind in ("llama.cpp", "int8", "fp32")}
    words = random.Random(7)
    prompts = {n: [words.randrange(100, 49_000) for _ in range(n)] for n in (16, 50, 512)}
    result["decode_ms_per_token"] = alternate(peers, found.repeats, "decode_ms", ids=prompts[16])
    result["prefill_512_ms"] = alternate(peers, found.repeats, "prompt_ms", ids=prompts[512])
    result["ttft_50_ms"] = alternate(peers, found.repeats, "prompt_ms", ids=prompts[50])
    runs = [peers["int8"].ask("drafted") for _ in range(found.repeats + 1)][1:]
    result["drafted_repeat_task_int8"] = {
        "text": REPEAT_TASK,
        "off_ms": spread([run["off_ms"] for run in runs]),
        "on_ms": spread([run["on_ms"] for run in runs]),
        "speedup": statistics.median(run["off_ms"] / run["on_ms"] for run in runs),
        "accept_len": runs[0]["accept_len"],
    }
    keys = ("decode_ms_per_token", "prefill_512_ms", "ttft_50_ms")
    result["ratios_to_llama_cpp"] = {
        key: {
            name: round(result[key]["llama.cpp"]["median"] / figures["median"], 3)
            for name, figures in result[key].items()
            if name != "llama.cpp"
        }
        for key in keys
    }
    result["peers"] = {name: peer.facts for name, peer in peers.items()}
    result["share_of_read_roof"] = {
        name: round(peers[name].facts["bytes_per_token"] / result["read_gb_s"] / 1e6 / figures["median"], 3)
        for name, figures in result["decode_ms_per_token"].items()
    }
    for peer in peers.values():
        peer.close()
    for key in keys:
        for name, figures in result[key].items():
            print(f"{key:22} {name:12} {figures['median']:9.2f}  ({figures['min']:.2f}..{figures['max']:.2f})")
    print(result["ratios_to_llama_cpp"], "drafted", result["drafted_repeat_task_int8"]["speedup"])
    print("read", result["read_gb_s"], "GB/s, shares", result["share_of_read_roof"])
    save(found.name, result)


if __name__ == "__main__":
    main()
