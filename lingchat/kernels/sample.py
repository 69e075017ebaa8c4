"""Choosing the next token: logit edits and counter-based randomness. Knows tensors, no models.

The noise of a token depends on the request's seed, the position it is chosen for and its id, on nothing else. So the
same seed gives the same text with and without drafting, and a one-hot draft is accepted exactly when it is the token
that would have been drawn anyway: its acceptance probability is p(draft), and a rejected draft is replaced by a draw
from p without it. That is the exact rule of speculative sampling (Leviathan et al. 2023) for a one-hot proposal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

NEG_INF = float("-inf")


@dataclass(frozen=True)
class Filters:
    """Numbers of `engines.api.Sampling` that shape the distribution, the request's seed and its end tokens."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    seed: int
    end_ids: torch.Tensor  # int64 [E]

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def penalize(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """Divide positive and multiply negative logits of ids in `seen` int64 [n] (Keskar et al. 2019). logits [V]."""
    chosen = logits[seen]
    return logits.index_copy(0, seen, torch.where(chosen > 0, chosen / penalty, chosen * penalty))


def filter_logits(logits: torch.Tensor, f: Filters) -> torch.Tensor:
    """Temperature, then top-k, top-p and min-p on what is left; dropped tokens become -inf. logits fp32 [V]."""
    z = logits / f.temperature
    if 0 < f.top_k < z.shape[0]:
        z = torch.where(z < z.topk(f.top_k).values[-1], NEG_INF, z)
    if f.top_p < 1.0:
        z = torch.where(z.softmax(-1) < _nucleus_threshold(z.softmax(-1), f.top_p), NEG_INF, z)
    if f.min_p > 0.0:
        p = z.softmax(-1)
        z = torch.where(p < f.min_p * p.max(), NEG_INF, z)
    return z


def _nucleus_threshold(p: torch.Tensor, mass: float) -> torch.Tensor:
    """The largest t such that tokens with probability >= t hold at least `mass`; fp32 scalar tensor.

    Positive floats order like their bit patterns, so a binary search over 31 bits is exact and needs no sort (a sort
    of 49,152 floats takes 4.6 ms here, a token) and no host read.
    """
    bits = p.view(torch.int32)
    low = torch.zeros((), dtype=torch.int32, device=p.device)
    for bit in range(30, -1, -1):
        middle = low + (1 << bit)
        holds = torch.where(bits >= middle, p, 0.0).sum() >= mass
        low = torch.where(holds, middle, low)
    return low.view(torch.float32)


def exponential_noise(seed: int, position: torch.Tensor, size: int) -> torch.Tensor:
    """E[i] ~ Exp(1), fp64 [size], a pure function of (seed, position, i).

    The mixer is splitmix64 (Steele, Lea and Flood 2014) on 64-bit wrapping integers, 53 bits of each word are used.
    `position` int [1] stays on its device.
    """
    key = _mix(position.long() + _wrap(seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019))
    words = _mix(key + torch.arange(1, size + 1, device=position.device) * _wrap(0x9E3779B97F4A7C15))
    uniform = ((words >> 11) & ((1 << 53) - 1)).double().add_(0.5).mul_(2.0**-53)
    return -uniform.log()


def _wrap(value: int) -> int:
    """A Python integer as a signed 64-bit one."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _mix(z: torch.Tensor) -> torch.Tensor:
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _wrap(0xBF58476D1CE4E5B9)
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _wrap(0x94D049BB133111EB)
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def choose(
    logits: torch.Tensor, ids: torch.Tensor, history: torch.Tensor, length: torch.Tensor, f: Filters
) -> torch.Tensor:
    """The token after each row: int64 [T].

    logits fp32 [T, V]; row r follows history[:length] and the drafts ids[1 : r + 1] (`ids` int [T], ids[0] the anchor
    history[length - 1]). Drawing is argmin E / p, an exponential race, which draws i with probability p_i.
    """
    if f.greedy and f.repetition_penalty == 1.0:
        return logits.argmax(-1)
    chosen = []
    for r in range(logits.shape[0]):
        row = logits[r]
        if f.repetition_penalty != 1.0:
            # The unused end of the history repeats the anchor, so that no length has to be read.
            place = torch.arange(history.shape[0], device=history.device)
            known = torch.where(place < length, history, ids[0])
            row = penalize(row, torch.cat((known.long(), ids[1 : r + 1].long())), f.repetition_penalty)
        if f.greedy:
            chosen.append(row.argmax(-1))
            continue
        p = filter_logits(row, f).softmax(-1)
        noise = exponential_noise(f.seed, length + r, row.shape[0])
        chosen.append((p.double() / noise).argmax(-1))
    return torch.stack(chosen)
