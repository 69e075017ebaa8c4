"""The model made of random weights: its tensors are the shape's, in the types of the published variants."""

from __future__ import annotations

import math

import pytest
import torch
from bench.tiny_shapes import TINY

from lingchat.architectures import budget
from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.known import KNOWN
from lingchat.architectures.plan import plan
from lingchat.bench import random_model
from lingchat.bench.job import DTYPES
from lingchat.bench.random_model import RandomModel, shape_config
from lingchat.errors import UsageError
from lingchat.kernels.quant import to_torch
from lingchat.runtime.models.registry import build
from lingchat.runtime.ops.torch_ops import TorchOps


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_model, "KNOWN", TINY)


@pytest.mark.parametrize("shape", ["ling-3.0-tiny", "ling-3.0-flash", "kimi-linear", "qwen3-4b"])
def test_true_shapes_have_their_published_sizes(shape: str) -> None:
    model = RandomModel(shape_config(shape), "bf16")
    published = {
        "ling-3.0-tiny": 7_893_392_800,
        "ling-3.0-flash": 124_414_211_552,
        "kimi-linear": 49_122_681_728,
        "qwen3-4b": 4_022_468_096,
    }
    assert model.parameters == published[shape] == budget.parameters(model.config)
    # Vectors are fp32 here, two bytes a value more than the budget's.
    assert model.bytes_per_token() == pytest.approx(budget.weight_bytes_per_token(model.config), rel=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_tensor_is_made_with_sane_numbers(tiny: None, dtype: str) -> None:
    model = RandomModel(shape_config("ling-3.0-tiny"), dtype, seed=3)
    made = 0
    for name in model.names():
        raw = model.tensor(name)
        made += raw.nbytes
        values = to_torch(raw)
        assert torch.isfinite(values).all(), name
        assert (values != 0).all(), name
        assert values.numel() < 2 or values.std() > 0, name
        if name.endswith("_proj.weight"):
            # One or two blocks share a scale here, which is up to a half off by itself.
            rel = 0.6 if dtype == "fp8" else 0.1
            assert values.std() == pytest.approx(values.shape[-1] ** -0.5, rel=rel), name
        if name.endswith("norm.weight"):
            assert 0.89 < values.min() < values.max() < 1.11, name
    assert made == model.nbytes


def test_types_are_those_of_the_published_variants(tiny: None) -> None:
    config = shape_config("ling-3.0-tiny")

    def types(dtype: str) -> dict[str, str]:
        model = RandomModel(config, dtype)
        return {name: model.tensor(name).type for name in model.names()}

    fp8, int4 = types("fp8"), types("int4")
    for name in fp8:
        outer = name in ("embed_tokens.weight", "lm_head.weight") or "router" in name
        small = "norm" in name or name.endswith(("_conv.weight", ".A", ".dt_bias", ".router_bias"))
        assert fp8[name] == ("F32" if small else "BF16" if outer else "F8_E4M3"), name
        assert int4[name] == ("F32" if small else "I4" if ".experts." in name else "BF16"), name
    assert set(types("fp32").values()) == {"F32"}


def test_decays_cover_the_range_of_the_gate(tiny: None) -> None:
    from lingchat.kernels.kda import log_decay

    model = RandomModel(shape_config("ling-3.0-tiny"), "bf16")
    rate, bias = (to_torch(model.tensor(f"layers.0.kda.{name}")) for name in ("A", "dt_bias"))
    inputs = torch.randn(200, len(bias), generator=torch.Generator().manual_seed(0))
    decay = log_decay(inputs, rate, bias, "bounded", -5.0)
    assert decay.min() < -4.5
    assert decay.max() > -0.05
    assert -4 < decay.mean() < -0.5


def test_the_same_seed_makes_the_same_model_and_another_does_not(tiny: None) -> None:
    config = shape_config("ling-3.0-tiny")
    name = "layers.1.moe.experts.up_proj.weight"
    first, again, other = (RandomModel(config, "fp8", seed=seed).tensor(name) for seed in (1, 1, 2))
    assert torch.equal(first.data, again.data)
    assert not torch.equal(first.data, other.data)


def test_layers_keep_the_first_of_a_shape() -> None:
    whole, short = shape_config("ling-3.0-flash"), shape_config("ling-3.0-flash", 6)
    assert isinstance(whole, HybridConfig)
    assert isinstance(short, HybridConfig)
    assert short.kinds == whole.kinds[:6]
    assert short.dense_layers == whole.dense_layers
    assert shape_config("ling-3.0-flash", 1).layers == 1
    for layers in (0, 43):
        with pytest.raises(UsageError, match="42 layers"):
            shape_config("ling-3.0-flash", layers)


def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"ling-9.*ling-3\.0-tiny"):
        shape_config("ling-9")
    with pytest.raises(UsageError, match="fp7"):
        RandomModel(shape_config("qwen3-4b"), "fp7")
    assert set(KNOWN) >= set(random_model.KNOWN)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ["ling-3.0-tiny", "qwen3-4b"])
def test_planned_weights_are_the_packed_ones_to_the_byte(tiny: None, shape: str, dtype: str) -> None:
    model = RandomModel(shape_config(shape), dtype)
    ops = TorchOps(dtype)
    with torch.inference_mode():
        build(model, ops)
    stored = {name: model.stored_bytes(name) for name in model.names()}
    planned = plan(model.config, dtype, 64, kv_bytes=4, stored=stored)
    assert ops.weight_bytes() == planned.weights


def test_bytes_a_token_count_the_chosen_experts_alone(tiny: None) -> None:
    model = RandomModel(shape_config("ling-3.0-tiny"), "int4")
    config = model.config
    assert isinstance(config, HybridConfig)
    experts = sum(model.stored_bytes(name) for name in model.names() if ".experts." in name)
    table = 2 * math.prod((config.vocab, config.hidden))
    share = config.moe.chosen / config.moe.experts
    assert model.bytes_per_token() == round(model.nbytes - table - experts * (1 - share))
