"""The default model on the CPU beside llama.cpp: same GGUF, same threads, same run, A B A B, medians.

Measures decode (ms a token, greedy, no drafting), decode with drafting on a text that repeats, prefill of 512 tokens,
and TTFT of a 50-token prompt, each without any reused prefix. Ratios are what counts; the read bandwidth of the run
stands beside the absolute figures.

    python benchmarks/cpu_decode.py [--threads 2] [--repeats 5] [--name cpu_decode]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import xllamacpp
from common import machine, read_bandwidth, save, spread

from lingchat.catalog.models import resolve
from lingchat.engines.api import ChatRequest, Message, Sampling
from lingchat.events import now_ns
from lingchat.runtime.engine import Runtime
from lingchat.runtime.loading import Loading
from lingchat.stats import TurnStats

DECODE_TOKENS = 64
MARK = "benchmark-answer "  # what a peer says to us, among what its libraries print
REPEAT_TASK = (
    "Repeat the text, nothing else: The quick brown fox jumps over the lazy dog. The dog sleeps in the sun all day "
    "long, and the fox runs home through the green forest to its small den under the old oak tree."
)


class Ours:
    """lingchat's runtime in this process."""

    def __init__(self, path: Path, dtype: str, threads: int | None) -> None:
        self.runtime = Runtime(path, Loading(dtype=dtype, threads=threads, context=1024))
        info = self.runtime.info
        self.facts = {"program": f"lingchat, {info.backend}, {dtype}", "bytes_per_token": info.weights_bytes}

    def _turn(self, request: ChatRequest) -> TurnStats:
        self.runtime.forget()
        turn = TurnStats(request.turn, exact=True)
        self.runtime.chat(request, now_ns(), turn.add, lambda: False)
        return turn

    def decode_ms(self, ids: list[int], spec: str = "off") -> float:
        sampling = Sampling(temperature=0.0, max_tokens=DECODE_TOKENS)
        turn = self._turn(ChatRequest(ids=tuple(ids), sampling=sampling, spec=spec))  # type: ignore[arg-type]
        assert turn.mean_tpot_ms is not None
        return turn.mean_tpot_ms

    def drafted(self) -> dict[str, Any]:
        request = ChatRequest(
            messages=(Message("user", REPEAT_TASK),), sampling=Sampling(temperature=0.0, max_tokens=80)
        )
        plain, drafted = (
            self._turn(ChatRequest(messages=request.messages, sampling=request.sampling, spec=spec))
            for spec in ("off", "on")
        )
        return {"off_ms": plain.mean_tpot_ms, "on_ms": drafted.mean_tpot_ms, "accept_len": drafted.accept_len}

    def prompt_ms(self, ids: list[int]) -> float:
        turn = self._turn(ChatRequest(ids=tuple(ids), sampling=Sampling(temperature=0.0, max_tokens=1)))
        assert turn.ttft_ms is not None
        return turn.ttft_ms


class LlamaCpp:
    """llama.cpp by the xllamacpp wheel; its own timers, without its HTTP server's part."""

    def __init__(self, path: Path, threads: int | None) -> None:
        self.facts = {"program": "llama.cpp (xllamacpp wheel), Q4_1", "bytes_per_token": path.stat().st_size}
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = 1024
        params.n_parallel = 1
        params.verbosity = -1
        if threads:
            params.cpuparams.n_threads = threads
            params.cpuparams_batch.n_threads = threads
        self._server = xllamacpp.Server(params)

    def _ask(self, ids: list[int], tokens: int) -> dict[str, Any]:
        answer = self._server.handle_completions(
            {"prompt": ids, "n_predict": tokens, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
        )
        if isinstance(answer, list):
            answer = answer[0]
        return answer["timings"]  # type: ignore[no-any-return]

    def decode_ms(self, ids: list[int]) -> float:
        return float(self._ask(ids, DECODE_TOKENS)["predicted_per_token_ms"])

    def prompt_ms(self, ids: list[int]) -> float:
        begin = time.perf_counter()
        self._ask(ids, 1)
        return (time.perf_counter() - begin) * 1e3


class Peer:
    """One program in a process of its own, so that no peer's thread pool disturbs another's. Asked over its pipes."""

    def __init__(self, kind: str, threads: int | None) -> None:
        command = [sys.executable, __file__, "--serve", kind, "--threads", str(threads or 0)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.facts = self._answer()

    def ask(self, what: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"what": what, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        raise RuntimeError("a peer died")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def serve(kind: str, threads: int | None) -> None:
    """The child's side of `Peer`."""
    path = resolve(None, lambda progress: None).path
    peer = LlamaCpp(path, threads) if kind == "llama.cpp" else Ours(path, kind, threads)
    print(MARK + json.dumps(peer.facts), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(peer, request.pop("what"))(**request)
        print(MARK + json.dumps(answer), flush=True)


def alternate(peers: dict[str, Peer], repeats: int, what: str, **arguments: Any) -> dict[str, dict[str, float]]:
    """Each peer once, again and again; the first pass warms up and is not counted."""
    values: dict[str, list[float]] = {name: [] for name in peers}
    for turn in range(repeats + 1):
        for name, peer in peers.items():
            value = peer.ask(what, **arguments)
            if turn:
                values[name].append(value)
    return {name: spread(found) for name, found in values.items()}


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--repeats", type=int, default=5)
    parse.add_argument("--name", default="cpu_decode")
    parse.add_argument("--serve", help=argparse.SUPPRESS)
    found = parse.parse_args()
    if found.serve:
        serve(found.serve, found.threads or None)
        return

    result: dict[str, Any] = {"benchmark": "cpu_decode", "machine": machine(), "threads": found.threads}
    result["read_gb_s"] = read_bandwidth(found.threads) / 1e9
    peers = {kind: Peer(kind, found.threads) for kind in ("llama.cpp", "int8", "fp32")}
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
