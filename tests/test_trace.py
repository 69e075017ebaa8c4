"""Traces: what is written is what was folded, whatever is torn, unknown or secret."""

from __future__ import annotations

import json
import os
import resource
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_turns import MS, round_rows, turn_events

from lingchat import events
from lingchat.errors import DiskError, TraceError
from lingchat.stats import RunStats, footer, summary, timings
from lingchat.trace import TraceEncoder, TraceWriter, find_run, list_runs, mask, mask_argv, read_trace

SECOND = 1000 * MS
START = events.RunStart(
    t_ns=7_777 * SECOND + 123, id="", wall="2025-03-01T09:41:07+01:00", argv=("lingchat",), model="m"
)


class Clock:
    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


def live(rounds_of_turns):
    found = [START]
    for number, rounds in enumerate(rounds_of_turns, 1):
        found += turn_events(rounds, turn=number, at_ns=START.t_ns + number * 100 * SECOND)
    return found


def written(folder, found, **options):
    writer = TraceWriter.create(folder, START, **options)
    for event in found[1:]:
        writer.write(event)
    writer.close()
    return writer


ROUNDS = [(9_000, 3, 4, 2), (4_000, 1, 4, 0), (3_000, 0, 2, 0), (8_000, 2, 8, 5)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(turns=st.lists(round_rows(max_size=12), max_size=3))
def test_a_trace_gives_the_digits_of_the_live_fold(tmp_path, turns):
    found = live(turns)
    fold = RunStats()
    for event in found:
        fold.add(event)
    trace = read_trace(written(tmp_path, found).path)
    again = trace.fold()
    assert (trace.unknown, trace.damaged, trace.torn) == (0, 0, False)
    assert summary(again.total) == summary(fold.total)
    for number, turn in fold.turns.items():
        assert footer(again.turns[number]) == footer(turn)
        assert timings(again.turns[number]) == timings(turn)
    ends = [event for event in trace if isinstance(event, events.TurnEnd)]
    assert [end.stats for end in ends] == [summary(turn) for turn in fold.turns.values()]


def test_lines_have_version_sequence_and_times_from_run_start(tmp_path):
    writer = written(tmp_path, live([ROUNDS]))
    lines = [json.loads(line) for line in writer.path.read_text().splitlines()]
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    assert {line["v"] for line in lines} == {1}
    assert lines[0]["type"] == "run.start" and lines[0]["t_ns"] == 0 and lines[0]["id"] == writer.id
    assert lines[1]["t_ns"] == 100 * SECOND + MS
    assert list(lines[0])[:4] == ["v", "seq", "type", "t_ns"]
    assert stat.S_IMODE(writer.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_the_encoder_gives_the_lines_of_the_file(tmp_path):
    found = live([ROUNDS])
    writer = written(tmp_path, found)
    encoder = TraceEncoder(START)
    lines = [encoder.line(event) for event in [events.RunStart(**{**_fields(START), "id": writer.id}), *found[1:]]]
    assert writer.path.read_bytes() == b"".join(line + b"\n" for line in lines)


def _fields(event):
    return {name: getattr(event, name) for name in event.__struct_fields__}


def test_the_run_ends_with_the_figures_of_all_turns(tmp_path):
    end = events.RunEnd(t_ns=START.t_ns + 999 * SECOND, status="ok", exit=0)
    trace = read_trace(written(tmp_path, [*live([ROUNDS, ROUNDS]), end]).path)
    assert trace[-1].stats == summary(trace.fold().total)
    assert trace[-1].stats["tokens"] == 12


def test_a_trace_torn_at_any_byte_is_read_up_to_its_last_whole_line(tmp_path):
    text = events.Text(t_ns=START.t_ns, turn=1, delta="größe 漢字 🙂 \u2028 end")
    whole = written(tmp_path, [START, text, *turn_events(ROUNDS)[:2], text]).path.read_bytes()
    expected = list(read_trace(next(tmp_path.glob("*.jsonl"))))
    first = whole.index(b"\n")
    torn = tmp_path / "torn.jsonl"
    for cut in range(len(whole) + 1):
        torn.write_bytes(whole[:cut])
        if cut < first:
            with pytest.raises(TraceError, match="no trace"):
                read_trace(torn)
            continue
        trace = read_trace(torn)
        lines = whole[:cut].count(b"\n")
        whole_but_newline = whole[cut : cut + 1] == b"\n"
        assert list(trace) == expected[: lines + whole_but_newline]
        assert trace.torn == (not whole_but_newline and whole[cut - 1 : cut] != b"\n")
        assert trace.damaged == 0


def test_damage_and_unknown_types_are_passed_over_and_counted(tmp_path):
    path = written(tmp_path, live([ROUNDS])).path
    lines = path.read_bytes().splitlines(keepends=True)
    bad_rounds = b'{"v":1,"seq":9,"type":"decode","t_ns":1,"turn":1,"t0_ns":0,"dt_us":[1,2],"k":[1],"m":[0],"a":[0]}\n'
    future = b'{"v":1,"seq":9,"type":"tool.intent","t_ns":5,"call":"x"}\n'
    path.write_bytes(b"".join([*lines[:2], future, b"\xff\xfe\x00 garbage\n", bad_rounds, b"\n", *lines[2:]]))
    trace = read_trace(path)
    assert (trace.unknown, trace.damaged, trace.torn) == (1, 2, False)
    assert len(trace) == len(lines)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no trace"),
        (b"GGUF\x03\x00\x00", "no trace"),
        (b"[1,2]\n", "no trace"),
        (b'{"hello":1}\n', "no trace"),
        (b'{"v":1,"seq":0,"type":"text","t_ns":1,"turn":1,"delta":"x"}\n', "run.start"),
        (b'{"v":9,"type":"run.start"}\n', "newer lingchat"),
    ],
)
def test_what_is_no_trace_says_so(tmp_path, content, says):
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=says):
        read_trace(path)


def test_a_missing_trace_and_a_folder_say_so(tmp_path):
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(TraceError, match="cannot read"):
            read_trace(path)


# -- when the file is written -------------------------------------------------------------------------------------


def test_lines_wait_at_most_a_tenth_of_a_second(tmp_path):
    clock = Clock()
    writer = TraceWriter.create(tmp_path, START, clock=clock)
    size = writer.path.stat().st_size
    text = events.Text(t_ns=START.t_ns, turn=1, delta="x")
    clock.now = 99 * MS
    writer.write(text)
    assert writer.path.stat().st_size == size
    writer.tick(100 * MS)
    assert len(read_trace(writer.path)) == 2
    clock.now = 600 * MS
    writer.write(text)
    assert len(read_trace(writer.path)) == 3
    writer.write(events.TurnStart(t_ns=START.t_ns, turn=1, prompt_tokens=1, reused=0))
    writer.write(events.TurnEnd(t_ns=START.t_ns, turn=1, stop="eos"))
    assert len(read_trace(writer.path)) == 5  # an end is on the disk at once


def test_a_full_disk_loses_nothing(tmp_path):
    found = live([ROUNDS])
    writer = TraceWriter.create(tmp_path, START)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (writer.path.stat().st_size + 100, limits[1]))
    failed = 0
    try:
        for event in found[1:]:
            try:
                writer.write(event)
            except DiskError as error:
                failed += 1
                assert str(writer.path) in str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert failed
    assert read_trace(writer.path).torn
    writer.close()
    trace = read_trace(writer.path)
    assert not trace.torn and len(trace) == len(found)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="cannot make"):
        TraceWriter.create(tmp_path / "file" / "runs", START)


# -- secrets ------------------------------------------------------------------------------------------------------

TOKEN = "hf_" + "aB3" * 8


@pytest.mark.parametrize(
    "argv",
    [
        ("--api-key", "SECRET"),
        ("--hf-token=SECRET",),
        ("--header", "Authorization: Bearer SECRET"),
        ("HF_TOKEN=SECRET",),
        ("password=SECRET&x=1",),
        ('{"api_key": "SECRET"}',),
        ("https://user:SECRET@example.invalid/path",),
    ],
)
def test_secrets_in_the_command_line_are_masked(tmp_path, argv):
    start = events.RunStart(t_ns=0, id="x", wall="", argv=("lingchat", *argv))
    path = TraceWriter.create(tmp_path, start).path
    assert "SECRET" not in path.read_text() and "***" in path.read_text()


def test_token_shapes_are_masked_in_messages_too(tmp_path):
    assert TOKEN not in mask(f"cannot fetch with {TOKEN}.") and TOKEN not in " ".join(mask_argv((TOKEN,)))
    writer = TraceWriter.create(tmp_path, START)
    writer.write(events.Error(t_ns=START.t_ns, code="fetch", message=f"refused {TOKEN}"))
    writer.close()
    assert TOKEN not in writer.path.read_text()


@pytest.mark.parametrize(
    "text",
    ["--max-tokens 5", "the prompt has 3,000 tokens: the context holds 2,048", "tokenizer=x", "unexpected token: }"],
)
def test_everyday_words_are_not(text):
    assert mask(text) == text
    assert mask_argv(tuple(text.split())) == tuple(text.split())


def test_names_that_are_not_utf8_are_written(tmp_path):
    start = events.RunStart(t_ns=0, id="x", wall="", cwd=os.fsdecode(b"/tmp/\xff"), argv=(os.fsdecode(b"\xff"),))
    assert read_trace(TraceWriter.create(tmp_path, start).path).start.cwd == "/tmp/?"


# -- finding ------------------------------------------------------------------------------------------------------


def test_finding_runs(tmp_path):
    for name, wall in (("20250301-a1", "2025-03-01"), ("20250302-b2", "2025-03-02"), ("20250303-b3", "2025-03-03")):
        TraceWriter.create(tmp_path, events.RunStart(t_ns=0, id=name, wall=wall, model="m")).close()
    (tmp_path / "junk.jsonl").write_text("nothing")
    assert [run.id for run in list_runs(tmp_path)] == ["20250303-b3", "20250302-b2", "20250301-a1"]
    assert find_run("20250301", tmp_path).stem == find_run("a1", tmp_path).stem == "20250301-a1"
    assert find_run("last", tmp_path).stem == "20250303-b3"
    assert find_run(tmp_path / "junk.jsonl", tmp_path).stem == "junk"
    with pytest.raises(TraceError, match="any of"):
        find_run("2025", tmp_path)
    with pytest.raises(TraceError, match="newest are 20250303-b3"):
        find_run("zzz", tmp_path)
    with pytest.raises(TraceError, match="nor is there any yet"):
        find_run("", tmp_path / "none")
    with pytest.raises(TraceError):
        find_run("x" * 5000, tmp_path)


def test_two_runs_never_share_a_file(tmp_path):
    start = events.RunStart(t_ns=0, id="same", wall="")
    TraceWriter.create(tmp_path, start)
    with pytest.raises(DiskError, match="cannot open"):
        TraceWriter.create(tmp_path, start)
    assert TraceWriter.create(tmp_path, START).id != TraceWriter.create(tmp_path, START).id
