"""What a session keeps of a reply besides its text: reasoning, tool calls, and how they come back."""

from __future__ import annotations

import json

import pytest
from session.test_session import reopened, talked

from lingchat.engines.api import Message, ToolCall
from lingchat.session import SessionStore


@pytest.fixture
def store(tmp_path):
    return SessionStore(tmp_path / "sessions")


def test_a_reply_that_was_cut_inside_its_reasoning_is_sent_back_as_far_as_it_came(store):
    session = talked(store, "q")
    reply = session.begin_reply()
    reply.reasoning("hm", 0)
    reply.finish("length")
    assert reopened(store, session).messages()[-1] == Message("assistant", "", "hm")


def test_tool_calls_and_their_results_are_kept_and_sent_back(store):
    session = talked(store, "weather?")
    reply = session.begin_reply()
    reply.delta("Let me look.", 0)
    reply.call("weather", '{"city":"Paris"}', "", 0)
    reply.call("weather", '{"city":"Rome \\u001b"}', "functions.weather:1", 0)
    reply.finish("eos")
    first, second = session.leaf.calls
    assert second.id == "functions.weather:1"
    session.add("tool", "17 degrees", name="weather", call=first.id)
    other = session.begin_reply()
    other.call("weather", "{}", "", 0)
    other.finish("eos")
    assert session.leaf.calls[0].id not in ("", first.id)  # an id of its own in the whole session
    session = reopened(store, session)
    assert session.damaged == 0
    assert session.messages()[1:] == (
        Message("assistant", "Let me look.", tool_calls=(first, second)),
        Message("tool", "17 degrees", name="weather", tool_call_id=first.id),
        Message("assistant", "", tool_calls=session.leaf.calls),
    )
    assert first == ToolCall("weather", '{"city":"Paris"}', first.id)


def test_what_a_reader_of_plain_text_is_shown(store):
    session = talked(store, "weather?", "Sunny.\n", "and?")
    assert [node.said for node in session.path()] == ["weather?", "Sunny.\n", "and?"]
    reply = session.begin_reply()
    reply.reasoning("hm", 0)
    reply.delta("Let me look.\n", 0)
    reply.call("look\x1b", '{"where": "Rome"}', "", 0)
    assert reply.node.said == 'Let me look.\n\n→ look␛ {"where":"Rome"}  (not run)'
    reply.finish("eos")
    reply = session.begin_reply()
    reply.reasoning("hm", 0)
    assert reply.node.said == ""  # it may still come to an answer
    assert reply.finish("length").said == "(no answer: the length limit was reached inside the reasoning)"


def test_a_session_from_before_tool_calls_loads_and_goes_on(store):
    """Lines as the first version wrote them."""
    session = store.create()
    session.file.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {"type": "session", "v": 1, "id": session.id, "created": "2026-01-01T00:00:00+00:00"},
        {"type": "node", "id": 1, "parent": 0, "role": "user", "content": "q"},
        {"type": "reply", "id": 2, "parent": 1},
        {"type": "delta", "id": 2, "text": "a", "reasoning": "hm"},
        {"type": "end", "id": 2, "stop": "eos", "footer": "2 tok"},
    ]
    session.file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    session = store.open(session.id)
    assert session.damaged == 0
    assert session.messages() == (Message("user", "q"), Message("assistant", "a", "hm"))
    reply = session.begin_reply()
    reply.call("look", "{}", "", 0)
    reply.finish("eos")
    # The reader of that version takes what it knows out of the new lines: no line is new in kind.
    kinds = {json.loads(line)["type"] for line in session.file.read_text().splitlines()}
    assert kinds <= {"session", "node", "reply", "delta", "end", "select", "title", "system"}
    assert reopened(store, session).leaf.calls == (ToolCall("look", "{}", "call_3_0"),)
