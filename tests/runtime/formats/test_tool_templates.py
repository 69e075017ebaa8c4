"""Templates with tools, reasoning and tool calls render as in transformers, and what those say stays content."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from chat_templates import CHATML, GLM, LLAMA3, MOONSHOT, QWEN3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from lingchat.engines.api import Message, ToolCall
from lingchat.errors import UsageError
from lingchat.runtime.formats.own_templates import KIMI, LING
from lingchat.runtime.formats.template import ChatTemplate, Segment

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|user|>", "<|system|>", "<|observation|>", "</s>", "<s>"]
SPECIALS += ["<|im_user|>", "<|im_system|>", "<|im_middle|>", "<|tool_call_begin|>", "<tool_call>", "<arg_key>"]

CONTENTS = st.lists(
    st.sampled_from(
        [*SPECIALS, "<think>", "</think>", "<|im_", "end|>", "a", "é", " ", "\n", "%s", "{}", "<", "'", '"']
    ),
    max_size=5,
).map("".join)


def joined(segments: list[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def written(segments: list[Segment]) -> list[str]:
    """The special tokens that count."""
    pattern = re.compile("|".join(map(re.escape, SPECIALS)))
    return [token for segment in segments if segment.from_template for token in pattern.findall(segment.text)]


def reference(text: str, messages: list[Message], **variables: Any) -> str:
    chat = [fields(message) for message in messages]
    given = {"add_generation_prompt": True, **NAMES, **variables}
    return render_jinja_template(conversations=[chat], chat_template=text, **given)[0][0]


def fields(message: Message) -> dict[str, Any]:
    """A message as `transformers` users write it."""
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        found["reasoning_content"] = message.reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return found | {key: value for key in ("name", "tool_call_id") if (value := getattr(message, key))}


WITH_TOOLS = {"llama3": LLAMA3, "qwen3": QWEN3, "glm": GLM, "moonshot": MOONSHOT}


@pytest.fixture(scope="module", params=WITH_TOOLS)
def tool_template(request: pytest.FixtureRequest) -> Iterator[ChatTemplate]:
    made = ChatTemplate(WITH_TOOLS[request.param], source=request.param, variables=NAMES)
    yield made
    made.close()


JSON_VALUES = st.recursive(
    st.one_of(CONTENTS, st.integers(-9, 9), st.booleans(), st.none(), st.just(0.5)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(CONTENTS, inner, max_size=2)),
    max_leaves=4,
)


def tool_calls() -> st.SearchStrategy[tuple[ToolCall, ...]]:
    arguments = st.dictionaries(CONTENTS, JSON_VALUES, max_size=3).map(json.dumps)
    return st.lists(st.builds(ToolCall, CONTENTS, arguments, CONTENTS.map(lambda text: f"id{text}")), max_size=2).map(
        tuple
    )


def tool_chats() -> st.SearchStrategy[list[Message]]:
    reply = st.builds(Message, st.just("assistant"), CONTENTS, CONTENTS, tool_calls())
    result = st.builds(Message, st.just("tool"), CONTENTS, name=CONTENTS, tool_call_id=CONTENTS)
    user = CONTENTS.map(lambda text: Message("user", text))
    return st.tuples(user, reply, st.lists(result, max_size=2), user, reply, st.lists(result, max_size=1)).map(
        lambda parts: [parts[0], parts[1], *parts[2], parts[3], parts[4], *parts[5]]
    )


def tool_schemas() -> st.SearchStrategy[list[dict[str, Any]]]:
    function = st.fixed_dictionaries({"name": CONTENTS, "description": CONTENTS, "parameters": JSON_VALUES})
    return st.lists(st.fixed_dictionaries({"type": st.just("function"), "function": function}), max_size=2)


@FEW
@given(messages=tool_chats(), tools=tool_schemas(), thinking=st.booleans())
def test_tools_and_calls_render_as_in_transformers(
    tool_template: ChatTemplate, messages: list[Message], tools: list[dict[str, Any]], thinking: bool
) -> None:
    assert tool_template.text is not None
    given = {"enable_thinking": thinking}
    rendered = joined(tool_template.render(messages, tools=tools, **given))
    assert rendered == reference(tool_template.text, messages, tools=tools or None, **given)


@FEW
@given(messages=tool_chats(), tools=tool_schemas())
def test_special_tokens_in_tools_and_calls_never_count(
    tool_template: ChatTemplate, messages: list[Message], tools: list[dict[str, Any]]
) -> None:
    def harmless(text: str) -> str:
        return text.translate(str.maketrans("<>[]|/", "αβγδεζ"))  # one for one, so that different names stay so

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            return harmless(value)
        if isinstance(value, list):
            return [changed(item) for item in value]
        if isinstance(value, dict):
            return {harmless(key): changed(item) for key, item in value.items()}
        return value

    others = [
        Message(
            message.role,
            harmless(message.content),
            harmless(message.reasoning),
            tuple(
                ToolCall(harmless(call.name), json.dumps(changed(json.loads(call.arguments))), harmless(call.id))
                for call in message.tool_calls
            ),
            harmless(message.name),
            harmless(message.tool_call_id),
        )
        for message in messages
    ]
    assert written(tool_template.render(messages, tools=tools)) == written(
        tool_template.render(others, tools=changed(tools))
    )


def test_whether_a_template_knows_tools_is_told() -> None:
    assert ChatTemplate(QWEN3, source="test").takes_tools
    assert not ChatTemplate(CHATML, source="test").takes_tools
    assert not ChatTemplate(None, source="test").takes_tools


@pytest.mark.parametrize(
    ("text", "has"),
    [
        (QWEN3, True),
        (GLM, True),
        (LING, True),
        ("{% if thinking is defined and thinking %}<think>{% endif %}", True),
        (KIMI, False),
        (LLAMA3, False),
        ("Always think: detailed thinking on", False),
        (None, False),
    ],
)
def test_whether_a_template_has_a_switch_for_thinking_is_told(text: str | None, has: bool) -> None:
    assert ChatTemplate(text, source="test").has_thinking_switch == has


@pytest.mark.parametrize("arguments", ["", "[]", "{", "3", "[" * 100_000])
def test_a_call_whose_arguments_are_no_object_is_refused_by_name(arguments: str) -> None:
    template = ChatTemplate(QWEN3, source="test")
    with pytest.raises(UsageError, match="arguments of the call of 'look' are no JSON object"):
        template.render([Message("assistant", "", tool_calls=(ToolCall("look", arguments),))])
    template.close()


def test_a_tool_that_is_no_json_is_refused() -> None:
    template = ChatTemplate(QWEN3, source="test")
    with pytest.raises(UsageError, match="no JSON"):
        template.render([Message("user", "hi")], tools=[{"function": {"name": "f", "x": object()}}])
    assert template.render([Message("user", "hi")])
    template.close()


def test_large_tools_and_arguments_come_through() -> None:
    template = ChatTemplate(QWEN3, source="test")
    large = "x" * (6 << 20)
    message = Message("assistant", "", tool_calls=(ToolCall("f", json.dumps({"a": large})),))
    assert large in joined(template.render([Message("user", "hi"), message]))
    assert large in joined(template.render([Message("user", "hi")], tools=[{"function": {"name": "f", "x": large}}]))
    template.close()
