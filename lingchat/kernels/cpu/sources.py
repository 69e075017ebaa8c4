"""What the native CPU library is made of: sources, the flags of each, and the stamp that names them all.

A library in use is one that carries this stamp; so every start asks here, and this file imports next to nothing.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = "lingchat_cpu.dylib" if sys.platform == "darwin" else "lingchat_cpu.so"
SEAL = "seal"

# No contraction into fused multiply-adds and no fast math: every instruction set must give the same bits. An
# instruction's words are read as the struct of its operation, hence no strict aliasing.
FLAGS = (
    *("-O3", "-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-strict-aliasing"),
    *("-ffp-contract=off", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"),
)
LINK_FLAGS = ("-shared", "-pthread") if sys.platform == "darwin" else ("-shared", "-pthread", "-Wl,--as-needed,-s")
_AVX2 = ("-mavx2", "-mf16c")
ISA_FLAGS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "isa_avx2.cpp": _AVX2,
        "isa_avx512.cpp": (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"),
    },
    "arm64": {"isa_neon.cpp": ("-march=armv8.2-a+dotprod+fp16",)},
}


def machine() -> str:
    name = os.uname().machine
    return {"aarch64": "arm64", "amd64": "x86_64"}.get(name, name)


def sources(folder: Path = HERE) -> list[Path]:
    """Every file that is compiled, or included by one."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".h", ".cpp"))


def units(folder: Path = HERE) -> list[tuple[Path, tuple[str, ...]]]:
    """What is compiled for this machine, each with its flags. Instruction sets of other machines are left out."""
    own = ISA_FLAGS.get(machine(), {})
    others = {name for flags in ISA_FLAGS.values() for name in flags} - own.keys()
    paths = [path for path in sources(folder) if path.suffix == ".cpp" and path.name not in others]
    paths.sort(key=lambda path: not path.name.startswith("isa_"))  # these take longest
    return [(path, (*FLAGS, *own.get(path.name, ()))) for path in paths]


def stamp(folder: Path = HERE) -> str:
    """Names the sources, the flags and the machine: a library that carries another stamp is another library."""
    told = hashlib.sha256(f"{sys.platform} {machine()} {LINK_FLAGS}".encode())
    for path, flags in units(folder):
        told.update(f"\n{path.name} {flags}".encode())
    for path in sources(folder):
        text = path.read_bytes()
        told.update(f"\n{path.name} {len(text)}\n".encode() + text)
    return told.hexdigest()[:32]


def seal(library: Path, stamp: str) -> str:
    """What stands beside a good library."""
    return f"{stamp} {hashlib.sha256(library.read_bytes()).hexdigest()}\n"
