"""Models from the hub, with the real client against a hub on this machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import REVISION, Hub, serve

from lingchat.catalog import hub as module
from lingchat.catalog.find import find
from lingchat.catalog.models import resolve
from lingchat.catalog.store import Progress
from lingchat.errors import Cancelled, FetchError, LingchatError

WEIGHTS = os.urandom(300_000)
GGUF = b"GGUF" + os.urandom(200_000)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    repositories = {
        "org/chat": {
            "config.json": b"{}",
            "model.safetensors": WEIGHTS,
            "tokenizer.json": b"{}",
            "chat_template.jinja": b"x",
            "pytorch_model.bin": b"old",
            "onnx/model.onnx": b"other",
            "README.md": b"# chat",
        },
        "org/one": {"one-Q4_0.gguf": GGUF, "mmproj-one.gguf": b"GGUF", "README.md": b""},
        "org/many": {"m-Q4_0.gguf": GGUF, "m-Q8_0.gguf": GGUF + b"8"},
        "org/none": {"README.md": b""},
        "org/gated": {"config.json": b"{}"},
    }
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    with serve(Hub(repositories)) as running:
        running.gated.add("org/gated")
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        yield running


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_a_safetensors_model_without_what_it_does_not_need(hub: Hub) -> None:
    seen = list[Progress]()
    found = resolve("org/chat", seen.append)
    assert files(found.path) == {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS
    assert (found.name, found.demo, found.source, found.path.name) == ("org/chat", False, "huggingface", REVISION)
    done = [progress.done for progress in seen if progress.total]
    assert done and done == sorted(done) and all(progress.done <= progress.total for progress in seen if progress.total)
    assert "org/chat" in {model.name for model in find()}


@pytest.mark.parametrize(
    ("name", "file", "data"),
    [
        ("org/one", "one-Q4_0.gguf", GGUF),
        ("org/many:m-Q8_0.gguf", "m-Q8_0.gguf", GGUF + b"8"),
        ("org/many:q4_0", "m-Q4_0.gguf", GGUF),
    ],
    ids=["the only one", "by file", "by a part of its name"],  # bytes would make ids too long for the environment
)
def test_one_gguf_file(hub: Hub, name: str, file: str, data: bytes) -> None:
    found = resolve(name)
    assert found.path.name == file and found.path.read_bytes() == data
    assert files(found.path.parent) == {file}
    hub.requests.clear()
    assert resolve(f"{name.partition(':')[0]}:{file}").path == found.path
    assert not hub.requests  # it is here: nobody is asked


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("org/many", "say which"),
        ("org/many:Q2_K", "no file `Q2_K`"),
        ("org/none", "neither safetensors nor GGUF"),
        ("org/absent", "no model org/absent"),
        ("org/gated", "accept its terms"),
    ],
)
def test_what_the_hub_refuses_is_told(hub: Hub, name: str, says: str) -> None:
    with pytest.raises(FetchError, match=says):
        resolve(name)


@pytest.mark.parametrize("how", ["no network", "offline by wish"])
def test_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "no network":
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    else:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FetchError, match="could not be reached"):
        resolve("org/chat")


def test_stopping_ends_the_client_and_a_later_try_completes(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.stall = threading.Event()
    clients = list[int]()
    real = module.child.start

    def start(*args: object, **kwargs: object) -> object:
        client = real(*args, **kwargs)  # type: ignore[arg-type]
        clients.append(client.pid)
        return client

    monkeypatch.setattr(module.child, "start", start)
    with pytest.raises(Cancelled):
        resolve("org/chat", cancelled=lambda: any("/resolve/" in request for request in hub.requests))
    with pytest.raises(ProcessLookupError):
        os.kill(clients[0], 0)
    hub.stall.set()
    hub.stall = None
    assert (resolve("org/chat").path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_client_that_dies_is_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "")
    monkeypatch.setenv("PYTHONHASHSEED", "no number")  # the interpreter refuses to start
    with pytest.raises(LingchatError, match="ended with status"):
        resolve("org/chat")
