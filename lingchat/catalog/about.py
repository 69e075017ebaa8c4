"""What a model on disk is, and whether it runs here. One bad file is an answer, never an exception.

Which architectures there are and what their keys mean is `architectures`' matter. The tables of tokenizers are the
runtime's promise, told without importing it; a test holds them together with the runtime's own. The runtime looks at
every tensor as well and has the last word when it loads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lingchat.architectures import budget
from lingchat.architectures.dense_gguf import ARCHITECTURES as DENSE_GGUF
from lingchat.architectures.dense_hf import ARCHITECTURES as DENSE_HF
from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.read import GGUF_ARCHITECTURES, HF_ARCHITECTURES, ModelConfig, gguf_config, hf_config
from lingchat.catalog import memory
from lingchat.catalog.headers import GGUFHeader, SafetensorsHeader, TensorInfo, read_gguf, read_safetensors_folder
from lingchat.errors import LingchatError, UnsupportedModel
from lingchat.kernels.blocks import DECODABLE

SAFETENSORS_TYPES = ("F32", "F16", "BF16")
# And those of quantised checkpoints: the weights, and what compressed-tensors keeps beside its own.
QUANTISED_TYPES = {"fp8": ("F8_E4M3",), "compressed-tensors": ("I32", "I64")}
TOKENIZERS = ("gpt2", "llama")
_VOCABULARIES = ("tokenizer.json", "tiktoken.model")  # of a folder
PRE_TOKENIZERS = frozenset(
    [
        "default",
        "gpt-2",
        "phi-2",
        "olmo",
        "smollm",
        "starcoder",
        "refact",
        "llama-bpe",
        "llama3",
        "llama-v3",
        "falcon3",
        "smaug-bpe",
        "qwen2",
        "deepseek-r1-qwen",
        "bailingmoe",
        "bailingmoe2",
        "llada-moe",
        "kimi-k2",
    ]
)
NFC = frozenset(["qwen2", "deepseek-r1-qwen"])  # pre-tokenizers before which text is normalised; GGUF does not say so
# A model with all tokens of one of these sets can be spoken to without a template of its own.
SPEAKABLE = (
    ("<role>", "</role>", "<|role_end|>"),
    ("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"),
    ("<|im_start|>", "<|im_end|>"),
)

# llama.cpp's `general.file_type` (llama.h, `enum llama_ftype`): the mixes that a single tensor type does not name.
_MIXES = {10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M"}
_EMBEDDERS = frozenset(
    [
        "bert",
        "nomic-bert",
        "nomic-bert-moe",
        "modern-bert",
        "neo-bert",
        "eurobert",
        "jina-bert-v2",
        "jina-bert-v3",
        "gemma-embedding",
        "llama-embed",
        "t5encoder",
    ]
)
_BASE = "a base model without a chat template"
# What a decoder needs at the very least: one byte a weight on a host (int8) and two on a GPU (bf16), and a tenth on top
# for scales and buffers. Quantised experts stay as they are, and on a host all that is quantised does, nearly.
_ON_HOST, _ON_GPU, _AS_STORED = 1.1, 2.2, 1.2


Problem = Literal["", "damaged", "unsupported", "memory"]


@dataclass(frozen=True)
class About:
    """A model's own words and our judgement. Counts are 0 and texts empty where the file does not say."""

    path: Path
    format: Literal["gguf", "safetensors"]
    title: str = ""
    architecture: str = ""
    quantization: str = ""
    parameters: int = 0
    nbytes: int = 0
    context: int = 0
    chat_template: bool = False
    host_bytes: int = 0  # of memory that it needs at the very least to run on the processor, and on a GPU
    gpu_bytes: int = 0
    why_not: str = ""  # why it does not run here; empty when it does
    problem: Problem = ""  # of what kind that reason is

    @property
    def runs(self) -> bool:
        return not self.problem


def look(path: Path) -> About:
    """Read the header of a `.gguf` file or the files of a safetensors folder, and judge, memory included."""
    return with_memory(read(path))


def with_memory(about: About) -> About:
    """The same model, refused when it cannot fit into the memory that is free now, of the machine or of its GPU."""
    free = memory.free_memory()
    if about.problem or about.host_bytes <= free:
        return about
    gpu = memory.gpu_free_memory()
    if gpu is not None and about.gpu_bytes <= gpu:
        return about
    why_not = f"needs at least {about.host_bytes / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
    if gpu is not None:
        why_not += f"; on the GPU {about.gpu_bytes / 1e9:.1f} GB, {gpu / 1e9:.1f} GB are free"
    return replace(about, why_not=why_not, problem="memory")


def read(path: Path) -> About:
    """What the files say, whatever this machine's memory."""
    kind: Literal["gguf", "safetensors"] = "safetensors" if path.is_dir() else "gguf"
    try:
        return _folder(path) if kind == "safetensors" else _gguf(path)
    except UnsupportedModel as error:
        return About(path, kind, why_not=_short(path, error), problem="unsupported")
    except LingchatError as error:
        return About(path, kind, why_not=_short(path, error), problem="damaged")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        # A list must survive whatever lies in a stranger's file; the reason is shown in its row.
        return About(path, kind, why_not=f"cannot be read ({type(error).__name__}: {error})", problem="damaged")


def _short(path: Path, error: LingchatError) -> str:
    """An error of the readers as a reason in a list that already shows the path."""
    text = str(error)
    for known in (f"{path}: ", f"{path.parent}: ", f"{path}/", f"{path.parent}/"):
        text = text.replace(known, "")
    first = text.split(". ")[0].rstrip(".")
    return f"damaged: {first}" if "damaged" in text and "damaged" not in first else first


@dataclass(frozen=True)
class _Verdict:
    """What the checks found: a reason, or else a configuration that the runtime can be built from."""

    why_not: str = ""
    problem: Problem = ""
    config: ModelConfig | None = None


def _judged(path: Path, header: GGUFHeader | SafetensorsHeader, why_not: str, problem: Problem) -> _Verdict:
    """`why_not` of the quick checks, or what the reader of configurations says, which looks at every key."""
    if why_not:
        return _Verdict(why_not, problem)
    try:
        if isinstance(header, GGUFHeader):
            return _Verdict(config=gguf_config(header, lambda info: tensor_bytes(header, info)))
        return _Verdict(config=hf_config(header))
    except UnsupportedModel as error:
        return _Verdict(_short(path, error), "unsupported")
    except LingchatError as error:
        return _Verdict(_short(path, error), "damaged")


def tensor_bytes(header: GGUFHeader | SafetensorsHeader, info: TensorInfo) -> memoryview:
    """What a file holds of one tensor."""
    with header.parts[info.part].open("rb") as file:
        file.seek(info.offset)
        return memoryview(file.read(info.nbytes))


def _facts(header: GGUFHeader | SafetensorsHeader, config: ModelConfig | None) -> dict[str, Any]:
    """Numbers of a model; of one that is not supported, as far as its tensors tell them."""
    tensors = header.tensors.values()
    values = sum(math.prod(tensor.shape) for tensor in tensors)
    facts = {"parameters": values, "nbytes": sum(part.stat().st_size for part in header.parts)}
    resting = 0
    if config is not None:
        facts["parameters"], values = budget.parameters(config), budget.parameters_with_mtp(config)
    if isinstance(config, HybridConfig):
        experts = config.moe.experts * budget.expert_parameters(config)
        experts *= config.layers - config.dense_layers + config.mtp_layers
        held = sum(tensor.nbytes for tensor in tensors if ".experts." in tensor.name or "_exps." in tensor.name)
        if held < 2 * experts:
            values, resting = values - experts, held
    stored = sum(tensor.nbytes for tensor in tensors)
    host = min(resting + round(values * _ON_HOST), round(stored * _AS_STORED))
    return facts | {"host_bytes": host, "gpu_bytes": resting + round(values * _ON_GPU)}


def _gguf(path: Path) -> About:
    header = read_gguf(path)
    keys = header.metadata
    architecture = str(keys.get("general.architecture", ""))
    verdict = _judged(path, header, _gguf_why_not(path, header, architecture), "unsupported")
    return About(
        path,
        "gguf",
        title=str(keys.get("general.name", "")),
        architecture=architecture,
        quantization=_MIXES.get(keys.get("general.file_type", -1), _main_type(header)),
        context=_whole(keys.get(f"{architecture}.context_length")),
        chat_template="tokenizer.chat_template" in keys,
        why_not=verdict.why_not,
        problem=verdict.problem,
        **_facts(header, verdict.config),
    )


def _gguf_why_not(path: Path, header: GGUFHeader, architecture: str) -> str:
    keys = header.metadata
    kind = str(keys.get("general.type", "model"))
    if kind == "mmproj" or architecture == "clip" or path.name.lower().startswith("mmproj"):
        return "a vision projector (mmproj), not a chat model"
    if kind == "adapter" or any(key.startswith("adapter.") for key in keys):
        return "an adapter (LoRA), not a whole model"
    if kind != "model":
        return f"a file of type `{kind}`, not a model"
    if architecture in _EMBEDDERS or keys.get(f"{architecture}.pooling_type", 0):
        return f"an embedding model (`{architecture}`), not a chat model"
    if architecture not in GGUF_ARCHITECTURES:
        return f"unsupported architecture `{architecture}`"
    if not header.tensors:
        return "a vocabulary without weights"
    if architecture in DENSE_GGUF and keys.get(f"{architecture}.expert_count", 0):
        return f"unsupported: `{architecture}` with a mixture of experts"
    scaling = keys.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        return f"unsupported rope scaling `{scaling}`"
    return _types(header, DECODABLE) or _gguf_text(keys)


def _gguf_text(keys: dict[str, Any]) -> str:
    """What stands against the tokenizer or the template."""
    kind = keys.get("tokenizer.ggml.model")
    if kind not in TOKENIZERS:
        return f"unsupported tokenizer `{kind}`"
    pre = keys.get("tokenizer.ggml.pre") or "default"
    if kind == "gpt2" and pre not in PRE_TOKENIZERS:
        return f"unsupported pre-tokenizer `{pre}`"
    if "tokenizer.chat_template" not in keys:
        tokens = set(keys.get("tokenizer.ggml.tokens", ()))
        if not any(tokens.issuperset(marks) for marks in SPEAKABLE):
            return _BASE
    return ""


def _folder(folder: Path) -> About:
    if not (folder / "config.json").is_file():
        adapter = (folder / "adapter_config.json").exists()
        why_not = "an adapter (LoRA), not a whole model" if adapter else "no config.json beside the weights"
        return About(folder, "safetensors", why_not=why_not, problem="unsupported" if adapter else "damaged")
    header = read_safetensors_folder(folder)
    config = header.config
    names = config.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else ""
    why_not = _folder_why_not(folder, header, architecture)
    problem: Problem = "unsupported" if why_not else ""
    if not why_not and not any((folder / name).exists() for name in _VOCABULARIES):
        why_not, problem = f"incomplete: no {' or '.join(_VOCABULARIES)} beside the weights", "damaged"
    template = _has_template(folder)
    if not why_not and not template and not _speakable(folder):
        why_not, problem = _BASE, "unsupported"
    verdict = _judged(folder, header, why_not, problem)
    quantised = verdict.config.quantization if verdict.config is not None else "none"
    return About(
        folder,
        "safetensors",
        title=str(config.get("_name_or_path") or ""),
        architecture=architecture,
        quantization=_main_type(header) if quantised == "none" else quantised,
        context=_whole(config.get("max_position_embeddings") or config.get("model_max_length")),
        chat_template=template,
        why_not=verdict.why_not,
        problem=verdict.problem,
        **_facts(header, verdict.config),
    )


def _speakable(folder: Path) -> bool:
    """`tiktoken.model` leaves special tokens to the file beside it, tokenizer.json has all of them itself."""
    whole = folder / "tokenizer.json"
    named = whole if whole.exists() else folder / "tokenizer_config.json"
    text = named.read_bytes() if named.exists() else b""
    return any(all(f'"{mark}"'.encode() in text for mark in marks) for marks in SPEAKABLE)


def _folder_why_not(folder: Path, header: SafetensorsHeader, architecture: str) -> str:
    config: dict[str, Any] = header.config
    if (folder / "modules.json").exists() or (folder / "1_Pooling").exists():
        return f"an embedding model (`{architecture}`), not a chat model"
    if architecture not in HF_ARCHITECTURES:
        return f"unsupported architecture `{architecture}`" if architecture else "its config.json names no architecture"
    if architecture in DENSE_HF:
        quantized = config.get("quantization_config") or config.get("quantization")
        if quantized:
            method = quantized.get("quant_method", "mlx") if isinstance(quantized, dict) else quantized
            return f"unsupported quantisation `{method}`"
        scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind not in ("default", "llama3"):
            return f"unsupported rope scaling `{kind}`"
    return _types(header, (*SAFETENSORS_TYPES, *_quantised_types(config)))


def _quantised_types(config: dict[str, Any]) -> tuple[str, ...]:
    """Types that a quantised checkpoint may hold besides plain numbers, by the layout that its configuration names."""
    quantization = config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return QUANTISED_TYPES.get(str(method), ())


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").exists():
        return True
    config = folder / "tokenizer_config.json"
    return config.exists() and b'"chat_template"' in config.read_bytes()


def _types(header: GGUFHeader | SafetensorsHeader, known: tuple[str, ...]) -> str:
    odd = sorted({tensor.type for tensor in header.tensors.values()} - set(known))
    return f"unsupported weight type {', '.join(odd)}" if odd else ""


def _main_type(header: GGUFHeader | SafetensorsHeader) -> str:
    """The type that holds most bytes."""
    held: dict[str, int] = {}
    for tensor in header.tensors.values():
        held[tensor.type] = held.get(tensor.type, 0) + tensor.nbytes
    return max(held, key=lambda name: held[name], default="")


def _whole(value: object) -> int:
    return value if type(value) is int and value > 0 else 0
