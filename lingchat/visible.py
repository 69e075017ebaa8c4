"""Makes text from outside safe to show: every control character becomes a visible symbol of one character.

A model, a file name or a session title may hold escape sequences that move the cursor, set the window title or write
the clipboard, and bidi controls that show text in another order than it has. Here each such character is replaced by
one that is seen. The replacement is per character and keeps the length, so offsets into the text stay right and a
sequence split over chunks gives the same result as the whole text.

Knows nothing of the rest of the package, and nothing of terminals: it does not understand sequences, it disarms them.
"""

from __future__ import annotations

import re

ESCAPE = "\u241b"  # ␛
BIDI = "\u21c4"  # ⇄
LINE_END = "\u23ce"  # ⏎
BROKEN = "\ufffd"

_SYMBOLS: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)},  # C0, as control pictures
    0x7F: "\u2421",  # DEL
    **{code: ESCAPE for code in range(0x80, 0xA0)},  # C1: each is ESC and a letter in one character
    0x85: LINE_END,  # NEL, the one C1 character found in ordinary files
    0x2028: LINE_END,
    0x2029: LINE_END,
    **{code: BIDI for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))},
    **{code: BROKEN for code in range(0xD800, 0xE000)},  # lone surrogates: no terminal can be sent one
    **{code: BROKEN for code in range(0xE0000, 0xE0080)},  # tag characters: text nobody sees
}

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)


def _symbol(match: re.Match[str]) -> str:
    return _SYMBOLS[ord(match.group())]


def visible(text: str) -> str:
    """`text` with every control character but tab and newline replaced by a symbol; as long as `text`."""
    return _UNSAFE.sub(_symbol, text) if _UNSAFE.search(text) else text


def visible_line(text: str) -> str:
    """`visible`, for places of one line (titles, status, headers): tabs and newlines become symbols too."""
    return visible(text).replace("\t", " ").replace("\n", LINE_END)
