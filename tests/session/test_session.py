"""An open session: its tree, its file, and what survives kills, locks, torn lines and full disks."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import stat
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lingchat.engines.api import Message
from lingchat.errors import DiskError, SessionError
from lingchat.session import INTERRUPTED, ROOT, SessionStore, records
from lingchat.session.tree import Tree

MS = 1_000_000


@pytest.fixture
def store(tmp_path):
    return SessionStore(tmp_path / "sessions")


def talked(store, *texts):
    """A session of user messages and whole replies in turn."""
    session = store.create()
    for i, text in enumerate(texts):
        if i % 2 == 0:
            session.add("user", text)
        else:
            reply = session.begin_reply()
            reply.delta(text, 0)
            reply.finish("eos", run="r1", turn=i, footer="2 tok", stats={"tokens": 2})
    return session


def contents(session):
    return [node.content for node in session.path()]


def reopened(store, session):
    session.close()
    return store.open(session.id)


# -- the tree -----------------------------------------------------------------------------------------------------


def test_a_conversation_comes_back_as_it_was(store):
    session = talked(store, "why?", "because", "größe 漢字 🙂")
    session.set_system("be brief")
    before = session.path()
    again = reopened(store, session)
    assert again.path() == before and again.system == "be brief" and again.damaged == 0
    reply = again.path()[1]
    assert (reply.role, reply.stop, reply.run, reply.turn, reply.footer, reply.stats) == (
        "assistant", "eos", "r1", 1, "2 tok", {"tokens": 2},
    )  # fmt: skip
    assert again.messages() == (
        Message("system", "be brief"),
        Message("user", "why?"),
        Message("assistant", "because"),
        Message("user", "größe 漢字 🙂"),
    )


def test_edit_and_regenerate_make_siblings_and_nothing_is_overwritten(store):
    session = talked(store, "one", "reply", "two", "reply two")
    first, reply, _, _ = session.path()
    size = session.file.read_bytes()
    again = session.begin_reply(parent=reply.parent)
    again.delta("other reply", 0)
    again.finish("eos")
    assert contents(session) == ["one", "other reply"]
    edited = session.add("user", "uno", parent=first.parent)
    assert contents(session) == ["uno"] and edited.parent == ROOT
    assert [node.content for node in session.siblings(edited)] == ["one", "uno"]
    assert [node.content for node in session.siblings(reply)] == ["reply", "other reply"]
    session.select(first)
    assert contents(session) == ["one", "other reply"]  # where that branch was left
    session.select(reply)
    assert contents(session) == ["one", "reply", "two", "reply two"]
    assert session.file.read_bytes().startswith(size)
    assert contents(reopened(store, session)) == ["one", "reply", "two", "reply two"]


def test_a_branch_can_end_early(store):
    session = talked(store, "one", "reply", "two")
    session.cut(session.path()[1])
    assert contents(session) == ["one", "reply"]
    session.add("user", "three")
    assert contents(reopened(store, session)) == ["one", "reply", "three"]


def test_reasoning_is_kept_and_sent_back(store):
    session = talked(store, "q")
    reply = session.begin_reply()
    reply.reasoning("hm ", 0)
    reply.reasoning("so", 0)
    reply.delta("a", 0)
    reply.finish("eos")
    session = reopened(store, session)
    assert session.leaf.reasoning == "hm so"
    assert session.messages()[-1] == Message("assistant", "a", "hm so")


def test_an_empty_reply_is_no_message_of_the_next_request(store):
    session = talked(store, "q")
    session.begin_reply().finish("cancel")
    assert session.leaf.stop == "cancel"
    assert session.messages() == (Message("user", "q"),)


def test_titles(store):
    session = store.create()
    session.add("user", "  why does\nthe cache " + "grow " * 40)
    assert session.title.startswith("why does the cache grow") and len(session.title) <= 60
    session.rename("kv\tcache bug")
    assert reopened(store, session).title == "kv cache bug"


def test_a_reply_grows_in_memory_at_once(store):
    session = talked(store, "q")
    reply = session.begin_reply()
    reply.delta("ab", 0)
    reply.delta("cd", 1)
    assert reply.node.content == contents(session)[-1] == "abcd" and reply.node.stop == ""


def test_unknown_messages_and_changes_after_the_end_are_refused(store):
    session = talked(store, "q")
    reply = session.begin_reply()
    reply.finish("eos")
    for wrong in (
        lambda: session.add("user", "x", parent=99),
        lambda: session.select(99),
        lambda: reply.delta("x", 0),
        lambda: store.open(session.id, readonly=True).add("user", "x"),
    ):
        with pytest.raises(SessionError):
            wrong()
    session.close()
    with pytest.raises(SessionError, match="closed"):
        session.add("user", "x")


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_done_is_what_is_read(store, data):
    session = store.create()
    ids = [ROOT]
    for _ in range(data.draw(st.integers(1, 12))):
        parent = data.draw(st.sampled_from([None, *ids]))
        match data.draw(st.sampled_from(["add", "reply", "select"])):
            case "add":
                ids.append(session.add("user", data.draw(st.text(max_size=5)), parent=parent).id)
            case "reply":
                reply = session.begin_reply(parent)
                for i, text in enumerate(data.draw(st.lists(st.text(max_size=3), max_size=4))):
                    reply.delta(text, i * 100 * MS)
                ids.append(reply.finish("eos").id)
            case "select":
                if parent:
                    session.select(parent)
    expected = [(node, session.siblings(node)) for node in session.path()]
    if len(session):
        again = reopened(store, session)
        assert [(node, again.siblings(node)) for node in again.path()] == expected
        again.close()


# -- the file -----------------------------------------------------------------------------------------------------


def test_an_unused_session_leaves_nothing(store, tmp_path):
    session = store.create()
    session.set_system("x")
    session.close()
    assert list(tmp_path.rglob("*")) == []


def test_files_are_private(store):
    session = talked(store, "q", "a")
    store.list()
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in store.root.iterdir()}
    assert set(modes.values()) == {0o600}, modes
    assert session.file.name in modes


def test_a_reply_is_written_ten_times_a_second_and_at_its_end(store):
    session = talked(store, "q")
    written = lambda: session.file.read_text()  # noqa: E731
    reply = session.begin_reply()
    reply.delta("first ", 1000 * MS)
    assert "first" in written()
    reply.delta("second ", 1099 * MS)
    assert "second" not in written()
    reply.delta("third ", 1100 * MS)
    assert "second third" in written()
    reply.delta("fourth", 1150 * MS)
    reply.tick(1199 * MS)
    assert "fourth" not in written()
    reply.tick(1200 * MS)
    assert "fourth" in written()
    reply.delta("!", 1201 * MS)
    reply.finish("eos")
    assert reopened(store, session).leaf.content == "first second third fourth!"


def test_a_file_torn_at_any_byte_opens_and_goes_on(store, tmp_path):
    session = talked(store, "größe 漢字", "réponse 🙂", "two")
    session.close()
    whole = session.file.read_bytes()
    full = contents(store.open(session.id, readonly=True))
    for cut in range(whole.index(b"\n") + 1, len(whole)):
        session.file.write_bytes(whole[:cut])
        again = store.open(session.id)
        found = contents(again)
        assert all(a == b or b.startswith(a) for a, b in zip(found, full, strict=False)) and again.damaged == 0
        again.add("user", "on")
        again.close()
        assert contents(store.open(session.id, readonly=True)) == [*found, "on"]


def test_a_reply_without_an_end_was_interrupted_and_the_file_says_so_from_then_on(store):
    session = talked(store, "q")
    reply = session.begin_reply()
    reply.delta("half", 0)
    session.discard()
    assert store.open(session.id, readonly=True).leaf.stop == INTERRUPTED
    again = store.open(session.id)
    assert (again.leaf.content, again.leaf.stop) == ("half", INTERRUPTED)
    assert json.loads(again.file.read_text().splitlines()[-1])["stop"] == INTERRUPTED


def test_damaged_lines_are_passed_over_and_the_rest_hangs_together(store):
    session = talked(store, "one", "reply", "two", "reply two")
    session.close()
    lines = session.file.read_bytes().splitlines(keepends=True)
    lost = next(i for i, line in enumerate(lines) if b'"two"' in line)
    duplicate = b'{"type":"node","id":1,"parent":4,"role":"user","content":"circle"}\n'
    session.file.write_bytes(b"".join([*lines[:lost], b"\xff\x00 nonsense\n", b"[1]\n", *lines[lost + 1 :], duplicate]))
    again = store.open(session.id)
    assert contents(again) == ["one", "reply", "reply two"]
    assert again.damaged == 2


def test_a_lost_head_or_beginning_costs_no_text(store):
    session = talked(store, "one", "reply")
    session.close()
    lines = session.file.read_bytes().splitlines(keepends=True)
    session.file.write_bytes(b"garbage\n" + b"".join(line for line in lines[1:] if b'"reply",' not in line))
    again = store.open(session.id)
    assert contents(again) == ["one", "reply"]


def test_what_is_no_session_says_so(store):
    store.root.mkdir(parents=True)
    for content in (b"", b"GGUF\x00\x01", b"no\nlines\n"):
        (store.root / "x.jsonl").write_bytes(content)
        with pytest.raises(SessionError, match="no session"):
            store.open("x")
    for name in ("missing", "../x", "", "a/b", "x" * 500):
        with pytest.raises(SessionError, match="no session is called"):
            store.open(name)
    assert not list(store.root.glob("*.lock"))


def test_a_thousand_messages_open_in_one_pass(store, monkeypatch):
    session = store.create()
    for _ in range(500):
        session.add("user", "a question of some length " * 4)
        reply = session.begin_reply()
        for i in range(8):
            reply.delta("some words of an answer ", i * 250 * MS)
        reply._queue_text()
        session._apply(records.Ended(id=reply.id, stop="eos", footer="8 tok", stats={"tokens": 8}))
    session.close()
    applied = []
    apply = Tree.apply
    monkeypatch.setattr(Tree, "apply", lambda tree, record: applied.append(record) or apply(tree, record))
    opened = store.open(session.id)
    assert len(opened.path()) == 1000
    opened.close()
    assert len(applied) == len(opened.file.read_bytes().splitlines())  # each record once


# -- versions -----------------------------------------------------------------------------------------------------


def test_an_older_version_is_migrated_and_kept(store, monkeypatch):
    def up(record):
        if record["type"] == "message":
            record = {**record, "type": "node", "role": "user", "parent": record["id"] - 1}
        return record

    store.root.mkdir(parents=True)
    old = '{"type":"session","v":0,"id":"old","created":"2024-01-01T00:00:00+00:00"}\n' + "".join(
        f'{{"type":"message","id":{i},"content":"m{i}"}}\n' for i in (1, 2)
    )
    (store.root / "old.jsonl").write_text(old)
    monkeypatch.setitem(records.MIGRATIONS, 0, up)
    assert contents(store.open("old", readonly=True)) == ["m1", "m2"]
    assert (store.root / "old.jsonl").read_text() == old  # reading changes nothing
    assert [info.messages for info in store.list()] == [2]
    session = store.open("old")
    session.add("user", "m3")
    session.close()
    assert (store.root / "old.v0").read_text() == old
    assert contents(store.open("old")) == ["m1", "m2", "m3"]
    assert [info.messages for info in store.list()] == [3]


def test_a_newer_version_is_refused(store):
    store.root.mkdir(parents=True)
    (store.root / "new.jsonl").write_text('{"type":"session","v":99,"id":"new","created":""}\n')
    with pytest.raises(SessionError, match="newer lingchat"):
        store.open("new")
    assert store.list() == []


# -- kills, locks, full disks ---------------------------------------------------------------------------------------

WRITER = """
import sys, time
from pathlib import Path
from lingchat.session import SessionStore
session = SessionStore(Path(sys.argv[1])).create()
session.add("user", "q")
reply = session.begin_reply()
print(session.id, flush=True)
n = 0
while True:
    now = time.monotonic_ns()
    reply.delta(f"{n} ", now)
    print(n, now, flush=True)
    n += 1
    time.sleep(0.005)
"""


def started(program, *args):
    return subprocess.Popen([sys.executable, "-c", program, *map(str, args)], stdout=subprocess.PIPE, text=True)


def test_kill_9_loses_at_most_a_quarter_second(store):
    child = started(WRITER, store.root)
    try:
        name = child.stdout.readline().strip()
        said = [child.stdout.readline().split() for _ in range(150)]  # some 0.8 s: past several flushes
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    said += [line.split() for line in child.stdout.read().splitlines() if len(line.split()) == 2]
    session = store.open(name)  # the lock died with its holder
    assert session.leaf.stop == INTERRUPTED and session.damaged == 0
    kept = session.leaf.content.split()
    assert kept == [str(i) for i in range(len(kept))]
    assert len(kept) > 50
    lost = [int(now) for n, now in said if int(n) >= len(kept)]
    if lost:
        assert lost[-1] - lost[0] <= 250 * MS


HOLDER = """
import sys
from pathlib import Path
from lingchat.session import SessionStore
session = SessionStore(Path(sys.argv[1])).open(sys.argv[2])
print("open", flush=True)
sys.stdin.readline()
"""


def test_one_writer_at_a_time(store):
    session = talked(store, "q")
    with pytest.raises(SessionError, match=str(os.getpid())):
        SessionStore(store.root).open(session.id)
    name = session.id
    session.close()
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store.root), name], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    try:
        assert select.select([child.stdout], [], [], 30)[0] and child.stdout.readline() == "open\n"
        for refused in (store.open, store.delete, lambda n: store.rename(n, "x")):
            with pytest.raises(SessionError, match=f"process {child.pid}"):
                refused(name)
        assert contents(store.open(name, readonly=True)) == ["q"]
    finally:
        child.kill()
        child.wait()
    store.open(name).close()
    assert not list(store.root.glob("*.lock"))


def test_a_full_disk_loses_nothing_in_memory_and_nothing_twice(store):
    session = talked(store, "q")
    reply = session.begin_reply()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (session.file.stat().st_size + 50, limits[1]))
    try:
        with pytest.raises(DiskError, match="make room"):
            reply.delta("one ", 0)
        reply.delta("two ", 50 * MS)  # not tried again at once
        with pytest.raises(DiskError):
            reply.finish("eos")
        assert reply.node.content == "one two " and reply.node.stop == "eos" and session.unsaved
        with pytest.raises(DiskError):
            session.add("user", "next")
        with pytest.raises(DiskError):
            session.close()
        assert not session.closed
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    session.flush()
    assert session.unsaved == 0
    assert contents(reopened(store, session)) == ["q", "one two ", "next"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    session = SessionStore(tmp_path / "file" / "sessions").create()
    with pytest.raises(DiskError, match="cannot make"):
        session.add("user", "q")
    assert contents(session) == ["q"]  # the chat goes on in memory
    (tmp_path / "file").unlink()
    session.flush()
    assert contents(reopened(SessionStore(tmp_path / "file" / "sessions"), session)) == ["q"]
