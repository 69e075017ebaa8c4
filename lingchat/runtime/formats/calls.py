"""How models write tool calls: one form a class of reply, each read from a text that is still arriving.

A form says what its calls begin with; its reader takes a call or declines. What is declined stays text: nothing is
repaired, since a call that was guessed may do what nobody asked for. Knows no templates and no vocabularies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from lingchat.runtime.formats.markers import (
    CALL_CLOSE,
    CALL_OPEN,
    FENCE,
    KEY_CLOSE,
    KEY_OPEN,
    SECTION_ARGUMENTS,
    SECTION_CALL,
    SECTION_CALL_END,
    SECTION_CLOSE,
    SECTION_OPEN,
    VALUE_CLOSE,
    VALUE_OPEN,
)
from lingchat.runtime.formats.parts import ToolCall
from lingchat.runtime.formats.source import Reader, Source, parse_json
from lingchat.runtime.formats.tools import Tools

Calls = tuple[ToolCall, ...]

_LONGEST_NAME = 256
_NAME = re.compile(r'[^\s<>{}\[\]"]*')
_FENCE_WORD = re.compile(r"[^\n{\[`]*")
_SECTION_ID = re.compile(r"(?:functions\.)?([^\s<>{}\[\]\"]+?)(?::\d+)?")


class CallForm(msgspec.Struct, frozen=True):
    """One way to write calls.

    `openers` begin it; `read` reads from the opener on and gives the calls, or None for what is no call.
    `at_line_start` forms are of plain characters, so that they count only at the start of a line, outside the
    reasoning, and for the names of tools that were offered. `closers` end what a call of this form began and mean nothing on their own.
    """

    openers: tuple[str, ...]
    read: Callable[[Source, Tools], Reader[Calls | None]]
    at_line_start: bool = False
    closers: tuple[str, ...] = ()


def _read_pairs(source: Source, tools: Tools) -> Reader[Calls | None]:
    """`<tool_call>NAME`, then `<arg_key>K</arg_key><arg_value>V</arg_value>` any number of times, `</tool_call>`.

    White space between the parts is free. Values are raw text, typed by `Tools.value`.
    """
    yield from source.literal(CALL_OPEN)
    yield from source.space()
    name = yield from source.word(_NAME, _LONGEST_NAME)
    if not name:
        return None
    arguments: dict[str, Any] = {}
    while True:
        yield from source.space()
        found = yield from source.literal(KEY_OPEN, CALL_CLOSE)
        if found is None:
            return None
        source.committed = True
        if found == CALL_CLOSE:
            return (ToolCall(name, arguments),)
        key = (yield from source.until(KEY_CLOSE)).strip()
        yield from source.space()
        if not key or (yield from source.literal(VALUE_OPEN)) is None:
            return None
        text = yield from source.until(VALUE_CLOSE)
        arguments[key] = tools.value(name, key, text)


def _read_tagged_json(source: Source, tools: Tools) -> Reader[Calls | None]:
    """`<tool_call>`, one or more JSON objects `{"name": ..., "arguments": {...}}` or a list of them, `</tool_call>`."""
    yield from source.literal(CALL_OPEN)
    return (yield from _read_json_until(source, CALL_CLOSE, None))


def _read_bare_json(source: Source, tools: Tools) -> Reader[Calls | None]:
    """The JSON of a call and nothing around it."""
    return json_calls((yield from source.json()), tools)


def _read_fenced_json(source: Source, tools: Tools) -> Reader[Calls | None]:
    """The JSON of one or more calls as a block of code: three backticks, perhaps `json`, the calls, three backticks."""
    yield from source.literal(FENCE)
    word = yield from source.word(_FENCE_WORD, 32)
    if word is None or word.strip() not in ("", "json", "tool_call"):
        return None
    return (yield from _read_json_until(source, FENCE, tools))


def _read_json_until(source: Source, closer: str, tools: Tools | None) -> Reader[Calls | None]:
    calls: Calls = ()
    while True:
        yield from source.space()
        if calls and (yield from source.literal(closer)) is not None:
            return calls
        value = yield from source.json()
        more = json_calls(value, tools)
        if more is None:
            return None
        source.committed = True
        calls += more


def json_calls(value: Any, tools: Tools | None) -> Calls | None:
    """The calls that a JSON value stands for, None where it stands for none.

    A call is an object with `name` and `arguments` (or `parameters`, as some write), perhaps inside `function`; a
    list holds several. With `tools` only their names count, and the arguments must be there.
    """
    if isinstance(value, list):
        each = [json_calls(item, tools) if isinstance(item, Mapping) else None for item in value]
        if not each or None in each:
            return None
        return tuple(call for calls in each if calls for call in calls)
    if not isinstance(value, Mapping):
        return None
    inner = value["function"] if isinstance(value.get("function"), Mapping) else value
    name = inner.get("name")
    arguments = inner.get("arguments", inner.get("parameters"))
    if isinstance(arguments, str):  # JSON inside JSON, as the OpenAI form has it
        try:
            arguments = parse_json(arguments)
        except ValueError:
            return None
    if not isinstance(name, str) or not name or (tools is not None and (name not in tools or arguments is None)):
        return None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return None
    return (ToolCall(name, arguments),)


def _read_section(source: Source, tools: Tools) -> Reader[Calls | None]:
    """One call of a section: `functions.NAME:INDEX`, then its arguments as JSON, each after a marker of its own.

    The section's own opening marker stands before the first call; some replies leave it out.
    """
    if (yield from source.literal(SECTION_OPEN, SECTION_CALL)) == SECTION_OPEN:
        yield from source.space()
        if (yield from source.literal(SECTION_CALL)) is None:
            return None
    source.committed = True
    yield from source.space()
    id = yield from source.word(_NAME, _LONGEST_NAME)
    yield from source.space()
    if not id or (yield from source.literal(SECTION_ARGUMENTS)) is None:
        return None
    yield from source.space()
    if (yield from source.literal(SECTION_CALL_END)) is not None:
        arguments: Any = {}
    else:
        arguments = yield from source.json()
        yield from source.space()
        if (yield from source.literal(SECTION_CALL_END)) is None:
            return None
    named = _SECTION_ID.fullmatch(id)
    if named is None or not isinstance(arguments, dict):
        return None
    return (ToolCall(named.group(1), arguments, id),)


PAIRS = CallForm((CALL_OPEN,), _read_pairs)
TAGGED_JSON = CallForm((CALL_OPEN,), _read_tagged_json)
BARE_JSON = CallForm(("{", "["), _read_bare_json, at_line_start=True)
FENCED_JSON = CallForm((FENCE,), _read_fenced_json, at_line_start=True)
SECTION = CallForm((SECTION_OPEN, SECTION_CALL), _read_section, closers=(SECTION_CLOSE,))
