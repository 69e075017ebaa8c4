"""Tool calls are read from a reply as it arrives: each form, its sloppy spellings, and what is none after all."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lingchat.runtime.formats.calls import BARE_JSON, FENCED_JSON, PAIRS, SECTION, TAGGED_JSON, CallForm
from lingchat.runtime.formats.parsers import ReplyParser
from lingchat.runtime.formats.parts import Part, ToolCall
from lingchat.runtime.formats.tools import Tools

FORMS: dict[str, tuple[CallForm, ...]] = {
    "pairs": (PAIRS,),
    "section": (SECTION,),
    "json": (TAGGED_JSON, FENCED_JSON, BARE_JSON),
}
CITY = {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}
OFFERED = Tools([CITY, {"name": "now"}])


def parse(
    chunks: Sequence[str], form: str, *, inside: bool = False, tools: Tools = OFFERED
) -> tuple[list[Part], ReplyParser]:
    """The parts of a reply, neighbours of one kind joined."""
    parser = ReplyParser(inside=inside, forms=FORMS[form], tools=tools)
    joined: list[Part] = []
    for part in [*(part for chunk in chunks for part in parser.push(chunk)), *parser.finish()]:
        if part[0] != "tool_call" and joined and joined[-1][0] == part[0]:
            joined[-1] = (part[0], str(joined[-1][1]) + part[1])
        else:
            joined.append(part)
    return joined, parser


def call(name: str, id: str = "", **arguments: Any) -> Part:
    return ("tool_call", ToolCall(name, arguments, id))


def text(delta: str) -> Part:
    return ("text", delta)


PARIS = "<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>"
KIMI = '<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"city": "Paris", "days": 2}<|tool_call_end|>'
BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
JSON = '{"name": "weather", "arguments": {"city": "Paris"}}'

REPLIES: dict[str, tuple[str, bool, str, list[Part]]] = {
    # name: (form, inside the reasoning, reply, parts)
    "a call": ("pairs", False, f"<tool_call>weather\n{PARIS}\n</tool_call>", [call("weather", city="Paris")]),
    "no newline": ("pairs", False, f"<tool_call>weather{PARIS}</tool_call>", [call("weather", city="Paris")]),
    "no arguments": ("pairs", False, "<tool_call>now</tool_call>", [call("now")]),
    "no arguments, newline": ("pairs", False, "<tool_call>now\n</tool_call>\n", [call("now")]),
    "after text": (
        "pairs",
        False,
        f"Let me see.\n\n<tool_call>weather\n{PARIS}\n</tool_call>",
        [text("Let me see."), call("weather", city="Paris")],
    ),
    "several": (
        "pairs",
        False,
        f"<tool_call>now</tool_call>\n<tool_call>weather\n{PARIS}\n</tool_call><tool_call>now</tool_call>",
        [call("now"), call("weather", city="Paris"), call("now")],
    ),
    "an unknown tool": ("pairs", False, "<tool_call>other</tool_call>", [call("other")]),
    "pairs without line breaks": (
        "pairs",
        False,
        "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key><arg_value>x</arg_value></tool_call>",
        [call("f", a=1, b="x")],
    ),
    "a value with markers and line breaks": (
        "pairs",
        False,
        "<tool_call>f<arg_key>a</arg_key><arg_value>\n<b>\n</tool_call> & </think>\n</arg_value></tool_call>",
        [call("f", a="\n<b>\n</tool_call> & </think>\n")],
    ),
    "text after": ("pairs", False, "<tool_call>now</tool_call>\n\nDone.\n", [call("now"), text("Done.\n")]),
    "in the reasoning": (
        "pairs",
        True,
        f"I need the weather.\n<tool_call>weather\n{PARIS}\n</tool_call>",
        [("reasoning", "I need the weather."), call("weather", city="Paris")],
    ),
    "before the end of the reasoning": (
        "pairs",
        True,
        "Why\n<tool_call>now</tool_call>\n</think>\n\nSo.",
        [("reasoning", "Why"), call("now"), text("So.")],
    ),
    "after the reasoning": (
        "pairs",
        True,
        "Why\n</think>\n\nSo:\n<tool_call>now</tool_call>",
        [("reasoning", "Why"), text("So:"), call("now")],
    ),
    "the marker as a word of the reasoning": (
        "pairs",
        True,
        "I write <tool_call> to call, or <tool_call>`x`.</think>So.",
        [("reasoning", "I write <tool_call> to call, or <tool_call>`x`."), text("So.")],
    ),
    "cut in the reasoning": ("pairs", True, "Why\n<tool_c", [("reasoning", "Why\n<tool_c")]),
    "a call cut in the reasoning": (
        "pairs",
        True,
        "Why\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Par",
        [("reasoning", "Why"), text("<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Par")],
    ),
    "cut": ("pairs", False, f"So:\n<tool_call>weather\n{PARIS}\n", [text(f"So:\n<tool_call>weather\n{PARIS}\n")]),
    "cut after a call": (
        "pairs",
        False,
        "<tool_call>now</tool_call>\n<tool_call>weather\n<arg_key>city</arg_",
        [call("now"), text("<tool_call>weather\n<arg_key>city</arg_")],
    ),
    "no value": (
        "pairs",
        False,
        "<tool_call>f<arg_key>a</arg_key><arg_key>b</arg_key></tool_call> <tool_call>now</tool_call>",
        [text("<tool_call>f<arg_key>a</arg_key><arg_key>b</arg_key></tool_call> "), call("now")],
    ),
    "an unclosed value before a good call": (
        "pairs",
        False,
        "<tool_call>f<arg_key>a</arg_key><arg_value>1</tool_call><tool_call>now</tool_call>",
        [text("<tool_call>f<arg_key>a</arg_key><arg_value>1</tool_call>"), call("now")],
    ),
    "no name": ("pairs", False, f"<tool_call>\n{PARIS}</tool_call>", [text(f"<tool_call>\n{PARIS}</tool_call>")]),
    "a lone closing marker": ("pairs", False, "a</tool_call>b", [text("a</tool_call>b")]),
    "Kimi": (
        "section",
        False,
        f"See.{BEGIN}{KIMI}{END}",
        [text("See."), call("weather", "functions.weather:0", city="Paris", days=2)],
    ),
    "Kimi, several with space": (
        "section",
        False,
        f"{BEGIN}\n{KIMI}\n<|tool_call_begin|> now:1 <|tool_call_argument_begin|> {{}} <|tool_call_end|>\n{END}\n",
        [call("weather", "functions.weather:0", city="Paris", days=2), call("now", "now:1")],
    ),
    "Kimi, no section": (
        "section",
        False,
        f"{KIMI}{END}",
        [call("weather", "functions.weather:0", city="Paris", days=2)],
    ),
    "Kimi, no arguments": (
        "section",
        False,
        f"{BEGIN}<|tool_call_begin|>functions.a.b:3<|tool_call_argument_begin|><|tool_call_end|>{END}",
        [call("a.b", "functions.a.b:3")],
    ),
    "Kimi, in the reasoning": (
        "section",
        True,
        f"Why{BEGIN}{KIMI}{END}",
        [("reasoning", "Why"), call("weather", "functions.weather:0", city="Paris", days=2)],
    ),
    "Kimi, cut": ("section", False, f"{BEGIN}{KIMI[:-9]}", [text(f"{BEGIN}{KIMI[:-9]}")]),
    "Kimi, bad JSON": (
        "section",
        False,
        f"{BEGIN}{KIMI.replace('2}', '2')}{END}",
        [text(f"{BEGIN}{KIMI.replace('2}', '2')}{END}")],
    ),
    "Kimi, no object": (
        "section",
        False,
        "<|tool_call_begin|>f:0<|tool_call_argument_begin|>[{}]<|tool_call_end|>",
        [text("<|tool_call_begin|>f:0<|tool_call_argument_begin|>[{}]<|tool_call_end|>")],
    ),
    "Kimi, an empty section": ("section", False, f"{BEGIN}{END}", [text(f"{BEGIN}{END}")]),
    "tagged": ("json", False, f"So:\n<tool_call>\n{JSON}\n</tool_call>", [text("So:"), call("weather", city="Paris")]),
    "tagged list": (
        "json",
        False,
        f'<tool_call>[{JSON}, {{"name": "now"}}]</tool_call>',
        [call("weather", city="Paris"), call("now")],
    ),
    "tagged, two in one": (
        "json",
        False,
        f"<tool_call>{JSON}\n{JSON}</tool_call>",
        [call("weather", city="Paris")] * 2,
    ),
    "tagged, an unknown tool": ("json", False, '<tool_call>{"name": "other"}</tool_call>', [call("other")]),
    "tagged, parameters": (
        "json",
        False,
        '<tool_call>{"name": "f", "parameters": {"a": [1, {"b": "}\\"]"}]}}</tool_call>',
        [call("f", a=[1, {"b": '}"]'}])],
    ),
    "tagged, JSON in JSON": (
        "json",
        False,
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        [call("f", a=1)],
    ),
    "tagged, in a function": (
        "json",
        False,
        '<tool_call>{"type": "function", "function": {"name": "f", "arguments": {}}}</tool_call>',
        [call("f")],
    ),
    "tagged, a marker in a string": (
        "json",
        False,
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>\n"}}</tool_call>',
        [call("f", a="</tool_call>\n")],
    ),
    "tagged, in the reasoning": (
        "json",
        True,
        f"Why\n<tool_call>{JSON}</tool_call>",
        [("reasoning", "Why"), call("weather", city="Paris")],
    ),
    "tagged, not JSON": ("json", False, "<tool_call>{name: f}</tool_call>", [text("<tool_call>{name: f}</tool_call>")]),
    "tagged, no name": ("json", False, '<tool_call>{"a": 1}</tool_call>', [text('<tool_call>{"a": 1}</tool_call>')]),
    "tagged, arguments no object": (
        "json",
        False,
        '<tool_call>{"name": "f", "arguments": 3}</tool_call>',
        [text('<tool_call>{"name": "f", "arguments": 3}</tool_call>')],
    ),
    "tagged, not a number": (
        "json",
        False,
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        [text('<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>')],
    ),
    "tagged, cut": ("json", False, f"<tool_call>{JSON}", [text(f"<tool_call>{JSON}")]),
    "tagged, nested without end": (
        "json",
        False,
        f"<tool_call>{'[' * 5}{{" + '{"a":' * 99,
        [text(f"<tool_call>{'[' * 5}{{" + '{"a":' * 99)],
    ),
    "half a character": (
        "json",
        False,
        '<tool_call>{"name": "f", "arguments": {"a": "\\ud83d"}}</tool_call>',
        [call("f", a="\ufffd")],
    ),
    "tagged, cut after a line": ("json", False, f"<tool_call>\n{JSON}\n", [text(f"<tool_call>\n{JSON}\n")]),
    "bare, after a broken one": ("json", False, f"<tool_call>f\n{JSON}", [text(f"<tool_call>f\n{JSON}")]),
    "bare, after the word for one": (
        "json",
        True,
        f"I use <tool_call>.</think>{JSON}",
        [("reasoning", "I use <tool_call>."), call("weather", city="Paris")],
    ),
    "bare, in code": ("json", False, f"```python\n{JSON}\n```", [text(f"```python\n{JSON}\n```")]),
    "bare, after code": (
        "json",
        False,
        f"```python\nx\n```\n{JSON}",
        [text("```python\nx\n```"), call("weather", city="Paris")],
    ),
    "fenced, after code": (
        "json",
        False,
        f"```python\nx\n```\nSo:\n```json\n{JSON}\n```",
        [text("```python\nx\n```\nSo:"), call("weather", city="Paris")],
    ),
    "fenced, unclosed": ("json", False, f"```json\n{JSON}\n", [text(f"```json\n{JSON}\n")]),
    "bare": ("json", False, JSON, [call("weather", city="Paris")]),
    "bare, after text": ("json", False, f"So:\n{JSON}\n\nok", [text("So:"), call("weather", city="Paris"), text("ok")]),
    "bare list": ("json", False, f"[{JSON}, {JSON}]", [call("weather", city="Paris")] * 2),
    "bare, an unknown tool": (
        "json",
        False,
        '{"name": "other", "arguments": {}}',
        [text('{"name": "other", "arguments": {}}')],
    ),
    "bare, no arguments": ("json", False, '{"name": "now"}', [text('{"name": "now"}')]),
    "bare, in a line": ("json", False, f"as in {JSON}", [text(f"as in {JSON}")]),
    "bare, in the reasoning": ("json", True, f"Why\n{JSON}", [("reasoning", f"Why\n{JSON}")]),
    "bare, no JSON": ("json", False, "{ int x; }\n[1] note\n[a](b)", [text("{ int x; }\n[1] note\n[a](b)")]),
    "fenced": ("json", False, f"So:\n```json\n{JSON}\n```\n", [text("So:"), call("weather", city="Paris")]),
    "fenced, no word": ("json", False, f"```\n{JSON}\n{JSON}\n```", [call("weather", city="Paris")] * 2),
    "fenced, other code": ("json", False, "```python\nx = {}\n```\nok", [text("```python\nx = {}\n```\nok")]),
    "fenced, an unknown tool": (
        "json",
        False,
        '```json\n{"name": "other", "arguments": {}}\n```',
        [text('```json\n{"name": "other", "arguments": {}}\n```')],
    ),
    "fenced, cut": ("json", False, "```json\n" + '{"name": "wea', [text("```json\n" + '{"name": "wea')]),
}


@pytest.mark.parametrize("name", REPLIES)
def test_replies(name: str) -> None:
    form, inside, reply, expected = REPLIES[name]
    for chunks in ([reply], list(reply)):
        parts, parser = parse(chunks, form, inside=inside)
        assert parts == expected
        assert parser.unanswered == (inside and all(kind == "reasoning" for kind, _ in expected))


@pytest.mark.parametrize("name", [name for name in REPLIES if name.startswith(("bare", "fenced"))])
def test_without_offered_tools_plain_json_is_text(name: str) -> None:
    form, _, reply, _ = REPLIES[name]
    assert parse([reply], form, tools=Tools())[0] == [text(reply)]


def test_without_offered_tools_tagged_calls_are_calls() -> None:
    assert parse([f"<tool_call>{JSON}</tool_call>"], "json", tools=Tools())[0] == [call("weather", city="Paris")]


PIECES = [
    "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "weather", "now", "a", " ",
    "\n", "<tool_call>now</tool_call>", f"<tool_call>weather{PARIS}</tool_call>", "</think>", "<", "</", "{", "}", "[", "]",
    '"', "\\", "\\u", ":", ",", "1", JSON, f"<tool_call>{JSON}</tool_call>", f"```json\n{JSON}\n```", "```", "json",
    '{"name": "now", "arguments": ', BEGIN, END, KIMI, "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|", "é",
    "functions.now:1", "<|tool_call_end|>", "<think>", '{"name": "now", "arguments": {}}',
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=14),
    st.sampled_from(sorted(FORMS)),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_any_chunking_gives_the_same_parts(
    pieces: list[str], form: str, inside: bool, offered: bool, data: st.DataObject
) -> None:
    reply = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(reply)), max_size=8)))
    edges = [0, *cuts, len(reply)]
    chunks = [reply[a:b] for a, b in itertools.pairwise(edges)]
    tools = OFFERED if offered else Tools()
    whole, parser = parse([reply], form, inside=inside, tools=tools)
    for other in (chunks, list(reply)):
        parts, other_parser = parse(other, form, inside=inside, tools=tools)
        assert parts == whole and other_parser.unanswered == parser.unanswered
    if not any(kind == "tool_call" for kind, _ in whole):
        # Nothing is lost but line breaks and the two markers of reasoning; what a prompt has opened, the reply only ends.
        said = "".join(str(delta) for _, delta in whole)
        ended = [stripped(reply.replace("</think>", "", 1))] if inside else []
        opened = stripped(reply.replace("<think>", "", 1))
        assert stripped(said) in (stripped(reply), opened, without_markers(reply), *ended)


def stripped(reply: str) -> str:
    return reply.replace("\n", "").strip()


def without_markers(reply: str) -> str:
    """Without the marker that ends the reasoning, and the one before it that opened it."""
    before, _, after = reply.partition("</think>")
    return stripped((before.replace("<think>", "", 1) if before.lstrip().startswith("<think>") else before) + after)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1), st.text('ab"{}[]\\<>/\n é', max_size=8), max_size=3), st.data())
def test_calls_come_back_as_they_were_written(arguments: dict[str, str], data: st.DataObject) -> None:
    json_call = json.dumps({"name": "weather", "arguments": arguments}, ensure_ascii=data.draw(st.booleans()))
    replies = {
        "json": data.draw(
            st.sampled_from([json_call, f"<tool_call>{json_call}</tool_call>", f"```json\n{json_call}\n```"])
        ),
        "section": f"{BEGIN}<|tool_call_begin|>functions.weather:7<|tool_call_argument_begin|>{json.dumps(arguments)}"
        f"<|tool_call_end|>{END}",
        "pairs": "<tool_call>weather"
        + "".join(f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>" for k, v in arguments.items())
        + "</tool_call>",
    }
    strings = Tools([{"name": "weather", "parameters": {"properties": {key: {"type": "string"} for key in arguments}}}])
    for form, reply in replies.items():
        cut = data.draw(st.integers(0, len(reply)))
        parts, _ = parse([reply[:cut], reply[cut:]], form, tools=strings)
        assert parts == [call("weather", "functions.weather:7" if form == "section" else "", **arguments)]


def test_only_what_may_be_a_call_waits() -> None:
    parser = ReplyParser(forms=FORMS["pairs"], tools=OFFERED)
    assert parser.push("So <") == [text("So ")]
    assert parser.push("b> and\n") == [text("<b> and")]
    assert parser.push("<tool") == []
    assert parser.push("_call>now") == []
    assert parser.push("</tool_call>") == [call("now")]
    assert parser.push("<tool_call>no call") == [text("<tool_call>"), text("no call")]
