"""The screen, the reply's footer and `lingchat stats` on the trace print the very same digits."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from ui.helpers import wait_until

from lingchat.chat import Chat
from lingchat.config import load_settings
from lingchat.engines.clocks import VirtualClock
from lingchat.engines.scripted import Script, ScriptedEngine, ScriptTurn
from lingchat.events import RunStart, now_ns
from lingchat.stats import format_ms, format_rate, format_ratio
from lingchat.stats_cli import main as stats
from lingchat.trace import TraceWriter
from lingchat.ui.app import LingchatApp

TURN = ScriptTurn(
    text="a reply of quite some words that goes on for a while, so that there are rounds of every kind in it " * 3,
    m=(3, 3, 0, 7, 2),
    a=(2, 0, 0, 5, 2),
    round_ms=(4.13, 6.77, 3.21, 9.9, 41.0, 5.5),
    prefill_ms=131.7,
    tokenize_ms=1.37,
)
ON_SCREEN = {
    "ttft_ms": r"TTFT ([\d.,]+) ms",
    "tokenize_ms": r"tokenize ([\d.,]+)",
    "prompt_ms": r"prefill ([\d.,]+)",
    "tpot_p50_ms": r"TPOT p50 ([\d.,]+)",
    "tpot_p95_ms": r"TPOT p50 [\d.,]+ p95 ([\d.,]+)",
    "tpot_p99_ms": r"TPOT .*?p99 ([\d.,]+)",
    "round_p50_ms": r"round p50 ([\d.,]+)",
    "round_p95_ms": r"round p50 [\d.,]+ p95 ([\d.,]+)",
    "tok_s": r"turn ([\d.,]+) tok/s",
    "accept_len": r"accept L (\d+\.\d\d)",
}


def screen_text(app: LingchatApp) -> str:
    """What stands on the screen, row by row, read from its picture."""
    rows: dict[str, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(r'<text[^>]*? x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', app.export_screenshot()):
        rows.setdefault(y, []).append((float(x), html.unescape(text).replace("\xa0", " ")))
    joined = ("".join(text for _, text in sorted(parts)) for parts in rows.values())
    return "\n".join(re.sub(r" +", " ", row) for row in joined)


async def test_screen_footer_and_stats_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = load_settings({}, env={}, file=tmp_path / "none")
    trace = TraceWriter.create(tmp_path, RunStart(t_ns=now_ns(), id="", wall=""))
    chat = Chat(ScriptedEngine(Script.of(TURN), clock=VirtualClock()), None, trace, settings)
    app = LingchatApp(chat, settings, ("go",))
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(pilot, lambda: 1 in chat.stats.turns and chat.stats.turns[1].phase == "done")
        await wait_until(pilot, lambda: "done" in screen_text(app) and "now –" in screen_text(app))
        shown = screen_text(app)
    await chat.close()
    assert stats([str(trace.path), "--output", "json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    figures = run["figures"]
    found = {name: match[1] for name, pattern in ON_SCREEN.items() if (match := re.search(pattern, shown))}
    assert found.keys() == ON_SCREEN.keys(), shown
    form = {"tok_s": format_rate, "accept_len": format_ratio}
    assert found == {name: form.get(name, format_ms)(figures[name]) for name in ON_SCREEN}
    footer = (
        f"TTFT {found['ttft_ms']} · p50 {found['tpot_p50_ms']} p95 {found['tpot_p95_ms']} · L {found['accept_len']}"
    )
    assert footer in shown
    assert stats([str(trace.path)]) == 0
    printed = capsys.readouterr().out
    assert all(re.search(rf"\s{re.escape(digits)}\n", printed) for digits in found.values()), printed
