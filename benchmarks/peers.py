"""Programs that decode the same GGUF on the same threads, each in a process of its own and asked in turn.

Two thread pools in one process disturb each other; two processes that are asked one after the other do not.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import xllamacpp
from common import spread

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

    def peak_bytes(self) -> int:
        """The most memory this process held, file pages in use included."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def prompt_ms(self, ids: list[int]) -> float:
        turn = self._turn(ChatRequest(ids=tuple(ids), sampling=Sampling(temperature=0.0, max_tokens=1)))
        assert turn.ttft_ms is not None
        return turn.ttft_ms


class LlamaCpp:
    """llama.cpp by the xllamacpp wheel; its own timers, without its HTTP server's part."""

    def __init__(self, path: Path, threads: int | None) -> None:
        self.facts = {"program": "llama.cpp (xllamacpp wheel)", "bytes_per_token": path.stat().st_size}
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

    def peak_bytes(self) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def prompt_ms(self, ids: list[int]) -> float:
        begin = time.perf_counter()
        self._ask(ids, 1)
        return (time.perf_counter() - begin) * 1e3


class Peer:
    """One program in a process of its own, so that no peer's thread pool disturbs another's. Asked over its pipes."""

    def __init__(self, kind: str, path: Path, threads: int | None) -> None:
        command = [sys.executable, __file__, kind, str(path), str(threads or 0)]
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


def serve(kind: str, path: Path, threads: int | None) -> None:
    """The child's side of `Peer`."""
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


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) or None)
