"""The folder of sessions: finding, listing, searching, deleting; the index is derived and never the truth."""

from __future__ import annotations

import sqlite3
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lingchat.errors import SessionError
from lingchat.session import SessionStore
from lingchat.session.index import snippet


class Wall:
    """A minute passes with every look."""

    def __init__(self):
        self.minute = 0

    def __call__(self):
        self.minute += 1
        return f"2025-03-01T{self.minute // 60:02d}:{self.minute % 60:02d}:00+00:00"


@pytest.fixture
def store(tmp_path):
    return SessionStore(tmp_path / "sessions", wall=Wall())


def said(store, *texts, title=""):
    session = store.create(title)
    for text in texts:
        session.add("user", text)
    session.close()
    return session.id


def dump(store):
    store.list()
    db = sqlite3.connect(store.root / "index.sqlite")
    sessions = db.execute("SELECT * FROM sessions ORDER BY id").fetchall()
    messages = db.execute(
        "SELECT session, node, role, time, content FROM messages JOIN texts ON texts.rowid = messages.id "
        "ORDER BY session, node"
    ).fetchall()
    orphans = db.execute("SELECT count(*) FROM texts").fetchone()[0] - len(messages)
    db.close()
    return sessions, messages, orphans


def test_the_list_is_newest_first(store):
    one, two = said(store, "first question"), said(store, "second", "more", title="named")
    assert [(i.id, i.title, i.messages) for i in store.list()] == [(two, "named", 2), (one, "first question", 1)]
    session = store.open(one)
    session.add("user", "again")
    session.close()
    assert [i.id for i in store.list(limit=1)] == [one] and store.last_id() == one
    assert store.find("last") == one


def test_last_without_sessions(store):
    assert store.last_id() is None and store.list() == [] and store.search("x") == []
    with pytest.raises(SessionError, match="no session yet"):
        store.open("last")


def test_a_session_is_found_by_a_unique_part_of_its_id(store):
    one = said(store, "x")
    assert store.find(one[:-1]) == store.find(one[-6:]) == one
    said(store, "y")
    with pytest.raises(SessionError, match="any of"):
        store.find("2")


def test_search_finds_parts_of_words_in_any_script(store):
    one = said(store, "Why does the kv_cache grow?", title="t1")
    two = said(store, "日本語の文章を短くして", 'Größe: 50% of it\'s "x"')
    hits = lambda text: [(h.session, h.node) for h in store.search(text)]  # noqa: E731
    assert hits("cache") == hits("KV_CACHE grow") == hits("kv") == [(one, 1)]
    assert hits("本語") == hits("短くして") == [(two, 1)]
    assert hits("größe") == hits("0%") == hits('"x"') == hits("it's") == [(two, 2)]
    assert hits("cache 日本語") == hits("nowhere") == hits("  ") == []
    assert hits("t1") == [(one, 0)]


@pytest.mark.parametrize(
    "text", ['"', "a AND", "NEAR(", "*", "%", "_", "\\", "' OR 1=1 --", "a:b", "-x", "\x00abc", "(((("]
)
def test_any_text_can_be_searched_for(store, text):
    said(store, "nothing of the kind")
    store.search(text)
    one = said(store, f"here: {text} !")
    if text.strip():
        assert one in {hit.session for hit in store.search(text)}


def test_a_hit_shows_its_place_on_one_line(store):
    said(store, "long " * 50 + "\nthe   needle\nis here " + "tail " * 50)
    hit = store.search("NEEDLE")[0]
    assert hit.match == "needle" and hit.before.endswith("the ") and hit.after.startswith(" is here")
    assert "\n" not in hit.before + hit.after and hit.before.startswith("…") and hit.after.endswith("…")
    assert snippet("short", ["short"]) == ("", "short", "")


def test_replies_are_found_while_they_grow_and_after(store):
    session = store.create()
    session.add("user", "q")
    reply = session.begin_reply()
    reply.delta("alpha ", 0)
    assert [h.node for h in store.search("alpha")] == [2]
    reply.delta("betadelta", 10**9)
    assert [h.node for h in store.search("betadelta")] == [h.node for h in store.search("alpha")] == [2]
    reply.finish("eos")
    session.add("user", "gamma")
    assert [h.node for h in store.search("gamma")] == [3]
    assert store.list()[0].messages == 3
    assert dump(store)[2] == 0


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_index_kept_up_to_date_equals_the_index_made_again(tmp_path_factory, data):
    store = SessionStore(tmp_path_factory.mktemp("s"), wall=Wall())
    sessions, replies = [store.create(), store.create()], [None, None]
    for _ in range(data.draw(st.integers(1, 20))):
        which = data.draw(st.integers(0, 1))
        session, reply = sessions[which], replies[which]
        text = data.draw(st.text(max_size=8))
        match data.draw(st.sampled_from(["add", "begin", "delta", "finish", "rename", "kill", "index"])):
            case "add":
                session.add("user", text)
            case "begin" if reply is None:
                replies[which] = session.begin_reply()
            case "delta" if reply is not None:
                reply.delta(text, 0)
                session.flush()
            case "finish" if reply is not None:
                reply.finish("eos")
                replies[which] = None
            case "rename":
                session.rename(text)
            case "kill" if session.file.exists():
                session.discard()
                sessions[which], replies[which] = store.open(session.id), None
            case "index":
                store.list()
    kept = dump(store)
    store.rebuild_index()
    assert dump(store) == kept
    assert kept[2] == 0
    for session in sessions:
        session.close()


def test_only_what_is_new_is_read(store, monkeypatch):
    session = store.create()
    session.add("user", "one")
    store.list()
    from lingchat.session import index

    read = []
    decode = index.decode
    monkeypatch.setattr(index, "decode", lambda data, **kw: read.append(data) or decode(data, **kw))
    store.list()
    assert read == []
    session.add("user", "two")
    store.list()
    assert len(read) == 1 and b"two" in read[0] and b"one" not in read[0]


def test_a_damaged_index_is_made_again(store):
    one = said(store, "needle")
    store.list()
    for content in (b"not a database at all, by no means" * 100, b""):
        (store.root / "index.sqlite").write_bytes(content)
        for extra in ("-wal", "-shm"):
            (store.root / f"index.sqlite{extra}").unlink(missing_ok=True)
        assert [h.session for h in store.search("needle")] == [one]


def test_an_index_of_another_schema_is_made_again(store):
    one = said(store, "needle")
    store.list()
    db = sqlite3.connect(store.root / "index.sqlite")
    db.execute("PRAGMA user_version = 99")
    db.execute("DELETE FROM sessions")
    db.commit()
    db.close()
    assert [i.id for i in store.list()] == [one]


def test_delete_can_be_undone(store):
    one, two = said(store, "needle"), said(store, "other")
    assert store.delete(one) == one
    assert [i.id for i in store.list()] == [two] and store.search("needle") == []
    with pytest.raises(SessionError):
        store.open(one)
    assert store.deleted() == [one]
    store.restore(one)
    assert [h.session for h in store.search("needle")] == [one] and store.deleted() == []
    with pytest.raises(SessionError, match="no deleted session"):
        store.restore(one)
    with pytest.raises(SessionError, match="no deleted session"):
        store.restore("../" + one)


def test_an_open_session_is_not_deleted_but_renamed(store):
    session = store.create()
    session.add("user", "x")
    with pytest.raises(SessionError, match="is open"):
        store.delete(session.id)
    store.rename(session.id, "named")
    assert session.title == "named" == store.list()[0].title
    session.close()
    store.rename(session.id, "again")
    assert store.list()[0].title == "again"


def test_the_trash_is_emptied_after_a_week(store):
    one = said(store, "x")
    store.delete(one)
    store.empty_trash(older_than_s=60)
    assert store.deleted() == [one]
    store.empty_trash()
    assert store.deleted() == []


def test_several_may_make_the_index_at_once(store):
    names = {said(store, f"needle {i}") for i in range(5)}
    found, failed = [], []

    def look():
        try:
            found.append({hit.session for hit in SessionStore(store.root).search("needle")})
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [] and found == [names] * 6
