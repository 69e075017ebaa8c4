"""Models of other programs, found where those keep them, and what is said about each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from make_models import write_gguf, write_hf

from lingchat.architectures import hybrid_hf
from lingchat.architectures.read import HF_ARCHITECTURES
from lingchat.catalog import about, find, memory
from lingchat.catalog.about import look
from lingchat.kernels.blocks import DECODABLE
from lingchat.runtime.formats.families import FAMILIES
from lingchat.runtime.formats.pretokenizers import SPLITS
from lingchat.runtime.models.registry import MODELS


def header_only(path: Path, architecture: str, **keys: str | int) -> Path:
    """A GGUF file with one small tensor and these keys (`__` for a dot)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        name = key.replace("__", ".")
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(name, value)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def found_in(home: Path, **environment: str) -> dict[str, find.Found]:
    return {found.name: found for found in find.find(environment, home)}


def ollama(models: Path, name: str, blob: Path | None, **more: str) -> None:
    digest = "sha256:" + f"{abs(hash(name)):064x}"[-64:]
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": digest}]
    layers += [{"mediaType": f"application/vnd.ollama.image.{kind}", "digest": what} for kind, what in more.items()]
    manifest = models / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    (models / "blobs").mkdir(exist_ok=True)
    if blob is not None:
        os.link(blob, models / "blobs" / digest.replace(":", "-"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny-Q8_0.gguf"
    write_gguf(path, "llama", "Q8_0")
    return path


def test_ollama(tmp_path: Path, tiny: Path) -> None:
    models = tmp_path / ".ollama/models"
    ollama(models, "registry.example/library/llama3.2/latest", tiny)
    ollama(models, "registry.example/library/llama3.2/1b", tiny)
    ollama(models, "registry.example/ann/tuned/latest", tiny, adapter="sha256:0")
    ollama(models, "hub.example/org/repo/Q4", tiny)
    ollama(models, "registry.example/library/lost/latest", None)
    (models / "manifests/registry.example/library/torn").mkdir()
    (models / "manifests/registry.example/library/torn/latest").write_text("{")
    found = found_in(tmp_path)
    assert set(found) == {
        "ollama:llama3.2",
        "ollama:llama3.2:1b",
        "ollama:ann/tuned",
        "ollama:hub.example/org/repo:Q4",
        "ollama:lost",
    }
    assert look(found["ollama:llama3.2"].path).runs
    assert "adapter" in found["ollama:ann/tuned"].why_not
    assert "blob is missing" in found["ollama:lost"].why_not
    moved = tmp_path / "elsewhere"
    assert found_in(tmp_path, OLLAMA_MODELS=str(moved)) == {}
    models.rename(moved)
    assert "ollama:llama3.2" in found_in(tmp_path, OLLAMA_MODELS=str(moved))


def test_lm_studio_and_llama_cpp(tmp_path: Path, tiny: Path) -> None:
    for place in (".lmstudio/models/org/repo", ".cache/llama.cpp", "other/org/repo"):
        (tmp_path / place).mkdir(parents=True)
        os.link(tiny, tmp_path / place / "tiny-Q8_0.gguf")
    found = found_in(tmp_path)
    assert set(found) == {"lmstudio:org/repo/tiny-Q8_0.gguf", "llama.cpp:tiny-Q8_0"}
    (tmp_path / ".lmstudio/settings.json").write_text(json.dumps({"downloadsFolder": str(tmp_path / "other")}))
    assert found_in(tmp_path)["lmstudio:org/repo/tiny-Q8_0.gguf"].path.is_relative_to(tmp_path / "other")
    assert found_in(tmp_path, LLAMA_CACHE=str(tmp_path / "other/org/repo"))["llama.cpp:tiny-Q8_0"].path.exists()


def snapshot(hub: Path, name: str, revision: str, main: bool = True) -> Path:
    repository = hub / ("models--" + name.replace("/", "--"))
    if main:
        (repository / "refs").mkdir(parents=True)
        (repository / "refs/main").write_text(revision)
    folder = repository / "snapshots" / revision
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("setting", ["", "HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_hugging_face(tmp_path: Path, tiny: Path, setting: str) -> None:
    hub = tmp_path / {"": ".cache/huggingface/hub", "HF_HUB_CACHE": "x", "HF_HOME": "x/hub"}.get(
        setting, "x/huggingface/hub"
    )
    write_hf(snapshot(hub, "org/chat", "abc"), "qwen3")
    write_hf(snapshot(hub, "org/chat2", "old", main=False), "qwen2")
    os.link(tiny, snapshot(hub, "org/quants", "abc") / "tiny-Q8_0.gguf")
    (snapshot(hub, "org/pickle", "abc") / "config.json").write_text("{}")
    (hub / "models--org--pickle/snapshots/abc/pytorch_model.bin").write_bytes(b"")
    (snapshot(hub, "org/tokenizer-only", "abc") / "config.json").write_text("{}")
    (hub / "datasets--org--data/snapshots/abc").mkdir(parents=True)
    found = found_in(tmp_path, **({setting: str(tmp_path / "x")} if setting else {}))
    assert set(found) == {"org/chat", "org/chat2", "org/quants:tiny-Q8_0.gguf", "org/pickle"}
    assert "pickle" in found["org/pickle"].why_not
    for name, architecture in (("org/chat", "Qwen3ForCausalLM"), ("org/chat2", "Qwen2ForCausalLM")):
        seen = look(found[name].path)
        assert seen.runs and seen.architecture == architecture and seen.quantization == "F32" and seen.chat_template


@pytest.mark.parametrize(
    ("architecture", "keys", "why"),
    [
        ("gemma3", {}, "unsupported architecture `gemma3`"),
        ("clip", {}, "vision projector"),
        ("llama", {"general__type": "mmproj"}, "vision projector"),
        ("llama", {"general__type": "adapter"}, "adapter"),
        ("llama", {"general__type": "imatrix"}, "of type `imatrix`"),
        ("nomic-bert", {}, "embedding model"),
        ("qwen3", {"qwen3__pooling_type": 3}, "embedding model"),
        ("llama", {"llama__expert_count": 8}, "mixture of experts"),
        ("qwen2", {"qwen2__rope__scaling__type": "yarn"}, "rope scaling `yarn`"),
        ("llama", {"tokenizer__ggml__model": "t5"}, "tokenizer `t5`"),
        ("llama", {"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "tekken"}, "pre-tokenizer `tekken`"),
        ("llama", {"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "gpt-2"}, "base model"),
    ],
)
def test_why_a_gguf_does_not_run(tmp_path: Path, architecture: str, keys: dict[str, str | int], why: str) -> None:
    seen = look(header_only(tmp_path / "m.gguf", architecture, **keys))
    assert why in seen.why_not and seen.problem == "unsupported" and not seen.runs


def test_an_unsupported_weight_type_is_named(tmp_path: Path, tiny: Path) -> None:
    data = bytearray(tiny.read_bytes())
    # The type number follows the name, the dimension count and the two dimensions of a tensor's entry.
    at = data.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 16
    assert data[at] == 8  # Q8_0
    data[at] = 17
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    assert "unsupported weight type IQ2_XS" in look(path).why_not


def test_damaged_and_incomplete_files_are_told_not_raised(tmp_path: Path, tiny: Path) -> None:
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(tiny.read_bytes()[:-100])
    shard = tmp_path / "big-00002-of-00003.gguf"
    os.link(tiny, shard)
    page = tmp_path / "page.gguf"
    page.write_text("<!doctype html><html><body>Sign in to go on</body></html>")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
    for path, why in (
        (torn, "damaged"),
        (shard, "missing"),
        (page, "web page"),
        (folder, "missing"),
        (tmp_path / "gone.gguf", "no such file"),
    ):
        seen = look(path)
        assert why in seen.why_not and seen.problem == "damaged", seen
        assert str(tmp_path) not in seen.why_not


def test_why_a_folder_does_not_run(tmp_path: Path) -> None:
    write_hf(tmp_path / "m", "llama")
    folder = tmp_path / "m"
    assert look(folder).runs
    config = json.loads((folder / "config.json").read_text())
    for change, why in (
        ({"architectures": ["Gemma3ForCausalLM"]}, "unsupported architecture `Gemma3ForCausalLM`"),
        ({"quantization_config": {"quant_method": "awq"}}, "unsupported quantisation `awq`"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope scaling `yarn`"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        assert why in look(folder).why_not
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modules.json").write_text("[]")
    assert "embedding model" in look(folder).why_not
    (folder / "modules.json").unlink()
    (folder / "tokenizer.json").rename(folder / "away")
    assert look(folder).problem == "damaged" and "tokenizer.json" in look(folder).why_not
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text("{}")
    assert "adapter" in look(folder).why_not


def test_too_little_memory_is_said_with_both_numbers(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 1000)
    seen = look(tiny)
    assert seen.problem == "memory" and "needs at least" in seen.why_not and "0.0 GB are free" in seen.why_not


def test_the_default_model_runs(default_model: Path) -> None:
    seen = look(default_model)
    assert seen.runs
    assert (seen.architecture, seen.quantization, seen.context) == ("llama", "Q4_1", 8192)
    assert 130e6 < seen.parameters < 140e6 and seen.nbytes == default_model.stat().st_size


def test_the_tables_are_the_runtime_s() -> None:
    assert {hybrid_hf.ARCHITECTURES.get(name, name) for name in HF_ARCHITECTURES} == set(MODELS)
    assert set(SPLITS) == about.PRE_TOKENIZERS
    assert list(about.SPEAKABLE) == [family.marks for family in FAMILIES if family.template]
    assert set(about.SAFETENSORS_TYPES) <= set(DECODABLE)


def test_split_files_are_one_model(tmp_path: Path, tiny: Path) -> None:
    folder = tmp_path / ".cache/llama.cpp"
    folder.mkdir(parents=True)
    for number in (1, 2, 3):
        os.link(tiny, folder / f"big-{number:05d}-of-00003.gguf")
    assert list(found_in(tmp_path)) == ["llama.cpp:big-00001-of-00003"]


def test_a_walk_ends(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ".lmstudio/models"
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/up").symlink_to(folder)
    (folder / "a/self").symlink_to(folder / "a/self")
    (folder / "a/nowhere.gguf").symlink_to(tmp_path / "nothing")
    os.link(tiny, folder / "a/b/m.gguf")
    found = found_in(tmp_path)
    assert set(found) == {"lmstudio:a/b/m.gguf", "lmstudio:a/nowhere.gguf"}
    assert "no such file" in look(found["lmstudio:a/nowhere.gguf"].path).why_not
    deep = folder / "/".join("abcdefgh")
    deep.mkdir(parents=True)
    os.link(tiny, deep / "deep.gguf")
    assert "deep.gguf" not in str(found_in(tmp_path))
    monkeypatch.setattr(find, "MAX_ENTRIES", 3)
    assert len(list(find.walk(folder))) <= 3


def test_nothing_found_where_nothing_is(tmp_path: Path) -> None:
    assert found_in(tmp_path) == {}
