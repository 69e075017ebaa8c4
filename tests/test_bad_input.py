"""What goes wrong before a word is said, met as a user meets it: the installed command in a process of its own.

Each case gives one clear message on standard error, its exit code, nothing on standard output, and never a traceback.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from make_models import write_gguf

from lingchat.config import paths
from lingchat.errors import EXIT_CONTEXT, EXIT_ENGINE, EXIT_UNEXPECTED

pytestmark = pytest.mark.usefixtures("native_library")

SECONDS = 60.0

Make = Callable[[Path], Path]


def good(folder: Path) -> Path:
    return write_gguf(folder / "model.gguf", "llama", layers=1).path


def with_template(template: str) -> Make:
    return lambda folder: write_gguf(folder / "model.gguf", "llama", layers=1, template=template).path


def patched(old: bytes, new: bytes) -> Make:
    """A good file with one of its words replaced by another of that length."""

    def make(folder: Path) -> Path:
        path = good(folder)
        data = path.read_bytes()
        assert old in data and len(old) == len(new)
        path.write_bytes(data.replace(old, new))
        return path

    return make


def of_unknown_type(folder: Path) -> Path:
    """The type of the first matrix becomes one that no llama.cpp has: it stands after the tensor's name and shape."""
    path = good(folder)
    data = bytearray(path.read_bytes())
    name = b"token_embd.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8  # the number of dimensions, then two of them
    data[at : at + 4] = (99).to_bytes(4, "little")
    path.write_bytes(data)
    return path


def cut(share: float) -> Make:
    def make(folder: Path) -> Path:
        path = good(folder)
        os.truncate(path, int(path.stat().st_size * share))
        return path

    return make


def holding(data: bytes) -> Make:
    def make(folder: Path) -> Path:
        path = folder / "model.gguf"
        path.write_bytes(data)
        return path

    return make


def empty_folder(folder: Path) -> Path:
    (folder / "model").mkdir()
    return folder / "model"


# Name: the model, and what the message must say besides naming it.
MODELS: dict[str, tuple[Make, str]] = {
    "no GGUF at all": (holding(b"hello" * 100), "not a GGUF file"),
    "malformed header": (holding(b"GGUF" + b"\xff" * 200), "version"),
    "cut in the header": (cut(0.01), "damaged or incomplete"),
    "cut in a tensor": (cut(0.6), "damaged or incomplete"),
    "unknown architecture": (patched(b"llama", b"zebra"), "architecture 'zebra'"),
    "unknown pre-tokenizer": (patched(b"smollm", b"zebra1"), "pre-tokenizer 'zebra1'"),
    "unknown quantisation": (of_unknown_type, "99"),
    "template that is none": (with_template("{% for x %}"), "chat template"),
    "missing file": (lambda folder: folder / "model.gguf", "no such file"),
    "folder without a model": (empty_folder, "holds no model"),
}
TOO_LARGE = "{% for x in range(9999) %}{% for y in range(9999) %}{{ 'a' * 999 }}{% endfor %}{% endfor %}"
TOO_LONG = "{% for x in range(99999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}"


def lingchat(
    *argv: str | Path, typed: str | None = None, before: Callable[[], None] | None = None, **env: str
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command."""
    done = subprocess.run(
        [sys.executable, "-m", "lingchat", *map(str, argv)],
        input=typed,
        stdin=subprocess.DEVNULL if typed is None else None,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, **env},
        preexec_fn=before,
    )
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    # What a slow machine says while it loads is progress, and no part of the message.
    progress = ("lingchat: loading ", "lingchat: downloading ")
    said = "".join(line for line in done.stderr.splitlines(keepends=True) if not line.startswith(progress))
    return done.returncode, done.stdout, said


def fails(code: int, said: str, *argv: str | Path, **env: str) -> None:
    """`-p` with these arguments ends with `code` and one line that says `said`."""
    found, out, err = lingchat("-p", "x", *argv, **env)
    assert (found, out, err.count("\n")) == (code, "", 1), err
    assert err.startswith("lingchat: ") and said in err


@pytest.mark.parametrize("case", MODELS)
def test_a_model_that_cannot_be_used(case: str, tmp_path: Path) -> None:
    make, said = MODELS[case]
    fails(EXIT_ENGINE, said, "-m", make(tmp_path))


@pytest.mark.parametrize("template", [TOO_LARGE, TOO_LONG], ids=["text without end", "time without end"])
def test_a_template_that_runs_away(template: str, tmp_path: Path) -> None:
    fails(EXIT_ENGINE, "chat template", "-m", with_template(template)(tmp_path))


def test_a_prompt_over_the_context(tmp_path: Path) -> None:
    code, out, err = lingchat("-p", "word " * 100, "-m", good(tmp_path), "--context", "64")
    assert (code, out, err.count("\n")) == (EXIT_CONTEXT, "", 1), err
    assert "context holds 64" in err and "tokens" in err


NO_NETWORK = {  # a port where nothing listens
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_RETRIES": "0",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_FIND_LINKS": "",
    "PIP_NO_INDEX": "0",
}


def test_no_network_for_the_default_model() -> None:
    fails(EXIT_ENGINE, "could not be reached", **NO_NETWORK)


@pytest.mark.parametrize("folder", ["runs", "sessions"])
def test_a_folder_of_records_that_cannot_be_written(folder: str, tmp_path: Path) -> None:
    """A file in the folder's place, since whoever runs as root may write everywhere."""
    place: Path = getattr(paths(), folder)
    place.parent.mkdir(parents=True)
    place.write_text("")
    code, _, err = lingchat("-p", "x", "-m", good(tmp_path), "--max-tokens", "2")
    assert (code, err.count("\n")) == (EXIT_UNEXPECTED, 1), err
    assert f"cannot make the folder {place}: a file is in its place" in err


def no_room() -> None:
    """Of this process and its children no file may grow beyond nothing, as on a full disk; pipes may."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@pytest.mark.parametrize("how", ["-p", "--plain"])
def test_a_full_disk(how: str, tmp_path: Path) -> None:
    argv = ("-p", "x") if how == "-p" else ("--plain",)
    code, out, err = lingchat(*argv, "-m", good(tmp_path), "--max-tokens", "2", typed="x\n", before=no_room)
    assert (code, out, err.count("\n")) == (EXIT_UNEXPECTED, "", 1), out + err
    assert "File too large" in err and str(paths().runs) in err


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_home_that_cannot_be_made() -> None:
    fails(EXIT_UNEXPECTED, "/proc/lingchat", LINGCHAT_HOME="/proc/lingchat")
    code, out, err = lingchat("--plain", typed="x\n", LINGCHAT_HOME="/proc/lingchat")
    assert (code, out) == (EXIT_UNEXPECTED, "") and "/proc/lingchat" in err


@pytest.mark.parametrize("case", ["cut in a tensor", "unknown architecture", "missing file", "template that is none"])
def test_line_mode_says_it_too_and_goes_on(case: str, tmp_path: Path) -> None:
    make, said = MODELS[case]
    code, out, err = lingchat("--plain", "-m", make(tmp_path), typed="x\n/help\n")
    assert code == EXIT_ENGINE and err == ""
    assert out.count("error: ") == 1 and said in out and "/restart" in out.split("> /help\n")[1]


def test_line_mode_refuses_a_prompt_over_the_context(tmp_path: Path) -> None:
    code, out, err = lingchat("--plain", "-m", good(tmp_path), "--context", "64", typed="word " * 100 + "\n")
    assert code == EXIT_CONTEXT and err == "" and "error: The prompt has" in out and "context holds 64" in out


def test_line_mode_without_a_network() -> None:
    code, out, err = lingchat("--plain", typed="x\n", **NO_NETWORK)
    assert code == EXIT_ENGINE and err == "" and "could not be reached" in out
