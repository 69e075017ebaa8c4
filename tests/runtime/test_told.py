"""What the runtime says about a model's template: that it has none, no switch for thinking, or does not show tools."""

from __future__ import annotations

import json
from pathlib import Path

from make_models import write_gguf, write_hf

from lingchat.engines.api import ChatRequest, Message, Sampling
from lingchat.events import AnyEvent, ToolCall, Warn, now_ns
from lingchat.runtime.engine import Runtime
from lingchat.runtime.loading import Loading, load

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


def test_a_missing_template_is_told_with_the_one_used(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    write_hf(folder, "qwen3")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    events: list[AnyEvent] = []
    loaded = load(folder, Loading(dtype="fp32", threads=1, name="tiny"), events.append)
    loaded.formats.close()
    warned = [event.message for event in events if isinstance(event, Warn)]
    assert warned == ["tiny has no chat template; lingchat's own ChatML template is used instead."]
