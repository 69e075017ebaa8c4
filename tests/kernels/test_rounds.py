"""Accept: which drafts hold, where a reply stops, and that a draft never changes what is drawn."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lingchat.kernels.lookup import lookup
from lingchat.kernels.rounds import accept
from lingchat.kernels.sample import Filters, choose


def greedy(*ends: int) -> Filters:
    return Filters(0.0, 1.0, 0, 0.0, 1.0, 0, torch.tensor(ends, dtype=torch.int64))


def run(
    target: list[int], drafts: list[int], n: int, left: int = 100, ends: tuple[int, ...] = (99,)
) -> tuple[list[int], int, int]:
    """The model would choose `target`; -> emitted, accepted, done."""
    logits = torch.zeros(len(target), 100)
    logits[torch.arange(len(target)), torch.tensor(target)] = 1.0
    ids = torch.tensor([5, *drafts], dtype=torch.int32)
    length = torch.tensor([1], dtype=torch.int32)
    emitted, count, accepted, done = accept(
        logits,
        ids,
        torch.tensor([n], dtype=torch.int32),
        greedy(*ends),
        ids[:1],
        length,
        torch.tensor([left], dtype=torch.int32),
    )
    return emitted[: int(count)].tolist(), int(accepted), int(done)


def test_accepts_up_to_the_first_miss_and_adds_one() -> None:
    assert run([1, 2, 3, 4], [1, 2, 9], 3) == ([1, 2, 3], 2, 0)
    assert run([1, 2, 3, 4], [1, 2, 3], 3) == ([1, 2, 3, 4], 3, 0)
    assert run([1, 2, 3, 4], [9, 2, 3], 3) == ([1], 0, 0)


def test_masked_drafts_never_count() -> None:
    assert run([1, 2, 3, 4], [1, 2, 3], 1) == ([1, 2], 1, 0)
    assert run([1, 2, 3, 4], [1, 2, 3], 0) == ([1], 0, 0)
    assert run([1], [], 0) == ([1], 0, 0)


def test_stops_at_an_end_token_and_at_the_budget() -> None:
    assert run([1, 99, 3, 4], [1, 99, 3], 3) == ([1, 99], 3, 1)
    assert run([1, 2, 99, 4], [1, 9, 99], 3) == ([1, 2], 1, 0)  # the end token lies beyond the miss
    assert run([1, 2, 3, 4], [1, 2, 3], 3, left=2) == ([1, 2], 3, 2)
    assert run([1, 99, 3, 4], [1, 99, 3], 3, left=2) == ([1, 99], 3, 1)  # the end token is the reason
    assert run([99], [], 0, left=1) == ([99], 0, 1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(0, 11), min_size=7, max_size=7), st.integers(0, 7))
def test_drafts_never_change_what_is_drawn(seed: int, drafts: list[int], n: int) -> None:
    """Whatever is drafted, the emitted tokens are those that one row after the other would have drawn."""
    model = torch.Generator().manual_seed(seed)
    table = torch.randn(12, 12, generator=model)  # a bigram model: the next token depends on the last one
    f = Filters(0.9, 0.95, 8, 0.01, 1.0, seed, torch.tensor([11]))
    history = torch.tensor([3], dtype=torch.int32)

    def alone(count: int) -> list[int]:
        out, last = [], 3
        for i in range(count):
            at = torch.tensor([1 + i], dtype=torch.int32)
            last = int(choose(table[last][None], torch.tensor([last]), history, at, f))
            out.append(last)
            if last == 11:
                break
        return out

    ids = torch.tensor([3, *drafts], dtype=torch.int32)
    emitted, count, accepted, _ = accept(
        table[ids.long()],
        ids,
        torch.tensor([n], dtype=torch.int32),
        f,
        history,
        torch.tensor([1], dtype=torch.int32),
        torch.tensor([50], dtype=torch.int32),
    )
    assert 1 <= int(count) <= int(accepted) + 1 <= n + 1
    assert emitted[: int(count)].tolist() == alone(int(count))


def propose(text: list[int], limit: int = 4, longest: int = 3) -> list[int]:
    history = torch.tensor([*text, 77, 77, 77], dtype=torch.int32)  # stale slots behind the end
    ids, n = lookup(history, torch.tensor([len(text)], dtype=torch.int32), longest, limit)
    return ids[: int(n)].tolist()


def test_lookup_proposes_what_followed_the_latest_longest_match() -> None:
    assert propose([1, 2, 3, 4, 5, 1, 2]) == [3, 4, 5, 1]
    assert propose([1, 2, 3, 9, 1, 2, 4, 9, 1, 2]) == [4, 9, 1, 2]  # the latest of equals
    assert propose([8, 1, 2, 3, 9, 5, 1, 2, 4, 9, 8, 1, 2]) == [3, 9, 5, 1]  # the longer one
    assert propose([1, 2, 3, 4, 5, 6]) == []
    assert propose([1, 2, 3, 4, 2]) == []  # one token is no evidence
    assert propose([7]) == []
    assert propose([4, 4, 4]) == [4]  # a run goes on, as far as it is known
    assert propose([1, 2, 3, 1, 2], limit=1) == [3]
