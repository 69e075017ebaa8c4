"""The latency widgets on a screen: they fold, draw at most four times a second, and stand still otherwise."""

from __future__ import annotations

import pytest
from textual.widget import Widget
from ui.helpers import wait_until
from ui.latency_events import engine, turn_events
from ui.talk_app import TalkApp

from lingchat import stats
from lingchat.events import Engine, TurnEnd
from lingchat.stats import RunStats


def feed(host: TalkApp, run: RunStats, *events: object) -> None:
    for event in events:
        run.add(event)  # type: ignore[arg-type]
        host.now_ns = event.t_ns  # type: ignore[attr-defined]
        for view in (host.panel, host.line):
            if view is not None:
                view.fold(run, event, host.now_ns)  # type: ignore[arg-type]


async def test_panel_and_line_show_the_same_digits_as_the_footer() -> None:
    host = TalkApp()
    async with host.run_test(size=(120, 40)) as pilot:
        run = RunStats()
        feed(host, run, *turn_events(end=True))
        assert host.panel is not None and host.line is not None and run.current is not None
        panel, line = host.panel, host.line
        await wait_until(
            pilot, lambda: panel.text.startswith("done") and stats.format_rate(run.current.tok_s) in line.text
        )
        p50 = stats.format_ms(run.current.tpot(0.5))
        for text in (panel.text, line.text, stats.footer(run.current)):
            assert p50 in text
        assert "▲" in panel.text  # a spike is above the scale


async def test_a_hundred_events_at_once_are_one_drawing() -> None:
    host = TalkApp(line=False)
    async with host.run_test(size=(120, 40)):
        assert host.panel is not None
        before = host.panel.live.draws
        feed(host, RunStats(), *list(turn_events(rounds=20))[:20])
        assert host.panel.live.draws - before <= 2


async def test_nothing_is_drawn_when_nothing_can_change() -> None:
    host = TalkApp()
    async with host.run_test(size=(120, 40)) as pilot:
        run = RunStats()
        feed(host, run, *turn_events(rounds=20))
        assert host.panel is not None and host.line is not None
        for view in (host.panel, host.line):
            assert view.live._timer is not None  # the turn runs: elapsed time and silence change by themselves
        feed(host, run, TurnEnd(t_ns=host.now_ns, turn=1, stop="eos"))
        await wait_until(pilot, lambda: host.panel.live._timer is None and host.line.live._timer is None)
        assert host.panel.text.startswith("done")


async def test_only_lines_that_differ_are_repainted(monkeypatch: pytest.MonkeyPatch) -> None:
    host = TalkApp(line=False)
    async with host.run_test(size=(120, 40)):
        assert host.panel is not None
        panel = host.panel
        events = list(turn_events(rounds=30))
        run = RunStats()
        feed(host, run, *events)
        panel.live.draw()
        regions: list[object] = []
        refresh = Widget.refresh
        monkeypatch.setattr(panel, "refresh", lambda *r, **k: (regions.extend(r), refresh(panel, *r, **k))[1])
        panel.live.draw()
        assert regions == []
        host.now_ns += 300_000_000
        panel.live.draw()
        assert 1 <= len(regions) <= 3  # elapsed time, tok/s now


async def test_a_hidden_panel_keeps_folding() -> None:
    host = TalkApp(line=False)
    async with host.run_test(size=(120, 40)) as pilot:
        assert host.panel is not None
        panel = host.panel
        panel.display = False
        run = RunStats()
        feed(host, run, *turn_events(end=True))
        draws = panel.live.draws
        await pilot.pause()
        assert panel.live.draws == draws
        panel.display = True
        panel.fold(run)
        await wait_until(pilot, lambda: panel.text.startswith("done"))
        assert len(panel.live.strip.columns) > 5


async def test_loading_replaces_the_figures() -> None:
    host = TalkApp()
    async with host.run_test(size=(120, 40)) as pilot:
        run = RunStats()
        feed(host, run, Engine(t_ns=0, phase="download", progress=0.43, done_bytes=42_000_000, total_bytes=98_000_000))
        assert host.panel is not None and host.line is not None
        await wait_until(pilot, lambda: "43%" in host.panel.text and "43%" in host.line.text)
        assert host.panel.text.startswith("downloading model")
        feed(host, run, engine())
        host.panel.live.draw()
        assert host.panel.text.startswith("ready")


@pytest.mark.parametrize("word", ["live", "replay", "remote (client clock)", "random weights"])
async def test_the_provenance_is_always_there(word: str) -> None:
    host = TalkApp(provenance=word)
    async with host.run_test(size=(120, 40)) as pilot:
        feed(host, RunStats(), *turn_events(rounds=5))
        assert host.panel is not None and host.line is not None
        line = host.line
        assert str(host.panel.border_subtitle) == word
        await wait_until(pilot, lambda: word == "live" or line.text.endswith(word))
