"""The table of settings: name, place in `config.toml`, what values are allowed, and one line of help.

Knows nothing of files, variables or flags but how they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


class Invalid(ValueError):
    """The text says what the value must be."""


class Field(msgspec.Struct, frozen=True, eq=False):
    """One setting. `check` takes a typed value or text and gives the value, or raises `Invalid`."""

    name: str
    check: Callable[[Any], Any]
    help: str
    table: str = ""  # of config.toml; "" is the top

    @property
    def key(self) -> str:
        return f"{self.table}.{self.name}" if self.table else self.name

    @property
    def variable(self) -> str:
        return f"LINGCHAT_{self.name.upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


Check = Callable[[Any], Any]


def text(what: str = "text") -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str):
            raise Invalid(what)
        return value

    return check


def choice(*names: str) -> Check:
    def check(value: Any) -> str:
        if value not in names:
            raise Invalid(f"one of {', '.join(names)}")
        return str(value)

    return check


def whole(least: int, most: int, what: str) -> Check:
    def check(value: Any) -> int:
        number = _number(int, value, what)
        if not least <= number <= most:
            raise Invalid(what)
        return int(number)

    return check


def real(low: float, high: float, what: str, *, above: bool = False) -> Check:
    """A number from `low` to `high`; with `above` the lower end itself is not allowed."""

    def check(value: Any) -> float:
        number = float(_number(float, value, what))
        if not low <= number <= high or (above and number == low):  # also refuses NaN
            raise Invalid(what)
        return number

    return check


def optional(inner: Check) -> Check:
    """Also `none`, written as that word or as nothing."""

    def check(value: Any) -> Any:
        return None if value is None or value in ("", "none") else inner(value)

    return check


def switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise Invalid("true or false")


def drafting(value: Any) -> str | int:
    """off, on (auto is the same), or the most drafts a round."""
    what = "off, on, auto or the most drafts a round (1 to 64)"
    words = {"off": "off", "on": "on", "auto": "on", True: "on", False: "off"}
    if isinstance(value, (str, bool)) and value in words:
        return words[value]
    number = _number(int, value, what)
    if not 0 <= number <= 64:
        raise Invalid(what)
    return int(number) or "off"


def thinking(value: Any) -> str:
    """auto, on or off; true and false are on and off."""
    words = {"auto": "auto", "on": "on", "off": "off", True: "on", False: "off"}
    if isinstance(value, (str, bool)) and value in words:
        return words[value]
    raise Invalid("auto, on or off")


def texts(value: Any) -> tuple[str, ...]:
    """A list of non-empty strings; as text either a JSON list or one string."""
    what = "a list of non-empty strings"
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value) if value.startswith("[") else [value]
        except msgspec.DecodeError as error:
            raise Invalid(what) from error
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) and item for item in value):
        raise Invalid(what)
    return tuple(value)


def _number(kind: type[int] | type[float], value: Any, what: str) -> int | float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float, str))
        or (kind is int and isinstance(value, float))
    ):
        raise Invalid(what)
    try:
        return kind(value)
    except (ValueError, OverflowError) as error:
        raise Invalid(what) from error


FIELDS: tuple[Field, ...] = (
    Field("model", optional(text("a model's name, folder or file")), "the model to load; none is the default model"),
    Field("device", choice("auto", "cpu", "cuda"), "what computes; auto is a GPU where the engine sees one"),
    Field(
        "dtype",
        choice("auto", "int8", "fp32", "bf16", "fp8", "int4"),
        "number type of the computation; auto suits the device",
    ),
    Field("threads", whole(0, 4096, "0 (automatic) to 4096"), "threads of the engine; 0 chooses"),
    Field("context", whole(0, 2**24, "0 (automatic) or a number of tokens"), "tokens the engine keeps; 0 chooses"),
    Field("spec", drafting, "drafting: off, on, or at most so many drafts a round"),
    Field("thinking", thinking, "reasoning before the answer: on, off, or auto for the model's own way"),
    Field("system", text(), "system prompt of new sessions"),
    Field("temperature", real(0.0, 100.0, "a number from 0 to 100"), "0 is greedy", "sampling"),
    Field(
        "top_p", real(0.0, 1.0, "above 0 and at most 1", above=True), "smallest set with this probability", "sampling"
    ),
    Field("top_k", whole(0, 2**31, "0 (all) or more"), "only the k likeliest tokens; 0 is all", "sampling"),
    Field("min_p", real(0.0, 1.0, "a number from 0 to 1"), "drop tokens below this share of the likeliest", "sampling"),
    Field(
        "repetition_penalty",
        real(0.0, 100.0, "above 0 and at most 100", above=True),
        "above 1 avoids repetition",
        "sampling",
    ),
    Field("seed", optional(whole(0, 2**63 - 1, "none, or 0 to 2**63 - 1")), "fixes the text of a request", "sampling"),
    Field("stop", texts, "strings that end a reply", "sampling"),
    Field("max_tokens", whole(0, 2**31, "0 (what the context leaves) or more"), "longest reply", "sampling"),
    Field("theme", text("a theme's name"), "colour theme of the screen"),
    Field("panel", choice("panel", "strip", "off"), "how latency is shown"),
    Field("mouse", switch, "mouse reporting; off leaves selection to the terminal"),
    Field("private", switch, "write no history, session or trace"),
    Field("color", choice("auto", "always", "never"), "colour outside of the screen"),
)
# A setting is found by its name, and by its full key.
BY_NAME: dict[str, Field] = {field.name: field for field in FIELDS} | {field.key: field for field in FIELDS}
