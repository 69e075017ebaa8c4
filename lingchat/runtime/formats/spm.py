"""Sentencepiece-style BPE by scores, as llama.cpp does it for `tokenizer.ggml.model` = `llama`.

The adjacent pair whose joined text is the token with the highest score is joined first, the leftmost among equals,
until no pair is a token; what is then no token is spelled in bytes. Neither a unigram search nor BPE by merge ranks
gives the same ids where scores are equal, so this is written out. Knows token lists, not files.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from functools import lru_cache

SPACE = "▁"  # U+2581, how these vocabularies write a space

# `tokenizer.ggml.token_type`
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6


class SpmBackend:
    """Ids of text by scores. `space_prefix`: a space goes before text that starts a prompt or follows a special."""

    def __init__(
        self, tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], *, space_prefix: bool
    ) -> None:
        self._tokens = tokens
        self._types = types
        self._scores = scores
        self._space_prefix = space_prefix
        self.strip_space = space_prefix
        self._ids = {token: id for id, token in enumerate(tokens)}
        self._unknown = types.index(_UNKNOWN) if _UNKNOWN in types else None
        user_defined = sorted((t for t, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED), key=len)
        self._user_defined = re.compile("|".join(map(re.escape, reversed(user_defined))) or "(?!)")
        # Two neighbouring characters that no token holds side by side are never joined, so text may be cut between
        # them: words then come from a cache, and a long text costs no more a character than a short one.
        self._joinable = {token[i : i + 2] for token in tokens for i in range(len(token) - 1)}
        self._word_ids = lru_cache(maxsize=1 << 16)(self._encode_word)

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        ids: list[int] = []
        start = 0
        for match in self._user_defined.finditer(text):
            ids += self._encode_text(text[start : match.start()])
            ids.append(self._ids[match.group()])
            start = match.end()
        return ids + self._encode_text(text[start:])

    def _encode_text(self, text: str) -> list[int]:
        if not text:
            return []
        text = (" " + text if self._space_prefix else text).replace(" ", SPACE)
        ids: list[int] = []
        start = 0
        joinable = self._joinable
        for i in range(1, len(text)):
            if text[i - 1 : i + 1] not in joinable:
                ids += self._word_ids(text[start:i])
                start = i
        return ids + list(self._word_ids(text[start:]))

    def _encode_word(self, word: str) -> tuple[int, ...]:
        symbols = list(word)  # text of each symbol; empty once joined into its left neighbour
        size = len(symbols)
        left = list(range(-1, size - 1))
        right = list(range(1, size + 1))
        heap: list[tuple[float, int, int, str]] = []

        def consider(a: int, b: int) -> None:
            if a >= 0 and b < size:
                joined = symbols[a] + symbols[b]
                if (id := self._ids.get(joined)) is not None:
                    heapq.heappush(heap, (-self._scores[id], a, b, joined))

        for i in range(size - 1):
            consider(i, i + 1)
        while heap:
            _, a, b, joined = heapq.heappop(heap)
            if not symbols[a] or not symbols[b] or symbols[a] + symbols[b] != joined:
                continue  # a neighbour was joined elsewhere since
            symbols[a], symbols[b] = joined, ""
            right[a] = right[b]
            if right[a] < size:
                left[right[a]] = a
            consider(left[a], a)
            consider(a, right[a])
        return tuple(id for symbol in symbols if symbol for id in self._symbol_ids(symbol))

    def _symbol_ids(self, symbol: str) -> list[int]:
        if (id := self._ids.get(symbol)) is not None:
            return [id]
        spelled = [self._ids.get(f"<0x{byte:02X}>") for byte in symbol.encode()]
        if None not in spelled:
            return spelled  # type: ignore[return-value]  # no None among them
        return [] if self._unknown is None else [self._unknown]

    def piece(self, id: int) -> bytes:
        token = self.token(id)
        kind = self._types[id] if 0 <= id < len(self._types) else 0
        if kind == _BYTE:
            return bytes([int(token[3:5], 16)])
        if kind in (_CONTROL, _UNKNOWN):
            return token.encode("utf-8", "replace")
        return token.replace(SPACE, " ").encode("utf-8", "replace")

    def token(self, id: int) -> str:
        return self._tokens[id] if 0 <= id < len(self._tokens) else ""

    def id(self, token: str) -> int | None:
        return self._ids.get(token)
