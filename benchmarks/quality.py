"""What int8 costs: the default model's perplexity and next-token choices against its fp32 path, on the same text.

Text: 20 kB of the Python reference that ships with every Python (`pydoc_data.topics`), and the 20 prompts' replies are
left to the tests. Windows of 512 tokens, every position counted.

    python benchmarks/quality.py [--bytes 20000]
"""

from __future__ import annotations

import argparse
import math
from pydoc_data.topics import topics

import torch
from common import machine, save

from lingchat.catalog.models import resolve
from lingchat.runtime.engine import Runtime
from lingchat.runtime.loading import Loading

WINDOW = 512
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


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--bytes", type=int, default=20_000)
    found = parse.parse_args()
    text = "\n\n".join(topics[name] for name in TOPICS if name in topics)[: found.bytes]
    path = resolve(None, lambda progress: None).path
    runtimes = {dtype: Runtime(path, Loading(dtype=dtype, context=1024)) for dtype in ("fp32", "int8")}
    ids = runtimes["fp32"].formats.tokenizer.encode(text)
    losses: dict[str, list[float]] = {dtype: [] for dtype in runtimes}
    kl, agree, flips = [], 0, []
    for start in range(0, len(ids) - 1, WINDOW):
        window = ids[start : start + WINDOW + 1]
        if len(window) < 2:
            break
        targets = torch.tensor(window[1:])
        logs = {dtype: runtime.logits(window[:-1]).log_softmax(-1) for dtype, runtime in runtimes.items()}
        for dtype, found_logs in logs.items():
            losses[dtype] += (-found_logs.gather(1, targets[:, None])[:, 0]).tolist()
        exact, close = logs["fp32"], logs["int8"]
        kl += (exact.exp() * (exact - close)).sum(-1).tolist()
        same = exact.argmax(-1) == close.argmax(-1)
        agree += int(same.sum())
        best = exact.topk(2).values
        flips += (best[:, 0] - best[:, 1])[~same].tolist()
    count = len(losses["fp32"])
    perplexity = {dtype: math.exp(sum(values) / count) for dtype, values in losses.items()}
    result = {
        "benchmark": "quality",
        "machine": machine(),
        "text": f"pydoc_data.topics, {len(text)} characters, {count} tokens, windows of {WINDOW}",
        "perplexity": perplexity,
        "int8_cost_percent": 100 * (perplexity["int8"] / perplexity["fp32"] - 1),
        "mean_kl_nats": sum(kl) / count,
        "same_top_token": agree / count,
        "flips": {
            "count": len(flips),
            "median_fp32_gap": sorted(flips)[len(flips) // 2] if flips else 0.0,
            "largest_fp32_gap": max(flips, default=0.0),
        },
    }
    print({key: result[key] for key in ("perplexity", "int8_cost_percent", "mean_kl_nats", "same_top_token", "flips")})
    save("quality", result)


if __name__ == "__main__":
    main()
