"""The tokenizer of a folder that has `tiktoken.model` instead of `tokenizer.json`, as Kimi's repositories do.

The file lists base64 tokens with their ranks; a rank is a token's id and says when its pieces are joined. Special
tokens are named in `tokenizer_config.json`. Here it becomes a `tokenizers` tokenizer, so that all else is as for any folder.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as RustTokenizer

from lingchat.errors import ModelFileError, UnsupportedModel
from lingchat.runtime.formats.bytelevel import BYTE_TO_CHAR
from lingchat.runtime.formats.pretokenizers import KIMI_SPLIT

RESERVED = 256  # special ids after the ranks; those without a name are `<|reserved_token_ID|>`
_CLASS = "TikTokenTokenizer"


def tiktoken_rust(path: Path, settings: Mapping[str, Any]) -> RustTokenizer:
    """The tokenizer of `path`; `settings` are those of the `tokenizer_config.json` beside it.

    The file does not hold its split, so that a family must be known for it. Raises `UnsupportedModel` for another one
    than Kimi's and `ModelFileError` for a damaged file.
    """
    named = settings.get("tokenizer_class")
    if named != _CLASS:
        raise UnsupportedModel(
            f"{path} is for the tokenizer class {named!r}; only {_CLASS!r} (Kimi) is known without a tokenizer.json. "
            "Save the tokenizer as tokenizer.json with transformers, or use a GGUF of the model."
        )
    ranks = read_ranks(path)
    spelled = {token: "".join(BYTE_TO_CHAR[byte] for byte in token) for token in ranks}
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()}
    # Any two pieces that make a token may be joined, and the pair with the lowest rank is joined first. A list of
    # merges says the same when it has every way to make a token, in the order of the ranks.
    merges: list[Any] = [
        (spelled[token[:cut]], spelled[token[cut:]])
        for token in ranks
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    rust = RustTokenizer(models.BPE(vocabulary, merges, ignore_merges=True))  # a piece that is a token is taken whole
    rust.pre_tokenizer = KIMI_SPLIT.pre_tokenizer()
    rust.decoder = decoders.ByteLevel()
    names = _special_names(path, settings, len(ranks))
    # They get the ids after the ranks, in this order.
    rust.add_special_tokens([AddedToken(names[id], special=True, normalized=False) for id in sorted(names)])
    wrong = next((id for id, name in names.items() if rust.token_to_id(name) != id), None)
    if wrong is not None:
        raise ModelFileError(
            f"the special token {names[wrong]!r} of {path} cannot have the id {wrong}: it is not alone."
        )
    return rust


def read_ranks(path: Path) -> dict[bytes, int]:
    """Tokens and ranks, in the order of the ranks, which are 0, 1, 2 and so on."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error}.") from error
    found: dict[bytes, int] = {}
    count = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        count += 1
        try:
            token, rank = line.split()
            found[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise ModelFileError(f"line {number} of {path} is not a base64 token and its rank: {error}.") from error
    ranks = dict(sorted(found.items(), key=lambda item: item[1]))
    if list(ranks.values()) != list(range(count)):
        raise ModelFileError(f"the ranks of {path} are not 0, 1, 2 and so on, each once: it is damaged or cut off.")
    missing = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
    if missing is not None:
        raise ModelFileError(f"{path} has no token for the byte {missing:#04x}: it is damaged.")
    return ranks


def _special_names(path: Path, settings: Mapping[str, Any], first: int) -> dict[int, str]:
    """The special tokens after the ranks, by id."""
    names = {id: f"<|reserved_token_{id}|>" for id in range(first, first + RESERVED)}
    for key, token in (settings.get("added_tokens_decoder") or {}).items():
        text = token.get("content") if isinstance(token, Mapping) else token
        if not isinstance(text, str) or not str(key).isdecimal() or int(key) not in names:
            raise ModelFileError(
                f"added_tokens_decoder in {path.parent / 'tokenizer_config.json'} gives {text!r} the id {key!r}, but "
                f"special tokens of {path.name} have ids from {first} to {first + RESERVED - 1}."
            )
        names[int(key)] = text
    return names
