"""Frames survive any way of cutting the bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lingchat.engines import wire
from lingchat.engines.api import ChatRequest, Message
from lingchat.events import Decode, Text

MESSAGES = [
    wire.Happened(3, Text(t_ns=5, turn=1, delta="häi \U0001f600")),
    wire.Happened(3, Decode(t_ns=5, turn=1, t0_ns=1, dt_us=(3, 4), k=(1, 2), m=(0, 4), a=(0, 1))),
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
    for command in (
        wire.Chat(1, request, 7),
        wire.Count(2, request),
        wire.Cancel(1),
        wire.Quit(),
        wire.Load(wire.Options("m")),
    ):
        (body,) = wire.Frames().feed(wire.pack(command))
        assert wire.read_command(body) == command
