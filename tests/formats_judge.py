"""llama.cpp as the judge of ids: the `xllamacpp` wheel's server, asked over loopback; and tiny GGUF files for it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import xllamacpp


class Judge:
    """The tokenizer of one GGUF file as llama.cpp reads it."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ids(self, text: str, *, special: bool = False, add: bool = False) -> list[int]:
        return self.post("/tokenize", content=text, parse_special=special, add_special=add)["tokens"]

    def text(self, ids: list[int]) -> str:
        return self.post("/detokenize", tokens=ids)["content"]

    def post(self, path: str, **body: Any) -> Any:
        request = urllib.request.Request(
            self._address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


@contextmanager
def judge(path: Path) -> Iterator[Judge]:
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = 256
    params.n_parallel = 1
    params.warmup = False
    params.verbosity = -1
    server = xllamacpp.Server(params)
    try:
        yield Judge(server.listening_address)
    finally:
        del server


def write_vocabulary(path: Path, metadata: dict[str, Any]) -> Path:
    """A llama model of one tiny block around the tokenizer in `metadata` (`tokenizer.*` keys)."""
    width, tokens = 32, len(metadata["tokenizer.ggml.tokens"])
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width)
    writer.add_vocab_size(tokens)
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    square = np.zeros((width, width), np.float32)
    writer.add_tensor("token_embd.weight", np.zeros((tokens, width), np.float16))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", square)
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
