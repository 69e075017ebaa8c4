"""Kimi Delta Attention: short convolution, gates, the delta rule row by row and in chunks, staging and commit.

Per head, with a state S [K, V], key k, query q, value v, log decay g [K] <= 0 and write strength beta (Kimi Linear
report, 2025; the recurrence is that of flash-linear-attention's naive form):

    S <- diag(exp g) S;   e = v - S^T k;   S <- S + k (beta e)^T;   o = S^T q

Everything is fp32. A pass never writes the committed state: it stages the states after its rows and the inputs of the
convolution, and `commit` takes those of the rows that hold. Knows tensors, no models. Shapes: T rows, H heads, K and V
the key and value widths, P = H * K, C channels of the convolution, W the most rows of a round.
"""

from __future__ import annotations

import importlib.util
from functools import cache

import torch
import torch.nn.functional as F

from lingchat.kernels.norm import rms_norm
from lingchat.kernels.rows import by_rows, sigmoid

_L2_EPS = 1e-6


def conv_silu(inputs: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Causal depthwise convolution and SiLU.

    inputs [taps - 1 + T, C] of any float type, oldest first; taps fp32 [C, taps], the last one meets the row itself.
    -> fp32 [T, C]
    """
    width = taps.shape[1]
    rows = inputs.shape[0] - width + 1
    x, by_tap = inputs.float(), taps.t().contiguous()
    mixed = x[:rows] * by_tap[0]
    for tap in range(1, width):
        mixed += x[tap : tap + rows] * by_tap[tap]
    return by_rows(F.silu, mixed)


def l2_normalize(x: torch.Tensor) -> torch.Tensor:
    """x fp32 [..., K] -> x / sqrt(sum(x^2) + 1e-6)."""
    return x / (x.square().sum(-1, keepdim=True) + _L2_EPS).sqrt()


def log_decay(
    f: torch.Tensor, rate: torch.Tensor, dt_bias: torch.Tensor, gate: str, lower_bound: float
) -> torch.Tensor:
    """f fp32 [T, P], rate = exp(A_log) fp32 [H], dt_bias fp32 [P] -> log decay fp32 [T, H, K], never above 0.

    "bounded": lower_bound * sigmoid(rate * (f + dt_bias)); "softplus": -rate * softplus(f + dt_bias), the softplus
    being its argument beyond 20. Raises ValueError for another gate.
    """
    x = (f + dt_bias).view(f.shape[0], rate.shape[0], -1)
    if gate == "bounded":
        return sigmoid(rate[:, None] * x) * lower_bound
    if gate == "softplus":
        return by_rows(F.softplus, x) * -rate[:, None]
    raise ValueError(f"no KDA gate {gate!r}")


def recurrent(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rule itself, a row after the other; a row's bits do not depend on how many follow it.

    q (scaled) and k [T, H, K], v [T, H, V], g [T, H, K], beta [T, H], state [H, K, V] (only read)
    -> out [T, H, V] and the states after each row [T, H, K, V].
    Two passes over a state a row: both products with the old one, then the new one. The output needs no third, as
    S^T q is (exp(g) q)^T S_old + (k . q) beta e.
    """
    rows = q.shape[0]
    out = torch.empty_like(v)
    states = torch.empty(rows, *state.shape, dtype=state.dtype, device=state.device)
    for r in range(rows):
        decay = g[r].exp()
        read = torch.stack((k[r] * decay, q[r] * decay), dim=1) @ state  # [H, 2, V]
        write = (v[r] - read[:, 0]) * beta[r, :, None]
        torch.mul(state, decay[:, :, None], out=states[r])
        state = states[r].addcmul_(k[r, :, :, None], write[:, None, :])
        out[r] = read[:, 1] + (k[r] * q[r]).sum(-1, keepdim=True) * write
    return out, states


def chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    chunk: int = 64,
    sub: int = 16,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for many rows, `chunk` at a time (WY form of DeltaNet, Yang et al. 2024) -> out, the final state.

    With D(i, j) the decay of rows j + 1 .. i and u_i = beta_i e_i, a chunk's errors solve the lower triangular
    u_i + beta_i sum_{j<i} (k_i . D(i, j) k_j) u_j = beta_i (v_i - (D(i, 0) k_i)^T S).
    """
    heads_first = [x.transpose(0, 1) for x in (q, k, v, g)]
    outs = []
    for some in zip(*(x.split(chunk, dim=1) for x in heads_first), beta.t().split(chunk, dim=1), strict=True):
        out, state = _chunk(*some, state, sub)
        outs.append(out)
    return torch.cat(outs, dim=1).transpose(0, 1).contiguous(), state


def _chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    sub: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One chunk: q, k, g [H, C, K], v [H, C, V], beta [H, C]; the decays from and to its ends are sums of one sign."""
    since_start = g.cumsum(1).exp()
    to_end = _after(g).exp()
    among_keys, among_queries = _decayed_products(q, k, g, sub)
    errors = beta[:, :, None] * (v - (k * since_start) @ state)
    among_keys = beta[:, :, None] * among_keys.tril(-1)
    written = torch.linalg.solve_triangular(among_keys, errors, upper=False, unitriangular=True)
    out = (q * since_start) @ state + among_queries.tril() @ written
    return out, state * since_start[:, -1, :, None] + (k * to_end).transpose(1, 2) @ written


def _after(g: torch.Tensor) -> torch.Tensor:
    """Sum of the rows after each row, [H, C, K]; 0 for the last. Summed, not subtracted: nothing cancels."""
    reversed_sums = g.flip(1).cumsum(1).flip(1)
    return F.pad(reversed_sums[:, 1:], (0, 0, 0, 1))


def _decayed_products(q: torch.Tensor, k: torch.Tensor, g: torch.Tensor, sub: int) -> tuple[torch.Tensor, torch.Tensor]:
    """k_i . D(i, j) k_j and q_i . D(i, j) k_j for j <= i, each [H, C, C]; what stands above the diagonal is unused.

    No exponent is above 0. A block below the diagonal divides the decay at the first row of its rows: both factors
    are decays. Within a diagonal block there is no such row, and every pair's decay is summed on its own.
    """
    heads, rows, _ = k.shape
    both = k.new_zeros(heads, 2, rows, rows)
    for start in range(0, rows, sub):
        end = min(start + sub, rows)
        here = slice(start, end)
        pair = torch.stack((k[:, here], q[:, here]), dim=1)  # [H, 2, n, K]
        if start:
            left = pair * g[:, here].cumsum(1).exp()[:, None]
            right = k[:, :start] * _after(g[:, :start]).exp()
            both[:, :, here, :start] = left @ right.transpose(1, 2)[:, None]
        later = _pair_decays(g[:, here]) * k[:, None, here]  # [H, n, n, K]
        both[:, :, here, here] = (later @ pair.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    return both[:, 0], both[:, 1]


def _pair_decays(g: torch.Tensor) -> torch.Tensor:
    """exp of the sum of rows j + 1 .. i, as [H, i, j, K]; 1 where j >= i."""
    rows = g.shape[1]
    later = torch.ones(rows, rows, dtype=torch.bool, device=g.device).tril(-1)
    return torch.where(later[None, :, :, None], g[:, :, None], 0.0).cumsum(1).exp()


@cache
def fla_available() -> bool:
    """Whether flash-linear-attention and Triton are installed. Imports neither."""
    return all(importlib.util.find_spec(name) is not None for name in ("fla", "triton"))


def chunked_fla(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`chunked` by flash-linear-attention's kernels on a GPU. Its products round to what its tensor cores take."""
    from fla.ops.kda import chunk_kda

    out, final = chunk_kda(
        *(x[None].contiguous() for x in (q, k, v, g, beta)),
        scale=1.0,
        initial_state=state[None].contiguous(),
        output_final_state=True,
    )
    return out[0].float(), final[0].float()


def gated_norm(out: torch.Tensor, weight: torch.Tensor, eps: float, gate: torch.Tensor) -> torch.Tensor:
    """RMSNorm of each head, then times sigmoid(gate): out [T, H, V], weight [V], gate [T, H * V] -> [T, H * V]."""
    return rms_norm(out, weight, eps).flatten(1) * sigmoid(gate)


def stage(staged_states: torch.Tensor, staged_inputs: torch.Tensor, states: torch.Tensor, inputs: torch.Tensor) -> None:
    """Keep what `commit` may need of a pass of T rows.

    staged_states [W, H, K, V], staged_inputs [W + taps - 1, C]; states the states after each row [T, H, K, V], or of
    a pass of more than W rows at least the last, [.., H, K, V]; inputs [taps - 1 + T, C], the window first. More than
    W rows are committed all or none, so only their end is kept, in the place of the W-th row.
    """
    width = staged_states.shape[0]
    history = staged_inputs.shape[0] - width
    rows = inputs.shape[0] - history
    if rows <= width:
        staged_states[:rows] = states
        staged_inputs[: history + rows] = inputs
    else:
        staged_states[width - 1] = states[-1]
        staged_inputs[width:] = inputs[rows:]


def commit(
    state: torch.Tensor,
    window: torch.Tensor,
    staged_states: torch.Tensor,
    staged_inputs: torch.Tensor,
    count: int | torch.Tensor,
) -> None:
    """Make `count` of the staged rows permanent, or W of them where `count` is more; 0 changes nothing.

    `count` as a Python integer, or int32 [1] on the device, which is then not read by the host. Staged rows beyond
    `count` may hold anything, NaN too.
    """
    width, history = staged_states.shape[0], window.shape[0]
    if isinstance(count, int):
        if count > 0:
            count = min(count, width)
            state.copy_(staged_states[count - 1])
            window.copy_(staged_inputs[count : count + history])
        return
    rows = count.long().clamp(0, width)
    changed = rows > 0
    last = staged_states.index_select(0, (rows - 1).clamp_min(0))[0]
    state.copy_(torch.where(changed, last, state))
    place = rows + torch.arange(history, device=rows.device)
    window.copy_(torch.where(changed, staged_inputs.index_select(0, place), window))
