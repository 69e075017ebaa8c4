"""The native round against its twins: the same drafts, the same tokens, the same cursor, for every number of threads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.cpu import native

from lingchat.kernels.cpu import structs
from lingchat.kernels.sample import Filters, choose
from lingchat.runtime.ops.protocol import Cursor, DraftBuffer
from lingchat.runtime.ops.torch_ops import TorchOps

TWIN = TorchOps("fp32")
NEG_INF = float("-inf")
WIDTH = 16
CURSOR = [name for name, _ in structs.CursorArgs._fields_]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclass
class Reply:
    """A cursor and its history, with room for `WIDTH` tokens and stale slots behind the end."""

    tokens: list[int]
    left: int = 100
    cursor: Cursor = field(init=False)

    def __post_init__(self) -> None:
        history = ints(*self.tokens, *range(70, 70 + WIDTH + 1))
        one = [torch.full((1,), 55, dtype=torch.int32) for _ in range(4)]
        self.cursor = Cursor(history, ints(len(self.tokens)), ints(self.left), *one, torch.full((WIDTH,), -7).int())

    def struct(self) -> structs.CursorArgs:
        parts = [getattr(self.cursor, name) for name in CURSOR]
        return native.keep(structs.CursorArgs(*map(native.address, parts)), parts)

    def told(self) -> dict[str, list[int]]:
        """All that a cursor says; of what was emitted only what counts."""
        told = {name: getattr(self.cursor, name).tolist() for name in CURSOR}
        return told | {"emitted": told["emitted"][: max(0, told["count"][0])]}


def filters(*ends: int, **changes: Any) -> Filters:
    plain = dict(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, seed=7)
    return Filters(**{**plain, **changes}, end_ids=torch.tensor(ends, dtype=torch.int64))


def sampler(f: Filters) -> structs.Sampler:
    ends = f.end_ids.int()
    numbers = (f.temperature, f.top_p, f.min_p, f.repetition_penalty, f.top_k, f.seed, len(ends))
    return native.keep(structs.Sampler(*numbers, ends.data_ptr()), ends)


def accept(
    logits: torch.Tensor, ids: list[int], n: int, f: Filters, reply: Reply, isa: str = "", threads: int = 1
) -> dict[str, list[int]]:
    """Native `accept` of the rows `logits` [T, V]; what the cursor says then."""
    rows, size = logits.shape
    stride = -(-size // 64) * 64 + 64
    own = torch.full((rows, stride), float("nan"))
    own[:, :size] = logits
    noise = torch.full((rows, stride), float("nan"))
    dead = logits == NEG_INF
    native.run(
        "accept",
        *(own, size, stride, ints(*ids), ints(n), sampler(f), reply.struct(), noise, 0),
        rows=rows,
        isa=isa,
        threads=threads,
    )
    assert (own[:, :size][dead] == NEG_INF).all()
    return reply.told()


def twin(logits: torch.Tensor, ids: list[int], n: int, f: Filters, reply: Reply) -> dict[str, list[int]]:
    TWIN.accept(logits.clone(), ints(*ids), DraftBuffer(ids=ints(), n=ints(n)), f, reply.cursor)
    return reply.told()


def both(
    logits: torch.Tensor, ids: list[int], n: int, f: Filters, tokens: list[int], left: int = 100, **how: Any
) -> None:
    assert accept(logits, ids, n, f, Reply(tokens, left), **how) == twin(logits, ids, n, f, Reply(tokens, left))


def drafted(logits: torch.Tensor, f: Filters, tokens: list[int]) -> list[int]:
    """The anchor and drafts that all hold: the twin's own tokens."""
    ids = [tokens[-1]]
    for r in range(logits.shape[0] - 1):
        so_far = torch.tensor([*ids, *[0] * (r + 1 - len(ids))])
        at = torch.tensor([len(tokens) + r]), torch.tensor([len(tokens)])
        if f.repetition_penalty == 1.0:  # rows do not depend on each other
            chosen = choose(logits[r : r + 1], so_far, ints(*tokens), at[0], f)
        else:
            chosen = choose(logits[: r + 1], so_far, ints(*tokens), at[1], f)
        ids.append(int(chosen[-1]))
    return ids


# What a round keeps

PLAIN = torch.full((4, 100), 0.0)
PLAIN[torch.arange(4), torch.tensor([1, 2, 3, 4])] = 1.0
ENDS = PLAIN.clone()
ENDS[1, 99] = 2.0


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("logits", "drafts", "n", "left"),
    [
        (PLAIN, [1, 2, 9], 3, 100),
        (PLAIN, [1, 2, 3], 3, 100),
        (PLAIN, [9, 2, 3], 3, 100),
        (PLAIN, [1, 2, 3], 1, 100),  # fewer drafts than rows
        (PLAIN, [1, 2, 3], 0, 100),
        (PLAIN[:1], [], 0, 100),
        (ENDS, [1, 99, 3], 3, 100),  # an end token inside of what holds
        (ENDS, [1, 99, 3], 3, 2),  # the end token is the reason, not the budget
        (ENDS, [1, 9, 99], 3, 100),
        (PLAIN, [1, 2, 3], 3, 2),
        (PLAIN, [1, 2, 3], 3, 1),
        (ENDS[1:2], [], 0, 1),
        (PLAIN, [1, 2, 3], 3, 0),
    ],
)
def test_a_round_keeps_what_its_twin_keeps(
    isa: str, threads: int, logits: torch.Tensor, drafts: list[int], n: int, left: int
) -> None:
    both(logits, [5, *drafts], n, filters(99, 98), [5], left, isa=isa, threads=threads)


def test_a_single_row_is_the_first_whatever_the_pass_has(isa: str) -> None:
    reply, expected = Reply([3, 4, 5]), Reply([3, 4, 5])
    noise = torch.zeros(128)
    native.run(
        "accept",
        *(PLAIN[:1].clone(), 100, 100, ints(3, 4, 5), ints(0), sampler(filters(99)), reply.struct(), noise, 1),
        rows=40,
        isa=isa,
    )
    assert reply.told() == twin(PLAIN[:1], [3, 4, 5], 0, filters(99), expected)


def test_slots_beyond_the_count_keep_what_they_hold() -> None:
    told = accept(PLAIN, [5, 1, 2, 3], 3, filters(99), Reply([5], left=2))
    assert told["history"] == [5, 1, 2, *range(72, 70 + WIDTH + 1)]


# What is chosen

HOW: list[dict[str, Any]] = [
    dict(temperature=0.0),
    dict(temperature=0.0, repetition_penalty=1.3),
    dict(temperature=1.0),
    dict(temperature=0.7),
    dict(temperature=2.5),
    dict(temperature=0.8, top_k=1),
    dict(temperature=0.8, top_k=40),
    dict(temperature=1.5, top_k=3000),
    dict(temperature=0.7, top_p=0.9),
    dict(temperature=1.0, top_p=0.999999),
    dict(temperature=1.0, top_p=0.01),
    dict(temperature=1.0, min_p=0.05),
    dict(temperature=1.0, top_p=0.95, min_p=1e-4),
    dict(temperature=0.8, top_k=50, top_p=0.9, min_p=0.02, repetition_penalty=1.2),
    dict(temperature=1.2, top_k=2000, top_p=0.99, repetition_penalty=0.8),
    dict(temperature=1e-3),
    dict(temperature=100.0, top_p=0.5),
]


def words(how: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in how.items())


def language_like(rows: int, size: int, seed: int, limit: int = 0) -> torch.Tensor:
    """Logits as models give them: most far below a few; ids from `limit` on are none."""
    made = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, size, generator=made) * 3
    logits[torch.arange(rows)[:, None], torch.randint(size, (rows, 12), generator=made)] += 9
    if limit:
        logits[:, limit:] = NEG_INF
    return logits


@pytest.mark.parametrize("how", HOW, ids=words)
@pytest.mark.parametrize(("size", "limit"), [(49_152, 0), (20_011, 20_000), (5_003, 0)])
def test_the_tokens_are_the_twins(isa: str, how: dict[str, Any], size: int, limit: int) -> None:
    rows = 8
    for case in range(2):
        f = filters(seed=2**62 + case, **how)
        logits = language_like(rows, size, case, limit)
        tokens = [int(t) for t in torch.randint(size, (50,))] + logits[0].topk(5).indices.tolist()
        ids = drafted(logits, f, tokens)
        expected = twin(logits, ids, rows - 1, f, Reply(tokens))
        assert expected["count"] == [rows]
        for threads in (1, 2, 3):
            assert accept(logits, ids, rows - 1, f, Reply(tokens), isa, threads) == expected


def flat(size: int) -> torch.Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(1)) * 2 - 1


def levels(size: int) -> torch.Tensor:
    return torch.randint(4, (size,), generator=torch.Generator().manual_seed(2)).float()


def one_of(size: int) -> torch.Tensor:
    return torch.full((size,), NEG_INF).index_fill(0, torch.tensor([size - 1]), -3.0)


def sparse(size: int) -> torch.Tensor:
    row = torch.full((size,), NEG_INF)
    row[::997] = flat(size)[::997]
    return row


def zeros(size: int) -> torch.Tensor:
    row = torch.zeros(size)
    row[::3] = -0.0
    return row


ROWS = {
    "flat": flat,
    "levels": levels,
    "equal": lambda size: torch.full((size,), 1.5),
    "zeros of both signs": zeros,
    "one": one_of,
    "sparse": sparse,
    "all negative": lambda size: flat(size) - 1e4,
    "large": lambda size: flat(size) * 1e6,
    "around a large one": lambda size: flat(size) + 1e6,
    "with one far above": lambda size: flat(size).index_fill(0, torch.tensor([77]), 1e5),
    "falling": lambda size: -torch.arange(size) / 100.0,
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("how", HOW, ids=words)
def test_odd_rows_give_the_twins_tokens(name: str, how: dict[str, Any]) -> None:
    size = 16_500
    row = ROWS[name](size)[None]
    for seed in range(3):
        f = filters(seed=seed, **how)
        expected = twin(row, [3], 0, f, Reply([9, 77, 3]))
        for isa in native.isas():
            assert accept(row, [3], 0, f, Reply([9, 77, 3]), isa, 2) == expected
        assert accept(row, [3], 0, f, Reply([9, 77, 3]), threads=3) == expected


HOT = [dict(temperature=0.9), dict(temperature=1.0, top_k=20, top_p=0.9), dict(temperature=1.3, top_p=0.95, min_p=0.01)]


@pytest.mark.parametrize("how", HOT, ids=words)
def test_one_in_a_thousand_at_most_is_drawn_otherwise(how: dict[str, Any]) -> None:
    rows, size = 1000, 1000
    f = filters(**how)
    logits = torch.randn(rows, size, generator=torch.Generator().manual_seed(5)) * 3
    expected = choose(logits, ints(1), ints(1), torch.tensor([1]), f)  # row r stands at position 1 + r
    other = 0
    for r in range(rows):
        told = accept(logits[r : r + 1], [1], 0, f, Reply([1] * (1 + r)), threads=1 + r % 3)
        other += told["emitted"] != [int(expected[r])]
    assert other <= rows // 1000


@pytest.mark.parametrize("how", [*HOT, dict(temperature=1.0, top_p=0.7)], ids=words)
def test_threads_and_instruction_sets_draw_the_same(how: dict[str, Any]) -> None:
    """On flat rows a threshold that moved by one bit would soon draw another token."""
    row = flat(40_000)[None] * 0.01
    for seed in range(40):
        told = [accept(row, [1], 0, filters(seed=seed, **how), Reply([1]), threads=count) for count in (1, 2, 3, 8)]
        told += [accept(row, [1], 0, filters(seed=seed, **how), Reply([1]), isa) for isa in native.isas()]
        assert all(one == told[0] for one in told)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[torch.Tensor, list[int], int, Filters, list[int], int]:
    size = draw(st.sampled_from([1, 2, 7, 8, 9, 31, 64, 100, 255, 257, 700]))
    rows = draw(st.integers(1, 6))
    made = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        logits = torch.randn(rows, size, generator=made) * draw(st.sampled_from([0.1, 1.0, 8.0]))
    else:  # many equals
        logits = torch.randint(-2, 3, (rows, size), generator=made).float()
    dead = draw(st.integers(0, size - 1))
    if dead:
        logits[:, size - dead :] = NEG_INF
    f = filters(
        *draw(st.lists(st.integers(0, size - 1), max_size=2)),
        temperature=draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
        top_p=draw(st.sampled_from([1.0, 0.95, 0.6, 0.03])),
        top_k=draw(st.sampled_from([0, 1, 3, 50, 1000])),
        min_p=draw(st.sampled_from([0.0, 0.02, 0.4, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.7, 0.6])),
        seed=draw(st.integers(0, 2**63 - 1)),
    )
    tokens = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=12))
    ids = drafted(logits, f, tokens)
    if draw(st.booleans()) and rows > 1:
        ids[draw(st.integers(1, rows - 1))] = draw(st.integers(0, size - 1))
    return logits, ids, draw(st.integers(0, rows - 1)), f, tokens, draw(st.integers(1, 8))


@settings(max_examples=300, deadline=None)
@given(rounds(), st.deferred(lambda: st.sampled_from(native.isas())), st.integers(1, 3))
def test_any_round_is_its_twins(round: Any, isa: str, threads: int) -> None:
    logits, ids, n, f, tokens, left = round
    both(logits, ids, n, f, tokens, left, isa=isa, threads=threads)


def test_a_long_history_is_penalized_once_an_id(isa: str) -> None:
    size = 9000
    logits = flat(size)[None] * 4
    tokens = torch.randint(size, (20_000,), generator=torch.Generator().manual_seed(4)).tolist()
    for temperature in (0.0, 0.6):
        f = filters(temperature=temperature, repetition_penalty=1.5)
        both(logits, [tokens[-1]], 0, f, tokens, isa=isa, threads=2)


# Drafting

LIMIT = 5


def lookup(tokens: list[int], left: int = 100, longest: int = 4, isa: str = "", threads: int = 1) -> list[int]:
    """What is proposed, after a comparison with the twin."""
    reply = Reply(tokens, left)
    ids, n = torch.full((LIMIT,), -1, dtype=torch.int32), ints(-1)
    native.run("lookup", reply.struct(), ids, n, longest, LIMIT, rows=1, isa=isa, threads=threads)
    draft = DraftBuffer(ids=torch.full((LIMIT,), -1, dtype=torch.int32), n=ints(-1))
    TWIN.lookup(reply.cursor, draft, longest, LIMIT)
    assert n.tolist() == draft.n.tolist()
    assert ids[: int(n)].tolist() == draft.ids[: int(n)].tolist()
    return ids[: int(n)].tolist()


def test_lookup_proposes_what_followed_the_latest_longest_match(isa: str) -> None:
    assert lookup([1, 2, 3, 4, 5, 1, 2], isa=isa, threads=2) == [3, 4, 5, 1, 2]
    assert lookup([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], isa=isa) == [4, 9, 1, 2]
    assert lookup([8, 1, 2, 3, 9, 5, 1, 2, 4, 9, 8, 1, 2], isa=isa, threads=3) == [3, 9, 5, 1, 2]
    assert lookup([1, 2, 3, 4, 5, 6], isa=isa) == []
    assert lookup([1, 2, 3, 4, 2], isa=isa) == []  # one token is no evidence
    assert lookup([4, 4, 4], isa=isa) == [4]  # a match that overlaps the suffix
    assert lookup([4] * 200, isa=isa) == [4]
    assert lookup([1, 2] * 3, isa=isa) == [1, 2]
    assert lookup([7], isa=isa) == lookup([7, 7], isa=isa) == []


def test_lookup_finds_matches_wherever_they_lie(isa: str) -> None:
    for size in (63, 64, 65, 66, 127, 128, 129, 130, 131, 700):
        for at in {0, 1, 2, 62, 63, 64, 65, size - 4, size // 2} & set(range(size - 3)):
            tokens = [100 + i for i in range(size)]
            tokens[at : at + 2] = tokens[-2:]
            assert lookup(tokens, isa=isa) == tokens[at + 2 : at + 2 + LIMIT]


def test_lookup_sees_nothing_before_the_history(isa: str) -> None:
    memory = ints(9, 1, 2, 5, 1, 2, 6, 9, 1, 2, 0)  # the first match would be longer with the 9 before it
    reply = Reply(memory[1:-1].tolist())
    reply.cursor = Cursor(memory[1:], *[getattr(reply.cursor, name) for name in CURSOR[1:]])
    ids, n = ints(0, 0, 0), ints(0)
    native.run("lookup", reply.struct(), ids, n, 4, 3, rows=1, isa=isa)
    assert ids.tolist() == [6, 9, 1]


def test_lookup_leaves_room_for_the_model_s_own_token() -> None:
    text = [1, 2, 3, 4, 5, 1, 2]
    assert lookup(text, left=3) == [3, 4]
    assert lookup(text, left=1) == lookup(text, left=0) == []
    assert lookup(text, longest=1) == []


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=300), st.integers(0, 9), st.integers(1, 6))
def test_any_lookup_is_its_twins(tokens: list[int], left: int, longest: int) -> None:
    lookup(tokens, left, longest)


@pytest.mark.parametrize("threads", [1, 3])
def test_draft_rows_sets_the_rows_and_the_clock(isa: str, threads: int) -> None:
    reply = Reply([3, 4, 5])
    draft = DraftBuffer(ids=ints(*range(10, 10 + WIDTH)), n=ints(2))
    ids, expected = torch.full((6,), -1, dtype=torch.int32), torch.full((6,), -1, dtype=torch.int32)
    before = time.monotonic_ns()
    told = native.run("draft_rows", reply.struct(), draft.ids, draft.n, ids, 6, rows=9, isa=isa, threads=threads)
    assert before <= told.drafted_ns <= time.monotonic_ns()
    assert told.rows == TWIN.draft_rows(reply.cursor, draft, expected) == 3
    assert ids.tolist() == expected.tolist()


def test_no_draft_and_advance(isa: str) -> None:
    n, length = ints(4), ints(10)
    native.run("no_draft", n, rows=1, isa=isa, threads=2)
    assert int(n) == 0
    native.run("advance", length, n, rows=1, isa=isa, threads=2)
    native.run("advance", length, ints(3), rows=1, isa=isa, threads=3)
    assert int(length) == 13


# The record for the host


def test_emit_appends_to_the_ring(isa: str) -> None:
    capacity, width = 3, WIDTH
    records = torch.full((capacity, 4 + width), -1, dtype=torch.int32)
    ring = structs.Ring(0, capacity, width, records.data_ptr())
    expected: deque[Any] = deque()
    for k in range(5):
        reply = Reply([5], left=[100, 2, 100, 0, 100][k])
        accept(ENDS if k == 2 else PLAIN, [5, 1, 99 if k == 2 else 2, 3], k % 4, filters(99), reply)
        native.run("emit", reply.struct(), ring, rows=4, isa=isa, threads=2)
        TWIN.emit(reply.cursor, expected)
        assert ring.written == k + 1
        count, drafts, accepted, done, *ids = records[k % capacity].tolist()
        last = expected[-1]
        assert (tuple(ids[:count]), drafts, accepted, done) == (last.ids, last.drafted, last.accepted, last.done)
    assert {record.done for record in expected} == {0, 1, 2}
