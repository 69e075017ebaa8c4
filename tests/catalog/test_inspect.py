"""`lingchat models inspect` end to end: numbers of published configurations, checked files, and broken ones by name."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_ling
import pytest
from make_models import write_gguf, write_hf
from safetensors.torch import load_file, save_file

from lingchat import models_cli
from lingchat.architectures.known import KNOWN, LING_FLASH, LING_TINY
from lingchat.architectures.usual import usual_plan
from lingchat.catalog import memory
from lingchat.catalog.about import look
from lingchat.errors import ModelNotFound
from lingchat.kernels.cpu import library
from lingchat.runtime import loading
from lingchat.runtime.formats.load import load_formats
from lingchat.runtime.weights.load import open_weights

GB = 10**9


@pytest.fixture(autouse=True)
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of the test's own: 24 GB free, no GPU."""
    machine(monkeypatch, 24 * GB)


def machine(monkeypatch: pytest.MonkeyPatch, free: int, gpu: int | None = None) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: free)
    monkeypatch.setattr(memory, "gpu_free_memory", lambda: gpu)


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def run(path: Path, code: int = 0) -> dict[str, Any]:
        """What JSON tells, after the text form has ended the same way."""
        assert models_cli.main(["inspect", str(path)]) == code
        assert capsys.readouterr().out.startswith("path ")
        assert models_cli.main(["inspect", str(path), "--output", "json"]) == code
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        return told

    return run


Inspect = Callable[..., dict[str, Any]]


def config_file(folder: Path, raw: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(raw if isinstance(raw, str) else json.dumps(raw))
    return folder / "config.json"


# A configuration alone

PUBLISHED = {
    "ling-3.0-flash": (
        "BailingMoeV3ForCausalLM", 124_414_211_552, 127_486_405_600, 5_103_302_112, 10_206_604_224, 73_400_320, 8064, False
    ),
    "ling-3.0-tiny": (
        "BailingMoeV3ForCausalLM", 7_893_392_800, 7_893_392_800, 1_140_301_216, 2_280_602_432, 18_874_368, 6912, True
    ),
    "kimi-linear": (
        "KimiLinearForCausalLM", 49_122_681_728, 49_122_681_728, 3_106_972_544, 6_213_945_088, 41_943_040, 8064, False
    ),
    "qwen3-4b": (
        "Qwen3ForCausalLM", 4_022_468_096, 4_022_468_096, 4_022_468_096, 8_044_936_192, 0, 147_456, True
    ),
}  # fmt: skip
NUMBERS = (
    "architecture", "parameters", "parameters_with_mtp", "active_parameters", "weight_bytes_per_token", "state_bytes",
    "cache_bytes_per_token", "fits",
)  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("as_folder", [False, True])
def test_a_published_configuration_alone(name: str, as_folder: bool, tmp_path: Path, inspect: Inspect) -> None:
    path = config_file(tmp_path, KNOWN[name])
    told = inspect(tmp_path if as_folder else path)
    assert tuple(told[key] for key in NUMBERS) == PUBLISHED[name]
    assert told["format"] == "config"
    assert told["keys"]["hidden_size"] == KNOWN[name]["hidden_size"]
    plan = told["plan"]
    parts = ("weights", "state", "snapshots", "cache", "workspace", "process")
    assert plan["total"] == sum(plan[part] for part in parts)
    assert told["fits"] == (plan["total"] <= plan["free"] == 24 * GB)


def test_quantised_configurations_read_fewer_bytes(tmp_path: Path, inspect: Inspect) -> None:
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    told = inspect(config_file(tmp_path, LING_TINY | {"quantization_config": fp8}))
    assert told["parameters"] == 7_893_392_800
    assert 1.1 * GB < told["weight_bytes_per_token"] < 1.6 * GB


def test_what_would_fit_is_named(tmp_path: Path, inspect: Inspect, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config_file(tmp_path, LING_FLASH)
    # By torch, which holds four-bit experts at 5 bits, and by native code, which holds them as they are.
    for native, fits in ((None, "Ling-3.0-tiny in int4"), (object(), "Ling-3.0-tiny as a GGUF file at 4 bits")):
        monkeypatch.setattr(library, "find", lambda native=native: native)
        machine(monkeypatch, 24 * GB)
        assert inspect(path)["would_fit"] == "Ling-3.0-tiny in bf16"
        machine(monkeypatch, 7 * GB)
        assert inspect(path)["would_fit"] == fits
    machine(monkeypatch, 10**12)
    assert (inspect(path)["fits"], inspect(path)["would_fit"]) == (True, None)
    machine(monkeypatch, 6 * GB, gpu=140 * GB)
    told = inspect(path)
    assert (told["fits"], told["would_fit"]) == (False, "Ling-3.0-flash in fp8")
    assert (told["plan"]["device"], told["plan"]["dtype"], told["plan"]["free"]) == ("cuda", "bf16", 140 * GB)


def test_beside_a_gpu_both_places_are_planned(
    tmp_path: Path, inspect: Inspect, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine takes the GPU; where the model does not fit there, `--device cpu` may be the way out."""
    path = config_file(tmp_path, LING_TINY)
    assert [(plan["device"], plan["fits"]) for plan in inspect(path)["plans"]] == [("cpu", True)]
    machine(monkeypatch, 24 * GB, gpu=8 * GB)
    told = inspect(path)
    assert (told["fits"], told["plan"]) == (False, told["plans"][0])
    assert [(plan["device"], plan["dtype"], plan["fits"]) for plan in told["plans"]] == [
        ("cuda", "bf16", False),
        ("cpu", "int8", True),
    ]
    assert models_cli.main(["inspect", str(path)]) == 0
    fits = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fits ")]
    assert "no; Ling-3.0-tiny as a GGUF file at 4 bits would fit; 8.0 GB of GPU memory" in fits[0]
    assert "yes, with --device cpu; 24.0 GB of memory" in fits[1]


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_the_plan_is_the_engine_s(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tiny.gguf"
    if kind == "dense":
        write_gguf(path, "qwen3", "Q8_0")
    else:
        make_ling.write_ling_gguf(path, make_ling.ling_config())
    loaded = loading.load(path, loading.Loading(threads=1), lambda event: None)
    loaded.formats.close()
    weights = loaded.weights
    stored = weights.stored_bytes, weights.stored_types
    assert usual_plan(weights.config, "cpu", memory.free_memory(), *stored) == loaded.memory


@pytest.mark.parametrize(
    ("raw", "code", "text"),
    [
        ({}, "unsupported_model", "it names no architectures"),
        (
            LING_TINY | {"architectures": ["BailingMoeV2_5ForCausalLM"]},
            "unsupported_model",
            "BailingMoeV2_5ForCausalLM",
        ),
        ({k: v for k, v in LING_TINY.items() if k != "kv_lora_rank"}, "model_file", "kv_lora_rank is missing"),
        (LING_TINY | {"kv_lora_rank": None}, "model_file", "kv_lora_rank is missing"),
        (LING_FLASH | {"expert_swiglu_limit_list": [0] * 41}, "model_file", "expert_swiglu_limit_list is"),
        (LING_TINY | {"quantization_config": {"quant_method": "gptq"}}, "unsupported_model", "quant_method = 'gptq'"),
        (LING_TINY | {"surprise": 1}, "unsupported_model", "surprise = 1"),
        (LING_TINY | {"n_group": 7}, "model_file", "128 experts do not divide into 7 groups"),
        ('{"architectures": [', "model_file", "no valid JSON"),
        ("[1]", "model_file", "its JSON is no object"),
    ],
)
def test_a_broken_configuration(raw: Any, code: str, text: str, tmp_path: Path, inspect: Inspect) -> None:
    told = inspect(config_file(tmp_path, raw), 3)
    assert told["error"]["code"] == code
    assert text in told["error"]["message"]
    assert (told["fits"], told["schema_version"]) == (False, 1)


def test_nothing_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert models_cli.main(["inspect", str(tmp_path / "config.json"), "--output", "json"]) == 4
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "model_not_found"


# Files


def made(path: Path, what: str) -> Path:
    match what:
        case "ling":
            return make_ling.write_ling_hf(path, make_ling.ling_config(mtp=1)).path
        case "fp8" | "int4":
            return make_ling.write_ling_hf(path, make_ling.ling_config(q_rank=32), quantized=what).path  # type: ignore[arg-type]
        case "kimi":
            return make_ling.write_kimi_hf(path).path
        case "ling gguf":
            return make_ling.write_ling_gguf(path.with_suffix(".gguf"), make_ling.ling_config(mtp=1), qtype="Q8_0").path
        case "kimi gguf":
            return make_ling.write_kimi_gguf(path.with_suffix(".gguf")).path
    raise AssertionError(what)


@pytest.mark.parametrize("what", ["ling", "fp8", "int4", "kimi", "ling gguf", "kimi gguf"])
def test_hybrid_files_run_here_and_have_numbers(what: str, tmp_path: Path, inspect: Inspect) -> None:
    path = made(tmp_path / "m", what)
    told = inspect(path)
    assert (told["problem"], told["why_not"], told["fits"]) == ("", "", True)
    drafting = what in ("ling", "ling gguf")
    assert (told["parameters_with_mtp"] > told["parameters"]) == drafting
    assert told["parameters"] > told["active_parameters"]
    assert told["state_bytes"] > 0
    assert told["types"]
    wanted = {"fp8": "fp8", "int4": "int4", "ling gguf": "Q8_0"}.get(what, "F32")
    assert told["quantization"] == wanted
    read = told["weight_bytes_per_token"] / told["active_parameters"]
    # Unquantised tensors of these files are fp32; scales and blocks are many where matrices are small.
    low, high = {"fp8": (1, 2), "int4": (2, 3.5), "ling gguf": (1.06, 1.5)}.get(what, (4, 4))
    assert low <= read <= high


def test_dense_files_have_numbers_too(tmp_path: Path, inspect: Inspect) -> None:
    write_hf(tmp_path / "m", "qwen3")
    gguf = write_gguf(tmp_path / "m.gguf", "llama3", "Q8_0").path
    for path in (tmp_path / "m", gguf):
        told = inspect(path)
        assert told["parameters"] == told["parameters_with_mtp"] > 0
        assert (told["state_bytes"], told["fits"], told["plan"]["snapshots"]) == (0, True, 0)


def test_a_missing_tensor_is_named(tmp_path: Path, inspect: Inspect) -> None:
    folder = made(tmp_path / "m", "ling")
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.layers.3.attention.g_proj.weight"]
    save_file(tensors, weights)
    told = inspect(folder, 3)
    assert told["error"]["code"] == "model_file"
    assert "model.layers.3.attention.g_proj.weight" in told["error"]["message"]
    assert told["problem"] == "damaged"


def test_an_unknown_key_beside_weights(tmp_path: Path, inspect: Inspect) -> None:
    folder = made(tmp_path / "m", "kimi")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"moe_latent_size": 64}))
    told = inspect(folder, 3)
    assert told["error"]["code"] == "unsupported_model"
    assert "moe_latent_size = 64" in told["why_not"]
    assert look(folder).problem == "unsupported"


def test_the_tokenizer_of_kimis_own_folders_is_one(tmp_path: Path, inspect: Inspect) -> None:
    """They hold `tiktoken.model` in place of tokenizer.json, and name special tokens beside it."""
    folder = made(tmp_path / "m", "kimi")
    for name in ("tokenizer.json", "chat_template.jinja"):
        (folder / name).unlink()
    lines = [base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256)]
    (folder / "tiktoken.model").write_bytes(b"".join(lines))
    markers = ["[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"]
    settings = {
        "tokenizer_class": "TikTokenTokenizer",
        "eos_token": "[EOS]",
        "added_tokens_decoder": {str(256 + n): {"content": text} for n, text in enumerate(markers)},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    load_formats(open_weights(folder)).close()  # the engine speaks with it
    told = inspect(folder)
    assert (told["problem"], told["why_not"], told["fits"]) == ("", "", True)
    del settings["added_tokens_decoder"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert "without a chat template" in look(folder).why_not


# What the list of models says of them


@pytest.mark.parametrize("what", ["ling", "fp8", "int4", "kimi", "ling gguf", "kimi gguf"])
def test_the_list_judges_hybrid_files(what: str, tmp_path: Path) -> None:
    seen = look(made(tmp_path / "m", what))
    assert (seen.runs, seen.why_not) == (True, "")
    assert seen.parameters > 0
    assert seen.host_bytes < seen.gpu_bytes < 10 * seen.nbytes


def test_quantised_experts_need_no_more_than_their_file(tmp_path: Path) -> None:
    plain, packed = look(made(tmp_path / "a", "ling")), look(made(tmp_path / "b", "int4"))
    assert packed.host_bytes < plain.host_bytes


def test_a_gpu_counts_where_the_memory_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "m", "kimi")
    machine(monkeypatch, 1000)
    assert look(path).problem == "memory"
    machine(monkeypatch, 1000, gpu=GB)
    assert look(path).runs
    machine(monkeypatch, 1000, gpu=2000)
    assert "on the GPU" in look(path).why_not


def test_a_path_without_anything_is_told_as_one(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"gone\.gguf: no such file or folder\. There is no model"):
        models_cli.main(["inspect", str(tmp_path / "gone.gguf")])


def test_small_and_large_states_are_told_apart_from_their_copies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models_cli.main(["inspect", str(config_file(tmp_path, LING_TINY))])
    told = capsys.readouterr().out
    assert re.search(r"state with drafts [\d.]+ MB, copies of it [\d.]+ MB, latents of", told)
    make_ling.write_ling_hf(tmp_path / "tiny")
    models_cli.main(["inspect", str(tmp_path / "tiny")])
    assert re.search(r"^state +[\d.]+ kB, and [\d.]+ kB of convolution inputs$", capsys.readouterr().out, re.M)
