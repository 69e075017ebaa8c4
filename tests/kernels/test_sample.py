"""The sampler draws from the distribution it states, and its noise is a pure function of seed, position and id."""

from __future__ import annotations

import pytest
import torch

from lingchat.kernels import sample
from lingchat.kernels.sample import Filters, choose, exponential_noise, filter_logits


def filters(**changes: object) -> Filters:
    values: dict[str, object] = dict(
        temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, seed=3, end_ids=torch.tensor([0])
    )
    return Filters(**{**values, **changes})  # type: ignore[arg-type]


def kept(logits: torch.Tensor, **changes: object) -> list[int]:
    return torch.isfinite(filter_logits(logits, filters(**changes))).nonzero().flatten().tolist()


LOGITS = torch.tensor([0.1, 0.5, 0.2, 0.15, 0.05]).log()


def test_filters_keep_what_their_definitions_say() -> None:
    assert kept(LOGITS, top_k=2) == [1, 2]
    assert kept(LOGITS, top_p=0.5) == [1]
    assert kept(LOGITS, top_p=0.51) == [1, 2]
    assert kept(LOGITS, top_p=0.8) == [1, 2, 3]
    assert kept(LOGITS, min_p=0.3) == [1, 2, 3]
    assert kept(LOGITS, top_k=3, top_p=0.5) == [1]  # top-p counts within what top-k left
    assert kept(LOGITS) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("mass", [0.01, 0.3, 0.7, 0.95, 0.999])
def test_nucleus_equals_the_sorted_definition(mass: float) -> None:
    torch.manual_seed(0)
    p = (torch.randn(5000) * 3).softmax(-1)
    ordered, order = p.sort(descending=True)
    size = int((ordered.double().cumsum(0) < mass).sum()) + 1
    want = set(order[:size].tolist())
    got = set(torch.isfinite(filter_logits(p.log(), filters(top_p=mass))).nonzero().flatten().tolist())
    assert len(got ^ want) <= 1  # the last token's mass is summed in another order


def test_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    logits = torch.tensor([2.0, -2.0, 1.0])
    assert sample.penalize(logits, torch.tensor([0, 1, 1]), 2.0).tolist() == [1.0, -4.0, 1.0]
    row = torch.tensor([[2.0, 1.5, 0.0]])
    f = filters(temperature=0.0, repetition_penalty=2.0)
    history, length = torch.tensor([0, 9, 9], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    assert choose(row, torch.tensor([0]), history, length, f).tolist() == [1]


def test_penalty_counts_the_drafts_of_the_rows_before() -> None:
    rows = torch.tensor([[0.0, 3.0, 2.0], [0.0, 3.0, 2.0]])
    f = filters(temperature=0.0, repetition_penalty=2.0)
    history, length = torch.tensor([0], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    assert choose(rows, torch.tensor([0, 1]), history, length, f).tolist() == [1, 2]


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    assert choose(
        torch.tensor([[1.0, 2.0, 2.0]]),
        torch.tensor([0]),
        torch.tensor([0]),
        torch.tensor([1]),
        filters(temperature=0.0),
    ).tolist() == [1]


def test_draws_follow_the_distribution() -> None:
    draws = 20_000
    counts = torch.zeros(5)
    rows = LOGITS.expand(64, 5)
    ids, history = torch.zeros(64, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
    f = filters(temperature=2.0, top_k=4)
    for start in range(0, draws, 64):
        chosen = choose(rows, ids, history, torch.tensor([start], dtype=torch.int32), f)
        counts += torch.bincount(chosen, minlength=5)
    want = filter_logits(LOGITS, f).softmax(-1)
    assert want[4] == 0
    chi2 = ((counts - counts.sum() * want) ** 2 / (counts.sum() * want))[:4].sum()
    assert counts[4] == 0
    assert chi2 < 16.3  # 3 degrees of freedom, p = 0.001; the seed is fixed


def test_noise_depends_on_seed_position_and_id_only() -> None:
    at = torch.tensor([7], dtype=torch.int32)
    base = exponential_noise(5, at, 1000)
    assert torch.equal(base, exponential_noise(5, at.clone(), 1000))
    assert torch.equal(base[:100], exponential_noise(5, at, 100))
    for other in (exponential_noise(6, at, 1000), exponential_noise(5, at + 1, 1000)):
        assert abs(torch.corrcoef(torch.stack((base, other)))[0, 1]) < 0.1
    assert abs(base.mean() - 1) < 0.15
    assert (base > 0).all() and torch.isfinite(base).all()


def test_large_seeds_are_taken() -> None:
    assert torch.isfinite(exponential_noise(2**63 - 1, torch.tensor([1]), 8)).all()
