"""What the runtime says about a model's template: whether thinking can be switched, and that tools are not shown."""

from __future__ import annotations

from pathlib import Path

from make_models import write_gguf

from lingchat.engines.api import ChatRequest, Message, Sampling
from lingchat.events import AnyEvent, ToolCall, Warn, now_ns
from lingchat.runtime.engine import Runtime
from lingchat.runtime.loading import Loading

TOOLS = ({"name": "look", "description": "Look around"},)


def test_a_template_without_tools_and_switch_is_told(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "qwen3", "Q8_0")
    runtime = Runtime(tmp_path / "tiny.gguf", Loading(dtype="fp32", threads=1))
    assert runtime.info.thinking_switch is False

    def ask(tools: tuple[dict[str, str], ...]) -> list[AnyEvent]:
        events: list[AnyEvent] = []
        messages = (Message("user", "hi"),)
        request = ChatRequest(messages=messages, tools=tools, sampling=Sampling(max_tokens=1, temperature=0.0))
        runtime.chat(request, now_ns(), events.append, lambda: False)
        return events

    warned = [event for event in ask(TOOLS) if isinstance(event, Warn)]
    assert [event.code for event in warned] == ["tools"] and "does not show tools" in warned[0].message
    assert not [event for event in ask(()) if isinstance(event, Warn | ToolCall)]
