"""`lingchat config`: where the file is, what holds and why, and changing one setting without touching the rest."""

from __future__ import annotations

import pytest

from lingchat.config import load_settings, paths
from lingchat.config_cli import main
from lingchat.config_fields import FIELDS
from lingchat.errors import ConfigError, UsageError


def test_path(capsys):
    assert main(["path"]) == 0
    assert capsys.readouterr().out.strip() == str(paths().config_file)


def test_show_names_every_setting_with_its_origin(capsys, monkeypatch):
    main(["set", "temperature", "0.5"])
    monkeypatch.setenv("LINGCHAT_THREADS", "3")
    main(["show"])
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(rows) == {field.key for field in FIELDS}
    assert "0.5" in rows["sampling.temperature"] and str(paths().config_file) in rows["sampling.temperature"]
    assert rows["threads"].endswith("environment LINGCHAT_THREADS")
    assert rows["panel"].endswith("default")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0.25", 0.25),
        ("sampling.top_k", "40", 40),
        ("stop", '["a\\"b", "c"]', ('a"b', "c")),
        ("model", 'a "quoted" \\ name', 'a "quoted" \\ name'),
        ("system", "two\nlines", "two\nlines"),
        ("spec", "4", 4),
        ("seed", "none", None),
        ("mouse", "off", False),
    ],
)
def test_what_is_set_is_what_is_loaded(name, text, value):
    main(["set", name, text])
    assert getattr(load_settings(env={}, file=paths().config_file), name.removeprefix("sampling.")) == value


def test_setting_leaves_the_rest_of_the_file_as_it_is():
    file = paths().config_file
    file.parent.mkdir(parents=True)
    file.write_text('# mine\ntheme = "dark"  # why\n\n[sampling]\n# careful\ntop_k = 3\n')
    main(["set", "top_k", "5"])
    main(["set", "seed", "1"])
    main(["set", "mouse", "off"])
    text = file.read_text()
    assert text.startswith('# mine\ntheme = "dark"  # why\n') and "# careful\ntop_k = 5\n" in text
    settings = load_settings(env={}, file=file)
    assert (settings.theme, settings.top_k, settings.seed, settings.mouse) == ("dark", 5, 1, False)


@pytest.mark.parametrize("words", [["set", "nonsense", "1"], ["set", "top_p", "7"], ["set", "top_p"], ["what"]])
def test_mistakes_are_refused_and_write_nothing(words):
    with pytest.raises(UsageError):
        main(words)
    assert not paths().config_file.exists()


def test_a_broken_file_is_not_overwritten():
    file = paths().config_file
    file.parent.mkdir(parents=True)
    file.write_text("theme = ")
    with pytest.raises(ConfigError, match="not valid TOML"):
        main(["set", "theme", "light"])
    assert file.read_text() == "theme = "


def test_a_theme_that_is_not_there_is_refused_before_it_stops_a_start():
    with pytest.raises(UsageError, match="pink"):
        main(["set", "theme", "pink"])
    assert not paths().config_file.exists()
    for name in ("light", "ansi", "nord"):
        assert main(["set", "theme", name]) == 0
        assert load_settings({}).theme == name
