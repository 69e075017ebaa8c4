"""What another program on one of the cores costs: the default model's decoding beside it and without it, in turns.

The other program spins on the first core that this process may use. lingchat chooses its threads by itself and follows
what it finds; llama.cpp is given as many as there are cores.

    python benchmarks/busy_core.py [--repeats 5] [--name busy_core]
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from common import machine, save, spread
from peers import Peer

from lingchat.catalog.models import resolve

TOKENS = 256
SPIN = "import os\nos.sched_setaffinity(0, {%d})\nprint(flush=True)\nwhile True: pass"


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--repeats", type=int, default=5)
    parse.add_argument("--name", default="busy_core")
    found = parse.parse_args()
    path = resolve(None, lambda progress: None).path
    cores = sorted(os.sched_getaffinity(0))
    peers = {"native": Peer("native", path, None), "llama.cpp": Peer("llama.cpp", path, len(cores))}
    draw = random.Random(7)
    ids = [draw.randrange(100, 49_000) for _ in range(16)]
    values: dict[str, dict[str, list[float]]] = {kind: {"free": [], "busy": []} for kind in peers}
    for turn in range(found.repeats + 1):
        for kind, peer in peers.items():
            free = peer.ask("decode_ms", ids=ids, tokens=TOKENS)
            with spinning(cores[0]):
                busy = peer.ask("decode_ms", ids=ids, tokens=TOKENS)
            if turn:
                values[kind]["free"].append(free)
                values[kind]["busy"].append(busy)
    result: dict[str, Any] = {"benchmark": "busy_core", "machine": machine(), "cores": len(cores)}
    result["decode_ms_per_token"] = {
        kind: {case: spread(times) for case, times in cases.items()} for kind, cases in values.items()
    }
    result["speed_kept"] = {
        kind: round(cases["free"]["median"] / cases["busy"]["median"], 3)
        for kind, cases in result["decode_ms_per_token"].items()
    }
    for peer in peers.values():
        peer.close()
    print(result["speed_kept"], result["decode_ms_per_token"])
    save(found.name, result)


@contextmanager
def spinning(core: int) -> Iterator[None]:
    """Another program that never rests, on `core`."""
    process = subprocess.Popen([sys.executable, "-c", SPIN % core], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
