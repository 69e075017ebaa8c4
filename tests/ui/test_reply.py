"""A streamed reply ends as the message that opening it again shows, for any chunking and any moment of flushing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ui.markdown_corpus import CORPUS, documents

from lingchat.engines.api import ToolCall
from lingchat.events import Decode, Reasoning, Text
from lingchat.ui.widgets.message import MessageView, TurnView
from lingchat.ui.widgets.reply import Reply

WIDTH = 50


class Screen:
    """The conversation as a reply sees it, without a screen."""

    text_width = WIDTH

    def __init__(self) -> None:
        self.scheduled = 0

    def schedule(self, reply: Reply) -> None:
        self.scheduled += 1

    def refine(self, reply: Reply) -> None:
        reply.adopt(reply.refinement(WIDTH)())

    def relayout(self, view: MessageView) -> None:
        pass


def structure(view: MessageView) -> list[object]:
    height = view.lines(WIDTH)
    lines = []
    for index in range(height):
        found = view.locate(index, WIDTH)
        if found is None:
            lines.append(None)
            continue
        line = found[0].lines(WIDTH)[found[1]]
        lines.append(
            (line.row.text[line.start : line.end], line.row.spans, line.row.lead, line.row.style, found[0].indent)
        )
    return lines


def begin() -> Reply:
    reply = Reply(TurnView("assistant", "", header="#1"), "m1", Screen())
    reply.lines(WIDTH)
    return reply


def shown(reply: MessageView) -> str:
    out = []
    for index in range(reply.lines(WIDTH)):
        found = reply.locate(index, WIDTH)
        if found is not None:
            line = found[0].lines(WIDTH)[found[1]]
            out.append(line.row.text[line.start : line.end])
    return "\n".join(out)


@settings(max_examples=150, deadline=None)
@given(documents, st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=30), st.booleans())
def test_any_chunking_ends_as_the_whole_text(text: str, steps: list[tuple[int, bool]], reasons: bool) -> None:
    reply = begin()
    if reasons:
        reply.append_reasoning("so ")
        reply.flush(WIDTH)
        reply.append_reasoning("that")
    at = number = 0
    while at < len(text):
        size, flush = steps[number % len(steps)]
        reply.append(text[at : at + size])
        at, number = at + size, number + 1
        if flush:
            changed = reply.flush(WIDTH)
            assert 0 <= changed <= reply.lines(WIDTH)
    reply.finish("footer")
    reasoning = "so that" if reasons else ""
    view = TurnView("assistant", text, header="#1", reasoning=reasoning, footer="footer", stop="eos")
    assert structure(reply) == structure(MessageView(view, "m1", Screen()))
    assert reply.text == text


@pytest.mark.parametrize("text", CORPUS)
def test_every_flush_shows_all_text_that_has_arrived(text: str) -> None:
    reply = begin()
    for char in text:
        reply.append(char)
        reply.flush(WIDTH)
    assert reply.text == text
    for word in text.replace("|", " ").split():
        if word.isalpha() and word not in ("python", "md", "sh", "py") and "]:" not in text:
            assert word in shown(reply).replace("\n", ""), word


def test_lines_above_the_change_stay_as_they_are() -> None:
    reply = begin()
    before = structure(reply)
    for char in "# T\n\nA paragraph that is long enough to wrap.\n\n- a\n- b\n\n```py\nx\n\ny\n```\nend\n\nagain":
        reply.append(char)
        changed = reply.flush(WIDTH)
        after = structure(reply)
        assert after[:changed] == before[:changed]
        before = after


def test_an_open_fence_looks_like_code_already() -> None:
    reply = begin()
    reply.append("text\n\n```python\nfor x in y:\n")
    reply.flush(WIDTH)
    assert shown(reply).splitlines()[1:5] == ["text", "", "python ", "for x in y:"]


def test_long_blocks_stay_plain_until_the_end() -> None:
    reply = begin()
    reply.append("- **one**\n" * 70 + "\npara\n\n```py\n" + "x = 1\n" * 70 + "```\nend\n\n")
    reply.flush(WIDTH)
    assert shown(reply).count("- **one**") == 70
    reply.finish()
    assert "**" not in shown(reply)
    assert reply.code(1) == "x = 1\n" * 70


def test_a_message_that_was_unloaded_comes_back_the_same() -> None:
    view = MessageView(TurnView("assistant", "```\na\n```\n\n```\nb\n```\n", reasoning="r", footer="f"), "m1", Screen())
    before = structure(view)
    view.unload()
    assert structure(view) == before
    assert view.code(2) == "b\n"


def test_a_failed_reply_keeps_its_text_and_says_why() -> None:
    reply = begin()
    reply.append("half an ans")
    reply.fail("engine died\n/restart brings it back")
    assert "half an ans" in shown(reply)
    assert "/restart brings it back" in shown(reply)
    assert reply.view.stop == "error"
    reply.append("late")
    reply.unload()
    assert "engine died" in shown(reply)


def test_reasoning_figures_come_from_the_events() -> None:
    reply = begin()
    second = 1_000_000_000

    def rounds(at: int, tokens: int) -> Decode:
        zero = (0,) * tokens
        return Decode(t_ns=at, turn=1, t0_ns=at - second, dt_us=(10_000,) * tokens, k=(1,) * tokens, m=zero, a=zero)

    for event in (
        rounds(second, 100),
        Reasoning(t_ns=second, turn=1, delta="a"),
        rounds(2 * second, 900),
        Reasoning(t_ns=2 * second, turn=1, delta="b"),
    ):
        reply.observe(event)
        if isinstance(event, Reasoning):
            reply.append_reasoning(event.delta)
    reply.flush(WIDTH)
    assert "▸ thinking 2.0 s · 1,000 tokens · 500 tok/s" in shown(reply)
    for event in (rounds(3 * second, 50), Text(t_ns=3 * second, turn=1, delta="answer")):
        reply.observe(event)
    reply.append("answer")
    reply.flush(WIDTH)
    assert "▸ thought 2.0 s · 1,000 tokens · 500 tok/s" in shown(reply)
    reply.finish()
    assert reply.view.reasoning_note == "2.0 s · 1,000 tokens · 500 tok/s"


def test_reasoning_is_folded_and_opens() -> None:
    reply = begin()
    reply.append_reasoning("first thought\n")
    reply.set_reasoning_note("4.1 s · 1,020 tokens")
    reply.flush(WIDTH)
    assert "▸ thinking 4.1 s · 1,020 tokens" in shown(reply)
    assert "first thought" not in shown(reply)
    reply.toggle_reasoning()
    reply.append_reasoning("second")
    reply.flush(WIDTH)
    assert "▾ thinking" in shown(reply) and "first thought\nsecond" in shown(reply)
    reply.append("answer")
    reply.finish()
    assert "▾ thought 4.1 s · 1,020 tokens" in shown(reply)
    reply.toggle_reasoning()
    assert "second" not in shown(reply)


LOOK = ToolCall("look", '{"where": "Paris", "days": [1, 2]}')


@pytest.mark.parametrize("text", ["", "Let me look.", "```py\nx\n```\n"])
@pytest.mark.parametrize("reasoning", ["", "so"])
def test_calls_stand_under_the_text_while_it_streams_and_after(text: str, reasoning: str) -> None:
    reply = begin()
    if reasoning:
        reply.append_reasoning(reasoning)
    if text:
        reply.append(text)
    reply.call(LOOK)
    reply.flush(WIDTH)
    live = shown(reply).splitlines()
    assert live[-2:] == ['look {"where":"Paris","days":[1,2]}  not run', "…"]
    reply.call(ToolCall("go"))
    reply.finish("footer", "eos")
    assert shown(reply).splitlines()[-3:] == ['look {"where":"Paris","days":[1,2]}  not run', "go  not run", "footer"]
    view = TurnView("assistant", text, header="#1", reasoning=reasoning, calls=(LOOK, ToolCall("go")), footer="footer")
    assert structure(reply) == structure(MessageView(view, "m1", Screen()))
    assert reply.whole.endswith('→ look {"where":"Paris","days":[1,2]}\n\n→ go') and reply.text == text


def test_a_long_call_is_cut_on_the_screen_and_whole_when_opened() -> None:
    view = MessageView(
        TurnView("assistant", "", calls=(ToolCall("write", f'{{"text":"{"x" * 5000}"}}'),)), "m1", Screen()
    )
    assert "characters more  not run" in shown(view).replace("\n", "") and view.lines(WIDTH) < 14
    assert "x" * 5000 in view.whole


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ("length", "no answer: the length limit was reached inside"),
        ("cancel", "no answer: it was stopped inside the reasoning"),
        ("eos", "no answer: the reply ended inside its reasoning"),
    ],
)
def test_a_reply_cut_inside_its_reasoning_says_so(stop: str, said: str) -> None:
    reply = begin()
    reply.append_reasoning("hm, let me")
    reply.set_reasoning_note("4.1 s · 1,020 tokens")
    reply.finish("footer", stop)
    assert "▸ thought 4.1 s" in shown(reply) and said in shown(reply).replace(" \n", " ")
    view = TurnView(
        "assistant",
        "",
        header="#1",
        reasoning="hm, let me",
        reasoning_note="4.1 s · 1,020 tokens",
        footer="footer",
        stop=stop,
    )
    assert structure(reply) == structure(MessageView(view, "m1", Screen()))


def test_a_reply_with_an_answer_or_an_error_says_nothing_of_the_kind() -> None:
    for text, error, stop in (("42", "", "length"), ("", "the engine died", "error"), ("", "", "")):
        view = TurnView("assistant", text, reasoning="hm", error=error, stop=stop)
        assert "no answer" not in shown(MessageView(view, "m1", Screen()))
