"""The operations on a GPU beside the same ones on the CPU and beside fp64: errors, and times where two forms compete.

Inputs are fresh random numbers from a seed. An error is |out - ref| / |ref|. `small` sizes try the script itself on
any machine. Imported by `ling_gpu.py`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from lingchat.bench.random_model import RandomModel, shape_config
from lingchat.kernels import kda, mla, moe, random_weights
from lingchat.runtime.drafts.lookup import LookupDrafter
from lingchat.runtime.models.registry import build
from lingchat.runtime.ops.protocol import BufferSpec, RouteShape
from lingchat.runtime.ops.torch_ops import TorchOps
from lingchat.runtime.state import State

WIDTH = 128  # of a head


def error(out: torch.Tensor, ref: torch.Tensor) -> float:
    """|out - ref| / |ref| in fp64, on the CPU."""
    a, b = out.double().cpu(), ref.double().cpu()
    return float((a - b).norm() / b.norm())


def milliseconds(call: Callable[[], object], device: str, repeats: int = 20) -> dict[str, float]:
    """Median, least and most of some calls after three that warm up."""
    times = []
    for turn in range(repeats + 3):
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        if turn >= 3:
            times.append((time.perf_counter() - begin) * 1e3)
    return {"median": statistics.median(times), "min": min(times), "max": max(times), "n": repeats}


# the delta rule


def delta_inputs(decay: str, rows: int, heads: int, seed: int) -> tuple[torch.Tensor, ...]:
    """q (scaled), k, v, g, beta, state on the CPU, fp32. `decay` names how g is spread."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw)

    q, k = (kda.l2_normalize(normal(rows, heads, WIDTH)) for _ in "qk")
    g = {
        "none": lambda: -1e-4 * torch.rand(rows, heads, WIDTH, generator=draw),
        "spread": lambda: -5 * torch.sigmoid(3 * normal(rows, heads, WIDTH) - 2),
        "half": lambda: torch.where(torch.arange(WIDTH) % 2 == 0, -5.0, -1e-3).expand(rows, heads, WIDTH).clone(),
        "all -5": lambda: torch.full((rows, heads, WIDTH), -5.0),
    }[decay]()
    beta = torch.sigmoid(normal(rows, heads))
    return q * WIDTH**-0.5, k, normal(rows, heads, WIDTH), g, beta, 0.1 * normal(heads, WIDTH, WIDTH)


DECAYS = ("none", "spread", "half", "all -5")


def loop_fp64(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence as the paper writes it, token by token in fp64: out [T, H, V] and the final state."""
    q, k, v, g, beta, state = (x.double() for x in inputs)
    out = torch.empty_like(v)
    for t in range(len(q)):
        state = state * g[t].exp()[:, :, None]
        wrong = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
        state = state + torch.einsum("hk,hv->hkv", k[t], beta[t, :, None] * wrong)
        out[t] = torch.einsum("hkv,hk->hv", state, q[t])
    return out, state


def chunk_forms(device: str, heads: int, rows: int, repeats: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """For each spread of decays: our chunk form, fla's with fp32 and with bf16 inputs, and the rule row by row."""
    fla = device == "cuda" and kda.fla_available()

    for place, decay in enumerate(DECAYS):
        inputs = tuple(x.to(device) for x in delta_inputs(decay, rows, heads, place))
        forms: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]] = {
            "ours": partial(kda.chunked, *inputs),
            "row by row": partial(_last_of_rows, *inputs),
        }
        if fla:
            forms["fla fp32"] = partial(kda.chunked_fla, *inputs)
            forms["fla bf16"] = partial(kda.chunked_fla, *(x.bfloat16() for x in inputs[:3]), *inputs[3:])
        exact = loop_fp64(inputs)
        yield (
            decay,
            {name: guarded(partial(_compared, form, exact, device, repeats)) for name, form in forms.items()},
        )


def _last_of_rows(*inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, states = kda.recurrent(*inputs)
    return out, states[-1]


def _compared(
    form: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    exact: tuple[torch.Tensor, torch.Tensor],
    device: str,
    repeats: int,
) -> dict[str, Any]:
    begin = time.perf_counter()
    out, state = form()
    found = {"error_out": error(out, exact[0]), "error_state": error(state, exact[1])}
    found["first_s"] = time.perf_counter() - begin
    found["ms"] = milliseconds(form, device, repeats)
    return found


def guarded(call: Callable[[], Any]) -> Any:
    """What `call` gives, or why it failed: one form that cannot run must not hide the others."""
    try:
        return call()
    except Exception as failure:
        return {"failed": f"{type(failure).__name__}: {failure}"[:400]}


# every operation, GPU against CPU


def operations(device: str, small: bool) -> dict[str, Any]:
    """Errors of the operations that decode and prefill use, on `device` against the CPU, both in fp32."""
    heads, rank, rope, cached = (2, 64, 16, 40) if small else (16, 512, 64, 900)
    checks: dict[str, Callable[[], Any]] = {
        "recurrent, 9 rows": lambda: _recurrent(device, heads, 9),
        "chunked, 200 rows": lambda: _chunked(device, heads, 200),
        "convolution": lambda: _convolution(device),
        "commit, count 0 to 8": lambda: _commits(device),
        "latent attention, 9 rows": lambda: _latent(device, heads, rank, rope, cached, 9),
        "latent attention, 200 rows": lambda: _latent(device, heads, rank, rope, cached, 200),
        "route, 64 rows": lambda: _route(device),
    }
    for type in ("F32", "BF16", "F8_E4M3", "I4"):
        checks[f"experts {type}"] = partial(_experts, device, type, small)
    return {name: guarded(check) for name, check in checks.items()}


def _recurrent(device: str, heads: int, rows: int) -> dict[str, float]:
    inputs = delta_inputs("spread", rows, heads, 7)
    ours, ref = kda.recurrent(*(x.to(device) for x in inputs)), kda.recurrent(*inputs)
    return {"out": error(ours[0], ref[0]), "states": error(ours[1], ref[1])}


def _chunked(device: str, heads: int, rows: int) -> dict[str, float]:
    inputs = delta_inputs("spread", rows, heads, 8)
    ours, ref = kda.chunked(*(x.to(device) for x in inputs)), kda.chunked(*inputs)
    return {"out": error(ours[0], ref[0]), "state": error(ours[1], ref[1])}


def _convolution(device: str) -> float:
    inputs, taps = torch.randn(20, 384), torch.randn(384, 4)
    return error(kda.conv_silu(inputs.to(device), taps.to(device)), kda.conv_silu(inputs, taps))


def _commits(device: str) -> float:
    """The greatest error over all counts; slots that a count does not reach hold NaN."""
    width, worst = 8, 0.0
    for count in range(width + 1):
        staged, inputs = torch.randn(width, 2, 8, 8), torch.randn(width + 3, 48)
        staged[count:], inputs[count + 3 :] = float("nan"), float("nan")
        state, window = torch.randn(2, 8, 8), torch.randn(3, 48)
        here = [x.clone().to(device) for x in (state, window, staged, inputs)]
        kda.commit(*here, torch.tensor([count], dtype=torch.int32, device=device))
        kda.commit(state, window, staged, inputs, count)
        worst = max(worst, error(here[0], state), error(here[1], window))
    return worst


def _latent(device: str, heads: int, rank: int, rope: int, cached: int, rows: int) -> dict[str, float]:
    nope, value = 32, 48
    kv_b = torch.randn(heads * (nope + value), rank) * rank**-0.5
    q = torch.randn(rows, heads, nope + rope)
    cache = torch.randn(cached + rows, rank + rope)
    scale = (nope + rope) ** -0.5

    def absorbed(on: str, attend: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
        uk, uv = mla.split_up(kv_b.to(on), heads, nope, value)
        plain, shared = q.to(on).split((nope, rope), dim=2)
        queries = torch.cat((mla.absorb(plain, uk), shared), dim=2)
        return mla.expand(attend(queries, cache.to(on)), uv)

    positions = torch.arange(cached, cached + rows, device=device)
    ours = absorbed(device, lambda x, rows_: mla.attend_masked(x, rows_, positions, scale, rank))
    attend = mla.attend_rows if rows <= 16 else mla.attend_chunk
    ref = absorbed("cpu", lambda x, rows_: attend(x, rows_, cached, scale, rank))
    plain = mla.expanded(q, cache, cached, scale, *mla.split_up(kv_b, heads, nope, value))
    return {"out": error(ours, ref), "beside the expanded form": error(ours, plain)}


def _route(device: str) -> dict[str, float]:
    shape = RouteShape(128, 8, 8, 4, 2.5, True)
    logits, bias = torch.randn(64, 128), 0.1 * torch.randn(128)
    logits[:8, 16:32] = logits[:8, :16]  # ties
    ids, weights = moe.route(logits.to(device), bias.to(device), shape)
    ref_ids, ref_weights = moe.route(logits, bias, shape)
    return {"rows with other experts": int((ids.cpu() != ref_ids).any(1).sum()), "weights": error(weights, ref_weights)}


def _experts(device: str, type: str, small: bool) -> dict[str, float]:
    """A layer of experts for 1, 9 and 64 rows. Random weights do not depend on the device: both sides have the same."""
    experts, width, inner, chosen = (8, 128, 64, 2) if small else (32, 1536, 512, 8)

    def packed(on: str) -> moe.Experts:
        gate, up, down = (
            random_weights.matrix(name, type, (experts, *shape), shape[1] ** -0.5, seed=3, device=on)
            for name, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner)))
        )
        return moe.Experts.pack([gate], [up], [down], "fp32", on)

    def run(on: str, own: moe.Experts, rows: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(rows)
        x = torch.randn(rows, width, generator=draw).to(on)
        ids = torch.stack([torch.randperm(experts, generator=draw)[:chosen] for _ in range(rows)]).to(on)
        weights = torch.rand(rows, chosen, generator=draw).to(on)
        return moe.experts_down(moe.experts_up(x, ids, own, 4.0), ids, weights, own)

    here, there = packed(device), packed("cpu")
    return {f"{rows} rows": error(run(device, here, rows), run("cpu", there, rows)) for rows in (1, 9, 64)}


# a whole model


def model_logits(device: str, shape: str, layers: int, dtype: str, rows: int) -> dict[str, Any]:
    """Logits of the first layers of a shape after `rows` tokens at once and after 8 more, `device` against the CPU."""
    config = shape_config(shape, layers)
    ids = torch.randint(config.vocab, (rows + 8,), generator=torch.Generator().manual_seed(1)).tolist()

    def logits(on: str, fla: bool) -> tuple[torch.Tensor, torch.Tensor]:
        ops = TorchOps(dtype, on)
        ops._fla = fla
        model = build(RandomModel(config, dtype, seed=5, device=on), ops)
        specs = model.state_spec(rows + 16), LookupDrafter(ops).state_spec(rows + 16)
        # fp32 rows and windows as on the CPU: a GPU's own, bf16, would cost 0.4 % and here and there an expert.
        ops.on_host = True
        state = State(*specs, ops, 4, width=8)
        ops.on_host = on == "cpu"
        parts = []
        for part, name in ((ids[:rows], "prompt"), (ids[rows:], "more")):
            buffer = ops.allocate(BufferSpec(name, (len(part),), "i32"))
            count = ops.allocate(BufferSpec(f"{name}.count", (1,), "i32"))
            ops.fill(buffer, part)
            ops.fill(count, [len(part)])
            parts.append((model.prefill if name == "prompt" else model.verify)(buffer, len(part), state)[0].cpu())
            state.commit(count)
        return parts[0], parts[1]

    ref = logits("cpu", False)
    forms = {"own chunk form": False, **({"fla": True} if device == "cuda" and kda.fla_available() else {})}
    found = {}
    for name, fla in forms.items():
        prompt, more = logits(device, fla)
        agree = (more.argmax(1) == ref[1].argmax(1)).float().mean()
        found[name] = {"prefill": error(prompt, ref[0]), "verify": error(more, ref[1]), "same argmax": float(agree)}
    return found
