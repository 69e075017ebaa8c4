"""Routing against a sort of every expert, and against the router of transformers."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

from lingchat.kernels import moe
from lingchat.kernels.rows import MAX_WIDTH


@dataclass(frozen=True)
class Shape:
    chosen: int = 3
    groups: int = 4
    chosen_groups: int = 2
    scale: float = 2.5
    renormalize: bool = True


@pytest.fixture(autouse=True)
def no_grad():
    with torch.inference_mode():
        yield


def by_sorting(logits: torch.Tensor, bias: torch.Tensor, shape: Shape) -> list[list[int]]:
    """The experts of each row, by Python's stable sort of (minus score, index)."""
    chosen = []
    for row in (logits.sigmoid() + bias).tolist():
        size = len(row) // shape.groups
        groups = range(shape.groups)
        if shape.groups > 1:
            best = {g: torch.tensor(sorted(row[g * size : (g + 1) * size])[-2:]).sum().item() for g in groups}
            groups = sorted(groups, key=lambda g: (-best[g], g))[: shape.chosen_groups]
        able = [e for g in groups for e in range(g * size, (g + 1) * size)]
        chosen.append(sorted(able, key=lambda e: (-row[e], e))[: shape.chosen])
    return chosen


@pytest.mark.parametrize(
    ("experts", "shape"),
    [
        (32, Shape(chosen=8, groups=8, chosen_groups=4)),
        (16, Shape(chosen=4, groups=4, chosen_groups=1)),
        (24, Shape(chosen=5, groups=1, chosen_groups=1, scale=2.446)),
        (12, Shape(chosen=4, groups=3, chosen_groups=3, renormalize=False)),
    ],
)
@pytest.mark.parametrize("ties", [False, True])
def test_routes_are_those_of_a_sort(experts: int, shape: Shape, ties: bool) -> None:
    torch.manual_seed(1)
    logits, bias = torch.randn(40, experts), torch.randn(experts) * 0.1
    if ties:  # a few distinct values only, whole rows of one value, and no bias to tell them apart
        logits, bias = logits.round(), torch.zeros(experts)
        logits[:4] = 0.5
    ids, weights = moe.route(logits, bias, shape)
    assert ids.dtype == torch.int64 and weights.dtype == torch.float32
    assert ids.tolist() == by_sorting(logits, bias, shape)
    scores = logits.double().sigmoid().gather(1, ids)  # without the bias
    want = scores / scores.sum(1, keepdim=True) if shape.renormalize else scores
    torch.testing.assert_close(weights.double(), want * shape.scale, rtol=1e-6, atol=0)


def test_a_bias_chooses_but_does_not_weigh_and_can_lift_a_group() -> None:
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0]])
    shape = Shape(chosen=2, groups=2, chosen_groups=1, scale=1.0)
    ids, weights = moe.route(logits, torch.zeros(8), shape)
    assert ids.tolist() == [[0, 1]]
    bias = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0])
    ids, weights = moe.route(logits, bias, shape)
    assert ids.tolist() == [[6, 7]]
    scores = torch.tensor([-2.0, -3.0]).sigmoid()
    torch.testing.assert_close(weights[0], scores / scores.sum())


def test_a_group_counts_its_two_best_together() -> None:
    """Group 0 has the single best expert, group 1 the better pair."""
    logits = torch.tensor([[5.0, -5.0, -5.0, 2.0, 2.0, -5.0]])
    ids, _ = moe.route(logits, torch.zeros(6), Shape(chosen=2, groups=2, chosen_groups=1))
    assert ids.tolist() == [[3, 4]]


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize(("groups", "chosen_groups"), [(8, 4), (1, 1)])
def test_routes_are_those_of_transformers(groups: int, chosen_groups: int, renormalize: bool) -> None:
    torch.manual_seed(2)
    experts, hidden, shape = 32, 24, Shape(8, groups, chosen_groups, 2.5, renormalize)
    theirs = DeepseekV3TopkRouter(
        SimpleNamespace(
            num_experts_per_tok=shape.chosen,
            num_local_experts=experts,
            hidden_size=hidden,
            routed_scaling_factor=shape.scale,
            n_group=groups,
            topk_group=chosen_groups,
            norm_topk_prob=renormalize,
        )
    )
    theirs.weight.copy_(torch.randn(experts, hidden))
    theirs.e_score_correction_bias.copy_(torch.randn(experts) * 0.2)
    logits, weights, ids = theirs(torch.randn(50, hidden))
    got_ids, got = moe.route(logits, theirs.e_score_correction_bias, shape)
    dense = [torch.zeros(50, experts).scatter_(1, i, w) for i, w in ((ids, weights), (got_ids, got))]
    torch.testing.assert_close(dense[1], dense[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("experts", [8, 12, 128, 512])
def test_routes_are_the_same_bits_for_every_width(experts: int) -> None:
    torch.manual_seed(3)
    logits, bias, shape = torch.randn(MAX_WIDTH, experts), torch.randn(experts), Shape()
    singles = [moe.route(logits[r : r + 1], bias, shape) for r in range(MAX_WIDTH)]
    for rows in (2, 3, 7, MAX_WIDTH):
        ids, weights = moe.route(logits[:rows], bias, shape)
        for r in range(rows):
            assert torch.equal(ids[r], singles[r][0][0]) and torch.equal(weights[r], singles[r][1][0])
