"""Frames survive any way of cutting the bytes."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lingchat.engines import wire
from lingchat.engines.api import ChatRequest, Message, ModelInfo, ToolCall
from lingchat.events import Decode, Text
from lingchat.events import ToolCall as Called

MESSAGES = [
    wire.Happened(3, Text(t_ns=5, turn=1, delta="häi \U0001f600")),
    wire.Happened(3, Decode(t_ns=5, turn=1, t0_ns=1, dt_us=(3, 4), k=(1, 2), m=(0, 4), a=(0, 1))),
    wire.Happened(3, Called(t_ns=5, turn=1, index=1, name="look", arguments='{"where":"\\u001b"}', id="f:0")),
    wire.Ready(ModelInfo(name="m", suggested_sampling={"top_k": 20, "top_p": 0.95}, thinking_switch=True)),
    wire.Counted(4, 17),
    wire.Failed(0, "engine", "no"),
]


@given(st.lists(st.integers(1, 60), max_size=30))
def test_frames_are_whole_whatever_the_cuts(cuts: list[int]) -> None:
    data = b"".join(wire.pack(message) for message in MESSAGES)
    frames, got, at = wire.Frames(), [], 0
    for size in [*cuts, len(data)]:
        got += [wire.read_report(body) for body in frames.feed(data[at : at + size])]
        at += size
    assert got == MESSAGES


def test_commands_round_trip() -> None:
    request = ChatRequest(messages=(Message("user", "x" * 200_000),), spec=3)
    history = ChatRequest(
        messages=(
            Message("user", "weather?"),
            Message("assistant", "", "hm", (ToolCall("look", '{"where": "Paris"}', "call_2_0"),)),
            Message("tool", "17", name="look", tool_call_id="call_2_0"),
        ),
        tools=({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},),
        thinking=False,
    )
    for command in (
        wire.Chat(1, request, 7),
        wire.Chat(1, history, 7),
        wire.Count(2, request),
        wire.Cancel(1),
        wire.Quit(),
        wire.Load(wire.Options("m", device="cuda")),
    ):
        (body,) = wire.Frames().feed(wire.pack(command))
        assert wire.read_command(body) == command


def test_a_plain_message_is_written_as_it_always_was() -> None:
    """Fields that a message does not use cost no byte, and a reader without them understands it."""
    assert msgspec.to_builtins(Message("user", "hello")) == {"role": "user", "content": "hello"}
