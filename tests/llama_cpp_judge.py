"""llama.cpp as the judge of whole models: log-probabilities of every token at every position of a prompt of ids.

The `xllamacpp` wheel serves the file over loopback in a process of its own, run as `python llama_cpp_judge.py FILE`,
so that whatever llama.cpp does to its process, even end it, is an error message here. Its cache is fp32, and its
attention the plain one: what differs from fp64 is then rounding alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

CONTEXT = 512


class LlamaCpp:
    def __init__(self, address: str, vocab: int) -> None:
        self._address, self._vocab = address, vocab

    def next_token(self, ids: Sequence[int], *, cached: bool = False) -> np.ndarray:
        """Log-probabilities [vocab] of the token after `ids`. `cached`: the last call had all `ids` but the
        last, which alone is computed; else `ids` are one prefill."""
        body = {
            "prompt": [int(i) for i in ids],
            "n_predict": 1,
            "n_probs": self._vocab,
            "temperature": 1.0,
            "samplers": [],
            # The choice must be a whole character, or the server holds it and its probabilities back. These are
            # those of the model, before any bias.
            "logit_bias": [[ord("a"), 1000.0]],
            "cache_prompt": cached,
            "post_sampling_probs": False,
        }
        answer = self.post("/completion", body)
        assert answer["timings"]["cache_n"] == (len(ids) - 1 if cached else 0), "a call must have had all but the last"
        out = np.full(self._vocab, np.nan)
        for entry in answer["completion_probabilities"][0]["top_logprobs"]:
            out[entry["id"]] = entry["logprob"]
        assert not np.isnan(out).any(), "llama.cpp left tokens out"
        return out

    def logprobs(self, ids: Sequence[int]) -> np.ndarray:
        """Log-probabilities [T, vocab] after every one of `ids`, decoded one by one."""
        return np.array([self.next_token(ids[: n + 1], cached=n > 0) for n in range(len(ids))])

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self._address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


@contextmanager
def llama_cpp(path: Path, vocab: int = 512) -> Iterator[LlamaCpp]:
    """A server of this GGUF file. Raises AssertionError with llama.cpp's own words when it cannot be loaded."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    try:
        address = next((line.split()[1] for line in process.stdout if line.startswith(b"serving ")), None)
        if address is None:
            raise AssertionError(f"llama.cpp does not load {path}: {process.stderr.read().decode()[-2000:]}")
        yield LlamaCpp(address.decode(), vocab)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


def serve(path: str) -> None:
    """Serves until standard input ends, which it does with the process that asked."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    params.warmup = False
    params.verbosity = -1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.fit_params = False
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    print("serving", server.listening_address, flush=True)
    sys.stdin.read()
    sys.stdout.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
