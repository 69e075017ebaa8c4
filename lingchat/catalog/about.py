"""What a model on disk is, and whether it runs here. One bad file is an answer, never an exception.

The tables of what is supported are the runtime's promise, told without importing it; a test holds them together with
the runtime's own. The runtime reads more keys than this and has the last word when it loads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lingchat.catalog import memory
from lingchat.catalog.headers import GGUFHeader, SafetensorsHeader, read_gguf, read_safetensors_folder
from lingchat.errors import LingchatError, UnsupportedModel
from lingchat.kernels.blocks import DECODABLE

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")
HF_ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
SAFETENSORS_TYPES = ("F32", "F16", "BF16")
TOKENIZERS = ("gpt2", "llama")
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
    ]
)
NFC = frozenset(["qwen2", "deepseek-r1-qwen"])  # pre-tokenizers before which text is normalised; GGUF does not say so
CHATML = ("<|im_start|>", "<|im_end|>")  # a model with these tokens can be spoken to without a template of its own

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
# What a decoder needs at the very least: one byte a weight (int8), and a tenth on top for scales and buffers.
_BYTES_PER_WEIGHT = 1.1


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
    why_not: str = ""  # why it does not run here; empty when it does
    problem: Problem = ""  # of what kind that reason is

    @property
    def runs(self) -> bool:
        return not self.problem


def look(path: Path) -> About:
    """Read the header of a `.gguf` file or the files of a safetensors folder, and judge, memory included."""
    return with_memory(read(path))


def with_memory(about: About) -> About:
    """The same model, refused when it cannot fit into the memory that is free now."""
    needed, free = about.parameters * _BYTES_PER_WEIGHT, memory.free_memory()
    if about.problem or needed <= free:
        return about
    why_not = f"needs at least {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
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


def _gguf(path: Path) -> About:
    header = read_gguf(path)
    keys = header.metadata
    architecture = str(keys.get("general.architecture", ""))
    parameters = sum(math.prod(tensor.shape) for tensor in header.tensors.values())
    why_not = _gguf_why_not(path, header, architecture)
    return About(
        path,
        "gguf",
        title=str(keys.get("general.name", "")),
        architecture=architecture,
        quantization=_MIXES.get(keys.get("general.file_type", -1), _main_type(header)),
        parameters=parameters,
        nbytes=sum(part.stat().st_size for part in header.parts),
        context=_whole(keys.get(f"{architecture}.context_length")),
        chat_template="tokenizer.chat_template" in keys,
        why_not=why_not,
        problem="unsupported" if why_not else "",
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
    if keys.get(f"{architecture}.expert_count", 0):
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
    if "tokenizer.chat_template" not in keys and not set(CHATML) <= set(keys.get("tokenizer.ggml.tokens", ())):
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
    parameters = sum(math.prod(tensor.shape) for tensor in header.tensors.values())
    why_not = _folder_why_not(folder, header, architecture)
    problem: Problem = "unsupported" if why_not else ""
    if not why_not and not (folder / "tokenizer.json").exists():
        why_not, problem = "incomplete: no tokenizer.json beside the weights", "damaged"
    template = _has_template(folder)
    if not why_not and not template and CHATML[0].encode() not in (folder / "tokenizer.json").read_bytes():
        why_not, problem = _BASE, "unsupported"
    return About(
        folder,
        "safetensors",
        title=str(config.get("_name_or_path") or ""),
        architecture=architecture,
        quantization=_main_type(header),
        parameters=parameters,
        nbytes=sum(part.stat().st_size for part in header.parts),
        context=_whole(config.get("max_position_embeddings")),
        chat_template=template,
        why_not=why_not,
        problem=problem,
    )


def _folder_why_not(folder: Path, header: SafetensorsHeader, architecture: str) -> str:
    config: dict[str, Any] = header.config
    if (folder / "modules.json").exists() or (folder / "1_Pooling").exists():
        return f"an embedding model (`{architecture}`), not a chat model"
    if architecture not in HF_ARCHITECTURES:
        return f"unsupported architecture `{architecture}`" if architecture else "its config.json names no architecture"
    quantized = config.get("quantization_config") or config.get("quantization")
    if quantized:
        method = quantized.get("quant_method", "mlx") if isinstance(quantized, dict) else quantized
        return f"unsupported quantisation `{method}`"
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ("default", "llama3"):
        return f"unsupported rope scaling `{kind}`"
    return _types(header, SAFETENSORS_TYPES)


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
