"""Opening hybrid models: values from folders and GGUF files, fp8 and int4 layouts, and every fault named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import make_ling_gguf
import numpy as np
import pytest
import torch
from make_ling import Tiny, ling_config, write_kimi_gguf, write_kimi_hf, write_ling_gguf, write_ling_hf
from make_models import random_blocks
from safetensors.torch import load_file, save_file

from lingchat.architectures.hybrid import HybridConfig
from lingchat.catalog.headers import read_gguf
from lingchat.errors import ModelFileError, UnsupportedModel
from lingchat.kernels.quant import to_torch
from lingchat.runtime.weights.load import Weights, open_weights

Tensors = dict[str, torch.Tensor]
Arrays = dict[str, np.ndarray]


def wanted(made: Tiny, config: HybridConfig, name: str) -> torch.Tensor:
    """What a canonical tensor must read as, from the stacked and whole ones that were written."""
    if name in made.tensors:
        return made.tensors[name]
    if ".moe.experts." in name:
        front, rest = name.split(".moe.experts.")
        expert, projection = rest.split(".", 1)
        return made.tensors[f"{front}.moe.experts.{projection}"][int(expert)]
    front, half, _ = name.rsplit(".", 2)
    mla = config.mla
    kv_b = made.tensors[f"{front}.kv_b_proj.weight"].view(mla.heads, mla.nope + mla.value, mla.kv_rank)
    return kv_b[:, : mla.nope].transpose(1, 2) if half == "k_b_proj" else kv_b[:, mla.nope :]


def check_values(made: Tiny) -> Weights:
    weights = open_weights(made.path)
    config = weights.config
    assert isinstance(config, HybridConfig)
    for name in weights.names():
        got, want = to_torch(weights.tensor(name)), wanted(made, config, name)
        if name.endswith(".A"):  # torch's exp is an ulp off
            assert torch.allclose(got, want, rtol=3e-7), name
        else:
            assert torch.equal(got, want), name
    return weights


def edited(folder: Path, change: Callable[[Tensors], object]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def rewritten(path: Path, change: Callable[[Arrays], object]) -> Path:
    """An F32 GGUF file with other tensors."""
    header, data = read_gguf(path), path.read_bytes()
    tensors = {
        name: np.frombuffer(data[info.offset : info.offset + info.nbytes], np.float32).reshape(info.shape)
        for name, info in header.tensors.items()
    }
    change(tensors)
    writer = gguf.GGUFWriter(path, header.metadata["general.architecture"])
    for key, value in header.metadata.items():
        if key != "general.architecture":
            make_ling_gguf.add_key(writer, key, value)
    for name, array in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refusal(path: Path, kind: type[Exception] = ModelFileError) -> str:
    with pytest.raises(kind) as caught:
        open_weights(path)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------------ values

CASES: dict[str, Callable[[Path], Tiny]] = {
    "ling": lambda p: write_ling_hf(p / "m"),
    "ling, period 6, query LoRA, MTP": lambda p: write_ling_hf(
        p / "m", ling_config(period=6, layers=8, q_rank=24, mtp=1), dtype=torch.bfloat16
    ),
    "ling, shards": lambda p: write_ling_hf(p / "m", shards=3),
    "kimi": lambda p: write_kimi_hf(p / "m"),
    "kimi, shards": lambda p: write_kimi_hf(p / "m", shards=2, dtype=torch.float16),
    "ling gguf": lambda p: write_ling_gguf(p / "m.gguf"),
    "ling gguf, query LoRA, MTP": lambda p: write_ling_gguf(p / "m.gguf", ling_config(q_rank=32, mtp=1)),
    "ling gguf, Q4_0": lambda p: write_ling_gguf(p / "m.gguf", qtype="Q4_0"),
    "kimi gguf": lambda p: write_kimi_gguf(p / "m.gguf"),
    "kimi gguf, Q8_0": lambda p: write_kimi_gguf(p / "m.gguf", qtype="Q8_0"),
}


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_reads_back(case: str, tmp_path: Path) -> None:
    made = CASES[case](tmp_path)
    weights = check_values(made)
    plain = replace(made.config, stacked_experts="gguf" in case, split_kv_b="gguf" in case)
    assert replace(weights.config, norm_eps=0.0, mla=plain.mla, moe=plain.moe) == replace(plain, norm_eps=0.0)
    assert weights.parameters == sum(tensor.numel() for tensor in made.tensors.values())


def test_experts_of_a_gguf_file_stay_in_their_blocks(tmp_path: Path) -> None:
    made = write_ling_gguf(tmp_path / "m.gguf", qtype="Q4_0")
    weights = open_weights(made.path)
    raw = weights.tensor("layers.1.moe.experts.down_proj.weight")
    assert (raw.type, raw.shape) == ("Q4_0", (16, 64, 32))
    assert len(raw.data) == 16 * 64 * 18
    assert weights.quantization == "Q4_0"
    assert weights.tensor("layers.1.moe.router.weight").type == "F32"


def test_k_quants_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ling_config(layers=4, experts=8, hidden=256, heads=2, head_dim=128)
    mla = replace(config.mla, nope=256, value=128, kv_rank=256)
    config = replace(config, mla=mla, ffn=256, moe=replace(config.moe, width=256, shared_width=256))
    rng = np.random.default_rng(0)
    real = gguf.quantize

    def quantize(data: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
        """The package writes no K quants: valid random blocks stand in for them."""
        return random_blocks("Q4_K", data.shape, rng) if kind.name == "Q4_K" else real(data, kind)

    monkeypatch.setattr(make_ling_gguf.gguf, "quantize", quantize)
    made = write_ling_gguf(tmp_path / "m.gguf", config, qtype="Q4_K")
    assert check_values(made).quantization == "Q4_K"


def test_a_gguf_file_with_the_latents_projection_in_one(tmp_path: Path) -> None:
    """As llama.cpp's converter wrote Kimi-Linear before it split them."""
    made = write_kimi_gguf(tmp_path / "m.gguf")
    mla = made.config.mla
    want = made.tensors["layers.3.mla.kv_b_proj.weight"]

    def join(tensors: Arrays) -> None:
        for layer in (3, 4):
            k_b, v_b = tensors.pop(f"blk.{layer}.attn_k_b.weight"), tensors.pop(f"blk.{layer}.attn_v_b.weight")
            kv_b = np.concatenate([k_b.swapaxes(1, 2), v_b], axis=1)
            tensors[f"blk.{layer}.attn_kv_b.weight"] = kv_b.reshape(-1, mla.kv_rank)

    weights = open_weights(rewritten(made.path, join))
    assert not weights.config.split_kv_b
    assert torch.equal(to_torch(weights.tensor("layers.3.mla.kv_b_proj.weight")), want)


def test_dimensions_of_one_may_be_there_or_not(tmp_path: Path) -> None:
    made = write_kimi_hf(tmp_path / "hf")
    conv, log = "model.layers.0.self_attn.q_conv1d.weight", "model.layers.0.self_attn.A_log"
    edited(made.path, lambda t: t.update({conv: t[conv].flatten(1), log: t[log].flatten()}))
    check_values(made)
    edited(made.path, lambda t: t.update({conv: t[conv].view(1, 64, 1, 4), log: t[log].view(2, 1)}))
    check_values(made)
    edited(made.path, lambda t: t.update({conv: t[conv].view(4, 64), log: t[log].view(1, 2)}))
    text = refusal(made.path)
    assert f"{conv} is (4, 64), not (64, 4) or (64, 1, 4) or (1, 64, 1, 4)" in text
    assert f"{log} is (1, 2), not (2,) or (2, 1) or (1, 1, 2, 1)" in text

    made = write_ling_gguf(tmp_path / "m.gguf")

    def drop(tensors: Arrays) -> None:  # as llama.cpp's quantiser does with outer ones
        tensors["blk.0.ssm_conv1d_q.weight"] = tensors["blk.0.ssm_conv1d_q.weight"][0]
        tensors["blk.0.ssm_a"] = tensors["blk.0.ssm_a"][:, 0]

    rewritten(made.path, drop)
    check_values(made)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rates_are_exponentials_of_logarithms_in_any_float_type(dtype: torch.dtype, tmp_path: Path) -> None:
    made = write_ling_hf(tmp_path / "m")
    name = "model.layers.0.attention.A_log"
    edited(made.path, lambda t: t.update({name: t[name].to(dtype)}))
    raw = open_weights(made.path).tensor("layers.0.kda.A")
    want = load_file(made.path / "model.safetensors")[name].double().exp().float()
    assert (raw.type, raw.shape) == ("F32", (2,))
    assert torch.equal(to_torch(raw), want)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 200.0, -float("inf")])
def test_logarithms_that_are_no_rates_are_refused(bad: float, tmp_path: Path) -> None:
    made = write_ling_hf(tmp_path / "m")
    edited(made.path, lambda t: t["model.layers.0.attention.A_log"].fill_(bad))
    with pytest.raises(ModelFileError, match=r"model\.layers\.0\.attention\.A_log holds values that are no rate"):
        open_weights(made.path).tensor("layers.0.kda.A")


@pytest.mark.parametrize("write", [write_ling_gguf, write_kimi_gguf])
def test_rates_of_the_wrong_sign_are_refused(write: Callable[[Path], Tiny], tmp_path: Path) -> None:
    """`kimi-linear` states the decay's sign, `bailingmoe3` does not; a file of the other habit would be silent nonsense."""
    path = rewritten(write(tmp_path / "m.gguf").path, lambda t: t.update({"blk.1.ssm_a": -t["blk.1.ssm_a"]}))
    with pytest.raises(ModelFileError, match=r"blk\.1\.ssm_a holds values that are no rate"):
        open_weights(path).tensor("layers.1.kda.A")


# ------------------------------------------------------------------------------------------- missing, extra, misshapen


def test_every_missing_extra_and_misshapen_tensor_of_a_folder_is_named(tmp_path: Path) -> None:
    made = write_ling_hf(tmp_path / "m", ling_config(layers=4))
    wide = "model.layers.0.attention.g_proj.weight"  # KDA
    narrow = "model.layers.3.attention.g_proj.weight"  # MLA

    def change(tensors: Tensors) -> None:
        del tensors["model.layers.2.mlp.experts.7.up_proj.weight"], tensors["model.layers.1.attention.dt_bias"]
        tensors[wide], tensors[narrow] = tensors[narrow], tensors[wide]
        tensors["model.layers.2.mlp.experts.16.up_proj.weight"] = torch.ones(32, 64)
        tensors["model.layers.3.attention.q_a_proj.weight"] = torch.ones(24, 64)

    text = refusal(edited(made.path, change))
    missing, rest = text.split("Missing: ")[1].split(". Of another shape: ")
    wrong, extra = rest.split(". Unknown: ")
    assert sorted(missing.split(", ")) == [
        "model.layers.1.attention.dt_bias",
        "model.layers.2.mlp.experts.7.up_proj.weight",
    ]
    assert wrong == f"{wide} is (2, 64), not (64, 64), {narrow} is (64, 64), not (2, 64)"
    assert "model.layers.2.mlp.experts.16.up_proj.weight, model.layers.3.attention.q_a_proj.weight." in extra
    assert str(made.path) in text


def test_every_missing_extra_and_misshapen_tensor_of_a_gguf_file_is_named(tmp_path: Path) -> None:
    made = write_ling_gguf(tmp_path / "m.gguf", ling_config(layers=4))

    def change(tensors: Arrays) -> None:
        del tensors["blk.3.attn_v_b.weight"], tensors["blk.0.ssm_dt.bias"]
        tensors["blk.3.attn_k_b.weight"] = np.ascontiguousarray(tensors["blk.3.attn_k_b.weight"].swapaxes(1, 2))
        tensors["blk.2.ffn_gate_up_exps.weight"] = np.ones((16, 64, 64), np.float32)

    text = refusal(rewritten(made.path, change))
    for part in (
        "Missing: blk.0.ssm_dt.bias, blk.3.attn_v_b.weight.",
        "Of another shape: blk.3.attn_k_b.weight is (2, 32, 64), not (2, 64, 32).",
        "Unknown: blk.2.ffn_gate_up_exps.weight.",
    ):
        assert part in text


def test_very_many_missing_tensors_are_all_named_in_few_words(tmp_path: Path) -> None:
    made = write_ling_hf(tmp_path / "m", ling_config(layers=4))
    text = refusal(edited(made.path, lambda t: [t.pop(name) for name in list(t) if "up_proj" in name]))
    assert "model.layers.{1-3}.mlp.experts.{0-15}.up_proj.weight (48 tensors)" in text
    assert "model.layers.0.mlp.up_proj.weight" in text
    assert len(text) < 1000


def test_tensors_of_a_drafting_layer_belong_to_models_that_have_one(tmp_path: Path) -> None:
    made = write_ling_hf(tmp_path / "m", ling_config(mtp=1))
    config = json.loads((made.path / "config.json").read_text())
    (made.path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 0}))
    assert "model.layers.9.eh_proj.weight" in refusal(made.path, UnsupportedModel)
    (made.path / "config.json").write_text(json.dumps(config))
    text = refusal(edited(made.path, lambda t: t.pop("model.layers.9.final_layernorm.weight")))
    assert "Missing: model.layers.9.final_layernorm.weight." in text


def test_the_routers_bias_has_two_names_and_comes_once(tmp_path: Path) -> None:
    made = write_ling_hf(tmp_path / "m")
    ours, other = (f"model.layers.1.mlp.gate.{name}" for name in ("expert_bias", "e_score_correction_bias"))
    edited(made.path, lambda t: t.update({other: t.pop(ours)}))
    check_values(made)
    edited(made.path, lambda t: t.update({ours: t[other].clone()}))
    assert f"Unknown: {other}." in refusal(made.path, UnsupportedModel)
    edited(made.path, lambda t: [t.pop(ours), t.pop(other)])
    assert f"Missing: {ours} or {other}." in refusal(made.path)


def test_a_dense_block_as_transformers_names_it(tmp_path: Path) -> None:
    made = write_kimi_hf(tmp_path / "m")

    def rename(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("model.layers.0.mlp.")]:
            tensors[name.replace(".mlp.", ".block_sparse_moe.")] = tensors.pop(name)

    edited(made.path, rename)
    check_values(made)


def test_a_shard_cut_off_is_named(tmp_path: Path) -> None:
    made = write_ling_hf(tmp_path / "m", shards=3)
    shard = sorted(made.path.glob("*.safetensors"))[1]
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 1)
    assert shard.name in refusal(made.path)


# -------------------------------------------------------------------------------------------------------- fp8 and int4


def wide_config() -> HybridConfig:
    """Rows and columns that are no whole number of 128 blocks, and some that are several."""
    config = ling_config(layers=4, experts=8, hidden=160, q_rank=24)
    return replace(config, ffn=288, moe=replace(config.moe, width=96, shared_width=96))


def test_fp8_matrices_come_with_their_scales(tmp_path: Path) -> None:
    made = write_ling_hf(tmp_path / "m", wide_config(), quantized="fp8", dtype=torch.bfloat16, shards=2)
    weights = check_values(made)
    raw = weights.tensor("layers.0.mlp.gate_proj.weight")
    assert raw.scales is not None
    assert (raw.type, raw.scales.type, raw.scales.shape) == ("F8_E4M3", "F32", (3, 2))
    assert weights.quantization == "F8_E4M3"
    assert weights.tensor("embed_tokens.weight").type == "BF16"
    assert weights.tensor("embed_tokens.weight").scales is None
    assert weights.parameters == sum(tensor.numel() for tensor in made.tensors.values())
    assert weights.stored_bytes["layers.0.mlp.gate_proj.weight"] == 288 * 160 + 3 * 2 * 4
    assert weights.nbytes == sum(weights.stored_bytes.values())


def test_int4_experts_come_with_their_scales(tmp_path: Path) -> None:
    made = write_ling_hf(tmp_path / "m", wide_config(), quantized="int4", dtype=torch.bfloat16)
    weights = check_values(made)
    raw = weights.tensor("layers.1.moe.experts.2.down_proj.weight")
    assert raw.scales is not None
    assert (raw.type, raw.shape, raw.scales.type, raw.scales.shape) == ("I4", (160, 96), "BF16", (160, 3))
    assert weights.tensor("layers.1.moe.shared.down_proj.weight").type == "BF16"
    assert weights.parameters == sum(tensor.numel() for tensor in made.tensors.values())
    assert weights.stored_bytes["layers.1.moe.experts.2.down_proj.weight"] == 160 * 96 // 2 + 160 * 3 * 2


FP8_NAME = "model.layers.0.mlp.up_proj.weight"
EXPERT = "model.layers.1.mlp.experts.2.up_proj."
FAULTS: dict[str, tuple[str, type[Exception], Callable[[Tensors], object], str]] = {
    "fp8 without scales": (
        "fp8",
        ModelFileError,
        lambda t: t.pop(f"{FP8_NAME}_scale_inv"),
        f"Missing: {FP8_NAME}_scale_inv.",
    ),
    "scales of another shape": (
        "fp8",
        ModelFileError,
        lambda t: t.update({f"{FP8_NAME}_scale_inv": torch.ones(3, 1)}),
        f"{FP8_NAME}_scale_inv is (3, 1), not (3, 2)",
    ),
    "scales of another type": (
        "fp8",
        UnsupportedModel,
        lambda t: t.update({f"{FP8_NAME}_scale_inv": torch.ones(3, 2, dtype=torch.int32)}),
        f"I32 (1 tensors, {FP8_NAME}_scale_inv for one)",
    ),
    "scales of a plain matrix": (
        "fp8",
        UnsupportedModel,
        lambda t: t.update({FP8_NAME: torch.ones(288, 160)}),
        f"Unknown: {FP8_NAME}_scale_inv.",
    ),
    "an fp8 vector": (
        "fp8",
        UnsupportedModel,
        lambda t: t.update({"model.norm.weight": torch.ones(160).to(torch.float8_e4m3fn)}),
        "F8_E4M3 (1 tensors, model.norm.weight for one)",
    ),
    "fp8 in an unquantised model": (
        "none",
        UnsupportedModel,
        lambda t: t.update({FP8_NAME: t[FP8_NAME].to(torch.float8_e4m3fn)}),
        f"F8_E4M3 (1 tensors, {FP8_NAME} for one)",
    ),
    "int4 without scales": (
        "int4",
        ModelFileError,
        lambda t: t.pop(f"{EXPERT}weight_scale"),
        f"Missing: {EXPERT}weight_scale.",
    ),
    "int4 without its shape": (
        "int4",
        ModelFileError,
        lambda t: t.pop(f"{EXPERT}weight_shape"),
        f"Missing: {EXPERT}weight_shape.",
    ),
    "int4 of another shape": (
        "int4",
        ModelFileError,
        lambda t: t.update({f"{EXPERT}weight_packed": torch.ones(96, 21, dtype=torch.int32)}),
        f"{EXPERT}weight_packed is (96, 21), not (96, 20)",
    ),
    "int4 that says another shape": (
        "int4",
        ModelFileError,
        lambda t: t.update({f"{EXPERT}weight_shape": torch.tensor([96, 168])}),
        f"{EXPERT}weight_shape says (96, 168), not (96, 160)",
    ),
    "groups of another size": (
        "int4",
        ModelFileError,
        lambda t: t.update({f"{EXPERT}weight_scale": torch.ones(96, 10)}),
        f"{EXPERT}weight_scale is (96, 10), not (96, 5)",
    ),
    "an expert neither packed nor plain": (
        "int4",
        ModelFileError,
        lambda t: [t.pop(f"{EXPERT}weight_{part}") for part in ("packed", "scale", "shape")],
        f"Missing: {EXPERT}weight.",
    ),
    "zero points": (
        "int4",
        UnsupportedModel,
        lambda t: t.update({f"{EXPERT}weight_zero_point": torch.ones(12, 5, dtype=torch.int32)}),
        f"Unknown: {EXPERT}weight_zero_point.",
    ),
    "int4 in an unquantised model": (
        "none",
        ModelFileError,
        lambda t: t.update({f"{EXPERT}weight_packed": t.pop(f"{EXPERT}weight").to(torch.int32)}),
        f"Missing: {EXPERT}weight. Unknown: {EXPERT}weight_packed.",
    ),
}


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("layouts")
    return {
        name: write_ling_hf(root / name, wide_config(), quantized=None if name == "none" else name).path
        for name in ("none", "fp8", "int4")
    }


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_quantised_layouts_are_named(fault: str, layouts: dict[str, Path], tmp_path: Path) -> None:
    layout, kind, change, text = FAULTS[fault]
    folder = Path(shutil.copytree(layouts[layout], tmp_path / "m"))
    assert text in refusal(edited(folder, change), kind)


def test_an_expert_left_plain_in_an_int4_model_is_read_as_it_is(layouts: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(layouts["int4"], tmp_path / "m"))
    plain = torch.randn(96, 160)

    def change(tensors: Tensors) -> None:
        for part in ("packed", "scale", "shape"):
            del tensors[f"{EXPERT}weight_{part}"]
        tensors[f"{EXPERT}weight"] = plain

    weights = open_weights(edited(folder, change))
    assert torch.equal(to_torch(weights.tensor("layers.1.moe.experts.2.up_proj.weight")), plain)
