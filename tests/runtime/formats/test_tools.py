"""Offered tools: their form for templates, and the types that their schemas give to arguments."""

from __future__ import annotations

from typing import Any

import pytest

from lingchat.errors import UsageError
from lingchat.runtime.formats.tools import Tools

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "wind": {"type": "boolean"},
                "limit": {"type": ["number", "null"]},
                "where": {"anyOf": [{"type": "object"}, {"type": "string"}]},
                "unit": {"enum": ["c", "f"]},
            },
        },
    },
}
OFFERED = Tools([WEATHER, {"name": "now"}])


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("city", "3", "3"),
        ("city", '"x"', '"x"'),
        ("days", "3", 3),
        ("days", "3.0", 3),
        ("days", "3.5", "3.5"),
        ("days", "soon", "soon"),
        ("wind", "true", True),
        ("wind", "False", False),
        ("wind", "1", "1"),
        ("limit", "null", None),
        ("limit", "1.5", 1.5),
        ("limit", "true", "true"),
        ("where", '{"a": [1]}', {"a": [1]}),
        ("where", "[1]", "[1]"),
        ("unit", "c", "c"),
        ("unit", "3", "3"),
        ("other", "3", 3),
        ("other", '{"a": 1}', {"a": 1}),
        ("other", " null ", None),
        ("other", "plain text", "plain text"),
        ("other", "NaN", "NaN"),
        ("other", "[" * 100_000, "[" * 100_000),
    ],
)
def test_values_have_the_type_of_the_schema_else_of_json(key: str, written: str, value: Any) -> None:
    found = OFFERED.value("weather", key, written)
    assert found == value and type(found) is type(value)


def test_a_tool_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match="Tool 2 has no name"):
        Tools([WEATHER, {"type": "function", "function": {}}])


def test_tools_are_given_to_templates_in_their_form() -> None:
    assert OFFERED.schemas == [WEATHER, {"type": "function", "function": {"name": "now"}}]
