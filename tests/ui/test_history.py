"""Prompt history and draft on disk."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from lingchat.errors import DiskError
from lingchat.ui.history import Draft, History


def test_entries_survive_and_own_project_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history.jsonl"
    mine = History(path, "/mine")
    mine.add("fix the cache")
    History(path, "/other").add("fix the roof")
    again = History(path, "/mine")
    assert again.starting_with("fix") == ["fix the cache", "fix the roof"]
    assert again.containing("ROOF fix") == ["fix the roof"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [json.loads(line)["project"] for line in path.read_text().splitlines()] == ["/mine", "/other"]


def test_private_repeats_and_blank_add_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path, "/p")
    history.add("one")
    history.add("one")
    history.add("  \n")
    history.private = True
    history.add("secret")
    assert history.starting_with("") == ["one"]
    assert "secret" not in path.read_text()
    assert len(path.read_text().splitlines()) == 1


def test_a_torn_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    History(path, "/p").add("whole")
    with path.open("a") as file:
        file.write('{"time":"x","project":"/p","te')
    assert History(path, "/p").starting_with("") == ["whole"]
    History(path, "/p").add("after")
    assert History(path, "/p").starting_with("") == ["after", "whole"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(DiskError, match="file"):
        History(blocked / "history.jsonl", "/p").add("x")


def test_draft_is_kept_by_project_and_removed_when_empty(tmp_path: Path) -> None:
    draft = Draft(tmp_path, "/a")
    draft.save("half a thought\nзавтра")
    assert Draft(tmp_path, "/a").load() == "half a thought\nзавтра"
    assert Draft(tmp_path, "/b").load() == ""
    draft.save("")
    assert Draft(tmp_path, "/a").load() == ""
    assert not list((tmp_path / "drafts").iterdir())
