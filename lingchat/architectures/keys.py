"""The reading of a configuration, key by key, for GGUF and Hugging Face files alike.

The rule of every reader: a key is either read, or known to change no number, or refused by name with its value. A key
nobody looked at is how a model answers nonsense. Knows no files. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NoReturn

from lingchat.errors import ModelFileError, UnsupportedModel


class Keys:
    """One reading of a configuration: every key asked for is checked, `refuse_rest` meets those nobody asked for.

    `where` begins every error, `prefix` is put before a key's name to look it up. A key that is null counts as absent.
    """

    def __init__(self, where: str, values: dict[str, Any], prefix: str = "") -> None:
        self.where = where
        self.prefix = prefix
        self.values = {key: value for key, value in values.items() if key.startswith(prefix) and value is not None}
        self.seen: set[str] = set()

    def get(self, key: str) -> Any:
        """The raw value, or None."""
        self.seen.add(self.prefix + key)
        return self.values.get(self.prefix + key)

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number. A list of equal ones, one a layer as GGUF allows, counts as that one."""
        value = self.get(key)
        if isinstance(value, list) and value:
            if any(other != value[0] for other in value):
                self.refuse(key, value, "sizes that differ from layer to layer are not supported")
            value = value[0]
        if value is None:
            value = default
        if type(value) is not int or not 0 < value < 2**31:
            self._wrong(key, value, "a whole number above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.get(key)
        if value is None:
            value = default
        if type(value) not in (int, float) or not 0 < value < math.inf:
            self._wrong(key, value, "a number above 0")
        return float(value)

    def only(self, key: str, *allowed: Any) -> None:
        """The key is absent, or one of the values that leave the computation as it is."""
        value = self.get(key)
        if value is not None and not any(type(value) is type(v) and value == v for v in allowed):
            self.refuse(key, value, f"only {' or '.join(repr(v) for v in allowed) or 'null'} is supported")

    def ignore(self, keys: Iterable[str]) -> None:
        """These change no number."""
        self.seen.update(self.prefix + key for key in keys)

    def refuse(self, key: str, value: Any, why: str) -> NoReturn:
        raise UnsupportedModel(f"{self.where}: {self.prefix}{key} = {_short(value)}: {why}. Use another model.")

    def refuse_rest(self) -> None:
        """Raises UnsupportedModel naming every key, with its value, that was neither read nor ignored."""
        rest = {key: value for key, value in self.values.items() if key not in self.seen}
        if rest:
            names = ", ".join(f"{key} = {_short(value)}" for key, value in sorted(rest.items()))
            raise UnsupportedModel(
                f"{self.where}: not understood, and may change what the model computes: {names}. Use another model."
            )

    def _wrong(self, key: str, value: Any, wanted: str) -> NoReturn:
        said = "is missing" if value is None else f"is {_short(value)}"
        raise ModelFileError(f"{self.where}: {self.prefix}{key} {said}; it must be {wanted}. Fetch the model again.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
