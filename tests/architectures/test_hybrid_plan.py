"""Memory of hybrid models: plans against what the back end really packs, and what is said when one does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import make_ling
import pytest
from make_models import tiny_config

from lingchat.architectures import states
from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.known import KNOWN
from lingchat.architectures.plan import RESERVE, MemoryPlan, check_fits, plan, snapshot_places, what_fits
from lingchat.architectures.read import ModelConfig, hf_config_alone
from lingchat.architectures.variants import estimated_bytes, published
from lingchat.errors import DoesNotFit
from lingchat.runtime.models.registry import build
from lingchat.runtime.ops.torch_ops import TorchOps
from lingchat.runtime.state import State, StateSpec
from lingchat.runtime.weights.load import open_weights

GB = 10**9
FLASH, TINY, KIMI = "ling-3.0-flash", "ling-3.0-tiny", "kimi-linear"


def known(name: str) -> ModelConfig:
    return hf_config_alone(name, KNOWN[name])


def hybrid(name: str) -> HybridConfig:
    config = known(name)
    assert isinstance(config, HybridConfig)
    return config


def made(path: Path, what: str) -> Path:
    """A tiny checkpoint."""
    limited = make_ling.ling_config(q_rank=32, limits=True)
    match what:
        case "ling":
            return make_ling.write_ling_hf(path, make_ling.ling_config(q_rank=32, mtp=1)).path
        case "kimi":
            return make_ling.write_kimi_hf(path).path
        case "ling gguf":
            return make_ling.write_ling_gguf(path.with_suffix(".gguf"), limited, qtype="Q8_0").path
        case "4 bits":  # widths of whole blocks of the int4 product
            moe = replace(limited.moe, width=64)
            return make_ling.write_ling_gguf(path.with_suffix(".gguf"), replace(limited, moe=moe), qtype="Q4_0").path
        case "kimi gguf":
            return make_ling.write_kimi_gguf(path.with_suffix(".gguf")).path
        case "fp8" | "int4":
            return make_ling.write_ling_hf(path, limited, quantized=what).path  # type: ignore[arg-type]
    raise AssertionError(what)


CASES = [(what, dtype) for what in ("ling", "kimi", "ling gguf", "kimi gguf") for dtype in ("fp32", "bf16", "int8")]
CASES += [("fp8", "fp8"), ("fp8", "int8"), ("int4", "int4"), ("int4", "fp32"), ("int4", "int8")]
CASES += [("4 bits", "fp32"), ("4 bits", "int8")]


@pytest.mark.parametrize(("what", "dtype"), CASES)
def test_a_plan_is_what_the_back_end_takes(what: str, dtype: str, tmp_path: Path) -> None:
    weights = open_weights(made(tmp_path / "m", what))
    ops = TorchOps(dtype)
    model = build(weights, ops)
    state = State(model.state_spec(100), StateSpec((), 0), ops, 4, width=8, places=3)
    planned = plan(weights.config, dtype, 100, kv_bytes=4, width=8, places=3, stored=weights.stored_bytes)
    assert planned.weights == ops.weight_bytes()
    assert (planned.kv, planned.state, planned.snapshots) == (
        state.cache_bytes, state.state_bytes, 3 * state.snapshot_bytes
    )  # fmt: skip
    assert planned.kv + planned.state + planned.snapshots == state.bytes()


def test_the_drafting_layer_counts_when_it_is_loaded() -> None:
    flash = known(FLASH)
    more = plan(flash, "bf16", 100, mtp=True).weights - plan(flash, "bf16", 100).weights
    # 3.07 billion parameters, of which the router's are fp32
    assert more == pytest.approx(2 * (127_486_405_600 - 124_414_211_552), rel=1e-3)


@pytest.mark.parametrize(("name", "total"), [(FLASH, 255.0), (TINY, 15.8), (KIMI, 98.2)])
def test_bytes_on_disk_are_those_published(name: str, total: float) -> None:
    assert round(sum(estimated_bytes(hybrid(name), "none").values()) / GB, 1) == total


def test_smaller_forms_are_as_large_as_published() -> None:
    size = {v.name: sum(estimated_bytes(v.config, v.form).values()) / GB for v in published(hybrid(FLASH))}
    assert size["Ling-3.0-flash in fp8"] == pytest.approx(128, abs=1)
    assert size["Ling-3.0-flash in int4"] == pytest.approx(77, abs=1)
    assert size["Ling-3.0-tiny as a GGUF file at 4 bits"] == pytest.approx(4.8, abs=0.2)
    sizes = list(size.values())
    assert sizes[:2] == sorted(sizes[:2], reverse=True)


def test_the_bf16_plan_of_the_small_model_is_its_parameters() -> None:
    planned = plan(known(TINY), "bf16", 8192)
    assert planned.weights == pytest.approx(2 * 7_893_392_800, rel=2e-3)
    assert planned.kv == 8192 * 6912
    layers = hybrid(TINY).layer_states()
    assert planned.state == 18_874_368 + 663_552 + states.staging_bytes(layers, 2, 8)


def test_workspace_grows_with_rows_and_with_the_context_that_is_widened() -> None:
    tiny = known(TINY)
    assert plan(tiny, "int8", 8192, rows=1024).workspace > plan(tiny, "int8", 8192, rows=256).workspace
    assert plan(tiny, "int8", 10**6).workspace > plan(tiny, "int8", 10**4).workspace


@pytest.mark.parametrize(
    ("free", "wanted"), [(300 * GB, 6), (2 * GB, 3), (GB, 2), (0, 2)]
)  # 512 MB, an eighth, at least two
def test_snapshots_have_a_limit(free: int, wanted: int) -> None:
    assert snapshot_places(known(FLASH), 4, free) == wanted
    assert snapshot_places(tiny_config("qwen3"), 4, free) == 0


def test_small_states_have_few_snapshots_all_the_same() -> None:
    assert snapshot_places(make_ling.ling_config(), 4, 300 * GB) == 32


def refusal(name: str, free: float, dtype: str = "bf16", **more: Any) -> str:
    with pytest.raises(DoesNotFit) as caught:
        check_fits(plan(known(name), dtype, 8192, kv_bytes=4 if dtype == "int8" else 2, **more), int(free * GB))
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "free", "dtype", "advice"),
    [
        (FLASH, 140, "bf16", "Ling-3.0-flash in fp8 would fit."),
        (FLASH, 79.5, "bf16", "Ling-3.0-flash in int4 would fit."),
        (FLASH, 40, "bf16", "Ling-3.0-tiny in bf16 would fit."),
        (FLASH, 32, "int8", "Ling-3.0-tiny in bf16 would fit."),
        (KIMI, 80, "bf16", "Kimi-Linear as a GGUF file at 4 bits would fit."),
        (TINY, 16, "bf16", "Ling-3.0-tiny in fp8 would fit."),
        (TINY, 8, "bf16", "Ling-3.0-tiny as a GGUF file at 4 bits would fit."),
        (TINY, 6.5, "int8", "Ling-3.0-tiny in int4 would fit."),
        (TINY, 2, "bf16", "Close other programs, or use a smaller model or a smaller quantisation."),
    ],
)
def test_a_refusal_names_what_would_fit(name: str, free: float, dtype: str, advice: str) -> None:
    assert refusal(name, free, dtype).endswith(advice)


def test_a_refusal_names_the_bytes_of_every_purpose() -> None:
    planned = plan(known(FLASH), "bf16", 8192, places=4)
    with pytest.raises(DoesNotFit) as caught:
        check_fits(planned, 100 * GB)
    gb = [f"{n / GB:.2f} GB" for n in (
        planned.total + RESERVE, planned.weights, planned.state + planned.snapshots, planned.kv,
        planned.workspace + RESERVE,
    )]  # fmt: skip
    assert (
        f"needs {gb[0]} of memory (weights {gb[1]}, state {gb[2]}, latents of 8192 tokens {gb[3]}, workspace {gb[4]}), "
        "100.00 GB are free."
    ) in str(caught.value)


def test_a_smaller_context_comes_before_a_smaller_form() -> None:
    planned = plan(known(TINY), "bf16", 131072)
    free = planned.total + RESERVE - planned.kv // 2
    with pytest.raises(DoesNotFit, match=r"A context of at most 65\d\d\d tokens would fit\."):
        check_fits(planned, free)


def test_a_model_of_unknown_size_gets_no_name() -> None:
    assert not list(published(make_ling.ling_config()))
    assert what_fits(plan(make_ling.ling_config(), "bf16", 100), 10**12) is None
    assert what_fits(MemoryPlan(weights=1, kv=1, state=0, workspace=1, context=1), 10**12) is None
