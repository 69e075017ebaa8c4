"""The judges judge each other: the fp64 reference, llama.cpp and transformers agree before one judges lingchat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import transformers
from hf_judge import hf_logits, needs_ling
from ling_cases import POSITIONS, VARIANTS, Case, distance, ids_of, log_softmax
from ling_reference import Reference, rotate, route
from make_ling import kimi_config, ling_config, write_kimi_hf, write_ling_hf

from lingchat.architectures.hybrid import HybridConfig, MoEConfig

Cases = Callable[..., Case]


@pytest.mark.parametrize("name", VARIANTS)
def test_llama_cpp_equals_fp64(ling_case: Cases, name: str) -> None:
    case = ling_case(name)
    assert case.llama_cpp.shape == (POSITIONS, 512)
    assert distance(case.llama_cpp, log_softmax(case.fp64)).max() < 1e-5
    for count, logprobs in case.prefilled.items():
        assert distance(logprobs, log_softmax(case.fp64[count - 1])) < 1e-5


@needs_ling
@pytest.mark.parametrize("mtp", [0, 1])
@pytest.mark.parametrize("q_rank", [None, 32])
def test_transformers_equals_fp64_on_the_published_naming(tmp_path: Path, mtp: int, q_rank: int | None) -> None:
    """transformers knows neither SwiGLU limits nor a last incomplete period: a model that has none of them."""
    tiny = write_ling_hf(tmp_path, ling_config(period=4, layers=8, mtp=mtp, q_rank=q_rank, dense=2), seed=8)
    got = hf_logits(transformers.BailingHybridForCausalLM, tmp_path, ids_of(POSITIONS))
    assert distance(got, Reference(tiny.config, tiny.tensors).logits(ids_of(POSITIONS))).max() < 2e-5


def test_transformers_equals_fp64_for_kimi_linear(tmp_path: Path) -> None:
    """transformers norms the latent with an epsilon of 1e-6, whatever the configuration says; llama.cpp and the
    serving engines with the configuration's 1e-5. Latents are near 1, so that the two differ by some 1e-5."""
    tiny = write_kimi_hf(tmp_path, kimi_config(layers=5), seed=9)
    got = hf_logits(transformers.KimiLinearForCausalLM, tmp_path, ids_of(POSITIONS))
    assert distance(got, Reference(tiny.config, tiny.tensors).logits(ids_of(POSITIONS))).max() < 1e-4


CHANGES: dict[str, Callable[[HybridConfig], HybridConfig]] = {
    "routed limits": lambda c: replace(c, routed_limits=(0.0,) * c.layers),
    "shared limits": lambda c: replace(c, shared_limits=(0.0,) * c.layers),
    "decay bound": lambda c: replace(c, kda=replace(c.kda, lower_bound=-4.0)),
    "kind of gate": lambda c: replace(c, kda=replace(c.kda, gate="softplus")),
    "rotation": lambda c: replace(c, mla=replace(c.mla, rope_base=None)),
    "base of the rotation": lambda c: replace(c, mla=replace(c.mla, rope_base=10000.0)),
    "score scale": lambda c: replace(c, mla=replace(c.mla, scale=c.mla.nope**-0.5)),
    "head gate": lambda c: replace(c, mla=replace(c.mla, gated=False)),
    "groups": lambda c: replace(c, moe=replace(c.moe, groups=1, chosen_groups=1)),
    "renormalised weights": lambda c: replace(c, moe=replace(c.moe, renormalize=False)),
    "weight scale": lambda c: replace(c, moe=replace(c.moe, scale=2.446)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_feature_shows_in_the_logits(ling_case: Cases, change: str) -> None:
    """A judge that a missing feature does not move would let it pass."""
    case = ling_case("period-6-off-limits")
    changed = Reference(CHANGES[change](case.tiny.config), case.tiny.tensors).logits(case.ids[:16])
    assert distance(changed, case.fp64[:16]).max() > 5e-3


def test_routing_takes_the_lower_index_of_equals_and_hides_other_groups() -> None:
    moe = MoEConfig(8, 3, 4, 2, 32, 32, 2.0, True)
    assert route(np.zeros(8), np.zeros(8), moe)[0] == [0, 1, 2]
    logits = np.array([9.0, -9, 1, 1, 2, 2, 0, 0])  # group 0 has the best expert, but not the best pair
    chosen, weights = route(logits, np.zeros(8), moe)
    assert chosen == [4, 5, 2] and weights.sum() == pytest.approx(2.0)


def test_rotation_keeps_scores_of_equal_distances() -> None:
    q, k = np.random.default_rng(0).standard_normal((2, 16))
    near, far = (rotate(q, at + 3, 1e4) @ rotate(k, at, 1e4) for at in (0, 40))
    assert near == pytest.approx(far) and near != pytest.approx(q @ k)
