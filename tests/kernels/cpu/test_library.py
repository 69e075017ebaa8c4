"""Finding, checking and building the native library: with a library of empty functions and compilers of our own, so that
nothing is really compiled but that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kernels.cpu import native as real
from kernels.cpu.fakes import STAMP, Make

from lingchat.kernels.cpu import build, first_use, library, native, sources, structs
from lingchat.kernels.cpu.build import BuildError
from lingchat.kernels.cpu.native import Native, Unusable

TIMEOUT_S = 120.0


@pytest.fixture
def nothing_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if lingchat had been installed without a library."""
    monkeypatch.setattr(library, "BESIDE", tmp_path / "beside")


@pytest.fixture
def cache(tmp_path: Path, nothing_beside: None) -> Path:
    return tmp_path / "cache"


def put(folder: Path, library: Path, stamp: str = STAMP) -> Path:
    """Lay a library down as a build does."""
    folder.mkdir(parents=True)
    place = folder / sources.LIBRARY
    shutil.copy(library, place)
    (folder / sources.SEAL).write_text(sources.seal(place, stamp))
    return place


# What is used, and what is not


def test_the_real_one() -> None:
    found = real.library()
    assert "plain" in found.isas and found.isa == next(iter(found.isas))
    assert found.lib.lc_words(found.operation("advance")) == 2
    assert all(found.lib.lc_isa_alike(number) for number in found.isas.values())
    with pytest.raises(KeyError):
        found.operation("nothing")
    assert found.lib.lc_sizeof(b"Nothing") == -1


def test_one_that_the_installation_built(good: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = cache.parent / "built"
    monkeypatch.setattr(library, "BESIDE", beside)
    monkeypatch.setattr(native, "BESIDE", beside)
    put(beside, good)
    found = library.find(cache)
    assert found is not None and found.is_installed and found.isa == "plain"
    assert not cache.exists()


def test_one_in_the_cache(good: Path, cache: Path) -> None:
    put(cache / STAMP, good)
    found = library.find(cache)
    assert found is not None and not found.is_installed


def test_a_stale_one_beside_does_not_hide_the_one_in_the_cache(
    good: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "BESIDE", cache.parent / "built")
    put(cache.parent / "built", good, "of other sources")
    put(cache / STAMP, good)
    found = library.find(cache)
    assert found is not None and found.path.parent == cache / STAMP


def damage(kind: str, place: Path, empty_library: Make) -> str:
    """Make the library at `place` a bad one; gives what must be said of it."""
    seal = place.with_name(sources.SEAL)
    match kind:
        case "truncated":
            os.truncate(place, place.stat().st_size // 2)
        case "truncated to nothing":
            os.truncate(place, 0)
        case "garbage":
            place.write_bytes(os.urandom(10_000))
        case "flipped":
            bits = bytearray(place.read_bytes())
            bits[len(bits) // 2] ^= 1
            place.write_bytes(bits)
        case "garbage with a seal":
            place.write_bytes(os.urandom(10_000))
            seal.write_text(sources.seal(place, STAMP))
            return str(place)  # as the loader says it
        case "no seal's words":
            seal.write_bytes(b"\xff\xfe\n")
            return "other sources"
        case "another stamp":
            seal.write_text(sources.seal(place, "0" * 32))
            return "other sources"
        case "another stamp inside":
            shutil.copy(empty_library(stamp="0" * 32), place)
            seal.write_text(sources.seal(place, STAMP))
            return "other sources"
        case "a function missing":
            shutil.copy(empty_library(leave_out="lc_pack"), place)
            seal.write_text(sources.seal(place, STAMP))
            return "lc_pack"
        case "other numbers":
            shutil.copy(empty_library(alike="return 0;"), place)
            seal.write_text(sources.seal(place, STAMP))
            return "other numbers with plain"
    return "damaged"


KINDS = [
    *("truncated", "truncated to nothing", "garbage", "flipped", "garbage with a seal", "no seal's words"),
    *("another stamp", "another stamp inside", "a function missing", "other numbers"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_one_is_told_and_built_again(
    kind: str, good: Path, cache: Path, empty_library: Make, compiler: Make
) -> None:
    words = damage(kind, put(cache / STAMP, good), empty_library)
    status = library.status(cache)
    assert status.native is None and words in status.why and status.compiler and not status.failed
    log = compiler(good)
    made = library.build(cache)
    assert made.lib.lc_stamp().decode() == STAMP and made.path.read_bytes() == good.read_bytes()
    assert "-shared" in log.read_text()
    assert library.find(cache) is not None


def test_half_of_a_place_is_no_library(good: Path, cache: Path) -> None:
    put(cache / STAMP, good).unlink()
    assert library.status(cache).why == "it is not built yet"
    shutil.rmtree(cache)
    put(cache / STAMP, good).with_name(sources.SEAL).unlink()
    assert library.status(cache).why == "it is not built yet"


def test_structs_of_another_size(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "place", good)
    monkeypatch.setitem(structs.STRUCTS, "Run", structs.Instruction)
    with pytest.raises(Unusable, match="its Run has 24 bytes, not 256"):
        native.open_library(tmp_path / "place", STAMP)


# Building


def test_a_build_says_how_far_it_is(good: Path, cache: Path, compiler: Make) -> None:
    compiler(good)
    steps: list[tuple[int, int]] = []
    library.build(cache, lambda done, total: steps.append((done, total)))
    total = len(sources.units()) + 1
    assert steps == [(i, total) for i in range(1, total + 1)]
    assert sorted(path.name for path in (cache / STAMP).iterdir()) == sorted([sources.LIBRARY, sources.SEAL])


def test_every_file_has_its_flags(good: Path, cache: Path, compiler: Make) -> None:
    log = compiler(good)
    library.build(cache)
    commands = {
        Path(words.split(" -c ")[1].split()[0]).name: words for words in log.read_text().splitlines() if " -c " in words
    }
    assert all("-ffp-contract=off" in words and "-ffast-math" not in words for words in commands.values())
    assert [name for name, words in commands.items() if STAMP in words] == ["api.cpp"]
    special = {name for name, words in commands.items() if "-mavx2" in words or "-march" in words}
    assert special == sources.ISA_FLAGS.get(sources.machine(), {}).keys()


def test_no_compiler(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    status = library.status(cache)
    assert (status.native, status.compiler) == (None, False) and "no C++ compiler (c++, g++, clang++)" in status.why
    with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
        library.build(cache)
    assert in_background(cache)[0] == status.why
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    (tmp_path / "g++").chmod(0o755)
    assert library.status(cache).compiler  # one that was installed meanwhile


def test_a_failure_is_told_remembered_and_forgotten(good: Path, cache: Path, compiler: Make, tmp_path: Path) -> None:
    log = compiler(good, words="In file included\nisa.h:7:1: error: what is this\nmore")
    with pytest.raises(BuildError, match="In file included"):
        library.build(cache)
    status = library.status(cache)
    assert status.failed and status.why == "building it failed: isa.h:7:1: error: what is this"
    assert not list(cache.glob(build.UNFINISHED + "*"))
    asked = log.read_text()
    told, _ = in_background(cache)
    assert told == status.why and log.read_text() == asked  # not tried again
    compiler(good, name="another")
    assert library.status(cache).why == "it is not built yet"
    library.build(cache)
    assert library.find(cache) is not None
    assert not list(cache.glob("*.failed"))


@pytest.mark.parametrize(
    ("alike", "words"),
    [("return 0;", "computes other numbers with plain"), ("abort();", "ended by SIGABRT")],
)
def test_a_library_that_fails_its_check_is_not_put_in_place(
    alike: str, words: str, cache: Path, empty_library: Make, compiler: Make
) -> None:
    """It is asked in a process of its own: an illegal instruction would be the end of this one."""
    compiler(empty_library(alike=alike))
    with pytest.raises(BuildError, match=words):
        library.build(cache)
    assert not (cache / STAMP).exists()


def test_a_compiler_that_cannot_be_run(good: Path, cache: Path, compiler: Make, tmp_path: Path) -> None:
    compiler(good)
    (tmp_path / "compiler").write_text("no program")
    with pytest.raises(BuildError, match="compiler"):
        library.build(cache)
    assert not library.status(cache).failed  # it may be better next time


def test_a_cache_that_cannot_be_written(good: Path, cache: Path, compiler: Make) -> None:
    compiler(good)
    cache.write_text("a file")
    with pytest.raises(BuildError, match=str(cache)):
        library.build(cache)
    assert library.find(cache) is None


def test_a_file_in_the_place_gives_way(good: Path, cache: Path, compiler: Make) -> None:
    compiler(good)
    cache.mkdir()
    (cache / STAMP).write_text("a file")
    library.build(cache)
    assert library.find(cache) is not None


def test_the_cache_stays_small(good: Path, cache: Path, compiler: Make) -> None:
    compiler(good)
    (cache / f"{build.UNFINISHED}killed").mkdir(parents=True)
    for i in range(6):
        (cache / f"old{i}").mkdir()
        os.utime(cache / f"old{i}", (i, i))
    library.build(cache)
    assert sorted(path.name for path in cache.iterdir() if path.is_dir()) == sorted([STAMP, "old3", "old4", "old5"])


# Two at once, and in the background


def in_background(cache: Path) -> tuple[Native | str, list[tuple[int, int]]]:
    told: list[Native | BuildError] = []
    steps: list[tuple[int, int]] = []
    thread = library.build_in_background(told.append, cache, lambda done, total: steps.append((done, total)))
    thread.join(TIMEOUT_S)
    (result,) = told
    return (str(result) if isinstance(result, BuildError) else result), steps


def test_in_the_background(good: Path, cache: Path, compiler: Make) -> None:
    log = compiler(good)
    made, steps = in_background(cache)
    assert isinstance(made, Native) and made.path.parent == cache / STAMP
    assert steps[-1] == (len(sources.units()) + 1,) * 2
    asked = log.read_text()
    again, steps = in_background(cache)
    assert isinstance(again, Native) and not steps and log.read_text() == asked


def test_a_failure_in_the_background(good: Path, cache: Path, compiler: Make) -> None:
    compiler(good, words="x.cpp:1:1: error: no")
    assert in_background(cache)[0] == "x.cpp:1:1: error: no"
    assert library.status(cache).why == "building it failed: x.cpp:1:1: error: no"


def test_several_builders_compile_once(good: Path, cache: Path, compiler: Make) -> None:
    log = compiler(good)
    told: list[Native | BuildError] = []
    threads = [library.build_in_background(told.append, cache) for _ in range(3)]
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert len(told) == 3 and all(isinstance(one, Native) for one in told)
    assert sum("-shared" in line for line in log.read_text().splitlines()) == 1


def test_rivals_without_a_lock_both_succeed(good: Path, cache: Path, compiler: Make) -> None:
    """As two installations into one folder."""
    compiler(good)
    faults: list[Exception] = []

    def make() -> None:
        try:
            for _ in range(5):
                build.build(cache / STAMP)
        except Exception as error:
            faults.append(error)

    rivals = [threading.Thread(target=make) for _ in range(3)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()
    assert not faults
    assert library.find(cache) is not None
    assert [path.name for path in cache.iterdir()] == [STAMP]


def test_a_build_goes_on_when_lingchat_ends(good: Path, cache: Path, compiler: Make) -> None:
    compiler(good)
    program = f"""
from pathlib import Path
from lingchat.kernels.cpu import library
import os, threading
library.BESIDE = Path("nowhere")
begun = threading.Event()
library.build_in_background(print, Path({str(cache)!r}), lambda done, total: begun.set())
begun.wait()
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=TIMEOUT_S)
    end = time.monotonic() + TIMEOUT_S
    while library.find(cache) is None:
        assert time.monotonic() < end
        os.sched_yield()


# The stamp


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    for path in sources.sources():
        shutil.copy(path, folder)
    return folder


def test_the_stamp_is_that_of_the_sources(copied: Path) -> None:
    assert sources.stamp(copied) == STAMP
    (copied / "note.txt").write_text("no source")
    (copied / "first_use.py").write_text("")
    assert sources.stamp(copied) == STAMP
    with (copied / "types.h").open("a") as file:
        file.write(" ")
    changed = sources.stamp(copied)
    (copied / "more.cpp").write_text("")
    assert len({STAMP, changed, sources.stamp(copied)}) == 3


@pytest.mark.parametrize("name", ["FLAGS", "LINK_FLAGS"])
def test_the_stamp_is_that_of_the_flags(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, name, (*getattr(sources, name), "-g"))
    assert sources.stamp() != STAMP


@pytest.mark.parametrize("machine", ["x86_64", "arm64", "riscv64"])
def test_each_machine_compiles_its_own(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "machine", lambda: machine)
    isas = {path.name for path, _ in sources.units() if path.name.startswith("isa_")}
    own = {"x86_64": {"isa_avx2.cpp", "isa_avx512.cpp"}, "arm64": {"isa_neon.cpp"}}.get(machine, set())
    assert isas == own | {"isa_plain.cpp"}


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("", "it said nothing"),
        ("\n a \n b", "a"),
        ("In file\nx.h:1: error: y\nz", "x.h:1: error: y"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_first_words(words: str, first: str) -> None:
    assert first_use.first_words(words) == first
