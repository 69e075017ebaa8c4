"""Opening whole models: canonical names, bytes against the reference, split and sharded files, strict names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from make_models import FAMILIES, hf_model, tiny_config, write_gguf, write_hf
from safetensors.torch import load_file, save_file

from lingchat.errors import LingchatError, ModelFileError, ModelNotFound, UnsupportedModel
from lingchat.kernels.quant import to_torch
from lingchat.runtime.weights.load import Weights, open_weights

QTYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")


def unpermuted(w: torch.Tensor, heads: int) -> torch.Tensor:
    """Adjacent pairs of rows back to half split, written as the index it is."""
    d = w.shape[0] // heads
    order = [h * d + (2 * i if i < d // 2 else 2 * (i - d // 2) + 1) for h in range(heads) for i in range(d)]
    return w[order]


def values(weights: Weights) -> dict[str, torch.Tensor]:
    c = weights.config
    out = {}
    for name in weights.names():
        w = to_torch(weights.tensor(name))
        if c.rope_adjacent and name.endswith(("q_proj.weight", "k_proj.weight")):
            w = unpermuted(w, c.heads if "q_proj" in name else c.kv_heads)
        out[name] = w
    return out


def edited(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    root = tmp_path_factory.mktemp("hf")
    return {family: (root / family, write_hf(root / family, family, tokenizer=False)) for family in FAMILIES}


@pytest.fixture
def qwen2(folders: dict[str, tuple[Path, Any]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders["qwen2"][0], tmp_path / "qwen2"))


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_of_every_family_reads_back_config_and_values(family: str, tmp_path: Path) -> None:
    made = write_gguf(tmp_path / "m.gguf", family)
    weights = open_weights(made.path)
    got, want = weights.config, made.config
    assert got.rope_factors == pytest.approx(want.rope_factors) if want.rope_factors else got.rope_factors is None
    assert got.norm_eps == pytest.approx(want.norm_eps)
    same = {"rope_factors": None, "norm_eps": 0.0}
    assert vars(got) | same == vars(want) | same
    read = values(weights)
    assert read.keys() == made.tensors.keys()
    for name, tensor in made.tensors.items():
        assert torch.equal(read[name], tensor), name


@pytest.mark.parametrize("qtype", QTYPES)
def test_every_weight_type_reads_back(qtype: str, tmp_path: Path) -> None:
    made = write_gguf(tmp_path / "m.gguf", "llama", qtype, types={"embed_tokens.weight": "Q6_K"}, layers=1)
    weights = open_weights(made.path)
    assert weights.tensor("layers.0.mlp.up_proj.weight").type == qtype
    assert weights.tensor("embed_tokens.weight").type == "Q6_K"
    assert weights.tensor("norm.weight").type == "F32"
    assert weights.quantization == qtype
    read = values(weights)
    assert all(torch.equal(read[name], tensor) for name, tensor in made.tensors.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_safetensors_of_every_family_read_back_config_and_values(
    family: str, folders: dict[str, tuple[Path, Any]]
) -> None:
    folder, model = folders[family]
    weights = open_weights(folder)
    assert weights.config == tiny_config(family)
    state = model.state_dict()
    for name, tensor in values(weights).items():
        assert torch.equal(tensor, state[name if name in state else f"model.{name}"]), name
    assert weights.parameters == sum(p.numel() for p in model.parameters())


def test_the_reference_of_a_gguf_file_is_a_whole_transformers_model(tmp_path: Path) -> None:
    made = write_gguf(tmp_path / "m.gguf", "qwen3", "Q4_0", layers=1)
    model = made.transformers()
    assert torch.equal(model.model.layers[0].mlp.up_proj.weight, made.tensors["layers.0.mlp.up_proj.weight"])
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_shards_are_one_model(tmp_path: Path) -> None:
    model = write_hf(tmp_path / "m", "qwen3", shard_size="700KB", dtype=torch.bfloat16, tokenizer=False)
    assert (tmp_path / "m" / "model.safetensors.index.json").is_file()
    weights = open_weights(tmp_path / "m")
    assert weights.quantization == "BF16"
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight":
            assert torch.equal(to_torch(weights.tensor(name.removeprefix("model.")), torch.bfloat16), tensor)
    gone = sorted((tmp_path / "m").glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ModelNotFound, match=gone.name):
        open_weights(tmp_path / "m")


def test_split_gguf_is_one_model_from_any_part(tmp_path: Path) -> None:
    made = write_gguf(tmp_path / "m.gguf", "llama", tensors_per_file=7)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) == 3
    for start in (parts[0], parts[-1], tmp_path):
        weights = open_weights(start)
        assert weights.metadata["tokenizer.ggml.model"] == "gpt2"
        read = values(weights)
        assert all(torch.equal(read[name], tensor) for name, tensor in made.tensors.items())


def test_bytes_are_a_view_of_the_file_and_not_writable(tmp_path: Path) -> None:
    made = write_gguf(tmp_path / "m.gguf", "llama", layers=1)
    raw = open_weights(made.path).tensor("embed_tokens.weight")
    assert raw.data.readonly
    assert raw.data.nbytes == 320 * 256 // 32 * 34
    assert raw.data.format == "B"


def test_a_file_cut_off_while_it_is_open_is_an_error_and_not_a_dead_process(tmp_path: Path) -> None:
    made = write_gguf(tmp_path / "m.gguf", "llama", "F32")
    weights = open_weights(made.path)
    with made.path.open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(ModelFileError, match=r"m\.gguf: output_norm\.weight cannot be read"):
        _ = weights.tensor("norm.weight").data


def test_a_tied_checkpoint_may_hold_a_copy_of_its_head(qwen2: Path) -> None:
    edited(qwen2, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    weights = open_weights(qwen2)
    assert weights.config.tied
    assert "lm_head.weight" not in weights.names()


def test_buffers_of_old_checkpoints_are_no_weights(qwen2: Path) -> None:
    edited(qwen2, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(32)}))
    open_weights(qwen2)


def test_every_missing_extra_and_misshapen_tensor_is_named(qwen2: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.norm.weight"], tensors["model.layers.1.self_attn.k_proj.bias"]
        tensors["model.layers.0.mlp.up_proj.bias"] = torch.ones(512)
        tensors["model.layers.1.mlp.gate_proj.weight"] = torch.ones(511, 256)

    with pytest.raises(ModelFileError) as caught:
        open_weights(edited(qwen2, change))
    for name in (
        "model.norm.weight",
        "model.layers.1.self_attn.k_proj.bias",
        "model.layers.0.mlp.up_proj.bias",
        "model.layers.1.mlp.gate_proj.weight is (511, 256), not (512, 256)",
    ):
        assert name in str(caught.value)


def test_extra_tensors_alone_mean_another_model(qwen2: Path) -> None:
    edited(qwen2, lambda t: t.update({"model.layers.0.mlp.experts.weight": torch.ones(4)}))
    with pytest.raises(UnsupportedModel, match="experts"):
        open_weights(qwen2)


def test_an_untied_model_without_its_head_is_incomplete(qwen2: Path) -> None:
    config = json.loads((qwen2 / "config.json").read_text())
    (qwen2 / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(ModelFileError, match=r"lm_head\.weight"):
        open_weights(qwen2)


def test_a_weight_type_without_decoder_is_refused_by_name(tmp_path: Path) -> None:
    made = write_gguf(tmp_path / "m.gguf", "llama", "IQ4_NL", types={"embed_tokens.weight": "Q8_0"}, layers=1)
    with pytest.raises(UnsupportedModel, match=r"IQ4_NL \(7 tensors.*Supported: F32, .*Q6_K"):
        open_weights(made.path)


def test_half_precision_floats_of_safetensors_only(qwen2: Path) -> None:
    edited(qwen2, lambda t: t.update({"model.norm.weight": t["model.norm.weight"].to(torch.float8_e4m3fn)}))
    with pytest.raises(UnsupportedModel, match=r"F8_E4M3 \(1 tensors, model\.norm\.weight"):
        open_weights(qwen2)


def test_llama_gguf_with_biases_has_them(tmp_path: Path) -> None:
    made = write_gguf(tmp_path / "m.gguf", "qwen2", layers=1)
    assert open_weights(made.path).config.qkv_bias
    assert open_weights(made.path).tensor("layers.0.self_attn.q_proj.bias").shape == (256,)


@pytest.mark.parametrize("what", ["nothing", "empty folder", "two models", "one shard", "a config"])
def test_a_path_that_is_no_model_says_what_to_give(what: str, tmp_path: Path, qwen2: Path) -> None:
    path = {
        "nothing": tmp_path / "none.gguf",
        "one shard": qwen2 / "model.safetensors",
        "a config": qwen2 / "config.json",
    }.get(what, tmp_path / "d")
    (tmp_path / "d").mkdir()
    if what == "two models":
        write_gguf(tmp_path / "d" / "a.gguf", "llama", layers=1)
        write_gguf(tmp_path / "d" / "b.gguf", "llama", layers=1)
    with pytest.raises(ModelNotFound) as caught:
        open_weights(path)
    assert str(path) in str(caught.value)


def test_models_of_one_seed_are_the_same_and_of_two_are_not(tmp_path: Path) -> None:
    one, two = write_gguf(tmp_path / "1.gguf", "llama", layers=1), write_gguf(tmp_path / "2.gguf", "llama", layers=1)
    other = write_gguf(tmp_path / "3.gguf", "llama", layers=1, seed=1)
    assert one.path.read_bytes() == two.path.read_bytes() != other.path.read_bytes()
    assert torch.equal(hf_model("qwen3").lm_head.weight, hf_model("qwen3").lm_head.weight)


def test_errors_are_all_of_the_family_that_the_engine_reports(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"nonsense" * 10)
    with pytest.raises(LingchatError):
        open_weights(tmp_path / "x.gguf")
