"""The tokenizer of a model folder: `tokenizer.json` or `tiktoken.model`, with names and flags of the files beside it.

Knows Hugging Face's file formats; the work is done by the `tokenizers` package. Must not know GGUF.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RustTokenizer

from lingchat.errors import ModelFileError, UnsupportedModel
from lingchat.runtime.formats.bytelevel import token_bytes
from lingchat.runtime.formats.special import end_ids, looks_special
from lingchat.runtime.formats.tiktoken_tokenizer import tiktoken_rust
from lingchat.runtime.formats.tokenizer import Tokenizer, Vocabulary

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def json_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in `folder`. Raises `ModelFileError` for files that are missing or damaged.

    `tokenizer.json` comes before `tiktoken.model`, which only folders of some families have.
    """
    rust = _rust(folder)
    rust.no_truncation()
    rust.no_padding()
    vocabulary = _vocabulary(folder, rust, read_json(folder / "tokenizer_config.json"))
    rust.add_special_tokens(list(vocabulary.control))  # also those that tokenizer.json does not call special
    return Tokenizer(JsonBackend(rust), vocabulary)


def _rust(folder: Path) -> RustTokenizer:
    path = folder / "tokenizer.json"
    if path.is_file():
        try:
            return RustTokenizer.from_file(str(path))
        except Exception as error:  # the Rust side raises a bare Exception
            raise ModelFileError(f"{path} cannot be read: {error}.") from error
    if (folder / "tiktoken.model").is_file():
        return tiktoken_rust(folder / "tiktoken.model", read_json(folder / "tokenizer_config.json"))
    raise ModelFileError(
        f"there is no tokenizer.json in {folder}, and no tiktoken.model either. Copy the tokenizer's files there from "
        "where the model is published, or save one as tokenizer.json with transformers."
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be read: {error}.") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} does not hold a JSON object.")
    return value


class JsonBackend:
    """Ordinary text through `tokenizer.json`, whose special tokens are switched off here."""

    def __init__(self, rust: RustTokenizer) -> None:
        rust.encode_special_tokens = True  # that is: special tokens in text are text
        self._rust = rust
        self._added = {id: token.content for id, token in rust.get_added_tokens_decoder().items()}
        parts = _flatten(_state(rust.decoder), "decoders")
        kinds = {part["type"] for part in parts}
        self._byte_level = "ByteLevel" in kinds
        self._bytes_fallback = "ByteFallback" in kinds
        known = {"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}
        if not kinds <= known or not kinds:
            raise UnsupportedModel(
                f"the decoder {sorted(kinds - known) or None} of tokenizer.json is not known. Known: {sorted(known)}."
            )
        metaspace = next((part for part in parts if part["type"] == "Metaspace"), None)
        self.strip_space = any(part["type"] == "Strip" and part.get("start") for part in parts) or (
            metaspace is not None and metaspace.get("prepend_scheme", "always") != "never"
        )
        self._inner = rust
        if any(part.get("prepend_scheme") == "first" for part in _flatten(_state(rust.pre_tokenizer), "pretokenizers")):
            # Only the start of a prompt gets a space; text after a special token must not.
            self._inner = RustTokenizer.from_str(rust.to_str().replace('"prepend_scheme":"first"', _NEVER))
            self._inner.encode_special_tokens = True

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        return (self._rust if at_start else self._inner).encode(text, add_special_tokens=False).ids

    def piece(self, id: int) -> bytes:
        if (added := self._added.get(id)) is not None:
            return added.encode()
        token = self.token(id)
        if self._byte_level:
            return token_bytes(token)
        if self._bytes_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return token.replace("▁", " ").encode()

    def token(self, id: int) -> str:
        return self._rust.id_to_token(id) or ""

    def id(self, token: str) -> int | None:
        return self._rust.token_to_id(token)


_NEVER = '"prepend_scheme":"never"'


def _state(component: Any) -> dict[str, Any]:
    return {} if component is None else json.loads(component.__getstate__())


def _flatten(state: dict[str, Any], inside: str) -> list[dict[str, Any]]:
    """A component and, for a sequence, its parts."""
    if state.get("type") == "Sequence":
        return [part for item in state[inside] for part in _flatten(item, inside)]
    return [state] if state else []


def _text(token: Any) -> str | None:
    """A special token's text: tokenizer_config.json has it as a string or as an object with `content`."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _vocabulary(folder: Path, rust: RustTokenizer, settings: Mapping[str, Any]) -> Vocabulary:
    added = rust.get_added_tokens_decoder()
    control = {token.content: id for id, token in added.items() if token.special or looks_special(token.content)}
    named = {name: text for name in _NAMES if (text := _text(settings.get(name))) is not None}
    extra = settings.get("additional_special_tokens") or settings.get("extra_special_tokens") or []
    extra = list(extra.values()) if isinstance(extra, Mapping) else list(extra)
    for text in (*named.values(), *filter(None, map(_text, extra))):
        if (id := rust.token_to_id(text)) is not None:
            control[text] = id
    bos_id = rust.token_to_id(named["bos_token"]) if "bos_token" in named else None
    eos_id = rust.token_to_id(named["eos_token"]) if "eos_token" in named else None
    eos_ids = set(end_ids(control)) | ({eos_id} if eos_id is not None else set())
    for name in ("generation_config.json", "config.json"):
        value = read_json(folder / name).get("eos_token_id")
        eos_ids |= set(value) if isinstance(value, list) else {value} if isinstance(value, int) else set()
    around = rust.encode("", add_special_tokens=True).ids
    add_bos, add_eos = settings.get("add_bos_token"), settings.get("add_eos_token")
    ids = rust.get_vocab_size(with_added_tokens=True)
    return Vocabulary(
        control=control,
        size=max(ids, *(id + 1 for id in added), 0) if added else ids,
        bos_id=bos_id,
        eos_ids=frozenset(eos_ids),
        named=named,
        add_bos=bos_id is not None and (bool(around[:1] == [bos_id]) if add_bos is None else bool(add_bos)),
        add_eos=eos_id is not None and (bool(around[-1:] == [eos_id]) if add_eos is None else bool(add_eos)),
        strips_left=frozenset(id for id, token in added.items() if token.content in control and token.lstrip),
        strips_right=frozenset(id for id, token in added.items() if token.content in control and token.rstrip),
    )
