"""What stands between starting lingchat and typing: the pieces that must be quick, each measured by itself.

python benchmarks/pieces.py [--repeat 5]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from common import machine, save, spread

from lingchat.catalog.headers import read_gguf
from lingchat.catalog.models import resolve
from lingchat.engines.api import Message
from lingchat.runtime.formats.load import load_formats
from lingchat.session import SessionStore

MESSAGES = 1_000


def timed(do: Callable[[], object]) -> float:
    """Milliseconds that `do` takes."""
    begin = time.perf_counter()
    do()
    return (time.perf_counter() - begin) * 1e3


def command(*argv: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-m", "lingchat", *argv], check=True, capture_output=True)


def conversation(store: SessionStore) -> str:
    """A session of a thousand messages; its id."""
    session = store.create()
    for _ in range(MESSAGES // 2):
        session.add("user", "a question of some length " * 4)
        reply = session.begin_reply()
        reply.delta("some words of an answer " * 8, 0)
        reply.finish("eos", footer="8 tok")
    session.close()
    return session.id


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--repeat", type=int, default=5)
    repeat = parse.parse_args().repeat
    model = resolve(None, lambda progress: None).path
    metadata = read_gguf(model).metadata
    source = SimpleNamespace(source="gguf", metadata=metadata, folder=model.parent)
    formats = load_formats(source)
    messages = [Message("user", "hi")] * 50
    with tempfile.TemporaryDirectory() as folder:
        store = SessionStore(Path(folder))
        session = conversation(store)
        pieces: dict[str, Callable[[], object]] = {
            "lingchat --version": command("--version"),
            "lingchat config show": command("config", "show"),
            "header of the default model": lambda: read_gguf(model),
            "its tokenizer and template": lambda: load_formats(source).close(),
            "rendering 50 messages": lambda: formats.prompt(messages),
            f"opening a session of {MESSAGES} messages": lambda: store.open(session).close(),
        }
        measured = {}
        for name, do in pieces.items():
            do()  # the files are in the page cache afterwards
            measured[name] = spread([timed(do) for _ in range(repeat)])
            print(f"{name:<40} {measured[name]['median']:8.2f} ms")
    formats.close()
    save("pieces", {"benchmark": "pieces", "unit": "ms", "machine": machine(), "pieces": measured})


if __name__ == "__main__":
    main()
