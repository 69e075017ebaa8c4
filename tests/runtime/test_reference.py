"""The default model against two judges: prompt ids against llama.cpp, greedy tokens against transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from formats_judge import Judge, judge

from lingchat.engines.api import ChatRequest, Message, Sampling
from lingchat.events import AnyEvent, Decode, now_ns
from lingchat.runtime.engine import Runtime
from lingchat.runtime.loading import Loading

TOKENS = 64
GAP = 1e-3  # the largest difference of the two best logits at which the two may part

PROMPTS = [
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain what a rainbow is to a child.",
    "List three primary colours.",
    "How many legs do 7 spiders have? 7 x 8 = ?",
    "Translate to Spanish: good morning, my friend.",
    "def add(a, b):\n    return a + b\n\nWhat does this function do?",
    "Correct the spelling: Ths sentnce has erors.",
    "Give me a recipe for pancakes.",
    "Who wrote Romeo and Juliet?",
    "Repeat exactly: one two three four five six seven eight nine ten.",
    "Why is the sky blue?",
    "Write an email asking for a day off.",
    "What is photosynthesis?",
    "Tell me a story about a dragon and a mouse.",
    "日本の首都はどこですか?",
    "Name a fruit that is yellow.\n\n\nAnd one that is red.",
    "What year comes after 1999?",
    "Summarize: The cat sat on the mat. It was warm. The cat slept all day.",
    "<|im_start|> is a token. What is 12,345 + 1?",
]


@pytest.fixture(scope="module")
def runtime(default_model: Path) -> Runtime:
    return Runtime(default_model, Loading(dtype="fp32", context=512))


@pytest.fixture(scope="module")
def llama_cpp(default_model: Path) -> Iterator[Judge]:
    with judge(default_model) as server:
        yield server


def greedy(runtime: Runtime, prompt: str, spec: str = "on") -> list[int]:
    got: list[AnyEvent] = []
    request = ChatRequest(
        messages=(Message("user", prompt),),
        sampling=Sampling(temperature=0.0, max_tokens=TOKENS),
        spec=spec,
        keep_ids=True,  # type: ignore[arg-type]
    )
    runtime.chat(request, now_ns(), got.append, lambda: False)
    return [i for event in got if isinstance(event, Decode) for i in event.ids]


def transformers_model(path: Path) -> Any:
    """The default model as transformers runs it, its weights read and dequantised by the gguf package."""
    import gguf
    import transformers

    reader = gguf.GGUFReader(path)

    def number(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    heads, kv_heads = number("attention.head_count"), number("attention.head_count_kv")
    config = transformers.LlamaConfig(
        vocab_size=number("vocab_size"),
        hidden_size=number("embedding_length"),
        intermediate_size=number("feed_forward_length"),
        num_hidden_layers=number("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        rms_norm_eps=number("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": number("rope.freq_base")},
        tie_word_embeddings=True,
    )
    names = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    state = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy()).float()
        part = tensor.name.split(".")
        if part[0] == "blk":
            if part[2] in ("attn_q", "attn_k"):  # the file pairs neighbours for the rotation, transformers halves
                n = heads if part[2] == "attn_q" else kv_heads
                weight = weight.view(n, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
            state[f"model.layers.{part[1]}.{names[part[2]]}.weight"] = weight
        else:
            state[{"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[part[0]] + ".weight"] = weight
    model = transformers.LlamaForCausalLM(config).eval()
    missing, extra = model.load_state_dict(state, strict=False)
    assert missing in ([], ["lm_head.weight"]) and not extra
    return model


def test_prompt_ids_equal_llama_cpp(runtime: Runtime, llama_cpp: Judge) -> None:
    """The template's own text is judged with special tokens, the user's without."""
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    for prompt in PROMPTS:
        want = llama_cpp.ids(f"{system}<|im_start|>user\n", special=True)
        # One span of text between special tokens: "user\n" and the message are split together.
        want = [
            *want[: want.index(2) + 1],
            *llama_cpp.ids("\n"),
            1,
            *llama_cpp.ids(f"user\n{prompt}"),
            2,
            *llama_cpp.ids("\n"),
            1,
            *llama_cpp.ids("assistant\n"),
        ]
        assert runtime.prompt(ChatRequest(messages=(Message("user", prompt),))).ids == want, prompt


def test_greedy_tokens_equal_transformers(runtime: Runtime, default_model: Path) -> None:
    """Teacher-forced: given the tokens so far, the reference would choose each next one, until the two best are level."""
    reference = transformers_model(default_model)
    compared = 0
    for prompt in PROMPTS:
        ids = runtime.prompt(ChatRequest(messages=(Message("user", prompt),))).ids
        reply = greedy(runtime, prompt)
        assert 0 < len(reply) <= TOKENS
        with torch.no_grad():
            logits = reference(torch.tensor([[*ids, *reply]])).logits[0, len(ids) - 1 : -1]
        best = logits.topk(2).values
        for place, token in enumerate(reply):
            if logits[place].argmax() != token:
                gap = float(best[place, 0] - best[place, 1])
                assert gap < GAP, f"{prompt!r}: token {place} differs where the reference is sure by {gap}"
                break
            compared += 1
    assert compared > 15 * len(PROMPTS)


def test_drafting_leaves_every_reply_alone(runtime: Runtime) -> None:
    for prompt in (PROMPTS[10], PROMPTS[7], PROMPTS[14]):
        assert greedy(runtime, prompt, "on") == greedy(runtime, prompt, "off")


def test_llama_cpp_agrees_on_the_first_token(runtime: Runtime, llama_cpp: Judge) -> None:
    """The whole way through both programs: llama.cpp's first token is ours, or one that we hold to be nearly as good.

    llama.cpp rounds activations to 8 bits, so where two tokens are close it may prefer the other.
    """
    for prompt in PROMPTS[:10]:
        ids = runtime.prompt(ChatRequest(messages=(Message("user", prompt),))).ids
        body = {"prompt": ids, "n_predict": 1, "temperature": 0, "n_probs": 1, "cache_prompt": False}
        token = llama_cpp.post("/completion", **body)["completion_probabilities"][0]["id"]
        logits = runtime.logits(ids)[-1]
        assert logits.max() - logits[token] < 0.5, prompt
