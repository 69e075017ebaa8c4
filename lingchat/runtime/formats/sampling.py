"""How a model's publisher suggests to sample from it, where the files say so.

Knows the files' names for it; must not know what the runtime does with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lingchat.engines.api import Sampling
from lingchat.errors import ModelFileError
from lingchat.runtime.formats.json_tokenizer import read_json

_FOLDER_KEYS = {name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
_GGUF_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def folder_sampling(folder: Path) -> dict[str, float]:
    """Suggested values by the names of `Sampling`'s fields, from generation_config.json, as far as it says.

    `do_sample` false is temperature 0. Raises `ModelFileError` for a value that no one can sample with.
    """
    path = folder / "generation_config.json"
    settings = read_json(path)
    suggested = _suggested(settings, _FOLDER_KEYS, str(path))
    if settings.get("do_sample") is False:
        suggested["temperature"] = 0.0
    return suggested


def gguf_sampling(metadata: Mapping[str, Any]) -> dict[str, float]:
    """The same from a GGUF's `general.sampling.*`."""
    return _suggested(metadata, _GGUF_KEYS, "the model file")


def _suggested(settings: Mapping[str, Any], keys: Mapping[str, str], where: str) -> dict[str, float]:
    suggested: dict[str, float] = {}
    for key, name in keys.items():
        value = settings.get(key)
        if value is None:
            continue
        try:
            number = max(0, int(value)) if name == "top_k" else round(float(value), 6)  # GGUF: 32 bits
            Sampling(**{name: number})  # type: ignore[arg-type]  # every field by these names is a number
        except (TypeError, ValueError) as error:
            raise ModelFileError(f"{key} in {where} is {value!r}, which is no way to sample: {error}.") from error
        suggested[name] = number
    return suggested
