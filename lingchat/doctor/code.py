"""Which code computes on the CPU: lingchat's own, compiled, or torch's; and why not its own.

Asks the library without building one. Knows nothing of devices.
"""

from __future__ import annotations

from typing import Any

from lingchat.kernels.cpu import library


def facts() -> dict[str, Any]:
    """`native`: lingchat's own code is there, for the instruction set `isa`, at `path`. Else `why` not."""
    found = library.status()
    native = found.native
    return {
        "native": native is not None,
        "isa": native.isa if native else "",
        "path": str(native.path) if native else "",
        "installed": native.is_installed if native else False,
        "why": found.why,
        "compiler": found.compiler,
        "failed": found.failed,
    }


def line(code: dict[str, Any]) -> str:
    if code["native"]:
        origin = "at installation" if code["installed"] else "at first use"
        return f"native, {code['isa']}, built {origin} ({code['path']})"
    return f"torch int8, no native code: {code['why']}"


def mend(code: dict[str, Any]) -> str:
    """What to know and do when there is no native code; empty when there is."""
    if code["native"]:
        return ""
    if not code["compiler"]:
        return "torch computes on the CPU, more slowly than native code would: install a C++ compiler (g++ or clang), and lingchat builds it"
    if code["failed"]:
        return "torch computes on the CPU, more slowly than native code would: once the compiler is another one, lingchat tries again"
    return (
        "lingchat builds its native CPU code in the background when a model is next loaded; until then torch computes"
    )
