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
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for many rows, `chunk` at a time, a power of two -> out [T, H, V], the final state [H, K, V].

    With D(i, j) the decay of rows j + 1 .. i and u_i = beta_i e_i, a chunk's errors solve the lower triangular
    u_i + beta_i sum_{j<i} (k_i . D(i, j) k_j) u_j = beta_i (v_i - (D(i, 0) k_i)^T S) (DeltaNet's chunks, Yang et al.
    2024).
    """
    outs = []
    some = chunk * _chunks_at_once(q.device)
    for rows in zip(*(x.split(some) for x in (q, k, v, g, beta)), strict=True):
        out, state = _chunks(*rows, state, chunk)
        outs.append(out)
    return torch.cat(outs), state


def _chunks_at_once(device: torch.device) -> int:
    """A CPU's cache holds one; on a device few large launches matter."""
    return 1 if device.type == "cpu" else 64


def _chunks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """All that does not need the state for several chunks at once, then the state from one to the next."""
    rows = len(q)
    size = min(chunk, 1 << (rows - 1).bit_length())  # C
    q, k, v, g, beta = (_by_chunks(x, size) for x in (q, k, v, g, beta[:, :, None]))
    among_keys, among_queries = _decayed_products(q, k, g)
    # Entries of the inverse are products of decays and reflections, none above 1: nothing is lost by writing it out.
    identity = torch.eye(size, dtype=q.dtype, device=q.device).expand_as(among_keys)
    inverse = torch.linalg.solve_triangular(beta * among_keys, identity, upper=False, unitriangular=True)
    inverse = inverse * beta.transpose(-1, -2)
    since_start = g.cumsum(-2).exp()
    reads = torch.cat((k * since_start, q * since_start), dim=-2)
    writes = (k * _after(g).exp()).transpose(-1, -2)
    decay = since_start[..., -1, :, None]
    outs = []
    for c in range(q.shape[1]):
        read = reads[:, c] @ state
        written = inverse[:, c] @ (v[:, c] - read[:, :size])
        outs.append(read[:, size:] + among_queries[:, c] @ written)
        state = decay[:, c] * state + writes[:, c] @ written
    return torch.cat(outs, dim=1)[:, :rows].transpose(0, 1), state


def _by_chunks(x: torch.Tensor, size: int) -> torch.Tensor:
    """[T, H, K] -> [H, n, C, K]. What is missing of the last chunk are rows that write nothing and forget nothing."""
    missing = -len(x) % size
    padded = F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x
    return padded.reshape(-1, size, *x.shape[1:]).permute(2, 0, 1, 3).contiguous()


def _after(g: torch.Tensor) -> torch.Tensor:
    """Sum of the rows after each row, [.., C, K]; 0 for the last."""
    return F.pad(g.flip(-2).cumsum(-2).flip(-2)[..., 1:, :], (0, 0, 0, 1))


def _decayed_products(q: torch.Tensor, k: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """k_i . D(i, j) k_j for j < i and q_i . D(i, j) k_j for j <= i, 0 elsewhere: of [.., C, K] each [.., C, C].

    C is a power of two. The rows are halved, the halves halved, and so on: for i in a second half and j in its first,
    D(i, j) is the decay from the middle to i times the decay from j to the middle. Each is the exponential of a sum of
    numbers of one sign, so none is above 1 however far the decays go, and nothing cancels as in a difference of sums.
    """
    *front, rows, width = k.shape
    pair = torch.stack((k, q), dim=-3).view(-1, 2, rows, width)
    out = k.new_zeros(len(pair), 2, rows, rows)
    half = rows // 2
    while half:
        n = rows // (2 * half)
        decay, keys = (x.reshape(-1, n, 2, half, width) for x in (g, k))
        left = pair.view(-1, 2, n, 2, half, width)[:, :, :, 1] * decay[:, :, 1].cumsum(-2).exp()[:, None]
        right = keys[:, :, 0] * _after(decay[:, :, 0]).exp()
        blocks = left @ right.transpose(-1, -2)[:, None]  # [.., 2, n, half, half]
        lower = out.view(-1, 2, n, 2 * half, n, 2 * half).diagonal(dim1=2, dim2=4)[:, :, half:, :half]
        lower.copy_(blocks.permute(0, 1, 3, 4, 2))
        half //= 2
    out = out.view(*front, 2, rows, rows)
    out[..., 1, :, :].diagonal(dim1=-2, dim2=-1).copy_((q * k).sum(-1))
    return out[..., 0, :, :], out[..., 1, :, :]


@cache
def fla_available() -> bool:
    """Whether flash-linear-attention and Triton are installed. Imports neither."""
    return all(importlib.util.find_spec(name) is not None for name in ("fla", "triton"))


def chunked_fla(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`chunked` by flash-linear-attention's kernels on a GPU, whose products are TF32's (1e-3 of the result).

    Its first call compiles and tunes them: 94 s on an H200, 10 s in every later process. After that it takes 0.7 ms
    for 1,024 rows of 16 heads, and `chunked` 5 ms.
    """
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
