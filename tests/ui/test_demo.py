"""`lingchat demo`: lanes run one after another with scripted engines, played side by side, kept as a still."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path

import pexpect
import pytest
from ui.helpers import wait_until

from lingchat.config import Settings, load_settings
from lingchat.engines.api import ModelInfo
from lingchat.engines.scripted import Failure, LoadPhase, Script, ScriptedEngine, ScriptTurn
from lingchat.errors import EngineCrashed, FetchError, LingchatError, TraceError
from lingchat.events import RunStart, now_ns
from lingchat.notes import Notes
from lingchat.stats import footer
from lingchat.trace import read_trace
from lingchat.ui import demo
from lingchat.ui.demo import still
from lingchat.ui.demo.lane_state import PaceLane, RecordedLane
from lingchat.ui.demo.lanes import LADDER, PACES, PUBLISHED, Pace, Rung
from lingchat.ui.demo.record import record, recordings, shipped
from lingchat.ui.demo.screen import DemoApp, _last_lines

ROOT = Path(__file__).parents[2]
TEXT = "The quick brown fox jumps over the lazy dog."
PACE = {"fp32": 40.0, "int8": 15.0, "native": 10.0, "native-drafts": 20.0}


def engine_of(rung: Rung, backend: str = "scripted") -> ScriptedEngine:
    turn = ScriptTurn(text=TEXT, round_ms=PACE[rung.key] / 5, m=(3,), a=(3, 1))
    return ScriptedEngine(Script.of("warm up", turn, info=ModelInfo(name="scripted", backend=backend, context=8192)))


class Quiet:
    """Standard error that nobody reads."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


@pytest.fixture
def notes() -> Notes:
    return Notes("never", Quiet())  # type: ignore[arg-type]


async def recorded(folder: Path, notes: Notes, make=engine_of):
    return await demo.gather(load_settings(env={}), folder, "Repeat it.", notes, replay=False, make_engine=make)


# ---------------------------------------------------------------- recording


async def test_every_rung_is_run_and_kept_as_a_trace(tmp_path: Path, notes: Notes) -> None:
    engines: list[tuple[Rung, ScriptedEngine]] = []

    def make(rung: Rung) -> ScriptedEngine:
        assert all(engine._state == "closed" for _, engine in engines)  # one after another, never two at once
        engines.append((rung, engine_of(rung)))
        return engines[-1][1]

    runs, note = await recorded(tmp_path, notes, make)
    assert [run.rung for run in runs] == list(LADDER) and note == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{rung.key}.jsonl" for rung in LADDER)
    for rung, engine in engines:
        warm, asked = engine.requests
        assert warm.sampling.max_tokens < 10 and asked.messages[-1].content == "Repeat it."
        assert asked.sampling.temperature == 0.0 and asked.spec == rung.spec
    fold = [read_trace(tmp_path / f"{rung.key}.jsonl").fold() for rung in LADDER]
    assert [list(run.turns) for run in fold] == [[1]] * len(LADDER)  # the warm-up is in none
    assert [bool(run.turns[1].drafted_rounds) for run in fold] == [False, False, False, True]
    assert not any(run.trace.start.cwd for run in runs)  # made to be passed on
    assert "4 of 4: one call + drafts" in notes._stream.text and "L 3.00" in notes._stream.text


async def test_a_failed_rung_raises_and_leaves_no_half_trace(tmp_path: Path, notes: Notes) -> None:
    def make(rung: Rung) -> ScriptedEngine:
        turn = ScriptTurn(text=TEXT, crash=2) if rung.key == "int8" else ScriptTurn(text=TEXT, round_ms=1)
        return ScriptedEngine(Script.of("warm up", turn))

    with pytest.raises(EngineCrashed):
        await recorded(tmp_path, notes, make)
    assert [path.name for path in tmp_path.iterdir()] == ["fp32.jsonl"]


async def test_a_rung_about_native_code_is_left_out_where_torch_serves(tmp_path: Path, notes: Notes) -> None:
    def make(rung: Rung) -> ScriptedEngine:
        return engine_of(rung, "torch cpu")

    (tmp_path / "native.jsonl").write_text("of another day")
    runs, _ = await recorded(tmp_path, notes, make)
    assert [run.rung.key for run in runs] == ["fp32", "int8"]
    assert "left out: torch cpu would serve" in notes._stream.text


def no_network(rung: Rung) -> ScriptedEngine:
    return ScriptedEngine(Script(load=(LoadPhase(),), load_failure=Failure(code="fetch", message="no network", at=0)))


async def test_without_a_model_the_shipped_runs_are_shown_with_machine_and_date(
    tmp_path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = RunStart(t_ns=now_ns(), id="x", wall="2025-03-01T09:00:00+00:00", machine="some other machine")
    async for _ in record(LADDER[0], "x", 9, engine_of, tmp_path / "shipped", start):
        pass
    monkeypatch.setattr("lingchat.ui.demo.record.shipped", lambda ladder: recordings(tmp_path / "shipped", ladder))
    runs, note = await recorded(tmp_path / "own", notes, no_network)
    assert [run.rung.key for run in runs] == ["fp32"]
    assert "NOT this machine" in note and "2025-03-01" in note and "some other machine" in note
    assert "no network" in notes._stream.text


async def test_without_a_model_and_without_recordings_it_says_so(
    tmp_path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lingchat.ui.demo.record.shipped", lambda ladder: [])
    with pytest.raises(FetchError, match=r"no network.*no recording"):
        await recorded(tmp_path, notes, no_network)
    with pytest.raises(TraceError, match="no recording"):
        await demo.gather(load_settings(env={}), tmp_path, "x", notes, replay=True)


async def test_a_model_that_was_asked_for_is_not_replaced_by_pictures(tmp_path: Path, notes: Notes) -> None:
    with pytest.raises(FetchError):
        await demo.gather(Settings(model="mine"), tmp_path, "x", notes, replay=False, make_engine=no_network)


async def test_replay_shows_the_last_runs_without_an_engine(tmp_path: Path, notes: Notes) -> None:
    await recorded(tmp_path, notes)

    def never(rung: Rung) -> ScriptedEngine:
        raise AssertionError("nothing is run")

    runs, note = await demo.gather(load_settings(env={}), tmp_path, "x", notes, replay=True, make_engine=never)
    assert len(runs) == len(LADDER) and note.startswith("recorded ")


def test_what_ships_is_labelled_and_real() -> None:
    runs = shipped(LADDER)
    assert [run.rung for run in runs] == list(LADDER)
    for run in runs:
        start = run.trace.start
        assert start.machine and start.wall
        assert run.trace.fold().turns[1].tokens > 0


# ---------------------------------------------------------------- lanes


async def test_a_lane_follows_its_recorded_clock_to_the_recorded_figures(tmp_path: Path, notes: Notes) -> None:
    runs, _ = await recorded(tmp_path, notes)
    lane = RecordedLane(runs[3])
    seen: list[str] = []
    for ms in range(0, int(lane.length_ms) + 2):
        lane.at(float(ms))
        assert not seen or lane.text.startswith(seen[-1])
        seen.append(lane.text)
    assert seen[0] == "" and lane.text == TEXT and lane.done and len(set(seen)) == 4  # three rounds
    turn = runs[3].trace.fold().turns[1]
    assert footer(lane.stats) == footer(turn)
    assert lane.strip.p50_ms == turn.round(0.5)  # with drafts, a round that accepts nothing is no trouble
    first, second = lane.figures()
    assert f"{turn.tokens} tok" in first and "L 3.00" in second
    assert lane.strip.columns


def test_a_pace_is_published_and_takes_its_time() -> None:
    assert [pace.ms_per_token for pace in PACES] == [3.33, 1.53, 0.78]
    for pace in PACES:
        lane = PaceLane(pace)
        assert lane.figures()[1] == PUBLISHED == "published, SGLang, four GPUs"
        lane.at(pace.ms_per_token * 100.5)
        assert (lane.tokens, lane.done) == (100, False)
        lane.at(pace.ms_per_token * 5001)
        assert (lane.tokens, lane.done) == (5000, True) and "No model runs here" in lane.text


def test_the_end_of_a_text_is_what_is_seen() -> None:
    assert _last_lines("aa bb cc\ndd", 5, 2) == ["cc", "dd"]
    assert _last_lines("漢字漢字", 4, 9) == ["漢字", "漢字"]
    assert _last_lines("x", 0, 3) == []


# ---------------------------------------------------------------- the screen


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_all_lanes_play_together_and_end_in_a_still(tmp_path: Path, notes: Notes, size: tuple[int, int]) -> None:
    runs, note = await recorded(tmp_path, notes)
    paces = (Pace("0.5 ms a token", 0.5, tokens=200), Pace("0.2 ms a token", 0.2, tokens=200))
    app = DemoApp(runs, paces, tmp_path / "out", note=note)
    async with app.run_test(size=size) as pilot:
        await wait_until(pilot, lambda: app.files)
        assert all(lane.state.done for lane in app.lanes) and len(app.lanes) == len(LADDER) + 2
        svg = app.files[0].read_text()
        for word in ("fp32", "int8", "drafts", "published", "SGLang", "GPUs", "scripted", "recorded"):
            assert word in svg
        assert "L&#160;3.00" in svg.replace("\u00a0", "&#160;")
        assert "@font-face" not in svg and "http://" not in svg.replace("http://www.w3.org", "")
        assert app.files[1].read_bytes().startswith(b"\x89PNG")
        app.files = []
        await pilot.press("r")
        await wait_until(pilot, lambda: app.files)
        await pilot.press("q")
        await wait_until(pilot, lambda: not app.is_running)


SCREEN = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 90 20'><style>@font-face { src: url('x') }\n.a { font-family: Fira Code, monospace }</style><text class='a' y='15'>lingchat</text></svg>"


def drawn_with(monkeypatch: pytest.MonkeyPatch, *files: Path, named: str = "") -> None:
    """The renderer knows these font files alone, and fontconfig names this family."""
    monkeypatch.setattr(still, "LOADED", {"skip_system_fonts": True, "font_files": [str(file) for file in files]})
    monkeypatch.setattr(still, "output", lambda *command: named)


def test_without_a_font_there_is_an_svg_and_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_with(monkeypatch, named="Not There")
    files, missing = still.save_still(SCREEN, tmp_path)
    assert [path.name for path in files] == ["demo.svg"] and "no font" in missing and "install one" in missing
    svg = files[0].read_text()
    assert still.plain_svg(svg) == svg and "@font-face" not in svg and "monospace" in svg


def test_a_font_nobody_thought_of_is_found_by_fontconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = list(Path("/usr/share/fonts").rglob("DejaVuSerif.ttf"))
    if not files:
        pytest.skip("DejaVu Serif is not installed")
    drawn_with(monkeypatch, files[0], named="DejaVu Serif")
    made, missing = still.save_still(SCREEN, tmp_path)
    assert (len(made), missing) == (2, "")
    blank, _ = still.save_still(SCREEN.replace("lingchat", ""), tmp_path, "blank")
    assert made[1].read_bytes().startswith(b"\x89PNG") and made[1].read_bytes() != blank[1].read_bytes()


def test_the_renderer_comes_with_a_plain_install() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [name for name in project["dependencies"] if name.startswith("resvg-py")]


async def test_a_full_disk_does_not_end_the_demo(tmp_path: Path, notes: Notes) -> None:
    runs, _ = await recorded(tmp_path, notes)
    app = DemoApp(runs, (), tmp_path / "fp32.jsonl" / "below")
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(pilot, lambda: "cannot write" in str(app._foot.render()))
        assert app.is_running


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LingchatError, match="cannot write"):
        still.save_still("<svg/>", tmp_path / "file" / "below")


def test_the_installed_command(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"turns": [{"text": "warm up"}, {"text": TEXT, "m": [3], "a": [2], "round_ms": 5}]}))
    environ = {**os.environ, "TERM": "xterm-256color", "LINGCHAT_ENGINE": f"scripted:{script}"}
    command = ["-m", "lingchat", "demo", "--save", str(tmp_path / "out")]
    child = pexpect.spawn(sys.executable, command, env=environ, timeout=20, encoding="utf-8", dimensions=(40, 120))
    child.expect("run 4 of 4")
    child.expect("published")
    child.send("q")  # before the slow pace is through
    child.expect_exact("\x1b[?1049l")
    child.expect("fp32 .* tok")  # the figures stay on the terminal
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0
    assert len(list((tmp_path / "out").glob("*.jsonl"))) == len(LADDER)
