"""The tools that a request offers: their names, and the types of their arguments.

Knows JSON schemas only as far as an argument's type goes; must not know how a model writes its calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lingchat.errors import UsageError
from lingchat.runtime.formats.source import parse_json

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


class Tools:
    """Offered tools. `schemas` are in the form that chat templates expect: `{"type": "function", "function": {...}}`.

    Takes that form or the function alone. Raises `UsageError` for a tool without a name.
    """

    def __init__(self, offered: Sequence[Mapping[str, Any]] = ()) -> None:
        self.schemas: list[dict[str, Any]] = []
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for number, tool in enumerate(offered, 1):
            function = tool["function"] if isinstance(tool.get("function"), Mapping) else tool
            name = function.get("name")
            if not isinstance(name, str) or not name:
                raise UsageError(
                    f"Tool {number} has no name. A tool is a JSON object "
                    '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}.'
                )
            self.schemas.append(dict(tool) if function is not tool else {"type": "function", "function": dict(tool)})
            schema = function.get("parameters")
            properties = schema.get("properties") if isinstance(schema, Mapping) else None
            self._parameters[name] = properties if isinstance(properties, Mapping) else {}

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def value(self, tool: str, key: str, text: str) -> Any:
        """An argument that was written as raw text: the value of a type that the tool's schema allows.

        Without a schema JSON decides. What is no JSON, or of no allowed type, is a string as it stands.
        """
        allowed = frozenset(_types(self._parameters.get(tool, {}).get(key)))
        if allowed == {"string"}:
            return text
        stripped = text.strip()
        if allowed and "string" not in allowed:
            stripped = _PYTHON_WORDS.get(stripped, stripped)
        try:
            value = parse_json(stripped)
        except ValueError:
            return text
        if isinstance(value, float) and value.is_integer() and "integer" in allowed:
            return int(value)
        return value if not allowed or any(_is(value, name) for name in allowed) else text


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):  # to Python it is an integer
        return name == "boolean"
    return isinstance(value, _TYPES[name])


def _types(schema: Any) -> Iterable[str]:
    """The JSON types that `schema` allows; none where it does not say."""
    if not isinstance(schema, Mapping):
        return
    said = schema.get("type")
    for name in said if isinstance(said, list) else [said]:
        if isinstance(name, str) and name in _TYPES:
            yield name
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        for choice in choices if isinstance(choices, list) else []:
            yield from _types(choice)
    if said is None:
        values = schema.get("enum")
        for value in values if isinstance(values, list) else []:
            yield from (name for name in _TYPES if _is(value, name))
