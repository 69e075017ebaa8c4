"""The command line itself: what is understood, what is refused and with which hint, and what is never imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lingchat import __version__, errors
from lingchat.cli import COMMANDS, main, parser
from lingchat.config import load_settings, paths
from lingchat.config_cli import set_value
from lingchat.engines import process
from lingchat.engines.process import Worker, start_worker
from lingchat.errors import EXIT_PIPE, EXIT_UNEXPECTED, ConfigError, LingchatError, UsageError
from lingchat.opening import run_start
from lingchat.session import SessionStore
from lingchat.trace import TraceWriter

full_device = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command line."""
    try:
        code = main(argv)
    except SystemExit as end:  # -h and --version
        code = int(end.code or 0)
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def test_the_version(capsys) -> None:
    assert told(capsys, "--version") == (0, f"lingchat {__version__}\n", "")


def test_the_help_is_short_grouped_and_names_every_command(capsys) -> None:
    code, out, _ = told(capsys, "-h")
    assert code == 0
    lines = out.splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 100
    for command in COMMANDS:
        assert f"\n  {command} " in out
    for group in ("conversation:", "model:", "sampling:", "one reply (-p):"):
        assert group in out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--modle", "--model"),
        ("--temprature=0", "--temperature"),
        ("--max-token", "--max-tokens"),
        ("--stat", "--stats"),
    ],
)
def test_an_unknown_option_suggests_the_nearest(capsys, typed: str, meant: str) -> None:
    code, out, err = told(capsys, "-p", "x", typed)
    assert (code, out) == (2, "")
    assert f"did you mean {meant}?" in err and typed.split("=")[0] in err


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["modles"], "lingchat models?"),
        (["session"], "lingchat sessions?"),
        (["help"], "lingchat -h?"),
        (["sessions", "shwo", "last"], "did you mean show?"),
        (["config", "sett"], "did you mean set?"),
        (["models", "lsit"], "did you mean list?"),
        (["-p", "x", "--output", "jsn"], "did you mean json?"),
    ],
)
def test_a_mistyped_word_suggests_the_nearest(capsys, argv: list[str], meant: str) -> None:
    code, out, err = told(capsys, *argv)
    assert (code, out) == (2, "") and meant in err


def test_a_single_word_is_still_a_prompt(tmp_path: Path, capfd, monkeypatch) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"turns": [{"text": "an answer"}]}')
    monkeypatch.setenv("LINGCHAT_ENGINE", f"scripted:{script}")
    for argv in (["hello", "--no-stdin"], ["-p", "modles", "--no-stdin"]):
        assert main(argv) == 0
        assert capfd.readouterr().out == "an answer\n"


def test_what_does_not_exist_yet_is_not_offered() -> None:
    options = parser()._option_string_actions
    assert not {"--persona", "--tools", "--mode", "--max-steps", "--output-schema", "--exact"} & set(options)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-p"], "expected one argument"),
        (["hello", "there", "friend"], "quotes"),
        (["hello", "-p", "there"], "two prompts"),
        (["-c", "-r", "abc", "-p", "x"], "two sessions"),
        (["--plain", "--stats"], "belongs to -p"),
        (["--plain", "-o", "file"], "belongs to -p"),
        (["-p", "x", "--temperature", "warm"], "--temperature"),
        (["-p", "x", "--spec", "sometimes"], "--spec"),
        (["-p", "x", "--sampling", "top_q=3"], "top_q=3"),
        (["-p", "x", "--output", "yaml"], "yaml"),
        (["-p", "x", "--timeout", "0"], "timeout"),
        (["-p", "x", "--timeout", "soon"], "timeout"),
        (["sessions", "destroy"], "destroy"),
        (["config", "set", "temperature"], "value"),
        (["config", "set", "temprature", "1"], "temperature"),
    ],
)
def test_usage_errors_name_the_thing_and_exit_with_2(capsys, argv: list[str], said: str) -> None:
    code, out, err = told(capsys, *argv)
    assert (code, out) == (2, "")
    assert said in err and err.startswith("lingchat: ") and "Traceback" not in err


def test_without_a_terminal_and_a_prompt_it_says_what_to_do() -> None:
    done = subprocess.run([sys.executable, "-m", "lingchat"], stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    assert done.returncode == 2 and done.stdout == b""
    assert b"-p" in done.stderr and b"not a terminal" in done.stderr


def test_a_prompt_without_a_terminal_is_answered(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"turns": [{"text": "an answer"}]}')
    environ = {**os.environ, "LINGCHAT_ENGINE": f"scripted:{script}"}
    command = [sys.executable, "-m", "lingchat", "a question"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, env=environ)
    assert (done.returncode, done.stdout) == (0, b"an answer\n")


def test_the_engine_variable_is_checked(capsys, monkeypatch) -> None:
    monkeypatch.setenv("LINGCHAT_ENGINE", "remote")
    code, _, err = told(capsys, "-p", "x")
    assert code == 3 and "LINGCHAT_ENGINE" in err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(capsys, name: str) -> None:
    code, out, _ = told(capsys, name, "-h")
    assert code == 0 and f"lingchat {name}" in out


def test_starting_a_command_imports_neither_screens_nor_torch() -> None:
    program = (
        "import sys, lingchat.cli; lingchat.cli.parser();"
        "print(sorted({'torch', 'numpy', 'textual', 'rich', 'prompt_toolkit', 'asyncio', 'msgspec', 'sqlite3'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"


BEFORE_THE_ENGINE = """
import _posixsubprocess, os, sys
def start(*_):
    os.write(1, " ".join(sys.modules).encode())
    os._exit(0)
_posixsubprocess.fork_exec = start
from lingchat.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("argv", [["-p", "x"], ["--plain"]])
def test_the_engine_starts_before_anything_heavy_is_imported(argv: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-c", BEFORE_THE_ENGINE, *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    loaded = set(run.stdout.split())
    assert "lingchat.engines.process" in loaded, run.stderr
    heavy = {"asyncio", "msgspec", "platformdirs", "lingchat.config", "tomllib", "textual", "rich", "prompt_toolkit"}
    assert not loaded & heavy
    assert len(loaded) < 130  # about a hundred, half of which the interpreter starts with


def test_a_setting_that_is_refused_leaves_no_engine_behind(capsys, monkeypatch, tmp_path: Path) -> None:
    started: list[Worker] = []
    monkeypatch.setattr(process, "start_worker", lambda: started.append(start_worker()) or started[-1])
    code, _, err = told(capsys, "-p", "x", "--spec", "sometimes")
    assert code == 2 and "sometimes" in err
    [worker] = started
    assert worker.process.returncode is not None and not worker.log.exists()


def test_a_closed_reader_ends_a_listing_quietly(conversation: str) -> None:
    session = SessionStore(paths().sessions).open(conversation)
    session.add("user", "long " * 100_000)  # more than any pipe holds: the reader is gone before all is written
    session.close()
    command = f"{sys.executable} -m lingchat sessions show last | head -c 9; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=30, env=buffered())
    assert (done.returncode, done.stderr) == (EXIT_PIPE, b"")


def buffered(**more: str) -> dict[str, str]:
    """The environment with Python's usual buffers, whatever this test run has."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | more


def on_full_disk(*argv: str, typed: str = "", **env: str) -> tuple[int, list[str]]:
    """Exit code and lines of standard error of a command whose standard output cannot be written."""
    command = [sys.executable, "-m", "lingchat", *argv]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command, input=typed, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, env=buffered(**env)
        )
    return done.returncode, done.stderr.splitlines()


LISTINGS = [
    ["config", "show"],
    ["sessions", "list"],
    ["sessions", "show", "last"],
    ["sessions", "export", "last"],
    ["models", "show", "default"],
    ["models", "show", "default", "--output", "json"],
    ["stats", "last"],
    ["doctor"],
    ["-h"],
    ["--version"],
]


@full_device
@pytest.mark.parametrize("argv", LISTINGS, ids=" ".join)
def test_a_listing_on_a_full_disk_is_one_line_of_error(conversation: str, argv: list[str]) -> None:
    TraceWriter.create(paths().runs, run_start(load_settings(env={}))).close()
    code, said = on_full_disk(*argv)
    assert (code, len(said)) == (EXIT_UNEXPECTED, 1), said
    assert "standard output" in said[0] and "No space left" in said[0]


@full_device
@pytest.mark.parametrize("argv", [["sessions", "show", "last"], ["-h"]], ids=" ".join)
def test_a_full_disk_is_noticed_while_a_listing_is_written(conversation: str, argv: list[str]) -> None:
    session = SessionStore(paths().sessions).open(conversation)
    session.add("user", "long " * 100_000)
    session.close()
    for env in ({}, {"PYTHONUNBUFFERED": "1"}):
        code, said = on_full_disk(*argv, **env)
        assert (code, len(said)) == (EXIT_UNEXPECTED, 1), said


@full_device
def test_line_mode_on_a_full_disk_ends_with_one_line_of_error(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"turns": [{"text": "an answer"}]}')
    code, said = on_full_disk("--plain", typed="x\n", LINGCHAT_ENGINE=f"scripted:{script}")
    assert (code, len(said)) == (EXIT_UNEXPECTED, 1), said
    assert "standard output" in said[0]


def test_the_help_names_every_exit_code(capsys) -> None:
    def codes(kind: type[LingchatError]) -> set[int]:
        return {kind.exit_code}.union(*(codes(sub) for sub in kind.__subclasses__()))

    named = {value for name, value in vars(errors).items() if name.startswith("EXIT_") and isinstance(value, int)}
    assert codes(LingchatError) | named | set(errors.SIGNAL_EXITS.values()) | {0} == set(errors.EXIT_CODES)
    out = " ".join(told(capsys, "-h")[1].split())
    assert all(f"{code} {meaning}" in out for code, meaning in errors.EXIT_CODES.items())


def test_closed_standard_streams_do_no_harm(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"turns": [{"text": "an answer"}]}')
    command = f"LINGCHAT_ENGINE=scripted:{script} {sys.executable} -m lingchat -p x <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], timeout=30).returncode == 0
    session = SessionStore(paths().sessions).open("last", readonly=True)
    assert [node.content for node in session.path()] == ["x", "an answer"]  # and nothing else ran into its file


# ---------------------------------------------------------------- config


def test_config_shows_values_with_their_origin(capsys, monkeypatch) -> None:
    monkeypatch.setenv("LINGCHAT_TOP_K", "9")
    assert told(capsys, "config", "set", "temperature", "0.25")[0] == 0
    code, out, _ = told(capsys, "config", "show")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert code == 0
    assert rows["sampling.temperature"] == ["0.25", str(paths().config_file)]
    assert rows["sampling.top_k"] == ["9", "environment", "LINGCHAT_TOP_K"]
    assert rows["panel"][-1] == "default"
    assert told(capsys, "config", "path")[1].strip() == str(paths().config_file)


def test_setting_a_value_keeps_the_rest_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('# mine\ntheme = "light"  # bright\n\n[sampling]\ntop_k = 3\n# the end\n')
    set_value(file, "panel", "strip")
    set_value(file, "top_k", "5")
    set_value(file, "sampling.seed", "7")
    set_value(file, "stop", '["a", "b"]')
    text = file.read_text()
    assert "# mine" in text and "# bright" in text and "# the end" in text
    settings = load_settings(env={}, file=file)
    assert (settings.theme, settings.panel, settings.top_k, settings.seed) == ("light", "strip", 5, 7)
    assert settings.stop == ("a", "b")
    set_value(file, "model", "none")
    assert load_settings(env={}, file=file).model is None


def test_setting_a_value_makes_file_and_table(tmp_path: Path) -> None:
    file = tmp_path / "new" / "config.toml"
    set_value(file, "temperature", "0")
    set_value(file, "mouse", "off")
    settings = load_settings(env={}, file=file)
    assert (settings.temperature, settings.mouse) == (0.0, False)


@pytest.mark.parametrize(
    ("before", "error"),
    [("theme = [", ConfigError), ('sampling.top_k = 3\ntheme = """\nx"""\n', ConfigError)],
)
def test_a_file_that_cannot_be_edited_stays_as_it_is(tmp_path: Path, before: str, error: type[LingchatError]) -> None:
    file = tmp_path / "config.toml"
    file.write_text(before)
    with pytest.raises(error, match=r"config\.toml"):
        set_value(file, "theme", "light")
    assert file.read_text() == before
    with pytest.raises(UsageError):
        set_value(file, "panel", "sideways")


# ---------------------------------------------------------------- sessions


@pytest.fixture
def conversation() -> str:
    session = SessionStore(paths().sessions).create()
    session.add("user", "What is a \x1b[31mtide?")
    reply = session.begin_reply()
    reply.delta("The sea's rise and fall.", 0)
    reply.call("tide_table\x1b[2J", '{"where":"Brest"}', "", 0)
    reply.finish("eos", footer="6 tok")
    session.close()
    return session.id


def test_sessions_are_listed_shown_found_and_exported(capsys, conversation: str, tmp_path: Path) -> None:
    assert conversation in told(capsys, "sessions")[1]
    code, out, _ = told(capsys, "sessions", "show", "last")
    assert code == 0 and "## user" in out and "rise and fall" in out and "6 tok" in out and "\x1b" not in out
    assert '→ tide_table␛[2J {"where":"Brest"}  (not run)' in out
    assert conversation in told(capsys, "sessions", "search", "rise", "sea")[1]
    assert told(capsys, "sessions", "search", "volcano")[1] == ""
    target = tmp_path / "it.json"
    assert told(capsys, "sessions", "export", conversation[:15], str(target))[0] == 0
    whole = json.loads(target.read_text())
    assert [message["content"] for message in whole["messages"]] == [
        "What is a \x1b[31mtide?",
        "The sea's rise and fall.",
    ]
    assert told(capsys, "sessions", "export", "last", str(tmp_path / "it.md"))[0] == 0
    assert (tmp_path / "it.md").read_text().startswith("# What is a")


def test_deleting_a_session_can_be_undone(capsys, conversation: str) -> None:
    assert told(capsys, "sessions", "rm", conversation)[0] == 0
    assert conversation not in told(capsys, "sessions")[1]
    assert told(capsys, "sessions", "restore", conversation)[0] == 0
    assert conversation in told(capsys, "sessions")[1]
    code, _, err = told(capsys, "sessions", "rm", "nothing-like-it")
    assert code == 3 and "nothing-like-it" in err
    assert told(capsys, "sessions", "rm")[0] == 2
