"""Programs that decode the same GGUF on the same threads, each in a process of its own and asked in turn.

Two thread pools in one process disturb each other; two processes that are asked one after the other do not.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common import spread

from lingchat.engines.api import ChatRequest, Message, Sampling
from lingchat.events import AnyEvent, Decode, now_ns
from lingchat.runtime import loading
from lingchat.runtime.engine import Runtime
from lingchat.runtime.loading import Loading
from lingchat.stats import TurnStats

DECODE_TOKENS = 64
MARK = "benchmark-answer "  # what a peer says to us, among what its libraries print
REPEAT_TASK = (
    "Repeat the text, nothing else: The quick brown fox jumps over the lazy dog. The dog sleeps in the sun all day "
    "long, and the fox runs home through the green forest to its small den under the old oak tree."
)


KINDS = {"native": "int8", "native plain": "int8", "torch int8": "int8", "fp32": "fp32"}  # and their precision


def open_runtime(path: Path, kind: str, threads: int | None, context: int) -> Runtime:
    """lingchat's runtime as one of KINDS: as it chooses by itself, without vector instructions, or without native code."""
    usual = loading.find_native

    def find_plain(*arguments: Any) -> Any:
        native = usual(*arguments)
        if native is not None:
            native.isa = "plain"
        return native

    loading.find_native = find_plain if kind == "native plain" else usual
    try:
        asked = Loading(dtype=KINDS[kind], threads=threads, context=context, native=kind.startswith("native"))
        runtime = Runtime(path, asked)
    finally:
        loading.find_native = usual
    wanted = {"native": "native", "native plain": "native plain"}.get(kind, "torch")
    if not runtime.info.backend.startswith(wanted):
        raise SystemExit(f"{kind} was asked for and {runtime.info.backend} serves")
    return runtime


def peak_bytes() -> int:
    """The most memory this process held. `getrusage` would begin with what its parent had when it was started."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024


class Ours:
    """lingchat's runtime in this process."""

    def __init__(self, path: Path, kind: str, threads: int | None, context: int) -> None:
        idle = peak_bytes()
        begin = time.perf_counter()
        self.runtime = open_runtime(path, kind, threads, context)
        info = self.runtime.info
        self.facts = {
            "program": f"lingchat, {info.backend}",
            "bytes_per_token": info.weights_bytes,
            "ready_s": time.perf_counter() - begin,  # from the request to load, torch's import included where it serves
            "peak_over_idle_bytes": peak_bytes() - idle,
        }
        while self.runtime.rest():  # measures what passes cost, which would otherwise happen while nothing is asked
            pass

    def _turn(self, request: ChatRequest) -> TurnStats:
        self.runtime.forget()
        turn = TurnStats(request.turn, exact=True)
        self.runtime.chat(request, now_ns(), turn.add, lambda: False)
        return turn

    def decode_ms(self, ids: list[int], spec: str = "off", tokens: int = DECODE_TOKENS) -> float:
        """Mean milliseconds a token, after a prompt of `ids`."""
        sampling = Sampling(temperature=0.0, max_tokens=tokens)
        turn = self._turn(ChatRequest(ids=tuple(ids), sampling=sampling, spec=spec))  # type: ignore[arg-type]
        assert turn.mean_tpot_ms is not None
        return turn.mean_tpot_ms

    def verify_ms(self, ids: list[int], rows: int) -> float:
        """A pass over so many rows behind the prompt `ids`: the quickest of eight, as a step of its own."""
        self._turn(ChatRequest(ids=tuple(ids), sampling=Sampling(temperature=0.0, max_tokens=1)))
        return min(self.runtime.seconds(rows) for _ in range(8)) * 1e3

    def greedy(self, ids: list[int], tokens: int) -> list[int]:
        """The tokens that greedy decoding chooses."""
        sampling = Sampling(temperature=0.0, max_tokens=tokens)
        self.runtime.forget()
        chosen: list[int] = []

        def keep(event: AnyEvent) -> None:
            if isinstance(event, Decode):
                chosen.extend(event.ids)

        request = ChatRequest(ids=tuple(ids), sampling=sampling, spec="off", keep_ids=True)
        self.runtime.chat(request, now_ns(), keep, lambda: False)
        return chosen

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
        return peak_bytes()

    def prompt_ms(self, ids: list[int]) -> float:
        turn = self._turn(ChatRequest(ids=tuple(ids), sampling=Sampling(temperature=0.0, max_tokens=1)))
        assert turn.ttft_ms is not None
        return turn.ttft_ms


class LlamaCpp:
    """llama.cpp by the xllamacpp wheel; its own timers, without its HTTP server's part."""

    def __init__(self, path: Path, threads: int | None, context: int) -> None:
        self.facts = {"program": "llama.cpp (xllamacpp wheel)", "bytes_per_token": path.stat().st_size}
        import xllamacpp  # here, so that it is in no other peer's memory

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = context
        params.n_parallel = 1
        params.verbosity = -1
        if threads:
            params.cpuparams.n_threads = threads
            params.cpuparams_batch.n_threads = threads
        self._server = xllamacpp.Server(params)

    def _ask(self, ids: list[int], tokens: int, **more: Any) -> dict[str, Any]:
        asked = {"prompt": ids, "n_predict": tokens, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
        answer = self._server.handle_completions(asked | more)
        return answer[0] if isinstance(answer, list) else answer  # type: ignore[no-any-return]

    def decode_ms(self, ids: list[int], tokens: int = DECODE_TOKENS) -> float:
        return float(self._ask(ids, tokens)["timings"]["predicted_per_token_ms"])

    def greedy(self, ids: list[int], tokens: int) -> list[int]:
        (choice,) = self._ask(ids, tokens, n_probs=1, ignore_eos=False)["choices"]
        return [token["id"] for token in choice["logprobs"]["content"]]

    def peak_bytes(self) -> int:
        return peak_bytes()

    def prompt_ms(self, ids: list[int]) -> float:
        begin = time.perf_counter()
        self._ask(ids, 1)
        return (time.perf_counter() - begin) * 1e3


class Peer:
    """One program in a process of its own, so that no peer's thread pool disturbs another's. Asked over its pipes."""

    def __init__(self, kind: str, path: Path, threads: int | None, context: int = 1024) -> None:
        command = [sys.executable, __file__, kind, str(path), str(threads or 0), str(context)]
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


def serve(kind: str, path: Path, threads: int | None, context: int) -> None:
    """The child's side of `Peer`."""
    peer = LlamaCpp(path, threads, context) if kind == "llama.cpp" else Ours(path, kind, threads, context)
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


def renewed(
    path: Path, kinds: Iterable[str], threads: int | None, context: int, repeats: int, what: str, **arguments: Any
) -> dict[str, dict[str, float]]:
    """As `alternate`, with a new process for every value, which is asked once before.

    Where a process's memory lies in a machine of several memory controllers is luck that lasts as long as the process:
    on a virtual machine reading took 17 us/MB or 27.
    """
    values: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(repeats):
        for kind, found in values.items():
            peer = Peer(kind, path, threads, context)
            peer.ask(what, **arguments)
            found.append(peer.ask(what, **arguments))
            peer.close()
    return {kind: spread(found) for kind, found in values.items()}


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) or None, int(sys.argv[4]))
