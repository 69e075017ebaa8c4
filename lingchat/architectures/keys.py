"""The reading of a configuration, key by key, for GGUF and Hugging Face files alike.

The rule of every reader: a key is either read, or known to change no number, or refused by name with its value. A key
nobody looked at is how a model answers nonsense. Knows no files. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NoReturn

from lingchat.errors import ModelFileError, UnsupportedModel

MOST_LAYERS = 1000  # more is a damaged number, and every layer costs memory before anything is checked


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
            self.wrong(key, value, "a whole number above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.get(key)
        if value is None:
            value = default
        if type(value) not in (int, float) or not 0 < value < math.inf:
            self.wrong(key, value, "a number above 0")
        return float(value)

    def natural(self, key: str, default: int | None = None) -> int:
        """A whole number from 0 on."""
        value = self.get(key)
        if value is None:
            value = default
        if type(value) is not int or not 0 <= value < 2**31:
            self.wrong(key, value, "a whole number from 0 on")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self.get(key)
        if value is None:
            value = default
        if not isinstance(value, bool):
            self.wrong(key, value, "true or false")
        return value

    def within(self, key: str, low: float, high: float) -> float:
        """A number from `low` on and below `high`."""
        value = self.get(key)
        if type(value) not in (int, float) or not low <= value < high:
            self.wrong(key, value, f"a number from {low:g} to below {high:g}")
        return float(value)

    def numbers(self, key: str, length: int) -> tuple[float, ...] | None:
        """A list of exactly `length` numbers from 0 on, null counting as 0; None where the key is absent."""
        values = self.get(key)
        if values is None:
            return None
        if not isinstance(values, list) or len(values) != length:
            has = f", not {len(values)}" if isinstance(values, list) else ""
            self.wrong(key, values, f"a list of {length} numbers, one a layer{has}")
        found = [0.0 if value is None else value for value in values]
        odd = [value for value in found if type(value) not in (int, float) or not 0 <= value < math.inf]
        if odd:
            self.wrong(key, odd[0], "a list of numbers from 0 on")
        return tuple(map(float, found))

    def either(self, *names: str) -> str:
        """Which of a key's spellings the file uses: the first that is there. Two that differ contradict each other."""
        there = [name for name in names if self.get(name) is not None]
        for other in there[1:]:
            if self.get(other) != self.get(there[0]):
                said = " and ".join(f"{self.prefix}{name} = {_short(self.get(name))}" for name in (there[0], other))
                raise ModelFileError(f"{self.where}: {said} contradict each other. Fetch the model again.")
        return there[0] if there else names[0]

    def must(self, key: str, *allowed: Any) -> None:
        """The key is there, and one of these."""
        if self.get(key) is None:
            self.wrong(key, None, " or ".join(map(repr, allowed)))
        self.only(key, *allowed)

    def table(self, key: str) -> Keys | None:
        """The keys of a table within; None where it is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.wrong(key, value, "a table of values")
        prefix = f"{self.prefix}{key}."
        return Keys(self.where, {f"{prefix}{name}": inner for name, inner in value.items()}, prefix)

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

    def wrong(self, key: str, value: Any, wanted: str) -> NoReturn:
        """The value is missing or of no possible kind: a damaged file, and not another kind of model."""
        said = "is missing" if value is None else f"is {_short(value)}"
        raise ModelFileError(f"{self.where}: {self.prefix}{key} {said}; it must be {wanted}. Fetch the model again.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
