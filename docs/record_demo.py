"""Record the runs that ship with `lingchat demo`, with the default model, on this machine: let it do nothing else.

    python docs/record_demo.py

Every rung of the ladder gets its trace in lingchat/ui/demo/traces; those of rungs that are no more go.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from lingchat.config import load_settings
from lingchat.kernels.cpu import library
from lingchat.notes import Notes
from lingchat.trace import SUFFIX
from lingchat.ui import demo
from lingchat.ui.demo.lanes import LADDER, PROMPT

TRACES = Path(demo.__file__).parent / "traces"


def main() -> None:
    library.build()  # a rung that is about native code is left out where there is none
    # The defaults, whatever this user's own settings are.
    settings = load_settings(env={}, file=Path("/dev/null"))
    asyncio.run(demo.run_ladder(settings, TRACES, PROMPT, Notes("auto"), demo.local_engine(settings)))
    wanted = {f"{rung.key}{SUFFIX}" for rung in LADDER}
    found = {path.name for path in TRACES.glob(f"*{SUFFIX}")}
    for name in found - wanted:
        (TRACES / name).unlink()
    if wanted - found:
        raise SystemExit(f"not recorded: {', '.join(sorted(wanted - found))}")
    for name in wanted:
        (TRACES / name).chmod(0o644)  # they are made to be passed on
    print(*sorted(TRACES / name for name in wanted), sep="\n")


if __name__ == "__main__":
    main()
