"""Turns on the real screen: what the engine refuses, edits that wait, silences, the numbers of replies."""

from __future__ import annotations

from pathlib import Path

from chat_app import Bench, running, script

from lingchat.engines.clocks import VirtualClock
from lingchat.engines.scripted import Failure, Pause, ScriptTurn
from lingchat.ui.widgets.reply import Reply

HANGS = ScriptTurn(text="one two three four five six", pause=Pause(at=3))
UNHEARD = ScriptTurn(text="at last", tokenize_ms=60_000)
REFUSES = ScriptTurn(failure=Failure(code="context_overflow", message="The prompt has 9,999 tokens.", at=-1))
LONG = "word " * 4000


async def talk(bench: Bench, *texts: str) -> None:
    for text in texts:
        await bench.say(text)
        await bench.idle()


def views(bench: Bench) -> list[tuple[str, str, int, int]]:
    """Name, text and siblings of the messages on the screen."""
    shown = bench.screen.conversation.messages
    return [(one.view.node_id, one.text, one.view.sibling, one.view.siblings) for one in shown]


def path(bench: Bench) -> list[tuple[str, str]]:
    session = bench.app.chat.session
    assert session is not None
    return [(str(node.id), node.content) for node in session.path()]


# ---------------------------------------------------------------------- refused


async def test_a_prompt_over_the_context_comes_back_and_leaves_no_trace(tmp_path: Path) -> None:
    async with running(script("fine", "never"), home=tmp_path) as bench:
        await talk(bench, "hello")
        before = views(bench)
        await bench.say(LONG)
        await bench.until(lambda: bench.notice)
        await bench.idle()
        assert "2,048" in bench.notice
        assert views(bench) == before
        assert [text for _, text in path(bench)] == ["hello", "fine"]
        assert bench.screen.prompt.text == LONG


async def test_the_first_prompt_refused_leaves_the_welcome(tmp_path: Path) -> None:
    async with running(script("never"), home=tmp_path) as bench:
        await talk(bench, LONG)
        assert not bench.texts and bench.screen.query_one("#welcome").display
        assert bench.screen.prompt.text == LONG
        assert not list((tmp_path / "sessions").glob("*.jsonl"))


async def test_a_prompt_goes_out_without_a_count_before_it() -> None:
    async with running(script("fine")) as bench:

        async def never(what: object) -> int:
            raise AssertionError("a send counted tokens first")

        bench.engine.count = never  # type: ignore[method-assign]
        bench.screen.turns.submit(bench.screen.prompt.typed.__class__("hello", {}))
        await bench.idle()
        assert bench.texts == [("user", "hello"), ("assistant", "fine")]


async def test_a_refused_edit_changes_nothing_and_stays_an_edit(tmp_path: Path) -> None:
    async with running(script("one", "two", "refused", "better"), home=tmp_path) as bench:
        await talk(bench, "A", "B", "/edit 1")
        before = views(bench)
        bench.screen.prompt.put_text(LONG)
        await bench.pilot.press("enter")
        await bench.until(lambda: bench.notice)
        await bench.idle()
        assert views(bench) == before
        assert [text for _, text in path(bench)] == ["A", "one", "B", "two"]
        assert bench.screen.prompt.text == LONG
        assert bench.screen.editing is not None and "editing" in bench.status
        bench.screen.prompt.put_text("C")
        await bench.pilot.press("enter")
        await bench.idle()
        await bench.until(lambda: bench.screen.conversation.messages[0].view.siblings == 2)
        assert [text for _, text in path(bench)] == ["C", "better"]
        assert [(name, text) for name, text, _, _ in views(bench)] == path(bench)


async def test_a_refused_regeneration_changes_nothing(tmp_path: Path) -> None:
    async with running(script("one", REFUSES), home=tmp_path) as bench:
        await talk(bench, "A")
        before = views(bench)
        await bench.say("/regen")
        await bench.until(lambda: "9,999" in bench.notice)
        await bench.idle()
        assert views(bench) == before and len(path(bench)) == 2


async def test_messages_are_named_as_the_session_names_them_after_a_refusal(tmp_path: Path) -> None:
    async with running(script("one", REFUSES, "two"), home=tmp_path) as bench:
        await talk(bench, "A", "too long", "B")
        await bench.until(lambda: [(name, text) for name, text, _, _ in views(bench)] == path(bench))
        assert [text for _, text in path(bench)] == ["A", "one", "B", "two"]


# ---------------------------------------------------------------------- edits that wait


async def test_an_edit_sent_while_a_reply_runs_waits_and_stays_an_edit(tmp_path: Path) -> None:
    async with running(script("one", HANGS, "edited reply"), home=tmp_path) as bench:
        await talk(bench, "A")
        await bench.say("B")
        await bench.until(lambda: len(bench.texts) == 4 and bench.texts[3][1])
        bench.screen.slash.begin_edit(bench.screen.conversation.messages[0].view.node_id)
        bench.screen.prompt.put_text("A, but better")
        await bench.pilot.press("enter")
        assert bench.screen.editing is None
        await bench.until(lambda: "(edited) A, but better" in str(bench.screen.query_one("#queue").render()))
        await bench.pilot.press("up")  # taken back, it is an edit again
        assert bench.screen.editing is not None and bench.screen.prompt.text == "A, but better"
        await bench.pilot.press("enter")
        await bench.pilot.press("escape")
        await bench.idle()
        await bench.pilot.press("enter")
        await bench.idle()
        await bench.until(lambda: bench.texts == [("user", "A, but better"), ("assistant", "edited reply")])
        assert bench.screen.conversation.messages[0].view.siblings == 2


async def test_an_edit_that_waits_is_not_sent_into_another_session(tmp_path: Path) -> None:
    async with running(script("one", HANGS, "x"), home=tmp_path) as bench:
        await talk(bench, "A")
        await bench.say("B")
        await bench.until(lambda: len(bench.texts) == 4 and bench.texts[3][1])
        bench.screen.slash.begin_edit(bench.screen.conversation.messages[0].view.node_id)
        bench.screen.prompt.put_text("A2")
        await bench.pilot.press("enter", "escape")
        await bench.idle()
        await bench.say("/new")
        await bench.until(lambda: not bench.texts)
        await bench.pilot.press("enter")
        await bench.until(lambda: "another session" in bench.notice)
        assert bench.screen.prompt.text == "A2" and bench.screen.editing is None
        assert not bench.texts


# ---------------------------------------------------------------------- silences


async def test_a_stall_is_counted_once_and_what_was_written_reaches_the_disk(tmp_path: Path) -> None:
    clock = VirtualClock(auto=False)
    slow = ScriptTurn(text="one two three four five six", pause=Pause(at=4, ms=60_000))
    async with running(script(slow), clock=clock, home=tmp_path) as bench:
        stats = bench.app.chat.stats
        await bench.say("go")
        await bench.until(lambda: bench.engine.requests)
        await clock.advance(100)
        await bench.until(lambda: bench.texts[1][1] == "one two three four")
        session = bench.app.chat.session
        assert session is not None
        assert "four" not in session.file.read_text()
        await clock.advance(400)
        await bench.until(lambda: "four" in session.file.read_text())
        await clock.advance(9000)
        await bench.until(lambda: bench.screen.turns.stall is not None)
        first = bench.screen.turns.stall
        await clock.advance(1000)
        await bench.until(lambda: bench.screen.turns.stall not in (None, first))
        assert stats.current is not None and stats.current.stalls == 1 and len(stats.stalls) == 1
        await clock.advance(60_000)
        await bench.idle()
        assert bench.screen.turns.stall is None and stats.current.stalls == 1


async def test_a_request_without_an_answer_shows_its_time_and_then_offers_to_stop(tmp_path: Path) -> None:
    clock = VirtualClock(auto=False)
    async with running(script("first", UNHEARD), clock=clock, size=(120, 36)) as bench:
        await bench.say("one")
        await bench.until(lambda: bench.engine.requests)
        while bench.screen.turns.busy:
            await clock.advance(20)
            await bench.pilot.pause()
        await bench.say("two")
        await bench.until(lambda: len(bench.engine.requests) == 2)
        await clock.advance(1500)
        await bench.until(lambda: "queued, tokenizing 1.5 s" in bench.status)
        panel = bench.screen.frame.panel
        await bench.until(lambda: "queued, tokenizing" in panel.text and "1.5 s" in panel.text)
        await clock.advance(9000)
        await bench.until(lambda: "no word from the engine" in panel.text and "esc stops" in panel.text)
        await bench.until(lambda: bench.screen.turns.stall is not None)
        assert [stall.phase for stall in bench.app.chat.stats.stalls] == ["queue"]
        await bench.pilot.press("f2")
        await bench.until(lambda: "no word from the engine" in bench.screen.frame.line.text)
        await bench.pilot.press("f2")
        await bench.until(lambda: bench.screen.query_one("#stall").display)
        await bench.pilot.press("escape")
        await bench.idle()
        assert not bench.screen.query_one("#stall").display and "ready" in bench.status


async def test_prefill_says_how_far_it_has_read() -> None:
    clock = VirtualClock(auto=False)
    turn = ScriptTurn(text="done", prompt_tokens=512, prefill_chunks=4, prefill_ms=4000)
    async with running(script(turn), clock=clock) as bench:
        await bench.say("go")
        await bench.until(lambda: bench.engine.requests)
        await clock.advance(1000)
        reply = bench.screen.conversation.messages[1]
        assert isinstance(reply, Reply)
        await bench.until(lambda: "reading the prompt 128/512" in reply.status.flow[0].text)
        await clock.advance(3001)
        await bench.until(lambda: "reading" not in reply.status.flow[0].text)
        await clock.advance(1000)
        await bench.idle()


# ---------------------------------------------------------------------- numbers and the demo note


async def test_replies_are_numbered_by_the_conversation(tmp_path: Path) -> None:
    async with running(script("a"), home=tmp_path) as bench:
        await talk(bench, "one", "two", "/regen")
        assert [one.view.header.split()[0] for one in bench.screen.conversation.messages[1::2]] == ["#1", "#2"]
        await bench.say("/new")
        await bench.until(lambda: not bench.texts)
        await talk(bench, "three")
        assert bench.screen.conversation.messages[1].view.header.split()[0] == "#1"
        await bench.say("/resume")
        await bench.until(lambda: len(bench.texts) == 4)
        await talk(bench, "four")
        assert bench.screen.conversation.messages[5].view.header.split()[0] == "#3"


async def test_the_demo_note_stands_under_the_first_reply_of_a_start_only(tmp_path: Path) -> None:
    async with running(script("a"), home=tmp_path) as bench:
        await talk(bench, "one")
        assert "small demonstration model" in bench.screen.conversation.messages[1].view.footer
        await bench.say("/new")
        await bench.until(lambda: not bench.texts)
        await talk(bench, "two")
        assert "demonstration" not in bench.screen.conversation.messages[1].view.footer


async def test_a_session_gone_on_with_has_no_demo_note(tmp_path: Path) -> None:
    async with running(script("a"), home=tmp_path) as bench:
        await talk(bench, "one")
    async with running(script("a"), home=tmp_path) as bench:
        await bench.say("/resume")
        await bench.until(lambda: len(bench.texts) == 2)
        await talk(bench, "two")
        assert "demonstration" not in bench.screen.conversation.messages[3].view.footer
