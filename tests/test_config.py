"""Settings: which source wins, what each value remembers of it, and what bad values get."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from lingchat.config import Settings, load_settings, paths
from lingchat.config_fields import FIELDS
from lingchat.engines.api import Sampling
from lingchat.errors import ConfigError, UsageError


@pytest.fixture
def file(tmp_path):
    return tmp_path / "config.toml"


def loaded(file, text="", flags=None, **env):
    file.write_text(text)
    return load_settings(flags, env, file)


def test_defaults_are_those_of_sampling():
    settings = load_settings(env={}, file=Path("/nonexistent/config.toml"))
    assert Sampling(**settings.sampling_fields()) == Sampling()
    assert set(settings.origins.values()) == {"default"}
    named = {field.name for field in FIELDS}
    assert named == set(Settings.__struct_fields__) - {"origins", "keys"} == set(settings.origins) - {"keys"}


def test_every_default_passes_its_own_check():
    defaults = Settings()
    for field in FIELDS:
        assert field.check(getattr(defaults, field.name)) == getattr(defaults, field.name)


def test_precedence_and_origins(file):
    text = 'model = "file"\ntheme = "file"\n[sampling]\ntemperature = 0.1\ntop_k = 3\n'
    env = {"LINGCHAT_MODEL": "env", "LINGCHAT_TEMPERATURE": "0.2"}
    settings = loaded(file, text, {"model": "flag", "seed": None}, **env)
    assert (settings.model, settings.temperature, settings.theme, settings.top_k) == ("flag", 0.2, "file", 3)
    assert settings.origins["model"] == "flag --model"
    assert settings.origins["temperature"] == "environment LINGCHAT_TEMPERATURE"
    assert settings.origins["theme"] == settings.origins["top_k"] == str(file)
    assert settings.origins["seed"] == "default"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("temprature = 1", "no setting is called temprature, did you mean temperature"),
        ("temperature = 1", r"temperature belongs in \[sampling\]"),
        ("[sampling]\ntemperature = 200", r"sampling.temperature is 200, but must be a number from 0 to 100"),
        ("[sampling]\ntop_p = 0", "sampling.top_p is 0"),
        ("[sampling]\ntop_p = nan", "sampling.top_p is nan"),
        ("[sampling]\ntop_k = 1.5", "sampling.top_k is 1.5"),
        ("[sampling]\ntop_k = true", "sampling.top_k is True"),
        ('device = "tpu"', "device is 'tpu', but must be one of auto, cpu, cuda"),
        ('thinking = "maybe"', "thinking is 'maybe', but must be auto, on or off"),
        ('dtype = "int3"', "dtype is 'int3', but must be one of auto, int8, fp32, bf16, fp8, int4"),
        ('[sampling]\nstop = [""]', "sampling.stop"),
        ("[sampling]\nstop = [1]", "sampling.stop"),
        ("spec = 99", "spec is 99"),
        ('panel = "big"', "one of panel, strip, off"),
        ('mouse = "maybe"', "true or false"),
        ("threads = -1", "threads is -1"),
        ("model = 3", "model is 3"),
        ("model = ", "not valid TOML"),
        ("[nowhere]\nx = 1", "no setting is called nowhere.x"),
    ],
)
def test_a_bad_file_names_file_key_and_value(file, text, says):
    with pytest.raises(ConfigError, match=says) as caught:
        loaded(file, text)
    assert str(file) in str(caught.value)


def test_bytes_that_are_no_text(file):
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_settings(env={}, file=file)


def test_a_bad_variable_and_a_bad_flag_are_named(file):
    with pytest.raises(ConfigError, match="the variable LINGCHAT_TOP_P is '0'"):
        loaded(file, LINGCHAT_TOP_P="0")
    with pytest.raises(UsageError, match="the flag --max-tokens is 'x'"):
        loaded(file, flags={"max_tokens": "x"})
    with pytest.raises(UsageError, match="no setting is called nonsense"):
        loaded(file, flags={"nonsense": 1})


def test_a_bad_value_is_refused_even_where_a_flag_overrules_it(file):
    with pytest.raises(ConfigError):
        loaded(file, "spec = 99", {"spec": "off"})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("spec", "auto", "on"),
        ("spec", "off", "off"),
        ("spec", "0", "off"),
        ("spec", "4", 4),
        ("seed", "none", None),
        ("seed", "7", 7),
        ("mouse", "off", False),
        ("private", "1", True),
        ("stop", "END", ("END",)),
        ("stop", '["a", "b"]', ("a", "b")),
        ("model", "", None),
        ("temperature", "0", 0.0),
    ],
)
def test_text_values(file, name, text, value):
    assert getattr(loaded(file, flags={name: text}), name) == value
    assert getattr(loaded(file, **{f"LINGCHAT_{name.upper()}": text}), name) == value


def test_no_color(file):
    settings = loaded(file, 'color = "always"', NO_COLOR="1")
    assert (settings.color, settings.origins["color"]) == ("never", "environment NO_COLOR")
    assert loaded(file, NO_COLOR="").color == "auto"
    assert loaded(file, NO_COLOR="1", LINGCHAT_COLOR="always").color == "always"
    assert loaded(file, flags={"color": "always"}, NO_COLOR="1").color == "always"


def test_one_variable_moves_every_folder(tmp_path):
    found = paths({"LINGCHAT_HOME": str(tmp_path / "home")})
    for folder in (found.config_file, found.sessions, found.runs, found.models, found.history, found.cache):
        assert folder.is_relative_to(tmp_path / "home")
    assert not (tmp_path / "home").exists()  # asking makes nothing


def test_folders_follow_xdg(tmp_path, monkeypatch):
    monkeypatch.delenv("LINGCHAT_HOME")
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    found = paths()
    assert found.config_file == tmp_path / "CONFIG" / "lingchat" / "config.toml"
    assert found.runs == tmp_path / "DATA" / "lingchat" / "runs"
    assert found.history == tmp_path / "STATE" / "lingchat" / "history.jsonl"
    assert found.cache == tmp_path / "CACHE" / "lingchat"


@pytest.mark.parametrize(
    "env",
    [
        {"HOME": "/home/someone"},
        {"HOME": "/home/someone/", "XDG_DATA_HOME": "/data", "XDG_STATE_HOME": "relative"},
        {"HOME": "relative", "XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": "/c"},
        {"XDG_CONFIG_HOME": "/only/config"},
    ],
    ids=["home alone", "a relative folder is none", "a relative home is none", "no home"],
)
def test_folders_are_those_of_platformdirs(env, monkeypatch):
    for name in ("LINGCHAT_HOME", "HOME", *(f"XDG_{kind}_HOME" for kind in ("CONFIG", "DATA", "STATE", "CACHE"))):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    dirs = platformdirs.PlatformDirs("lingchat", appauthor=False)
    assert paths() == (dirs.user_config_path, dirs.user_data_path, dirs.user_state_path, dirs.user_cache_path)


def test_keys_are_read_by_action_id(file):
    settings = loaded(file, '[keys]\nchat.latency = "f9, ctrl+l"\n"prompt.send" = "ctrl+s"\n')
    assert settings.keys == {"chat.latency": "f9,ctrl+l", "prompt.send": "ctrl+s"}
    assert settings.origins["keys"] == str(file)
    assert loaded(file).keys == {} and loaded(file).origins["keys"] == "default"


@pytest.mark.parametrize("text", ["keys = 3", "[keys]\nchat.latency = 2", '[keys]\nchat.latency = "f2,,f3"'])
def test_keys_that_cannot_be_are_named(file, text):
    with pytest.raises(ConfigError, match=r"config\.toml: keys"):
        loaded(file, text)


@pytest.mark.parametrize(
    ("text", "flags", "env", "thinking"),
    [
        ("thinking = true", {}, {}, "on"),
        ("thinking = false", {}, {}, "off"),
        ('thinking = "on"', {}, {"LINGCHAT_THINKING": "off"}, "off"),
        ('thinking = "on"', {"thinking": "auto"}, {"LINGCHAT_THINKING": "off"}, "auto"),
    ],
)
def test_thinking_is_a_switch_with_a_third_place(file, text, flags, env, thinking):
    assert loaded(file, text, flags, **env).thinking == thinking


def test_device_comes_from_every_source(file):
    assert loaded(file, 'device = "cuda"').device == "cuda"
    assert loaded(file, 'device = "cuda"', None, LINGCHAT_DEVICE="cpu").device == "cpu"
    with pytest.raises(UsageError, match="the flag --device is 'gpu', but must be one of auto, cpu, cuda"):
        loaded(file, "", {"device": "gpu"})
