"""The published sizes come out of the shapes, to the unit."""

from __future__ import annotations

import math

import pytest

from lingchat.architectures import budget
from lingchat.architectures.hybrid import HybridConfig, LayerKind
from lingchat.architectures.hybrid_names import expected_shapes
from lingchat.architectures.known import KNOWN
from lingchat.architectures.read import ModelConfig, hf_config_alone
from lingchat.architectures.read import expected_shapes as of_any

FLASH, TINY, KIMI, QWEN = "ling-3.0-flash", "ling-3.0-tiny", "kimi-linear", "qwen3-4b"


def config(name: str) -> ModelConfig:
    return hf_config_alone(name, KNOWN[name])


def hybrid(name: str) -> HybridConfig:
    found = config(name)
    assert isinstance(found, HybridConfig)
    return found


@pytest.mark.parametrize(
    ("name", "main", "with_mtp"),
    [
        (FLASH, 124_414_211_552, 127_486_405_600),
        (TINY, 7_893_392_800, 7_893_392_800),
        (KIMI, 49_122_681_728, 49_122_681_728),
        (QWEN, 4_022_468_096, 4_022_468_096),
    ],
)
def test_parameters(name: str, main: int, with_mtp: int) -> None:
    assert budget.parameters(config(name)) == main
    assert budget.parameters_with_mtp(config(name)) == with_mtp


@pytest.mark.parametrize(
    ("name", "billions", "gigabytes"), [(FLASH, 5.103, 10.21), (TINY, 1.140, 2.28), (KIMI, 3.107, 6.21)]
)
def test_what_a_token_reads(name: str, billions: float, gigabytes: float) -> None:
    assert round(budget.active_parameters(config(name)) / 1e9, 3) == billions
    assert round(budget.weight_bytes_per_token(config(name)) / 1e9, 2) == gigabytes


def test_a_tied_head_is_read_and_an_embedding_is_not() -> None:
    assert budget.active_parameters(config(QWEN)) == budget.parameters(config(QWEN))
    tiny = hybrid(TINY)
    assert budget.share(tiny, "embed_tokens.weight") == 0
    assert budget.share(tiny, "lm_head.weight") == 1
    assert budget.share(tiny, "layers.1.moe.experts.7.up_proj.weight") == 8 / 128
    assert budget.share(tiny, "layers.1.moe.experts.up_proj.weight") == 8 / 128
    assert budget.share(tiny, "layers.1.moe.shared.up_proj.weight") == 1


@pytest.mark.parametrize(
    ("name", "state", "megabytes", "window", "cache"),
    [(FLASH, 73_400_320, 73.4, 2_580_480, 8064), (TINY, 18_874_368, 18.9, 663_552, 6912),
     (KIMI, 41_943_040, 41.9, 1_474_560, 8064), (QWEN, 0, 0.0, 0, 147_456)],
)  # fmt: skip
def test_what_a_conversation_keeps(name: str, state: int, megabytes: float, window: int, cache: int) -> None:
    assert budget.state_bytes(config(name)) == state
    assert round(state / 1e6, 1) == megabytes
    assert budget.window_bytes(config(name)) == window
    assert budget.cache_bytes_per_token(config(name)) == cache


@pytest.mark.parametrize(
    ("name", "expert", "kda", "mla"),
    [(FLASH, 5.90, 63.05, 31.97), (TINY, 2.36, 18.93, 7.33), (KIMI, 7.08, 39.51, 29.11)],
)
def test_blocks(name: str, expert: float, kda: float, mla: float) -> None:
    assert round(budget.expert_parameters(hybrid(name)) / 1e6, 2) == expert
    assert [attention_parameters(hybrid(name), kind) for kind in ("kda", "mla")] == [kda, mla]


def attention_parameters(config: HybridConfig, kind: LayerKind) -> float:
    """Millions, of the first attention block of a kind; the layer's norms are not its own."""
    prefix = f"layers.{config.kinds.index(kind)}.{kind}."
    block = [shape for name, shape in budget.shapes(config).items() if name.startswith(prefix)]
    return round(sum(map(math.prod, block)) / 1e6, 2)


def test_stacked_and_single_experts_are_the_same_number() -> None:
    tiny = hybrid(TINY)
    for shapes in (expected_shapes(tiny), of_any(tiny), budget.shapes(tiny)):
        assert budget._count(shapes.values()) == 7_893_392_800
