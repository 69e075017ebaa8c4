"""Ids to text, as they arrive.

A token is a run of bytes and may end in the middle of a character, so bytes that are not yet a whole character wait
for the next token. Knows nothing of vocabularies: the tokenizer hands in a function from id to bytes.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable


class Detokenizer:
    """One reply's ids to text.

    `piece(id)` gives a token's bytes, empty for a control token. For every chunking of the ids, the texts of all
    `push` and the final `finish` add up to the text of one `push` of all ids and `finish`. Bytes that can never become
    a character are U+FFFD, one for each maximal subpart (Unicode 15, section 3.9), as Python and Rust both do.
    `strip_space` drops the one space that sentencepiece vocabularies put before the first word.
    """

    def __init__(self, piece: Callable[[int], bytes], *, strip_space: bool = False) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = strip_space

    def push(self, ids: Iterable[int]) -> str:
        """The text that became certain with these ids; may be empty."""
        data = b"".join(map(self._piece, ids))
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What was still held back; the detokenizer must not be used afterwards."""
        return self._decoder.decode(b"", final=True)
