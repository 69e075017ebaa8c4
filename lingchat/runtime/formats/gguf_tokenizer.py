"""The tokenizer of a GGUF file, from its `tokenizer.ggml.*` metadata.

Two kinds: `gpt2` is byte-level BPE with merges, `llama` is sentencepiece-style with scores (see `spm`). Others are
refused by name. Where the file is silent, llama.cpp's defaults hold. Knows metadata, not files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as RustTokenizer

from lingchat.errors import ModelFileError, UnsupportedModel
from lingchat.runtime.formats.bytelevel import BYTE_TO_CHAR, token_bytes
from lingchat.runtime.formats.pretokenizers import Split, split_for
from lingchat.runtime.formats.special import END_TOKENS, end_ids, looks_special
from lingchat.runtime.formats.spm import SpmBackend
from lingchat.runtime.formats.tokenizer import Backend, Tokenizer, Vocabulary

# `tokenizer.ggml.token_type`
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_KINDS = ("gpt2", "llama")
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # so spelled in the format
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
}


def gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer described by GGUF `metadata`.

    Raises `UnsupportedModel` for an unknown kind or pre-tokenizer, `ModelFileError` for metadata that contradicts
    itself.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in _KINDS:
        raise UnsupportedModel(
            f"the tokenizer {kind!r} (tokenizer.ggml.model) is not known. Known: {', '.join(_KINDS)}."
        )
    tokens = _list(metadata, "tokens")
    types = _types(metadata, tokens)
    backend: Backend
    normalization = None
    if kind == "gpt2":
        split = split_for(metadata.get("tokenizer.ggml.pre") or "default")
        backend = BytePairBackend(tokens, types, _list(metadata, "merges"), split)
        add_bos = split.add_bos
        normalization = "NFC" if split.nfc else None
    else:
        scores = _list(metadata, "scores")
        if len(scores) != len(tokens):
            raise ModelFileError(f"tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens.")
        space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        backend = SpmBackend(tokens, types, scores, space_prefix=space)
        add_bos = True
    vocabulary = _vocabulary(metadata, tokens, types, add_bos)
    return Tokenizer(backend, msgspec.structs.replace(vocabulary, normalization=normalization))


class BytePairBackend:
    """Byte-level BPE in Rust (the `tokenizers` package), built from token, type and merge lists."""

    strip_space = False

    def __init__(self, tokens: Sequence[str], types: Sequence[int], merges: Sequence[str], split: Split) -> None:
        self._tokens = tokens
        self._types = types
        vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
        # Some vocabularies lack bytes (SmolLM2: 21, mostly control characters). Such a byte has no id, but it stands
        # between its neighbours and keeps them from being joined: it gets an id past the end, which encode drops.
        missing = [char for char in BYTE_TO_CHAR.values() if char not in vocabulary]
        vocabulary |= {char: len(tokens) + n for n, char in enumerate(missing)}
        self._drops = bool(missing)
        # A merge listed twice counts where it stands first; the Rust side would take the last.
        pairs: list[Any] = [tuple(merge.split(" ", 1)) for merge in dict.fromkeys(merges)]
        try:
            bpe = models.BPE(vocabulary, pairs, ignore_merges=split.whole_words)
        except Exception as error:  # the Rust side raises a bare Exception, and TypeError for a merge of one part
            raise ModelFileError(f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {error}.") from error
        self._rust = RustTokenizer(bpe)
        self._rust.pre_tokenizer = split.pre_tokenizer()
        if normalizer := split.normalizer():
            self._rust.normalizer = normalizer
        # User-defined tokens are recognised in any text, as they were in training; control tokens never are here.
        self._rust.add_tokens(
            [
                AddedToken(token, normalized=False)
                for token, kind in zip(tokens, types, strict=True)
                if kind == USER_DEFINED
            ]
        )

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        ids = self._rust.encode(text, add_special_tokens=False).ids
        return [id for id in ids if id < len(self._tokens)] if self._drops else ids

    def piece(self, id: int) -> bytes:
        token = self.token(id)
        if 0 <= id < len(self._types) and self._types[id] in (CONTROL, USER_DEFINED):
            return token.encode("utf-8", "replace")
        return token_bytes(token)

    def token(self, id: int) -> str:
        return self._tokens[id] if 0 <= id < len(self._tokens) else ""

    def id(self, token: str) -> int | None:
        id = self._rust.token_to_id(token)
        return id if id is not None and id < len(self._tokens) else None


def _list(metadata: Mapping[str, Any], name: str) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list | tuple) or not value:
        raise ModelFileError(f"the model file has no tokenizer.ggml.{name}.")
    return list(value)


def _types(metadata: Mapping[str, Any], tokens: list[str]) -> list[int]:
    """A type for each token, NORMAL for all where the file has none. Unmistakable markers and ends are control."""
    types = list(metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise ModelFileError(f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens.")
    # An end token that nobody writes by chance: another type is a converter's mistake.
    named = [id for id, token in enumerate(tokens) if token in END_TOKENS and looks_special(token)]
    marked = [id for id, kind in enumerate(types) if kind == USER_DEFINED and looks_special(tokens[id])]
    for id in (*named, *marked):
        types[id] = CONTROL
    return types


def _id(metadata: Mapping[str, Any], name: str, size: int) -> int | None:
    id = metadata.get(f"tokenizer.ggml.{name}")
    if id is None:
        return None
    if not 0 <= id < size:
        raise ModelFileError(f"tokenizer.ggml.{name} is {id}, but the vocabulary has {size} tokens.")
    return int(id)


def _vocabulary(metadata: Mapping[str, Any], tokens: list[str], types: list[int], add_bos: bool) -> Vocabulary:
    size = len(tokens)
    control = {token: id for id, token in enumerate(tokens) if types[id] in (CONTROL, UNKNOWN) and token}
    named = {}
    for name, key in _NAMED.items():
        if (id := _id(metadata, key, size)) is not None:
            named[name] = tokens[id]
    bos_id = _id(metadata, "bos_token_id", size)
    ends = {_id(metadata, f"{name}_token_id", size) for name in ("eos", "eot", "eom")}
    while size and types[size - 1] == UNUSED:  # padding of the head, such as Qwen's [PAD151936]
        size -= 1
    return Vocabulary(
        control=control,
        size=size,
        bos_id=bos_id,
        eos_ids=frozenset(id for id in ends if id is not None) | end_ids(control),
        named=named,
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos)) and bos_id is not None,
        add_eos=bool(metadata.get("tokenizer.ggml.add_eos_token", False)) and "eos_token" in named,
    )
