"""What `lingchat models inspect` tells: a model's files key by key, its numbers, and whether it fits into this machine.

A path may be a GGUF file, a folder with weights, or a config.json alone (itself, or a folder without weights). Every
tensor is found and checked as the engine does it, and nothing is loaded. Returns values; prints nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lingchat.architectures import budget
from lingchat.architectures.held import held_tensors
from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.plan import RESERVE, MemoryPlan, what_fits
from lingchat.architectures.read import ModelConfig, hf_config_alone
from lingchat.architectures.resident import StoredBytes, StoredTypes
from lingchat.architectures.usual import usual_plan
from lingchat.architectures.variants import Variant, estimated_bytes
from lingchat.catalog import memory, models
from lingchat.catalog.about import NFC, About, look, tensor_bytes
from lingchat.catalog.header_checks import json_object, read_bytes
from lingchat.catalog.headers import GGUFHeader, SafetensorsHeader, read_gguf, read_safetensors_folder
from lingchat.errors import EXIT_INVALID, LingchatError, ModelNotFound

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Inspected:
    """`told` for programs; `pairs` for people, and the file's own `keys` behind them."""

    told: dict[str, Any]
    pairs: Pairs
    keys: dict[str, Any]
    exit_code: int


def inspect(path: Path) -> Inspected:
    """Raises `ModelNotFound` where there is nothing; what is wrong with what there is, is told and not raised."""
    if not path.exists():
        try:
            path = models.named(str(path)).path
        except ModelNotFound as error:
            raise ModelNotFound(f"{path}: no such file or folder. {error}") from None
    if not path.exists():
        raise ModelNotFound(f"{path}: no such file or folder.")
    alone = _config_alone(path)
    return _inspect_config(alone) if alone is not None else _inspect_model(models.model_path(path))


def _config_alone(path: Path) -> Path | None:
    """The config.json that a path means where no weights are meant; None for a model's path."""
    if path.is_file():
        return path if path.suffix == ".json" else None
    config = path / "config.json"
    weights = any(True for pattern in ("*.safetensors*", "*.gguf", "*.bin") for _ in path.glob(pattern))
    return config if config.is_file() and not weights else None


def _inspect_config(path: Path) -> Inspected:
    keys: dict[str, Any] = {}
    try:
        keys = json_object(path, read_bytes(path))
        config = hf_config_alone(str(path), keys)
    except LingchatError as error:
        return _broken(path, keys, error)
    stored = estimated_bytes(config, config.quantization) if isinstance(config, HybridConfig) else None
    told, pairs = _numbers(config, stored)
    about = {"path": str(path), "format": "config", "architecture": config.architecture, "context": config.context}
    shown = {key: _plain(value) for key, value in keys.items()}
    head = [
        ("path", str(path)),
        ("runs here", "a configuration without weights"),
        ("architecture", config.architecture),
    ]
    return Inspected({**about, **told, "keys": shown}, [*head, *pairs], shown, 0)


def _broken(path: Path, keys: dict[str, Any], error: LingchatError) -> Inspected:
    shown = {key: _plain(value) for key, value in keys.items()}
    told = {"path": str(path), "format": "config", "keys": shown, "fits": False, "error": _error(error)}
    return Inspected(told, [("path", str(path)), ("runs here", f"no: {error}")], shown, EXIT_INVALID)


def _inspect_model(path: Path) -> Inspected:
    about = look(path)
    keys: dict[str, Any] = {}
    types: dict[str, int] = {}
    pairs: Pairs = []
    more: dict[str, Any]
    error: LingchatError | None = None
    try:
        header = read_safetensors_folder(path) if path.is_dir() else read_gguf(path)
        keys, types = _contents(header)
        config, tensors = held_tensors(header, lambda info: tensor_bytes(header, info))
    except LingchatError as failure:
        error = failure
        more = {"fits": False, "error": _error(failure)}
        more |= {"problem": about.problem or "damaged", "why_not": about.why_not or str(failure)}
    else:
        stored = {name: held.nbytes for name, held in tensors.items()}
        more, pairs = _numbers(config, stored, {name: held.info.type for name, held in tensors.items()})
        more["architecture"] = about.architecture
    count = sum(types.values())
    told = {**asdict(about), "path": str(path), "tensors": count, "types": types, "keys": keys, **more}
    broken = error is not None or about.problem in ("damaged", "unsupported")
    verdict = "yes" if about.runs and error is None else f"no: {told['why_not']}"
    head = [("path", str(path)), ("runs here", verdict), ("size", size(about.nbytes)), *facts(about)]
    head += [("tensors", f"{count}: " + ", ".join(f"{n} {kind}" for kind, n in types.items()))] if count else []
    return Inspected(told, [*head, *_text_facts(keys), *pairs], keys, EXIT_INVALID if broken else 0)


def _error(error: LingchatError) -> dict[str, str]:
    return {"code": error.code, "message": str(error)}


# numbers


def _numbers(
    config: ModelConfig, stored: StoredBytes | None, types: StoredTypes | None = None
) -> tuple[dict[str, Any], Pairs]:
    """What follows from the configuration and the bytes and types of its tensors, for programs and for people."""
    told: dict[str, Any] = {
        "architecture": config.architecture,
        "parameters": budget.parameters(config),
        "parameters_with_mtp": budget.parameters_with_mtp(config),
        "active_parameters": budget.active_parameters(config),
        "weight_bytes_per_token": budget.weight_bytes_per_token(config, stored),
        "state_bytes": budget.state_bytes(config),
        "window_bytes": budget.window_bytes(config),
        "cache_bytes_per_token": budget.cache_bytes_per_token(config),
    }
    # The engine takes a GPU where there is one.
    gpu, host = memory.gpu_free_memory(), memory.free_memory()
    places = [("cpu", host)] if gpu is None else [("cuda", gpu), ("cpu", host)]
    plans = [_Place(device, free, usual_plan(config, device, free, stored, types)) for device, free in places]
    instead = plans[0].instead
    told |= {
        "fits": plans[0].fits,
        "would_fit": instead.name if instead is not None else None,
        "plan": plans[0].told(),
        "plans": [place.told() for place in plans],
    }
    drafting = told["parameters_with_mtp"] - told["parameters"]
    with_mtp = f", and {_many(drafting)} of a drafting layer" if drafting else ""
    windows = f", and {size(told['window_bytes'])} of convolution inputs" if told["state_bytes"] else ""
    pairs = [
        ("in all", f"{_many(told['parameters'])} parameters{with_mtp}"),
        (
            "a token",
            f"{_many(told['active_parameters'])}, {size(told['weight_bytes_per_token'])} of weights",
        ),
        ("state", f"{size(told['state_bytes'])}{windows}" if told["state_bytes"] else ""),
        ("cache", f"{told['cache_bytes_per_token']:,} bytes a token in bf16"),
    ]
    for place in plans:
        pairs += [("memory", _memory(place.plan, place.device)), ("fits", place.verdict(is_first=place is plans[0]))]
    return told, pairs


@dataclass(frozen=True)
class _Place:
    """A device with `free` bytes, and what the model would take there."""

    device: str
    free: int
    plan: MemoryPlan

    @property
    def fits(self) -> bool:
        return self.plan.total + RESERVE <= self.free

    @property
    def instead(self) -> Variant | None:
        """The published form that would fit where this one does not."""
        return None if self.fits else what_fits(self.plan, self.free)

    def told(self) -> dict[str, Any]:
        assert self.plan.asked is not None
        return {
            "device": self.device,
            "dtype": self.plan.asked.dtype,
            "context": self.plan.context,
            "weights": self.plan.weights,
            "state": self.plan.state,
            "snapshots": self.plan.snapshots,
            "cache": self.plan.kv,
            "workspace": self.plan.workspace,
            "process": RESERVE,
            "total": self.plan.total + RESERVE,
            "free": self.free,
            "fits": self.fits,
        }

    def verdict(self, *, is_first: bool) -> str:
        """For people; `is_first`: it is where the engine goes without being told."""
        instead = self.instead
        way = "" if is_first else f", with --device {self.device}"
        said = f"yes{way}" if self.fits else "no" if instead is None else f"no; {instead.name} would fit"
        return f"{said}; {size(self.free)} of {'memory' if self.device == 'cpu' else 'GPU memory'} are free"


def _many(count: int) -> str:
    return f"{count / 1e9:.3f} billion" if count >= 1e9 else f"{count / 1e6:.1f} million"


def _memory(planned: MemoryPlan, device: str) -> str:
    assert planned.asked is not None
    parts = [
        f"weights {size(planned.weights)}",
        f"state with drafts {size(planned.state)}" if planned.state else "",
        f"copies of it {size(planned.snapshots)}" if planned.snapshots else "",
        f"{'latents' if planned.state else 'context'} of {planned.context:,} tokens {size(planned.kv)}",
        f"workspace {size(planned.workspace + RESERVE)}",
    ]
    where = f"{planned.asked.dtype} on {'the processor' if device == 'cpu' else 'the GPU'}"
    return f"{size(planned.total + RESERVE)} in {where}: {', '.join(part for part in parts if part)}"


# a file's own words


def facts(about: About) -> Pairs:
    """What a model's files say of it; an empty text is not shown."""
    return [
        ("title", about.title),
        ("format", about.format),
        ("architecture", about.architecture),
        ("quantisation", about.quantization),
        ("parameters", f"{about.parameters / 1e6:,.1f} million" if about.parameters else ""),
        ("context", f"{about.context} tokens" if about.context else ""),
        ("chat template", "yes" if about.chat_template else "no" if about.problem != "damaged" else ""),
    ]


def _contents(header: GGUFHeader | SafetensorsHeader) -> tuple[dict[str, Any], dict[str, int]]:
    """Keys, and the number of tensors of each type."""
    keys = header.metadata if isinstance(header, GGUFHeader) else header.config
    types = Counter(tensor.type for tensor in header.tensors.values())
    return {key: _plain(value) for key, value in keys.items()}, dict(types)


def _text_facts(keys: dict[str, Any]) -> Pairs:
    """How a GGUF's text is split, and the normalisation that the format does not state."""
    if "tokenizer.ggml.model" not in keys:
        return []
    pre = keys.get("tokenizer.ggml.pre") or "default"
    form = "NFC, as its family does; the file does not say" if pre in NFC else "none"
    return [("tokenizer", f"{keys['tokenizer.ggml.model']}, split `{pre}`"), ("normalisation", form)]


def _plain(value: Any) -> Any:
    """A vocabulary becomes its length: nobody reads 49,152 tokens here."""
    return f"[{len(value)} values]" if isinstance(value, list) and len(value) > 16 else value


def brief(value: Any) -> str:
    """A key's value in one line."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:97]}..."


def size(nbytes: int) -> str:
    """Bytes for people."""
    if not nbytes:
        return "–"
    if nbytes < 100_000:
        return f"{nbytes / 1e3:.1f} kB"
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
