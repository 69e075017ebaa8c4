"""How the conversation and the latency widgets look, at several sizes, in dark, light and the terminal's own colours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.pilot import Pilot
from ui.latency_events import MS, turn_events
from ui.talk_app import REPLY, TALK, TalkApp

from lingchat.events import AnyEvent, Engine, Prefill, TurnStart
from lingchat.stats import RunStats

Compare = Callable[..., bool]


def feed(host: TalkApp, events: list[AnyEvent], now_ns: int = 0) -> None:
    run = RunStats()
    for event in events:
        run.add(event)
        host.now_ns = event.t_ns
        for view in (host.panel, host.line):
            if view is not None:
                view.fold(run, event, host.now_ns)
    host.now_ns = now_ns or host.now_ns
    for view in (host.panel, host.line):
        if view is not None:
            view.live.draw()


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "ansi-dark"])
def test_conversation_and_panel(snap_compare: Compare, theme: str) -> None:
    host = TalkApp(theme=theme)

    async def show(pilot: Pilot[None]) -> None:
        await host.talk.show_turns(TALK)
        feed(host, list(turn_events()))
        await pilot.pause()

    assert snap_compare(host, terminal_size=(120, 40), run_before=show)


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
def test_other_sizes(snap_compare: Compare, size: tuple[int, int]) -> None:
    host = TalkApp(panel=size[0] > 100, provenance="replay")

    async def show(pilot: Pilot[None]) -> None:
        await host.talk.show_turns(TALK)
        feed(host, list(turn_events(drafts=0, end=True)))
        host.talk.action_cursor(-1)
        await pilot.pause()

    assert snap_compare(host, terminal_size=size, run_before=show)


def test_streaming_inside_a_block_while_released(snap_compare: Compare) -> None:
    host = TalkApp(panel=False)

    async def show(pilot: Pilot[None]) -> None:
        await host.talk.show_turns(TALK)
        reply = host.talk.begin_reply("#8")
        host.talk.scroll_to(y=6, animate=False)
        reply.append_reasoning("hm")
        reply.append(REPLY[: REPLY.index("print(")])
        host.talk.flush()
        feed(host, list(turn_events(rounds=40)))
        await pilot.pause()

    assert snap_compare(host, terminal_size=(60, 20), run_before=show)


@pytest.mark.parametrize("state", ["download", "prefill", "stall", "empty", "error"])
def test_states_of_the_panel(snap_compare: Compare, state: str) -> None:
    host = TalkApp(provenance="random weights" if state == "stall" else "live")

    async def show(pilot: Pilot[None]) -> None:
        events = list(turn_events(rounds=60))
        if state == "download":
            event = Engine(t_ns=0, phase="download", progress=0.43, done_bytes=42_000_000, total_bytes=98_000_000)
            feed(host, [event])
        elif state == "prefill":
            start = TurnStart(t_ns=0, turn=1, prompt_tokens=1500, reused=700)
            feed(host, [events[0], start, Prefill(t_ns=400 * MS, turn=1, done=512, total=800)])
        elif state == "stall":
            feed(host, events, events[-1].t_ns + 4200 * MS)
        elif state == "error":
            reply = host.talk.begin_reply("#9")
            reply.append("The answer begins and then the engine d")
            reply.fail("the engine process was killed by signal 9\n/restart loads the model again")
        await pilot.pause()

    assert snap_compare(host, terminal_size=(100, 30), run_before=show)
