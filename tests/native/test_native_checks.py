"""The native CPU code checked by a C++ program of its own, in every build that can show a fault.

`check.cpp` and its files run all operations on odd sizes and compare instruction sets, row counts, thread counts and
repeats bit for bit. Here it is built as the library is, with another compiler, with sanitizers, and for arm64; the
checksums that it prints must be the same everywhere.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from lingchat.kernels.cpu import sources

HERE = Path(__file__).parent
JOBS = 2
TIMEOUT_S = 400.0
WORDS = 4000  # characters of a failure that are shown
STRICT = ("-Werror",)
# Line numbers make a sanitizer's report readable; -O1, and calls in place of inline checks, keep compiling short.
SANITIZED = ("-O1", "-g1", "-DCHECK_SANITIZED")
ADDRESS = ("-fsanitize=address", "--param", "asan-instrumentation-with-call-threshold=0")
UNDEFINED = "undefined,float-cast-overflow"

Need = Callable[[str], str]


@dataclass(frozen=True)
class Build:
    compiler: str
    machine: str = sources.machine()
    flags: tuple[str, ...] = ()  # after the library's own, for every file
    link: tuple[str, ...] = ()
    isa_flags: tuple[str, ...] = ()  # besides, for what is compiled once an instruction set, plain C++ apart
    emulated: bool = False  # AVX-512 in plain loops, for processors that have AVX2 only

    def units(self) -> list[tuple[Path, str, tuple[str, ...]]]:
        """Source, name of the object, flags: the library's files and the checks', simd.h's once an instruction set."""
        own = dict(sources.ISA_FLAGS.get(self.machine, {}))
        others = {name for flags in sources.ISA_FLAGS.values() for name in flags} - own.keys()
        if self.emulated:
            own["isa_avx512.cpp"] = (*own["isa_avx2.cpp"], f"-I{HERE / 'emulated'}")
        own = {name: (*flags, *self.isa_flags) for name, flags in own.items()}
        library = [path for path in sources.sources() if path.suffix == ".cpp" and path.name not in others]
        units = [(path, f"library_{path.stem}", own.get(path.name, ())) for path in library]
        units += [(path, path.stem, ()) for path in sorted(HERE.glob("*.cpp")) if path.name != "lanes.cpp"]
        for name, flags in {"isa_plain.cpp": (), **own}.items():
            isa = name.removeprefix("isa_").removesuffix(".cpp")
            units.append((HERE / "lanes.cpp", f"lanes_{isa}", (*flags, f"-DCHECK_ISA={isa}", f"-DCHECK_{isa.upper()}")))
        return units

    def program(self, folder: Path) -> Path:
        common = (*self.flags, f"-I{sources.HERE}", f"-I{HERE}", *(("-DCHECK_EMULATED",) if self.emulated else ()))

        def compile_one(unit: tuple[Path, str, tuple[str, ...]]) -> str:
            source, name, flags = unit
            made = folder / f"{name}.o"
            run(
                [
                    *(self.compiler, *sources.FLAGS, *common, *flags),
                    *("-c", str(source), "-o", str(made)),
                ]
            )
            return str(made)

        with ThreadPoolExecutor(JOBS) as pool:
            objects = list(pool.map(compile_one, self.units()))
        target = folder / "check"
        run([self.compiler, "-pthread", *self.link, *objects, "-o", str(target)])
        return target


def run(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """What it prints. A failure is told by its last words, and the lines of failed checks."""
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, env={**os.environ, **(environment or {})}
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"{command[0]} took more than {TIMEOUT_S:.0f} s", pytrace=False)
    if result.returncode != 0:
        failed = [line for line in result.stdout.splitlines() if not line.startswith("ok")]
        pytest.fail("\n".join([f"status {result.returncode}", *failed, result.stderr])[:WORDS], pytrace=False)
    return result.stdout


def checksums(
    how: Build, *words: str, before: Sequence[str] = (), environment: dict[str, str] | None = None
) -> list[str]:
    """Build, run, and give the lines of the checks; each begins with "ok" and a checksum."""
    with tempfile.TemporaryDirectory(prefix="native-checks-") as folder:
        program = how.program(Path(folder))
        printed = run([*before, str(program), *words], environment)
    lines = [line for line in printed.splitlines() if line.startswith("ok ")]
    assert len(lines) > 100
    return lines


@functools.cache
def of_this_machine(compiler: str) -> list[str]:
    """Built with the library's own flags, every repetition."""
    return checksums(Build(compiler, flags=STRICT))


def test_the_same_bits_in_all_ways(need_tool: Need) -> None:
    assert of_this_machine(need_tool("g++"))


def test_another_compiler_gives_the_same_bits(need_tool: Need) -> None:
    expected = of_this_machine(need_tool("g++"))
    assert checksums(Build(need_tool("clang++"), flags=STRICT), "--quick") == expected


def test_memory_and_undefined_behaviour(need_tool: Need) -> None:
    """AVX-512 too, whose instructions few machines have: emulated, each is a plain loop that can be watched."""
    compiler = need_tool("g++")
    undefined = f"-fsanitize={UNDEFINED}"
    flags = (*SANITIZED, "-DCHECK_UNDEFINED", *ADDRESS, undefined, "-fno-sanitize-recover=all")
    how = Build(
        compiler,
        flags=flags,
        link=flags,
        isa_flags=(f"-fno-sanitize={UNDEFINED}",),  # the same operations: once is enough
        emulated=has_avx2(),
    )
    # The pool lives as long as the program; looking for leaks needs rights that a container may not give.
    assert checksums(how, "--quick", environment={"ASAN_OPTIONS": "detect_leaks=0"}) == of_this_machine(compiler)


def has_avx2() -> bool:
    processor = Path("/proc/cpuinfo")
    return processor.exists() and bool(re.search(r"^flags\b.*\bavx2\b", processor.read_text(), re.MULTILINE))


def test_threads_do_not_race(need_tool: Need, tmp_path: Path) -> None:
    compiler = need_tool("g++")
    flags = (*SANITIZED, "-fsanitize=thread")
    probe = tmp_path / "probe"
    (tmp_path / "probe.cpp").write_text("int main() { return 0; }\n")
    run([compiler, "-fsanitize=thread", str(tmp_path / "probe.cpp"), "-o", str(probe)])
    tried = subprocess.run([str(probe)], capture_output=True, text=True)
    if tried.returncode != 0:  # some kernels lay memory out as it does not expect
        pytest.skip(f"the thread sanitizer does not run here: {tried.stderr.strip()[:200]}")
    lines = checksums(
        Build(compiler, flags=flags, link=flags), "--quick", environment={"TSAN_OPTIONS": "halt_on_error=1"}
    )
    assert lines == of_this_machine(compiler)


def test_arm64_gives_the_same_bits(need_tool: Need) -> None:
    if sources.machine() != "x86_64":
        pytest.skip(f"cross-compiles from x86-64, and this is {sources.machine()}")
    expected = of_this_machine(need_tool("g++"))
    how = Build(need_tool("aarch64-linux-gnu-g++"), machine="arm64", link=("-static",))
    assert checksums(how, "--quick", before=(need_tool("qemu-aarch64"),)) == expected
