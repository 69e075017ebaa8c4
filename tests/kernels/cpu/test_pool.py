"""The threads of a step: barriers, counts that change, stopping, sleeping, forks; and the memory it is given."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kernels.cpu import native

from lingchat.kernels.cpu import structs
from lingchat.kernels.cpu.native import Native

BYTES = 4096 * 24  # `copy` gives its threads whole pages
THREADS = [1, 2, 3, 4, 5, 7, 8]
TIMEOUT_S = 60.0

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux about threads")


@pytest.fixture
def pool(library: Native) -> Iterator[int]:
    made = library.lib.lc_pool_new(8, 1 << 20)
    yield made
    library.lib.lc_pool_free(made)


class Copies:
    """A program of `copy`s: what one thread writes another reads behind the barrier."""

    def __init__(self) -> None:
        self.cells: list[ctypes.Array[ctypes.c_void_p]] = []
        self.instructions: list[structs.Instruction] = []

    def add(self, source: int, target: int, nbytes: int) -> None:
        cells = (ctypes.c_void_p * 2)(source, target)
        self.cells.append(cells)
        begin = ctypes.addressof(cells)
        self.instructions.append(native.instruction("copy", begin, begin + 8, nbytes))

    def run(self, library: Native, pool: int, threads: int, told: structs.Run | None = None) -> int:
        told = told or structs.Run(1)
        program = (structs.Instruction * len(self.instructions))(*self.instructions)
        library.lib.lc_pool_threads(pool, threads)
        isa = library.isas[library.isa]
        done: int = library.lib.lc_run(pool, isa, ctypes.addressof(program), len(program), ctypes.addressof(told))
        return done


class Turning:
    """Bytes that are turned round by a third, again and again, between two buffers."""

    def __init__(self, times: int) -> None:
        self.buffers = [ctypes.create_string_buffer(BYTES), ctypes.create_string_buffer(BYTES)]
        self.begin = os.urandom(BYTES)
        self.times = times
        self.copies = Copies()
        here, there = (ctypes.addressof(buffer) for buffer in self.buffers)
        third = BYTES // 3
        for _ in range(times):
            self.copies.add(here + third, there, BYTES - third)
            self.copies.add(here, there + BYTES - third, third)
            here, there = there, here

    def is_right_with(self, library: Native, pool: int, threads: int) -> bool:
        self.buffers[0].raw = self.begin
        assert self.copies.run(library, pool, threads) == 0
        third = BYTES // 3 * (self.times % 3)
        return self.buffers[self.times % 2].raw == self.begin[third:] + self.begin[:third]


@pytest.mark.parametrize("threads", THREADS)
def test_a_barrier_stands_behind_every_operation(library: Native, pool: int, threads: int) -> None:
    assert Turning(100).is_right_with(library, pool, threads)


def test_the_count_changes_between_runs(library: Native, pool: int) -> None:
    turning = Turning(5)
    assert all(turning.is_right_with(library, pool, threads) for threads in [8, 1, 3, 2, 7, 2, 1, 8, 5] * 5)


def test_the_count_stays_within_the_pool(library: Native, pool: int) -> None:
    assert [library.lib.lc_pool_threads(pool, n) for n in (-1, 0, 1, 8, 9, 1 << 40)] == [1, 1, 1, 8, 8, 8]


def test_without_a_pool_the_caller_works_alone(library: Native) -> None:
    turning = Turning(4)
    turning.buffers[0].raw = turning.begin
    program = (structs.Instruction * 8)(*turning.copies.instructions)
    told = structs.Run(1)
    isa = library.isas["plain"]
    assert library.lib.lc_run(None, isa, ctypes.addressof(program), 8, ctypes.addressof(told)) == 0
    third = BYTES // 3
    assert turning.buffers[0].raw == turning.begin[third:] + turning.begin[:third]


def test_two_callers_take_turns(library: Native, pool: int) -> None:
    right: list[bool] = []

    def call() -> None:
        turning = Turning(10)
        right.extend(turning.is_right_with(library, pool, 2) for _ in range(20))

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert right == [True] * 60


# Stopping


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("before", [0, 1, 7])
def test_a_run_stops_soon(library: Native, pool: int, threads: int, before: int) -> None:
    """An instruction of the program itself asks to stop: those before it are done, and at most the one that follows,
    when another thread asked than the one that looks."""
    told, one = structs.Run(1), ctypes.c_int64(1)
    marks = (ctypes.c_int64 * 16)()
    copies = Copies()
    for i in range(16):
        copies.add(ctypes.addressof(one), ctypes.addressof(marks) + 8 * i, 8)
        if i == before:
            copies.add(ctypes.addressof(one), ctypes.addressof(told) + structs.Run.stop.offset, 8)
    assert copies.run(library, pool, threads, told) == 1
    done = sum(marks)
    assert list(marks) == [1] * done + [0] * (16 - done)
    assert before + 1 <= done <= before + (1 if threads == 1 else 2)
    told.stop = 0
    assert Turning(3).is_right_with(library, pool, threads)


def test_a_run_that_was_stopped_before_does_nothing(library: Native, pool: int) -> None:
    one, mark = ctypes.c_int64(1), ctypes.c_int64(0)
    copies = Copies()
    copies.add(ctypes.addressof(one), ctypes.addressof(mark), 8)
    assert copies.run(library, pool, 2, structs.Run(1, 0, 1)) == 1
    assert mark.value == 0


def test_a_stop_after_the_last_instruction_comes_too_late(library: Native, pool: int) -> None:
    told, one = structs.Run(1), ctypes.c_int64(1)
    copies = Copies()
    copies.add(ctypes.addressof(one), ctypes.addressof(told) + structs.Run.stop.offset, 8)
    assert copies.run(library, pool, 2, told) == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_another_thread_stops_a_run(library: Native, pool: int, threads: int) -> None:
    told = structs.Run(1)
    copies = Turning(5000).copies
    found: list[int] = []
    runner = threading.Thread(target=lambda: found.append(copies.run(library, pool, threads, told)))
    runner.start()
    told.stop = 1
    runner.join(TIMEOUT_S)
    assert found == [1]


def test_what_is_no_instruction_is_refused(library: Native, pool: int) -> None:
    copies = Copies()
    copies.add(0, 0, 0)
    copies.instructions[0].op = 999
    assert copies.run(library, pool, 2) == -1
    copies.instructions[0].op = -1
    assert copies.run(library, pool, 2) == -1
    program, told = (structs.Instruction * 0)(), structs.Run(1)
    for isa in (-1, library.lib.lc_isa_count()):
        assert library.lib.lc_run(pool, isa, ctypes.addressof(program), 0, ctypes.addressof(told)) == -1


# Threads as the system sees them


def tasks() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def is_asleep(task: int) -> bool:
    return Path(f"/proc/self/task/{task}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def cpu_seconds(task: int) -> float:
    return time.clock_gettime((~task << 3) | 6)  # the clock of one thread, as pthread_getcpuclockid makes it


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < end
        os.sched_yield()


@linux_only
def test_idle_threads_use_no_processor(library: Native) -> None:
    before = tasks()
    pool = library.lib.lc_pool_new(3, 1 << 20)
    own = tasks() - before
    assert len(own) == 2
    assert Turning(10).is_right_with(library, pool, 3)
    wait_until(lambda: all(map(is_asleep, own)))
    used = {task: cpu_seconds(task) for task in own}
    assert min(used.values()) > 0
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    assert {task: cpu_seconds(task) for task in own} == used
    assert Turning(10).is_right_with(library, pool, 3)  # and they wake
    library.lib.lc_pool_free(pool)
    assert not tasks() & own


@linux_only
def test_threads_beyond_the_count_are_left_asleep(library: Native) -> None:
    before = tasks()
    pool = library.lib.lc_pool_new(4, 1 << 20)
    own = tasks() - before
    wait_until(lambda: all(map(is_asleep, own)))
    used = {task: cpu_seconds(task) for task in own}
    assert Turning(20).is_right_with(library, pool, 2)
    worked = [task for task in own if cpu_seconds(task) != used[task]]
    library.lib.lc_pool_free(pool)
    assert len(worked) == 1


FORKING = """
import ctypes, os, sys, threading
from pathlib import Path
from lingchat.kernels.cpu import structs
from lingchat.kernels.cpu.native import open_library

library = open_library(Path(sys.argv[1]), sys.argv[2])
lib, isa = library.lib, library.isas[library.isa]
pool = lib.lc_pool_new(2, 1 << 20)
one, mark = ctypes.c_int64(7), ctypes.c_int64(0)
cells = (ctypes.c_void_p * 2)(ctypes.addressof(one), ctypes.addressof(mark))
begin = ctypes.addressof(cells)

def run(pool, times):
    program = (structs.Instruction * times)()
    for instruction in program:
        structs.fill(instruction, library.operation("copy"), (begin, begin + 8, 8))
    told = structs.Run(1)
    return lib.lc_run(pool, isa, ctypes.addressof(program), times, ctypes.addressof(told))

assert run(pool, 10) == 0 and mark.value == 7
busy = threading.Thread(target=run, args=(pool, 5000))
busy.start()  # the pool's lock is most likely held when the process forks
child = os.fork()
if child == 0:
    mark.value = 0
    good = run(pool, 10) == 0 and mark.value == 7
    mark.value = 0
    fresh = lib.lc_pool_new(2, 1 << 20)
    good = good and run(fresh, 10) == 0 and mark.value == 7
    lib.lc_pool_free(fresh)
    lib.lc_pool_free(pool)
    os._exit(0 if good else 1)
busy.join()
assert os.waitpid(child, 0)[1] == 0
assert run(pool, 10) == 0
lib.lc_pool_free(pool)
"""


def test_a_forked_child_does_not_wait_for_threads_it_has_not(library: Native) -> None:
    command = [sys.executable, "-c", FORKING, str(library.path.parent), library.lib.lc_stamp().decode()]
    result = subprocess.run(command, timeout=TIMEOUT_S, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


# Memory


@pytest.mark.parametrize("name", ["lc_allocate", "lc_allocate_large"])
def test_memory_is_aligned_zeroed_and_given_back(library: Native, name: str) -> None:
    allocate = getattr(library.lib, name)
    for nbytes in (0, 1, 63, 4096, (2 << 20) + 1):
        address = allocate(nbytes)
        assert address % 64 == 0 and ctypes.string_at(address, nbytes) == bytes(nbytes)
        ctypes.memset(address, 255, nbytes)
        library.lib.lc_release(address)
    assert allocate(1 << 60) is None and allocate(-1) is None
    library.lib.lc_release(None)


@linux_only
def test_memory_costs_nothing_until_it_is_touched(library: Native) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    before = resident()
    address = library.lib.lc_allocate(1 << 29)
    assert resident() - before < 1 << 26
    library.lib.lc_release(address)
