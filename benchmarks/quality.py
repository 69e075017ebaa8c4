"""What eight bits cost: the default model's next-token choices against its fp32 path, by native code and by torch.

Teacher-forced over 20 kB of the Python reference that ships with every Python (`pydoc_data.topics`, windows of 512
tokens), and over 20 prompts with the 64 tokens that fp32 answers: perplexity, Kullback-Leibler divergence, how often
the best token is the same, and every other choice with the gap of fp32's two best logits. And greedy answers running
free: where each first differs from fp32's, llama.cpp's beside ours.

    python benchmarks/quality.py [--bytes 20000] [--name quality]
"""

from __future__ import annotations

import argparse
import math
import statistics
from pydoc_data.topics import topics
from typing import Any

import torch
from common import machine, save
from peers import Peer, open_runtime

from lingchat.catalog.models import resolve
from lingchat.engines.api import ChatRequest, Message
from lingchat.runtime.engine import Runtime

WINDOW, ANSWER = 512, 64
TOPICS = (
    "assignment",
    "attribute-access",
    "bltin-file-objects",
    "class",
    "execmodel",
    "exceptions",
    "for",
    "function",
    "import",
    "with",
)
PROMPTS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain what a rainbow is to a child.",
    "List three primary colours.",
    "How many legs do 7 spiders have?",
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
    "What is the difference between a list and a tuple in Python?",
    "Name a fruit that is yellow, and one that is red.",
    "What year comes after 1999?",
    "Summarize: The cat sat on the mat. It was warm. The cat slept all day.",
    "What should I pack for a week in the mountains?",
)
JUDGED = ("native", "torch int8")


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--bytes", type=int, default=20_000)
    parse.add_argument("--name", default="quality")
    found = parse.parse_args()
    text = "\n\n".join(topics[name] for name in TOPICS if name in topics)[: found.bytes]
    path = resolve(None, lambda progress: None).path
    runtimes = {kind: open_runtime(path, kind, None, 1024) for kind in ("fp32", *JUDGED)}
    result: dict[str, Any] = {"benchmark": "quality", "machine": machine()}
    result["backends"] = {kind: runtime.info.backend for kind, runtime in runtimes.items()}

    ids = runtimes["fp32"].formats.tokenizer.encode(text)
    windows = [ids[start : start + WINDOW + 1] for start in range(0, len(ids) - 1, WINDOW)]
    result["text"] = f"pydoc_data.topics, {len(text)} characters, {len(ids)} tokens, windows of {WINDOW}"
    result["on_text"] = compare(runtimes, [(window, 0) for window in windows if len(window) > 1])

    peers = {kind: Peer(kind, path, None) for kind in ("fp32", "native", "llama.cpp")}
    prompts = [runtimes["fp32"].prompt(ChatRequest(messages=(Message("user", prompt),))).ids for prompt in PROMPTS]
    answers = {
        kind: [peer.ask("greedy", ids=prompt, tokens=ANSWER) for prompt in prompts] for kind, peer in peers.items()
    }
    for peer in peers.values():
        peer.close()
    followed = [(prompt + answer, len(prompt) - 1) for prompt, answer in zip(prompts, answers["fp32"], strict=True)]
    result["on_answers"] = compare(runtimes, followed)
    result["first_difference_from_fp32"] = {
        kind: differences(answers["fp32"], answers[kind]) for kind in ("native", "llama.cpp")
    }
    for kind in JUDGED:
        for what in ("on_text", "on_answers"):
            one = result[what][kind]
            print(
                what,
                kind,
                {key: one[key] for key in ("perplexity", "mean_kl_nats", "same_top_token")},
                len(one["flips"]),
            )
    print("first difference", {kind: found["median"] for kind, found in result["first_difference_from_fp32"].items()})
    save(found.name, result)


def compare(runtimes: dict[str, Runtime], texts: list[tuple[list[int], int]]) -> dict[str, Any]:
    """Each text's ids, and from which position on its next tokens count."""
    losses: dict[str, list[float]] = {kind: [] for kind in runtimes}
    kl: dict[str, list[float]] = {kind: [] for kind in JUDGED}
    flips: dict[str, list[dict[str, Any]]] = {kind: [] for kind in JUDGED}
    for number, (ids, first) in enumerate(texts):
        targets = torch.tensor(ids[first + 1 :])
        logits = {kind: runtime.logits(ids[:-1])[first:] for kind, runtime in runtimes.items()}
        logs = {kind: values.log_softmax(-1) for kind, values in logits.items()}
        for kind, found in logs.items():
            losses[kind] += (-found.gather(1, targets[:, None])[:, 0]).tolist()
        exact = logs["fp32"]
        best = logits["fp32"].topk(2).values
        for kind in JUDGED:
            kl[kind] += (exact.exp() * (exact - logs[kind])).nan_to_num(0.0).sum(-1).tolist()
            other = exact.argmax(-1) != logs[kind].argmax(-1)
            flips[kind] += [
                {
                    "text": number,
                    "position": first + place,
                    "fp32_gap": round(float(best[place, 0] - best[place, 1]), 4),
                }
                for place in other.nonzero()[:, 0].tolist()
            ]
    count = len(losses["fp32"])
    perplexity = {kind: math.exp(sum(found) / count) for kind, found in losses.items()}
    return {
        "positions": count,
        "perplexity_fp32": perplexity["fp32"],
        **{
            kind: {
                "perplexity": perplexity[kind],
                "cost_percent": 100 * (perplexity[kind] / perplexity["fp32"] - 1),
                "mean_kl_nats": sum(kl[kind]) / count,
                "same_top_token": 1 - len(flips[kind]) / count,
                "median_flip_gap": statistics.median([flip["fp32_gap"] for flip in flips[kind]] or [0.0]),
                "largest_flip_gap": max([flip["fp32_gap"] for flip in flips[kind]] or [0.0]),
                "flips": flips[kind],
            }
            for kind in JUDGED
        },
    }


def differences(exact: list[list[int]], other: list[list[int]]) -> dict[str, Any]:
    """Where answers part; one that never does counts with its length."""
    places = [
        next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
        for left, right in zip(exact, other, strict=True)
    ]
    return {"median": statistics.median(places), "places": places, "tokens": ANSWER}


if __name__ == "__main__":
    main()
