"""Tiny random checkpoints of every family, complete enough for a whole engine: weights, tokenizer, chat template.

`write_hf(folder, family)` writes what `save_pretrained` writes and returns the transformers model. `write_gguf(path,
family, qtype)` writes what llama.cpp's converter writes (q and k rows of llama permuted) and returns a `TinyGGUF`:
the fp32 tensors that the file's blocks stand for, in Hugging Face's layout, and `.transformers()`, the model with
exactly those. Families: llama, llama3 (rope scaling), qwen2, qwen3 (heads x head_dim is not the hidden size).

transformers is imported only where a model of it is asked for; a GGUF file takes some 20 ms.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from lingchat.architectures.dense import DenseConfig, llama3_factors
from lingchat.architectures.dense_names import expected_shapes, gguf_name, hf_name
from lingchat.kernels.blocks import BLOCKS

FAMILIES = ("llama", "llama3", "qwen2", "qwen3")
QUANTIZABLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")  # what the gguf package can quantise to
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
    "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1 (BOS) and 2 (EOS)
# Pairs joined in this order; each part exists before it is used. "Ġ" is the space of byte-level BPE.
MERGES = (
    "t h", "h e", "i n", "e r", "a n", "th e", "Ġ t", "Ġ a", "Ġt he", "r e", "o n", "i s", "o u", "l l", "in g", "Ġ s",
    "n d", "Ġa nd", "y ou", "Ġ w", "e n", "a t", "o r", "Ġ c", "Ċ Ċ", "Ġ Ġ", "ĠĠ ĠĠ",
)  # fmt: skip


def default_sizes(family: str, **sizes: Any) -> dict[str, Any]:
    """The sizes of a tiny model, with `sizes` over them: hidden, layers, heads, kv_heads, head_dim, ffn, vocab, context,
    tied, rope_base."""
    tiny: dict[str, Any] = {
        "hidden": 256,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 128 if family == "qwen3" else 64,
        "ffn": 512,
        "vocab": 320,
        "context": 512,
        "rope_base": 10000.0,
        "tied": family != "llama3",
    }
    unknown = sizes.keys() - tiny.keys()
    assert not unknown, f"unknown sizes: {unknown}"
    return tiny | sizes


def tiny_config(family: str, *, adjacent: bool = False, **sizes: Any) -> DenseConfig:
    """What reading the model must give. `adjacent`: as a GGUF file of llama has it."""
    s = default_sizes(family, **sizes)
    names = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    factors = None
    if family == "llama3":
        original = LLAMA3_SCALING["original_max_position_embeddings"]
        factors = llama3_factors(
            s["rope_base"], s["head_dim"], factor=8.0, low=1.0, high=4.0, original_context=original
        )
    return DenseConfig(
        architecture=names.get(family, "LlamaForCausalLM"),
        rope_dim=s["head_dim"],
        rope_adjacent=adjacent,
        rope_factors=factors,
        norm_eps=1e-5,
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        **s,
    )


# ---------------------------------------------------------------------------------------------------- tokenizer


def tokens() -> list[str]:
    """The vocabulary: special tokens, the 256 bytes in byte-level BPE's letters, the merged pairs."""
    return [*SPECIAL, *byte_letters(), *(merge.replace(" ", "") for merge in MERGES)]


def byte_letters() -> list[str]:
    """GPT-2's printable letter for each byte, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(other)) for byte in range(256)]


def write_tokenizer(folder: Path, *, template: str = CHATML) -> None:
    """tokenizer.json, tokenizer_config.json and generation_config.json, as Hugging Face folders hold them."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocab = {token: i for i, token in enumerate(tokens())}
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[1],
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[2],
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))


# --------------------------------------------------------------------------------------------------- safetensors


def hf_model(family: str, *, seed: int = 0, **sizes: Any) -> Any:
    """A random transformers model of the family, fp32, in eval mode; norms and biases are not the trivial 1 and 0."""
    import transformers

    s = default_sizes(family, **sizes)
    kind = {"qwen2": "Qwen2", "qwen3": "Qwen3"}.get(family, "Llama")
    rope = {"rope_theta": s["rope_base"], **(LLAMA3_SCALING if family == "llama3" else {"rope_type": "default"})}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=s["vocab"],
        hidden_size=s["hidden"],
        intermediate_size=s["ffn"],
        num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"],
        num_key_value_heads=s["kv_heads"],
        head_dim=s["head_dim"],
        max_position_embeddings=s["context"],
        rms_norm_eps=1e-5,
        tie_word_embeddings=s["tied"],
        rope_parameters=rope,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.1 + (0.0 if name.endswith("bias") else 1.0))
            else:
                parameter.normal_(std=0.08)
    return model


def write_hf(
    folder: Path,
    family: str,
    *,
    dtype: torch.dtype = torch.float32,
    shard_size: str = "1GB",
    tokenizer: bool = True,
    seed: int = 0,
    **sizes: Any,
) -> Any:
    """Writes a safetensors folder with its tokenizer; `shard_size="300KB"` gives shards. Returns the model in `dtype`."""
    folder.mkdir(parents=True, exist_ok=True)
    model = hf_model(family, seed=seed, **sizes).to(dtype)
    model.save_pretrained(folder, max_shard_size=shard_size)
    if tokenizer:
        write_tokenizer(folder)
    return model


# ---------------------------------------------------------------------------------------------------------- GGUF


@dataclass
class TinyGGUF:
    """What a GGUF file holds: `tensors` fp32 by canonical name, in Hugging Face's row order."""

    path: Path
    family: str
    config: DenseConfig
    tensors: dict[str, torch.Tensor]
    sizes: dict[str, Any] = field(default_factory=dict)

    def transformers(self) -> Any:
        """The transformers model with these weights."""
        model = hf_model(self.family, **self.sizes)
        state = {hf_name(name): tensor for name, tensor in self.tensors.items()}
        missing = model.load_state_dict(state, strict=False)
        assert not missing.unexpected_keys
        assert set(missing.missing_keys) <= {"lm_head.weight"}
        model.tie_weights()
        return model


def write_gguf(
    path: Path,
    family: str,
    qtype: str = "Q8_0",
    *,
    types: dict[str, str] | None = None,
    tensors_per_file: int = 0,
    pad_tokens: bool = True,
    metadata: dict[str, Any] | None = None,
    template: str | None = CHATML,
    seed: int = 0,
    **sizes: Any,
) -> TinyGGUF:
    """Writes a GGUF model: matrices in `qtype`, vectors in F32, a tokenizer and a chat template.

    `types` overrides the type of single canonical names. `tensors_per_file` splits the model; the path returned is
    then the first part's. `pad_tokens=False` leaves the head with more rows than there are tokens. `metadata` adds
    uint32, float, bool or string keys. K quants are random valid blocks, the others are quantised random weights (see QUANTIZABLE).
    """
    s = default_sizes(family, **sizes)
    arch = {"llama3": "llama"}.get(family, family)
    config = tiny_config(family, adjacent=arch == "llama", **s)
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=tensors_per_file)
    _write_sizes(writer, config)
    _write_vocabulary(writer, config, pad_tokens=pad_tokens, pre="smollm" if arch == "llama" else "qwen2")
    if template is not None:
        writer.add_chat_template(template)
    for key, value in (metadata or {}).items():
        adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        adders[type(value)](key, value)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in expected_shapes(config).items():
        kind = "F32" if len(shape) == 1 else (types or {}).get(name, qtype)
        data, values = _random_tensor(name, kind, shape, rng)
        tensors[name] = values
        if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            data = permute(data, config.heads if "q_proj" in name else config.kv_heads)
        raw = None if kind in ("F32", "F16") else gguf.GGMLQuantizationType[kind]
        writer.add_tensor(gguf_name(name), data, raw_dtype=raw)
    if config.rope_factors:
        writer.add_tensor("rope_freqs.weight", np.array(config.rope_factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if tensors_per_file:
        path = min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))
    return TinyGGUF(path, family, config, tensors, s)


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows (i, i + d/2) of each head side by side, as llama.cpp's converter stores q and k of `llama`."""
    return np.ascontiguousarray(rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2)).reshape(rows.shape)


def random_blocks(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Valid random bytes of a type, uint8 [rows, bytes of a row]: quants from the whole range, scales finite and small."""
    block = BLOCKS[kind]
    count = int(np.prod(shape)) // block.values
    if kind in ("F32", "F16", "BF16"):
        return gguf.quantize(rng.standard_normal(shape, dtype=np.float32), gguf.GGMLQuantizationType[kind]).view(
            np.uint8
        )
    data = rng.integers(0, 256, (count, block.nbytes), dtype=np.uint8)
    size = {"Q4_K": 2e-4, "Q5_K": 1e-4, "Q6_K": 5e-5}.get(kind, 0.01)
    scales = (rng.uniform(0.2, 1.0, (count, 2)) * size).astype(np.float16)
    if kind in ("Q4_K", "Q5_K"):  # the minimum takes about the mean of the quants away
        scales[:, 1] = scales[:, 0] * (8 if kind == "Q4_K" else 16)
    if kind == "Q6_K":
        data[:, 208:] = scales[:, :1].view(np.uint8)
    else:
        width = 4 if kind in ("Q4_K", "Q5_K", "Q4_1", "Q5_1") else 2
        data[:, :width] = scales[:, : width // 2].copy().view(np.uint8)
    return data.reshape(*shape[:-1], -1)


def _random_tensor(
    name: str, kind: str, shape: tuple[int, ...], rng: np.random.Generator
) -> tuple[np.ndarray, torch.Tensor]:
    """The array to write, and the fp32 values that it stands for."""
    qtype = gguf.GGMLQuantizationType[kind]
    if kind not in QUANTIZABLE:
        data = random_blocks(kind, shape, rng)
    else:
        w = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.08)
        if len(shape) == 1 and name.endswith("weight"):
            w += 1
        data = gguf.quantize(w, qtype)
    values = np.array(gguf.dequantize(data, qtype), dtype=np.float32).reshape(shape)
    return data, torch.from_numpy(values)


def _write_sizes(writer: gguf.GGUFWriter, config: DenseConfig) -> None:
    writer.add_name("tiny")
    writer.add_type("model")
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.rope_dim)
    writer.add_vocab_size(config.vocab)


def _write_vocabulary(writer: gguf.GGUFWriter, config: DenseConfig, *, pad_tokens: bool, pre: str) -> None:
    words = tokens()
    kinds = [gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * (len(words) - len(SPECIAL))
    if pad_tokens:
        padding = [f"[PAD{i}]" for i in range(len(words), config.vocab)]
        words, kinds = words + padding, kinds + [gguf.TokenType.UNUSED] * len(padding)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
