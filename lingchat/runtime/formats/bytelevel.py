"""The byte alphabet of GPT-2's byte-level BPE: each byte is written as one printable character in vocabulary files."""

from __future__ import annotations


def _alphabet() -> dict[int, str]:
    """Byte to character, as in GPT-2's `bytes_to_unicode`: printable Latin-1 as itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + n) for n, byte in enumerate(rest)}


BYTE_TO_CHAR = _alphabet()
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}


def token_bytes(token: str) -> bytes:
    """The bytes of a byte-level token. A token with characters outside the alphabet stands for its own text."""
    try:
        return bytes(CHAR_TO_BYTE[char] for char in token)
    except KeyError:
        return token.encode("utf-8", "replace")
