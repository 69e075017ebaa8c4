"""Ling-3.0 and Kimi-Linear once more, plainly, in fp64, one token after the other, written from the formulas alone.

The judge of the runtime's own implementation: it shares no code with it. `Reference(config, tensors)` takes the sizes
as any object with the attributes of `HybridConfig`, and tensors by canonical name with stacked experts and a whole
kv_b_proj (`ling_models.Tiny` has both). `.logits(ids)` is [T, vocab]; state is kept from call to call, as a
conversation is; `.layers[i]` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Over the last axis."""
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def swiglu(gate: Array, up: Array, limit: float) -> Array:
    """The activation of a gated block, bounded where `limit` is above 0."""
    if limit == 0:
        return silu(gate) * up
    return np.minimum(silu(gate), limit) * np.clip(up, -limit, limit)


def rotate(x: Array, position: int, base: float) -> Array:
    """Pairs (2i, 2i + 1) of the last axis, turned by position * base^(-2i / n)."""
    n = x.shape[-1]
    angle = position * base ** (-np.arange(0, n, 2) / n)
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
    out[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return out


def kda_decay(f: Array, rate: Array, dt_bias: Array, gate: str, lower_bound: float) -> Array:
    """Log decay [H, K] of f [H, K]; `rate` exp(A_log) [H]: the two forms of the gate."""
    x = f + dt_bias
    if gate == "bounded":
        return lower_bound * sigmoid(rate[:, None] * x)
    return -rate[:, None] * np.logaddexp(0, x)


def kda_step(q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array) -> tuple[Array, Array]:
    """One token of the delta rule, a head at a time. q, k, g [H, K], v [H, V], beta [H], state
    [H, K, V]; the output [H, V] and the next state."""
    out, after = np.empty_like(v), np.empty_like(state)
    for h in range(len(q)):
        decayed = np.exp(g[h])[:, None] * state[h]
        error = v[h] - decayed.T @ k[h]
        after[h] = decayed + np.outer(k[h], beta[h] * error)
        out[h] = after[h].T @ q[h]
    return out, after


def route(logits: Array, bias: Array, moe: Any) -> tuple[list[int], Array]:
    """Experts and weights of one token, by sorting; ties go to the lower index."""
    scores = sigmoid(logits)
    biased = scores + bias
    size = moe.experts // moe.groups
    strength = [sum(sorted(biased[g * size : (g + 1) * size], reverse=True)[:2]) for g in range(moe.groups)]
    groups = sorted(range(moe.groups), key=lambda g: -strength[g])[: moe.chosen_groups]
    allowed = [e for e in range(moe.experts) if e // size in groups]
    chosen = sorted(allowed, key=lambda e: -biased[e])[: moe.chosen]
    weights = scores[chosen]
    if moe.renormalize:
        weights = weights / (weights.sum() + 1e-20)
    return chosen, weights * moe.scale


class KDALayer:
    """What a KDA layer keeps: `state` [H, K, V] and `history`, the last raw inputs of q, k and v [3, taps - 1, P]."""

    def __init__(self, config: Any, weights: Mapping[str, Array]) -> None:
        kda = config.kda
        self.sizes, self.eps, self.weights = kda, config.norm_eps, weights
        self.state = np.zeros((kda.heads, kda.head_dim, kda.head_dim))
        self.history = np.zeros((3, kda.taps - 1, kda.heads * kda.head_dim))

    def project(self, part: str, x: Array) -> Array:
        if self.sizes.rank is None:
            return self.weights[f"{part}_proj.weight"] @ x
        return self.weights[f"{part}_b_proj.weight"] @ (self.weights[f"{part}_a_proj.weight"] @ x)

    def __call__(self, x: Array, position: int) -> Array:
        w, heads, dim = self.weights, self.sizes.heads, self.sizes.head_dim
        mixed = []
        for i, part in enumerate("qkv"):
            inputs = np.vstack([self.history[i], w[f"{part}_proj.weight"] @ x])  # the current token last
            self.history[i] = inputs[1:]
            mixed.append(silu((w[f"{part}_conv.weight"].T * inputs).sum(0)).reshape(heads, dim))
        q, k, v = mixed
        q = q / np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6) * dim**-0.5
        k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
        f = self.project("f", x).reshape(heads, dim)
        g = kda_decay(f, w["A"], w["dt_bias"].reshape(heads, dim), self.sizes.gate, self.sizes.lower_bound)
        beta = sigmoid(w["b_proj.weight"] @ x)
        out, self.state = kda_step(q, k, v, g, beta, self.state)
        gated = rms_norm(out, w["o_norm.weight"], self.eps) * sigmoid(self.project("g", x).reshape(heads, dim))
        return w["o_proj.weight"] @ gated.reshape(-1)


class MLALayer:
    """What an MLA layer keeps: `rows`, the normed latent and the rotated shared key of every token."""

    def __init__(self, config: Any, weights: Mapping[str, Array]) -> None:
        self.sizes, self.eps, self.weights = config.mla, config.norm_eps, weights
        self.rows: list[Array] = []

    def __call__(self, x: Array, position: int) -> Array:
        w, m = self.weights, self.sizes
        if m.q_rank is None:
            q = w["q_proj.weight"] @ x
        else:
            q = w["q_b_proj.weight"] @ rms_norm(w["q_a_proj.weight"] @ x, w["q_a_norm.weight"], self.eps)
        q = q.reshape(m.heads, m.nope + m.rope)
        q_nope, q_rope = q[:, : m.nope], q[:, m.nope :]
        latent = w["kv_a_proj.weight"] @ x
        c = rms_norm(latent[: m.kv_rank], w["kv_a_norm.weight"], self.eps)
        k_rope = latent[m.kv_rank :]
        if m.rope_base is not None:
            q_rope, k_rope = rotate(q_rope, position, m.rope_base), rotate(k_rope, position, m.rope_base)
        self.rows.append(np.concatenate([c, k_rope]))
        rows = np.array(self.rows)
        kv_b = w["kv_b_proj.weight"].reshape(m.heads, m.nope + m.value, m.kv_rank)
        out = []
        for h in range(m.heads):
            keys, values = rows[:, : m.kv_rank] @ kv_b[h, : m.nope].T, rows[:, : m.kv_rank] @ kv_b[h, m.nope :].T
            scores = (keys @ q_nope[h] + rows[:, m.kv_rank :] @ q_rope[h]) * m.scale
            p = np.exp(scores - scores.max())
            out.append(p @ values / p.sum())
        mixed = np.array(out)
        if m.gated:
            mixed = mixed * sigmoid(w["g_proj.weight"] @ x)[:, None]
        return w["o_proj.weight"] @ mixed.reshape(-1)


class Block:
    """One layer. Its attention keeps the state."""

    def __init__(
        self, config: Any, kind: str, dense: bool, limits: tuple[float, float], weights: Mapping[str, Array]
    ) -> None:
        attention = _under(weights, f"{kind}.")
        self.attention = KDALayer(config, attention) if kind == "kda" else MLALayer(config, attention)
        self.config, self.dense, self.limits, self.weights = config, dense, limits, weights
        self.chosen: list[list[int]] = []  # experts of each token, for tests that look

    def __call__(self, x: Array, position: int) -> Array:
        eps = self.config.norm_eps
        h = x + self.attention(rms_norm(x, self.weights["input_layernorm.weight"], eps), position)
        normed = rms_norm(h, self.weights["post_attention_layernorm.weight"], eps)
        return h + (self._ffn("mlp.", normed, 0.0) if self.dense else self._experts(normed))

    def _ffn(self, prefix: str, x: Array, limit: float) -> Array:
        w = self.weights
        hidden = swiglu(w[f"{prefix}gate_proj.weight"] @ x, w[f"{prefix}up_proj.weight"] @ x, limit)
        return w[f"{prefix}down_proj.weight"] @ hidden

    def _experts(self, x: Array) -> Array:
        w, (limit, shared_limit) = self.weights, self.limits
        chosen, weights = route(w["moe.router.weight"] @ x, w["moe.router_bias"], self.config.moe)
        self.chosen.append(chosen)
        out = self._ffn("moe.shared.", x, shared_limit)
        for e, weight in zip(chosen, weights, strict=True):
            gate, up, down = (w[f"moe.experts.{p}_proj.weight"][e] for p in ("gate", "up", "down"))
            out = out + weight * (down @ swiglu(gate @ x, up @ x, limit))
        return out


class Reference:
    def __init__(self, config: Any, tensors: Mapping[str, Any]) -> None:
        self.config = config
        self.weights = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
        self.layers = [
            Block(
                config,
                kind,
                i < config.dense_layers,
                (config.routed_limits[i], config.shared_limits[i]),
                _under(self.weights, f"layers.{i}."),
            )
            for i, kind in enumerate(config.kinds)
        ]
        self.position = 0
        self.hidden: list[Array] = []  # of every token, after the final norm

    def step(self, token: int) -> Array:
        x = self.weights["embed_tokens.weight"][token]
        for layer in self.layers:
            x = layer(x, self.position)
        self.position += 1
        self.hidden.append(rms_norm(x, self.weights["norm.weight"], self.config.norm_eps))
        return self.weights["lm_head.weight"] @ self.hidden[-1]

    def logits(self, ids: Sequence[int]) -> Array:
        """[T, vocab] of the next `ids`."""
        return np.array([self.step(token) for token in ids])


class DraftLayer:
    """The MTP layer: from a token's final hidden row and the token after it, the one after that."""

    def __init__(self, config: Any, tensors: Mapping[str, Any]) -> None:
        self.config = config
        weights = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
        self.embed, self.head = weights["embed_tokens.weight"], weights["lm_head.weight"]
        self.weights = _under(weights, f"layers.{len(config.kinds)}.")
        self.block = Block(config, "mla", False, (0.0, 0.0), self.weights)

    def step(self, token: int, hidden: Array, position: int) -> tuple[Array, Array]:
        """Logits, and the row that stands for `hidden` in a further step. `token` is the one at `position` + 1."""
        w, eps = self.weights, self.config.norm_eps
        halves = [rms_norm(self.embed[token], w["enorm.weight"], eps), rms_norm(hidden, w["hnorm.weight"], eps)]
        z = self.block(w["eh_proj.weight"] @ np.concatenate(halves), position)
        m = rms_norm(z, w["final_layernorm.weight"], eps)
        return self.head @ m, m


def _under(weights: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
