"""Text to ids and back, for any vocabulary.

Where special tokens stand is decided here, the same for every family; how ordinary text becomes ids is a `Backend`'s
matter. Must not know files, templates or the engine.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from lingchat.runtime.formats.detokenize import Detokenizer
from lingchat.runtime.formats.markers import REPLY_MARKERS

REMEMBERED_CHARS = 1 << 21  # of text whose ids are kept; several times a long conversation
_SPACE = re.compile(r"\s+")


class Backend(Protocol):
    """Ordinary text to ids, and ids to bytes."""

    strip_space: bool  # the first word of a reply carries a space that is not part of the text

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """Ids of valid Unicode text without control tokens. `at_start`: nothing stands before it."""
        ...

    def piece(self, id: int) -> bytes:
        """The bytes a token stands for; empty where it stands for none."""
        ...

    def token(self, id: int) -> str:
        """The token as the vocabulary writes it; empty for an id without one."""
        ...

    def id(self, token: str) -> int | None:
        """The id of a token, None where there is none."""
        ...


class Vocabulary(msgspec.Struct, frozen=True):
    """What a model file says about its tokens.

    `control` are the special tokens by text. `size` counts the ids that may be chosen: a head can have more rows.
    `strips_left`/`strips_right` are control ids that swallow the white space beside them. `normalization` names what is
    done to a text before it is split, where a GGUF file leaves that to the family ("NFC"); None for nothing.
    """

    control: Mapping[str, int]
    size: int
    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    named: Mapping[str, str] = msgspec.field(default_factory=dict)  # bos_token, eos_token ... as templates call them
    add_bos: bool = False
    add_eos: bool = False
    strips_left: frozenset[int] = frozenset()
    strips_right: frozenset[int] = frozenset()
    normalization: str | None = None


class Tokenizer:
    """Ids of a text, text of ids. `vocab_size`, `bos_id`, `eos_ids` and `control` are plain facts of the vocabulary."""

    def __init__(self, backend: Backend, vocabulary: Vocabulary) -> None:
        self._backend = backend
        self.vocabulary = vocabulary
        self.vocab_size = vocabulary.size
        self.bos_id = vocabulary.bos_id
        self.eos_ids = vocabulary.eos_ids
        self.control_ids = frozenset(vocabulary.control.values())
        # A reply is split at these, so they are shown even where a vocabulary calls them control.
        shown = {vocabulary.control[text] for text in REPLY_MARKERS if text in vocabulary.control}
        self._hidden = self.control_ids - shown
        self._pieces: dict[int, bytes] = {}
        # Ids of the latest pieces of text: the messages of a conversation come again with every turn, unchanged.
        self._spans: OrderedDict[tuple[str, bool], list[int]] = OrderedDict()
        self._span_chars = 0
        # The longest alternative first, as every tokenizer of these families matches.
        longest_first = sorted(vocabulary.control, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`. Control tokens written in it are recognised only with `special`: otherwise they are text."""
        return self.encode_segments([(text, special)])

    def encode_segments(self, segments: Iterable[tuple[str, bool]]) -> list[int]:
        """Ids of the joined text of `(text, trusted)` segments.

        A control token is recognised only where every character of it is trusted. All text between two of them is
        encoded as one piece, whoever wrote it, so that a border between segments leaves no trace in the ids.
        """
        text, untrusted = _join(segments)
        ids: list[int] = []
        start = 0  # of the ordinary text not yet encoded
        at = 0
        while match := self._control.search(text, at):
            if untrusted.find(1, match.start(), match.end()) >= 0:
                at = match.start() + 1
                continue
            id = self.vocabulary.control[match.group()]
            before = text[start : match.start()]
            if id in self.vocabulary.strips_left:
                before = before.rstrip()
            ids += self._encode_ordinary(before, at_start=start == 0)
            ids.append(id)
            at = match.end()
            if id in self.vocabulary.strips_right and (space := _SPACE.match(text, at)):
                at = space.end()
            start = at
        ids += self._encode_ordinary(text[start:], at_start=start == 0)
        return ids

    def _encode_ordinary(self, text: str, *, at_start: bool) -> list[int]:
        if not text:
            return []
        key = text, at_start
        ids = self._spans.get(key)
        if ids is None:
            ids = self._spans[key] = self._backend.encode(_valid_unicode(text), at_start=at_start)
            self._span_chars += len(text)
            while self._span_chars > REMEMBERED_CHARS:
                (oldest, _), _ = self._spans.popitem(last=False)
                self._span_chars -= len(oldest)
        else:
            self._spans.move_to_end(key)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids` without control tokens."""
        stream = self.decode_stream()
        return stream.push(ids) + stream.finish()

    def decode_stream(self, *, continues: bool = False) -> Detokenizer:
        """A detokenizer for one reply. `continues`: the ids go on with a text, so a space at their start is its own."""
        return Detokenizer(self._piece, strip_space=self._backend.strip_space and not continues)

    def token_text(self, id: int) -> str:
        """The token as the vocabulary writes it ("Ġhello", "<|im_end|>"); empty for an id without a token."""
        return self._backend.token(id)

    def has(self, token: str) -> bool:
        """True when the vocabulary has `token`, written so."""
        return self._backend.id(token) is not None

    def _piece(self, id: int) -> bytes:
        piece = self._pieces.get(id)
        if piece is None:
            piece = self._pieces[id] = b"" if id in self._hidden else self._backend.piece(id)
        return piece


def _join(segments: Iterable[tuple[str, bool]]) -> tuple[str, bytes]:
    """The joined text, and one byte a character: 1 where it is not trusted."""
    texts: list[str] = []
    marks: list[bytes] = []
    for text, trusted in segments:
        texts.append(text)
        marks.append((b"\0" if trusted else b"\1") * len(text))
    return "".join(texts), b"".join(marks)


def _valid_unicode(text: str) -> str:
    """`text` with lone surrogates as U+FFFD and surrogate pairs joined; other text as it is.

    Lone surrogates are bytes that were not UTF-8 (read with `surrogateescape`) or half a character; no vocabulary can
    spell them. Only the ids see this: the user's own text is never changed.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
