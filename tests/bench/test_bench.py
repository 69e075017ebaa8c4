"""`lingchat bench` end to end on small shapes: what it reports and refuses, and that it never looks like a model."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from bench.tiny_shapes import TINY

from lingchat import cli
from lingchat.bench import random_model
from lingchat.bench import run as bench_run
from lingchat.bench.job import DTYPES, SHAPES

pytestmark = pytest.mark.usefixtures("native_library")

SHORT = ["--device", "cpu", "--prompt", "24", "--new", "6", "--threads", "1"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shapes, and a roof that is measured in no time."""
    monkeypatch.setattr(random_model, "KNOWN", TINY)
    monkeypatch.setattr("lingchat.bench.roof._BYTES", {"cpu": 1 << 20})
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def bench(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(["bench", *argv])
    said = capsys.readouterr()
    return code, said.out, said.err


def measured(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    code, out, _ = bench(capsys, *argv, "--output", "json", *SHORT)
    assert code == 0
    result: dict[str, Any] = json.loads(out)
    return result


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [("ling-3.0-tiny", dtype) for dtype in DTYPES] + [("qwen3-4b", dtype) for dtype in ("int8", "fp8", "int4")],
)
def test_every_form_runs_and_says_what_it_is(capsys: pytest.CaptureFixture[str], shape: str, dtype: str) -> None:
    result = measured(capsys, "--shape", shape, "--dtype", dtype)
    assert result["provenance"] == "random weights"
    assert (result["shape"], result["dtype"], result["device"]["kind"]) == (shape, dtype, "cpu")
    assert result["backend"].startswith("native " if dtype == "int8" else "torch ")
    assert result["layers"] == result["layers_of_shape"] == TINY[shape]["num_hidden_layers"]
    prefill, decode, memory = result["prefill"], result["decode"], result["memory"]
    assert prefill["tokens"] == 24
    assert prefill["tokens_per_s"] == pytest.approx(24 / prefill["seconds"])
    assert decode["tokens"] == 6
    assert 0 < decode["tpot_p50_ms"] <= decode["tpot_p95_ms"] <= decode["tpot_max_ms"]
    assert decode["tokens_per_s"] == pytest.approx(6 / decode["seconds"])
    assert 0.5 < decode["logits_std"] < 3
    assert result["floor_ms"] == pytest.approx(
        result["weight_bytes_per_token"] / result["roof"]["read_bytes_per_s"] * 1e3
    )
    share = result["floor_ms"] / (decode["seconds"] / 6 * 1e3)
    assert result["share_of_roof"] == pytest.approx(share)
    assert memory["weights"] == memory["plan"]["weights"]
    assert memory["plan"]["total"] == sum(
        memory["plan"][part] for part in ("weights", "kv", "state", "snapshots", "workspace")
    )
    if memory["peak"] is not None:
        assert memory["peak"] == max(memory["peaks"].values())
        assert set(memory["peaks"]) == {"load", "warm_up", "run"}
    assert result["versions"]["torch"] == torch.__version__


def test_text_says_random_weights_before_any_figure(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capsys, "--shape", "ling-3.0-tiny", "--layers", "4", *SHORT)
    assert code == 0
    assert "RANDOM WEIGHTS" in out.splitlines()[0]
    assert "only 4 of 5 layers" in out.splitlines()[0]
    for word in ("tok/s", "TPOT", "% of the read roof", "planned", "peak"):
        assert word in out
    assert "random weights" in err  # progress does not mix with the result


def test_a_shortened_shape_has_fewer_layers_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    whole = measured(capsys, "--shape", "qwen3-4b", "--dtype", "fp32")
    short = measured(capsys, "--shape", "qwen3-4b", "--dtype", "fp32", "--layers", "1")
    assert (short["layers"], short["layers_of_shape"]) == (1, 2)
    assert short["parameters"] < whole["parameters"]


def test_the_text_of_a_seed_repeats(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kept: list[list[int]] = []
    decode = bench_run._decode
    monkeypatch.setattr(bench_run, "_decode", lambda loaded: _keep(kept, decode(loaded)))
    for seed in ("4", "4", "5"):
        measured(capsys, "--shape", "ling-3.0-tiny", "--dtype", "fp32", "--seed", seed)
    assert kept[0] == kept[1] != kept[2]
    assert len(kept[0]) == 6


def _keep(kept: list[list[int]], decoded: tuple[list[int], list[int]]) -> tuple[list[int], list[int]]:
    kept.append(decoded[1])
    return decoded


def test_what_does_not_fit_is_told_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []
    monkeypatch.setattr(random_model.RandomModel, "tensor", lambda self, name: made.append(name))
    code, out, _ = bench(capsys, "--shape", "ling-3.0-flash", "--dtype", "bf16", "--output", "json", *SHORT)
    assert code == 4
    error = json.loads(out)["error"]
    assert error["code"] == "does_not_fit"
    assert "249." in error["message"]  # GB of weights
    assert "are free" in error["message"] and "--layers N" in error["message"]
    assert not made


@pytest.mark.parametrize(
    ("argv", "code", "word"),
    [
        (["--shape", "ling-3.0-tinny"], 2, "did you mean ling-3.0-tiny"),
        ([], 2, "--shape is missing"),
        (["--shape", "ling-3.0-tiny", "--layers", "9"], 2, "5 layers"),
        (["--shape", "ling-3.0-tiny", "--layers", "0"], 2, "above 0"),
        (["--shape", "ling-3.0-tiny", "--prompt", "510", "--new", "16"], 2, "holds 512"),
        (["--shape", "ling-3.0-tiny", "--threads", "0"], 2, "above 0"),
        (["--shape", "ling-3.0-tiny", "--promt", "5"], 2, "did you mean --prompt"),
    ],
)
def test_a_bad_request_is_named(capsys: pytest.CaptureFixture[str], argv: list[str], code: int, word: str) -> None:
    found, out, err = bench(capsys, *argv)
    assert found == code
    assert word in err
    assert not out


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU is asked for one")
def test_no_gpu_is_an_error_of_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = bench(capsys, "--shape", "ling-3.0-tiny", "--device", "cuda")
    assert code == 4
    assert "--device cuda: " in err


def test_logits_that_are_no_numbers_are_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = random_model.RandomModel.tensor

    def poisoned(self: random_model.RandomModel, name: str) -> Any:
        raw = made(self, name)
        if name == "norm.weight":
            raw.data.fill_(255)
        return raw

    monkeypatch.setattr(random_model.RandomModel, "tensor", poisoned)
    code, out, err = bench(capsys, "--shape", "ling-3.0-tiny", "--dtype", "fp32", *SHORT)
    assert code == 4
    assert "not finite" in err
    assert not out


def test_every_shape_offered_is_known() -> None:
    assert set(SHAPES) <= set(TINY)


def test_asking_for_help_loads_no_torch() -> None:
    program = "import sys; from lingchat.bench import main\ntry: main(['-h'])\nexcept SystemExit: pass\nprint(sorted({'torch', 'numpy'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip().endswith("[]")


def test_measuring_needs_no_package_beyond_torch_and_msgspec() -> None:
    """A machine with a GPU may have torch and what comes with transformers, and not all that a chat needs."""
    program = (
        "import sys\n"
        "for name in ('platformdirs', 'textual', 'gguf', 'prompt_toolkit', 'resvg_py', 'xllamacpp', 'fla'):\n"
        "    sys.modules[name] = None\n"
        "import lingchat.cli, lingchat.bench.run\n"
        "print('loaded')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "loaded", result.stderr
