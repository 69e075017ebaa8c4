"""The Ling family's shapes on one GPU: roof, KDA's chunk forms, every operation against the CPU, whole models.

All weights are random, made on the device: speeds and memory are those of the true shapes, texts are noise. Needs torch
with CUDA and msgspec; fla-core and triton for their parts. Every step has a time limit and the result is written after
each, so a run that is cut off keeps what it had. Whole models run as `lingchat bench` in processes of their own.

    python benchmarks/ling_gpu.py [--budget 480] [--out FOLDER] [--only STEP ...] [--name ling_gpu] [--small]

`--small` tries the script itself on any machine, on the CPU: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # where lingchat is not installed, it lies here

import torch  # noqa: E402
from common import RESULTS, machine  # noqa: E402

from lingchat.bench import roof  # noqa: E402
from lingchat.kernels import kda  # noqa: E402

# What a user would run, in the order of what matters most: shape, dtype, prompt, new tokens, seconds at most.
MODELS = (
    ("ling-3.0-tiny", "bf16", 1024, 256, 150),
    ("ling-3.0-flash", "fp8", 1024, 64, 150),
    ("ling-3.0-flash", "int4", 1024, 64, 150),
    ("kimi-linear", "bf16", 1024, 128, 150),
    ("ling-3.0-tiny", "fp8", 1024, 64, 90),
    ("ling-3.0-tiny", "int4", 1024, 64, 90),
    ("qwen3-4b", "bf16", 1024, 128, 90),
)
SMALL_MODELS = (("ling-3.0-tiny", "bf16", 24, 3, 400),)
FLA_HEADS = (16, 32)  # of Ling-3.0-tiny; of flash and Kimi-Linear


class Budget:
    """Seconds that are left of the run."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return self._end - time.monotonic()


class Results:
    """The result file, written anew after each step."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path = path
        self.told = facts

    def keep(self, step: str, value: Any) -> None:
        self.told[step] = value
        self.path.write_text(json.dumps(self.told, indent=1) + "\n")


# the steps


def warm_fla(budget: Budget) -> dict[str, Any]:
    """Compile and tune fla's kernels for every size and input type at once, a process each: minutes at first use."""
    if not kda.fla_available():
        return {"skipped": "fla-core is not installed"}
    begin = time.monotonic()
    kinds = [(heads, dtype) for heads in FLA_HEADS for dtype in ("fp32", "bf16")]
    started = {
        f"{heads} heads, {dtype}": subprocess.Popen(
            [sys.executable, __file__, "--warm", str(heads), dtype], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for heads, dtype in kinds
    }
    found: dict[str, Any] = {}
    for name, process in started.items():
        try:
            said, _ = process.communicate(timeout=max(1.0, min(200.0, budget.left() / 2) - (time.monotonic() - begin)))
            failed = said.decode(errors="replace")[-600:] if process.returncode else None
            found[name] = {"seconds": time.monotonic() - begin} if failed is None else {"failed": failed}
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            found[name] = {"failed": "took too long"}
    return found


def warm_one(heads: int, dtype: str) -> None:
    """A child of `warm_fla`."""
    from gpu_twins import delta_inputs

    inputs = [x.cuda() for x in delta_inputs("spread", 1024, heads, 0)]
    if dtype == "bf16":
        inputs[:3] = [x.bfloat16() for x in inputs[:3]]
    with torch.inference_mode():
        kda.chunked_fla(*inputs)
    torch.cuda.synchronize()


def measure_roof(device: str) -> dict[str, Any]:
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else 8 << 30
    found = roof.measure(device, free if device == "cuda" else 1 << 30)
    told: dict[str, Any] = {"read_gb_s": found.read / 1e9, "copy_gb_s": found.copy / 1e9, "read_by": found.how}
    if device == "cuda":
        from gpu_twins import guarded

        told["read_by_own_kernel_gb_s"] = guarded(_triton_read)
        a = torch.randn(8192, 8192, device=device).bfloat16()
        b = torch.randn(8192, 8192, device=device).bfloat16()
        seconds = roof._seconds(device, lambda: a @ b, 20) / 20
        told["bf16_product_tflops"] = 2 * 8192**3 / seconds / 1e12
    return told


def _triton_read() -> float:
    """GB/s of a kernel that only reads: the figure that floors are computed from."""
    from triton_read import read_rate

    return read_rate(4 << 30) / 1e9


def chunk_steps(device: str, small: bool) -> Iterator[tuple[str, Any]]:
    from gpu_twins import chunk_forms

    heads_of = (2,) if small else FLA_HEADS
    for heads in heads_of:
        for decay, found in chunk_forms(device, heads, 96 if small else 1024, 2 if small else 20):
            yield f"{heads} heads, decay {decay}", found


def run_model(shape: str, dtype: str, prompt: int, new: int, limit: float, device: str, small: bool) -> dict[str, Any]:
    """`lingchat bench` in a process of its own; its JSON, or why it failed."""
    command = [sys.executable, "-m", "lingchat", "bench", "--shape", shape, "--dtype", dtype, "--device", device]
    command += ["--prompt", str(prompt), "--new", str(new), "--output", "json", *(["--layers", "2"] if small else [])]
    begin = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, cwd=ROOT, env=environment)
    except subprocess.TimeoutExpired as expired:
        said = (expired.stderr or b"")[-400:]
        return {"failed": f"over {limit:.0f} s; {said!r}"}
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"failed": f"exit {done.returncode}: {done.stderr[-800:]}"}
    return {**told, "process_s": time.monotonic() - begin}


# the run


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--budget", type=float, default=480.0, help="seconds for all of it")
    parse.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or RESULTS))
    parse.add_argument("--only", nargs="+", default=[], help="steps: warm roof chunks operations logits models")
    parse.add_argument("--name", default="ling_gpu")
    parse.add_argument("--commit", default="", help="of the sources, where no repository tells it")
    parse.add_argument("--small", action="store_true")
    parse.add_argument("--warm", nargs=2, metavar=("HEADS", "TYPE"), help=argparse.SUPPRESS)
    found = parse.parse_args()
    if found.warm:
        warm_one(int(found.warm[0]), found.warm[1])
        return
    device = "cpu" if found.small else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no GPU here; --small tries the script without one")
    begin = time.monotonic()
    facts = machine()
    if found.commit:
        facts["commit"] = found.commit
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(0)
        facts["versions"]["cuda"] = torch.version.cuda
    found.out.mkdir(parents=True, exist_ok=True)
    results = Results(
        found.out / f"{found.name}.json",
        {"benchmark": "ling_gpu", "provenance": "random weights", "small": found.small, "machine": facts},
    )
    budget = Budget(found.budget)
    for step in STEPS:
        if found.only and step not in found.only:
            continue
        if budget.left() < 10:
            results.keep(step, {"skipped": "no time left"})
            continue
        start = time.monotonic()
        print(f"{step} ({budget.left():.0f} s left)", file=sys.stderr, flush=True)
        with torch.inference_mode():
            STEPS[step](results, budget, device, found.small)
        if device == "cuda":
            torch.cuda.empty_cache()  # the models' processes need the memory
        results.keep("seconds", {**results.told.get("seconds", {}), step: time.monotonic() - start})
    results.keep("total_s", time.monotonic() - begin)
    print(summary(results.told))
    print(results.path)


def _warm(results: Results, budget: Budget, device: str, small: bool) -> None:
    results.keep("warm", {"skipped": "no GPU"} if small else warm_fla(budget))


def _roof(results: Results, budget: Budget, device: str, small: bool) -> None:
    results.keep("roof", measure_roof(device))


def _chunks(results: Results, budget: Budget, device: str, small: bool) -> None:
    told: dict[str, Any] = {}
    for name, value in chunk_steps(device, small):
        told[name] = value
        results.keep("chunks", told)
        if budget.left() < 60:
            break


def _operations(results: Results, budget: Budget, device: str, small: bool) -> None:
    from gpu_twins import operations

    results.keep("operations", operations(device, small))


def _logits(results: Results, budget: Budget, device: str, small: bool) -> None:
    from gpu_twins import guarded, model_logits

    layers = 1 if small else 4
    shapes = ("ling-3.0-tiny",) if small else ("ling-3.0-tiny", "kimi-linear")
    told: dict[str, Any] = {}
    for shape in shapes:
        told[f"{shape}, {layers} layers, fp32"] = guarded(
            lambda shape=shape: model_logits(device, shape, layers, "fp32", 24 if small else 200)
        )
        results.keep("logits", told)
        if budget.left() < 240:
            break


def _models(results: Results, budget: Budget, device: str, small: bool) -> None:
    told: dict[str, Any] = {}
    for shape, dtype, prompt, new, limit in SMALL_MODELS if small else MODELS:
        if budget.left() < 20:
            told[f"{shape} {dtype}"] = {"skipped": "no time left"}
        else:
            limit = min(limit, budget.left() - 5)
            told[f"{shape} {dtype}"] = run_model(shape, dtype, prompt, new, limit, device, small)
        results.keep("models", told)
        print(line(f"{shape} {dtype}", told[f"{shape} {dtype}"]), file=sys.stderr, flush=True)


STEPS: dict[str, Callable[[Results, Budget, str, bool], None]] = {
    "warm": _warm,
    "roof": _roof,
    "chunks": _chunks,
    "operations": _operations,
    "models": _models,
    "logits": _logits,
}


# what is printed


def line(name: str, told: dict[str, Any]) -> str:
    if "decode" not in told:
        return f"{name:<22} {told.get('failed') or told.get('skipped') or told.get('error')}"
    decode, prefill, memory = told["decode"], told["prefill"], told["memory"]
    over = f"{100 * (memory['peak_over_plan'] - 1):+.2f} %" if memory["peak_over_plan"] else "unknown"
    return (
        f"{name:<22} TPOT {decode['tpot_p50_ms']:.2f} ms (p95 {decode['tpot_p95_ms']:.2f}), floor {told['floor_ms']:.3f}, "
        f"{100 * told['share_of_roof']:.1f} %; prefill {prefill['tokens_per_s']:,.0f} tok/s; peak {memory['peak'] / 1e9:.3f} "
        f"of {memory['plan']['total'] / 1e9:.3f} GB planned ({over})"
    )


def summary(told: dict[str, Any]) -> str:
    lines = [json.dumps(told.get("roof", {})), json.dumps(told.get("warm", {}))]
    for name, forms in told.get("chunks", {}).items():
        for form, found in forms.items():
            if "failed" in found:
                lines.append(f"{name:<26} {form:<11} {found['failed'][:160]}")
            else:
                lines.append(
                    f"{name:<26} {form:<11} {found['ms']['median']:9.3f} ms  "
                    f"out {found['error_out']:.2e}  state {found['error_state']:.2e}"
                )
    for name, found in told.get("operations", {}).items():
        lines.append(f"{name:<30} {json.dumps(found)[:160]}")
    for name, found in told.get("logits", {}).items():
        lines.append(f"{name:<30} {json.dumps(found)[:300]}")
    lines += [line(name, found) for name, found in told.get("models", {}).items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
