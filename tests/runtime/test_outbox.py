"""What the outbox makes of a reply: events in the reply's order, however its rounds were batched."""

from __future__ import annotations

import json

import pytest

from lingchat.engines import wire
from lingchat.events import AnyEvent, Decode, Reasoning, Text, ToolCall
from lingchat.runtime.drivers.eager import TimedRound
from lingchat.runtime.formats.parts import Part
from lingchat.runtime.formats.parts import ToolCall as Call
from lingchat.runtime.ops.protocol import RoundRecord
from lingchat.runtime.outbox import INTERVAL_NS, Outbox

WAYS: list[list[Part]] = [
    [("reasoning", "I "), ("reasoning", "look."), ("tool_call", Call("look", {"where": "Paris", "days": [1, 2]}))],
    [("tool_call", Call("look", {}, "functions.look:1")), ("text", "So"), ("text", ""), ("text", " it is.")],
    [("text", " Bye.")],
]


def timed(end_ns: int) -> TimedRound:
    return TimedRound(RoundRecord(ids=(1,), drafted=0, accepted=0, done=0), end_ns=end_ns, draft_ns=0, verify_ns=0)


def sent(apart: bool) -> list[AnyEvent]:
    """The events of `WAYS`: every round by itself, or all in one batch."""
    out: list[AnyEvent] = []
    outbox = Outbox(out.append, 7, "", False)
    outbox.begin(0)
    outbox._flushed = 0 if apart else 10 * INTERVAL_NS
    for number, parts in enumerate(WAYS, 1):
        outbox.add(timed(number * 2 * INTERVAL_NS), parts)
        if apart:
            outbox._flushed = 0
    outbox.flush()
    return out


@pytest.mark.parametrize("apart", [True, False])
def test_text_reasoning_and_calls_keep_their_order(apart: bool) -> None:
    out = [event for event in sent(apart) if not isinstance(event, Decode)]
    said: list[tuple[object, ...]] = []
    for event in out:
        assert isinstance(event, (Text, Reasoning, ToolCall)) and event.turn == 7
        if isinstance(event, ToolCall):
            said.append((event.index, event.name, json.loads(event.arguments), event.id))
        elif said and said[-1][0] is type(event):
            said[-1] = (type(event), f"{said[-1][1]}{event.delta}")
        else:
            said.append((type(event), event.delta))
    assert said == [
        (Reasoning, "I look."),
        (0, "look", {"where": "Paris", "days": [1, 2]}, ""),
        (1, "look", {}, "functions.look:1"),
        (Text, "So it is. Bye."),
    ]


def test_neighbours_of_one_kind_travel_as_one_delta() -> None:
    kinds = [type(event) for event in sent(apart=False)]
    assert kinds == [Decode, Reasoning, ToolCall, ToolCall, Text]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"größe": "漢字"}, '{"größe":"漢字"}'),
        ({"n": 10**40}, '{"n":' + str(10**40) + "}"),
        ({"half": "\ud800"}, '{"half":"\\ud800"}'),
    ],
)
def test_whatever_a_model_writes_can_be_sent(arguments: dict[str, object], text: str) -> None:
    out: list[AnyEvent] = []
    outbox = Outbox(out.append, 7, "", False)
    outbox.say([("tool_call", Call("na\udfffme", arguments))])
    outbox.flush()
    (call,) = out
    assert isinstance(call, ToolCall) and (call.name, call.arguments) == ("na?me", text)
    (body,) = wire.Frames().feed(wire.pack(wire.Happened(1, call)))
    assert wire.read_report(body) == wire.Happened(1, call)
