"""Ling-3.0 as transformers' own class makes, saves and computes it: one more judge of the whole model, and a file.

A known difference: the class computes without SwiGLU limits. It is no judge of a model that has some, but it keeps the
lists of a published configuration when it saves one, and such a file is read with them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hf_judge import hf_logits, model_logits, needs_ling, plain_torch, scatter_weights
from ling_cases import POSITIONS, distance, ids_of
from ling_reference import Reference
from make_ling import ling_config, write_ling_hf, write_tokenizer
from runtime.helpers import Bench
from safetensors.torch import load_file, save_file

from lingchat.architectures.hybrid_names import expected_shapes
from lingchat.catalog.about import look
from lingchat.errors import ModelFileError, UnsupportedModel
from lingchat.runtime.weights.load import open_weights

pytestmark = [pytest.mark.usefixtures("one_thread"), needs_ling]

# Every size differs from every other that it could be taken for.
SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 28,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "kv_lora_rank": 48,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "num_local_experts": 16,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
}
_KDA, _MLA = ["linear_attention"], ["full_attention"]
VARIANTS: dict[str, dict[str, Any]] = {
    "period 4": {"layer_group_size": 4, "num_hidden_layers": 8, "first_k_dense_replace": 1},
    "period 4, query LoRA": {"layer_group_size": 4, "num_hidden_layers": 4, "q_lora_rank": 40},
    "period 6": {"layer_group_size": 6, "num_hidden_layers": 6, "kda_lower_bound": -3.0},
    # Weights as they are sum to about 2 here, which the usual factor would make a lot of rounding of.
    "period 6, query LoRA": {
        "layer_group_size": 6,
        "num_hidden_layers": 6,
        "q_lora_rank": 40,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    },
    # The class's own schedule has a KDA layer after the last whole period, the published code an MLA layer.
    "off the period, by the class": {"layer_group_size": 4, "num_hidden_layers": 5},
    "off the period, as published": {
        "layer_group_size": 4,
        "num_hidden_layers": 6,
        "layer_types": [*_KDA * 3, *_MLA * 3],
        "mlp_layer_types": ["dense"] + ["sparse"] * 5,
        "first_k_dense_replace": 1,
    },
    "yarn": {"layer_group_size": 2, "num_hidden_layers": 4, "rope_theta": 10000.0, "rope_parameters": YARN},
}


@dataclass
class Saved:
    """A random model that transformers wrote, and its logits of `ids`, all at once."""

    folder: Path
    model: Any
    ids: list[int]
    logits: torch.Tensor


def make(variant: dict[str, Any]) -> Any:
    config = transformers.BailingHybridConfig(**SIZES, **variant)
    model = transformers.BailingHybridForCausalLM(config).eval()
    scatter_weights(model)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            # Steps that keep from nearly all of a channel to less than a tenth.
            if name.endswith("A_log"):
                tensor.uniform_(0.25, 2.0).log_()
            elif name.endswith("dt_bias"):
                tensor.uniform_(-4.0, 1.0)
    return model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Saved]:
    return {}


@pytest.fixture
def saved(request: pytest.FixtureRequest, made: dict[str, Saved], tmp_path_factory: pytest.TempPathFactory) -> Saved:
    name = request.param
    if name not in made:
        folder, model, ids = tmp_path_factory.mktemp("ling"), make(VARIANTS[name]), ids_of(70, 4)
        model.save_pretrained(folder, max_shard_size="400KB")
        write_tokenizer(folder)
        made[name] = Saved(folder, model, ids, torch.from_numpy(model_logits(model, ids)).float())
    return made[name]


@pytest.mark.parametrize("saved", VARIANTS, indirect=True)
def test_fp32_logits_within_1e_4_of_the_class(saved: Saved) -> None:
    """At every of 70 positions: prefill in chunks, W rows, and token by token."""
    assert len(list(saved.folder.glob("model-*.safetensors"))) > 1
    assert saved.logits.std() > 0.5
    bench = Bench(saved.folder)
    close = {"rtol": 0.0, "atol": 1e-4}
    for width in (1, 8):
        torch.testing.assert_close(bench.verify_logits(saved.ids, width), saved.logits, **close)
    for count in (1, 7, 64, 65, 70):
        for chunk in (512, 64, 7):
            got = bench.prefill_logits(saved.ids[:count], chunk)
            torch.testing.assert_close(got, saved.logits[count - 1], **close)


@pytest.mark.parametrize("saved", ["period 4", "period 6, query LoRA"], indirect=True)
def test_the_class_token_by_token_too(saved: Saved) -> None:
    """Its cache: five tokens at once, the others one at a time."""
    got = Bench(saved.folder).verify_logits(saved.ids[:24], 1)
    ids, rows = torch.tensor([saved.ids]), []
    with torch.no_grad(), plain_torch():
        out = saved.model(ids[:, :5], use_cache=True)
        rows.append(out.logits[0])
        for i in range(5, 24):
            out = saved.model(ids[:, i : i + 1], cache=out.cache, use_cache=True)
            rows.append(out.logits[0])
    torch.testing.assert_close(got, torch.cat(rows), rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("saved", VARIANTS, indirect=True)
def test_what_it_says_is_what_is_read(saved: Saved) -> None:
    said = saved.model.config
    config = open_weights(saved.folder).config
    kinds = {"kda": "linear_attention", "mla": "full_attention"}
    assert config.architecture == "BailingMoeV3ForCausalLM"
    assert [kinds[kind] for kind in config.kinds] == said.layer_types
    assert [config.is_moe(i) for i in range(config.layers)] == [kind == "sparse" for kind in said.mlp_layer_types]
    assert (config.kda.head_dim, config.kda.lower_bound) == (32, said.kda_lower_bound)
    assert (config.mla.rope, config.mla.q_rank) == (16, said.q_lora_rank)
    assert (config.mla.rope_factors is not None) == (said.rope_parameters["rope_type"] == "yarn")
    assert (config.moe.groups, config.moe.renormalize) == (4, said.norm_topk_prob)
    assert said.num_mtp_layers == 1 and config.mtp_layers == 0, "announced, and never saved"
    seen = look(saved.folder)
    assert seen.runs and seen.architecture == "BailingHybridForCausalLM"


def test_a_published_model_loaded_and_saved_again_is_the_same(tmp_path: Path) -> None:
    """To the bit, but for its drafting layer, which the class drops. The limits are there, though it applies none."""
    tiny = write_ling_hf(tmp_path / "first", ling_config(period=4, layers=8, q_rank=24, limits=True, mtp=1), seed=6)
    kind = transformers.BailingHybridForCausalLM
    kind.from_pretrained(tiny.path, dtype=torch.float32).save_pretrained(tmp_path / "second", max_shard_size="300KB")
    write_tokenizer(tmp_path / "second")
    raw = json.loads((tmp_path / "second/config.json").read_text())
    assert raw["architectures"] == ["BailingHybridForCausalLM"] and raw["head_dim"] == 16
    before, after = open_weights(tiny.path), open_weights(tmp_path / "second")
    assert after.config == replace(tiny.config, mtp_layers=0)
    for name in expected_shapes(after.config):
        assert bytes(after.tensor(name).data) == bytes(before.tensor(name).data), name
    ids = ids_of(POSITIONS, 6)
    got = Bench(tmp_path / "second").verify_logits(ids, 8)
    assert distance(got, Reference(tiny.config, tiny.tensors).logits(ids)).max() < 5e-5
    assert distance(got, hf_logits(kind, tmp_path / "second", ids)).max() > 1e-2


@pytest.mark.parametrize("saved", ["period 4"], indirect=True)
def test_its_own_naming_is_refused_by_name(saved: Saved, tmp_path: Path) -> None:
    """Saved as the class holds them: experts stacked with gate and up in one, the three convolutions in one."""
    saved.model.save_pretrained(tmp_path, save_original_format=False)
    with pytest.raises(ModelFileError) as caught:
        open_weights(tmp_path)
    for name in ("mlp.experts.gate_up_proj", "self_attn.conv1d.weight", "self_attn.forget_gate.A_log"):
        assert re.search(rf"Unknown: .*model\.layers\.(\d|{{[\d,-]+}})\.{re.escape(name)}", str(caught.value)), name
    assert "attention.o_proj.weight or model.layers.0.attention.dense.weight" in str(caught.value)


@pytest.mark.parametrize("saved", ["off the period, by the class"], indirect=True)
def test_two_out_projections_of_one_layer_are_refused(saved: Saved, tmp_path: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for file in saved.folder.glob("*.safetensors"):
        tensors |= load_file(file)
    tensors["model.layers.0.attention.o_proj.weight"] = tensors["model.layers.0.attention.dense.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((saved.folder / "config.json").read_bytes())
    with pytest.raises(UnsupportedModel, match=r"Unknown: model\.layers\.0\.attention\.dense\.weight"):
        open_weights(tmp_path)
