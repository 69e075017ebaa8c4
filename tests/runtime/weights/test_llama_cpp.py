"""llama.cpp as the judge of our understanding of GGUF: the tensors we read, in a transformers model, compute what
llama.cpp computes from the same file. Judges the permutation of q and k, rope factors, biases and q/k norms at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import xllamacpp
from make_models import FAMILIES, tokens, write_gguf

from lingchat.kernels.quant import to_torch
from lingchat.runtime.weights.load import open_weights

PRINTABLE = range(tokens().index("!"), tokens().index("~") + 1)
PROMPT = [5, 90, 77, 101, 40, 200, 33, 64, 120, 80] * 12  # past the original context of the tiny llama3


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tensors_compute_what_llama_cpp_computes(family: str, tmp_path: Path) -> None:
    made = write_gguf(tmp_path / "m.gguf", family, "F32")
    weights = open_weights(made.path)
    for name in weights.names():
        w = to_torch(weights.tensor(name))
        if weights.config.rope_adjacent and name.endswith(("q_proj.weight", "k_proj.weight")):
            w = w.view(-1, weights.config.head_dim // 2, 2, w.shape[1]).transpose(1, 2).reshape(w.shape)
        made.tensors[name] = w
    # llama.cpp keeps the figures of a token to itself when its bytes are no character: end where a letter or sign is next.
    prompts = torch.tensor([[*PROMPT, last] for last in range(3, 67)])
    with torch.inference_mode():
        likely = made.transformers()(prompts).logits[:, -1].log_softmax(-1)
    row = next(i for i, best in enumerate(likely.argmax(-1).tolist()) if best in PRINTABLE)
    expected = likely[row]

    params = xllamacpp.CommonParams()
    params.model.path = str(made.path)
    params.n_ctx, params.n_parallel, params.warmup, params.cpuparams.n_threads = 256, 1, False, 1
    server = xllamacpp.Server(params)
    said = server.handle_completions(
        {"prompt": prompts[row].tolist(), "n_predict": 1, "temperature": 0.0, "logprobs": 20}
    )
    theirs = said["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert len(theirs) == 20
    assert theirs[0]["id"] == int(expected.argmax())
    for token in theirs:
        assert token["logprob"] == pytest.approx(float(expected[token["id"]]), abs=0.02)
