"""Tiny random models of the Ling-3.0 and Kimi-Linear architectures: sizes, weights, vocabulary, chat template.

`ling_config` and `kimi_config` give the configuration that reading a file must give; `random_tensors` the weights, fp32
by the canonical names of `hybrid_names.py`, with the experts of a layer stacked and the latent's up-projection whole.
`make_ling.py` writes them to files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from make_models import MERGES, byte_letters

from lingchat.architectures.hybrid import HybridConfig, KDAConfig, LayerKind, MLAConfig, MoEConfig
from lingchat.architectures.hybrid_names import expected_shapes

Values = dict[str, torch.Tensor]  # fp32 by canonical name

VOCAB = 512
SPECIAL = (
    "<|endoftext|>", "<|role_end|>", "<role>", "</role>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<tool_response>", "</tool_response>",
)  # fmt: skip
FIRST_SPECIAL = VOCAB - len(SPECIAL)
PAD, EOS = FIRST_SPECIAL, FIRST_SPECIAL + 1
TEMPLATE = (
    "{%- set directive = 'detailed thinking ' + ('off' if enable_thinking is defined and not enable_thinking else 'on') -%}"
    "{{- '<role>SYSTEM</role>' -}}"
    "{%- if messages[0].role == 'system' -%}{{- messages[0].content + '\\n' -}}{%- endif -%}"
    "{{- directive + '<|role_end|>' -}}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'user' -%}{{- '<role>HUMAN</role>' + message.content + '<|role_end|>' -}}"
    "{%- elif message.role == 'assistant' -%}"
    "{{- '<role>ASSISTANT</role>\\n<think></think>' + message.content + '<|role_end|>' -}}"
    "{%- elif message.role == 'system' and not loop.first -%}"
    "{{- '<role>SYSTEM</role>' + message.content + '<|role_end|>' -}}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<role>ASSISTANT</role>\\n<think>' -}}"
    "{%- if enable_thinking is defined and not enable_thinking -%}{{- '</think>' -}}{%- endif -%}{%- endif -%}"
)


@dataclass
class Tiny:
    path: Path
    config: HybridConfig
    tensors: Values


# --------------------------------------------------------------------------------------------------- configurations


@dataclass(frozen=True)
class _Head:
    kda: int
    nope: int
    rope: int
    value: int
    kv_rank: int

    def mla(self, heads: int, *, q_rank: int | None, rope_base: float | None, gated: bool) -> MLAConfig:
        scale = (self.nope + self.rope) ** -0.5
        return MLAConfig(heads, self.nope, self.rope, self.value, self.kv_rank, q_rank, rope_base, gated, scale)


_TINY_HEAD = _Head(kda=32, nope=32, rope=16, value=32, kv_rank=64)
_PUBLISHED_HEAD = _Head(kda=128, nope=128, rope=64, value=128, kv_rank=512)


def ling_kinds(layers: int, period: int) -> tuple[LayerKind, ...]:
    """Every `period`-th layer and all of a last incomplete period attend fully."""
    whole = layers // period * period
    return tuple("mla" if (i + 1) % period == 0 or i >= whole else "kda" for i in range(layers))


def ling_config(
    *,
    period: int = 4,
    layers: int = 9,
    q_rank: int | None = None,
    experts: int = 16,
    dense: int = 1,
    limits: bool = False,
    mtp: int = 0,
    hidden: int = 64,
    heads: int = 2,
    head_dim: int | None = None,
    published_heads: bool = False,
) -> HybridConfig:
    """A tiny Ling-3.0. `head_dim` is of KDA alone. `limits`: the routed experts of the last two layers and the shared
    ones of the last three are limited, low enough to bite. `published_heads`: a head is as large as in the published
    models."""
    head = _PUBLISHED_HEAD if published_heads else _TINY_HEAD
    return HybridConfig(
        architecture="BailingMoeV3ForCausalLM",
        hidden=hidden,
        vocab=VOCAB,
        context=2048,
        norm_eps=1e-6,
        tied=False,
        kinds=ling_kinds(layers, period),
        dense_layers=dense,
        ffn=96,
        kda=KDAConfig(heads, head_dim or head.kda, 4, "bounded", -5.0, None),
        mla=head.mla(heads, q_rank=q_rank, rope_base=6000000.0, gated=True),
        moe=MoEConfig(experts, 4, 4, 2, 32, 32, 2.5, True),
        routed_limits=tuple(0.5 if limits and i >= layers - 2 else 0.0 for i in range(layers)),
        shared_limits=tuple(
            (0.4 if i < layers - 1 else 0.7) if limits and i >= layers - 3 else 0.0 for i in range(layers)
        ),
        mtp_layers=mtp,
    )


def kimi_config(
    *, layers: int = 5, experts: int = 16, hidden: int = 64, heads: int = 2, published_heads: bool = False
) -> HybridConfig:
    """A tiny Kimi-Linear: every fourth layer and the last attend fully."""
    none, head = (0.0,) * layers, _PUBLISHED_HEAD if published_heads else _TINY_HEAD
    return HybridConfig(
        architecture="KimiLinearForCausalLM",
        hidden=hidden,
        vocab=VOCAB,
        context=2048,
        norm_eps=1e-5,
        tied=False,
        kinds=tuple("mla" if i % 4 == 3 or i == layers - 1 else "kda" for i in range(layers)),
        dense_layers=1,
        ffn=96,
        kda=KDAConfig(heads, head.kda, 4, "softplus", 0.0, head.kda),
        mla=head.mla(heads, q_rank=None, rope_base=None, gated=False),
        moe=MoEConfig(experts, 4, 1, 1, 32, 32, 2.446, True),
        routed_limits=none,
        shared_limits=none,
    )


# ----------------------------------------------------------------------------------------------------------- weights


def random_tensors(config: HybridConfig, seed: int = 0, *, steady: bool = False) -> Values:
    """Weights that keep every value near 1, with decays, router biases and norms that are not trivial.

    Matrices have variance 1 / inputs. Decays of single rows reach from about 0.99 to below 0.1. `steady`: biases lie
    so far apart that every token of a layer has the same experts, whatever a judge that rounds makes of their scores.
    """
    rng = np.random.default_rng(seed)
    whole = replace(config, stacked_experts=True, split_kv_b=False)
    values = {name: torch.from_numpy(_random(name, shape, rng)) for name, shape in expected_shapes(whole).items()}
    if steady:
        values |= {name: _steady_bias(config, rng) for name in values if name.endswith(".router_bias")}
    return values


def looping_tensors(config: HybridConfig, seed: int = 0) -> Values:
    """Weights whose greedy text runs in circles of seven, but leaves them now and then: lookup is often right and
    sometimes wrong. A token's row of the head is the embedding of the one before it in its circle."""
    values = random_tensors(config, seed)
    token = torch.arange(config.vocab // 7 * 7)
    after = token // 7 * 7 + (token + 1) % 7
    values["lm_head.weight"][after] = values["embed_tokens.weight"][token] * 0.5
    for name in values:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            values[name] *= 0.8
    return values


def _steady_bias(config: HybridConfig, rng: np.random.Generator) -> torch.Tensor:
    """No two groups' pairs and no two experts closer than 1, which is more than scores differ."""
    groups, size = config.moe.groups, config.moe.experts // config.moe.groups
    inner = np.stack([rng.permutation(size) for _ in range(groups)])
    bias = (2 * size + 1) * rng.permutation(groups)[:, None] + 2 * inner
    return torch.from_numpy(bias.astype(np.float32).reshape(-1))


def _random(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    plain = rng.standard_normal(shape)
    if name.endswith(".A"):
        values = rng.uniform(0.25, 2.0, shape)
    elif name.endswith(".dt_bias"):
        values = rng.uniform(-4.0, 1.0, shape)
    elif name.endswith(".router_bias"):
        values = rng.uniform(-0.3, 0.3, shape)
    elif name.endswith("_conv.weight"):
        values = plain * 0.5
    elif len(shape) == 1:
        values = 1 + 0.1 * plain
    elif name == "embed_tokens.weight":
        values = plain
    else:
        values = plain * shape[-1] ** -0.5
    return values.astype(np.float32)


# --------------------------------------------------------------------------------------------------------- tokenizer


def tokens() -> list[str]:
    """The vocabulary: 256 bytes in byte-level BPE's letters, merged pairs, padding, the special tokens at the end."""
    words = [*byte_letters(), *(merge.replace(" ", "") for merge in MERGES)]
    return [*words, *(f"[PAD{i}]" for i in range(len(words), FIRST_SPECIAL)), *SPECIAL]


def write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words = [word for word in tokens()[:FIRST_SPECIAL] if not word.startswith("[PAD")]
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(tokens())}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    assert tokenizer.token_to_id(words[-1]) == len(words) - 1
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|role_end|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, PAD], "pad_token_id": PAD}))
