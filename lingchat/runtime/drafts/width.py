"""How deep to draft this round, from measured costs and measured acceptance. Pure Python.

A round of 1 + l rows costs c(l) and yields 1 + p + p^2 + .. + p^l tokens if each draft holds with probability p after
the ones before it. The depth with the most tokens a second wins. p and c are running averages of this machine and
this text; the text itself never depends on the depth.
"""

from __future__ import annotations

from lingchat.runtime.costs import interpolate

_FORGET = 0.9  # weight of the past in a running average of costs
_PRIOR = 4.0  # drafts' worth of optimism at the start of a reply
_PROBE = 16  # where drafting does not pay, one round in so many still tries a draft


class Width:
    def __init__(self, deepest: int, adaptive: bool) -> None:
        self.deepest = deepest
        self._adaptive = adaptive
        self._cost: dict[int, float] = {}  # drafted -> seconds
        self.begin()

    def begin(self) -> None:
        """A new reply: forget the acceptance of the last text, keep the costs of this machine."""
        self._hits, self._tries = _PRIOR * 0.8, _PRIOR
        self._declined = 0

    def depth(self) -> int:
        """At most this many drafts in the next round."""
        if not self._adaptive or len(self._cost) < 2 or 0 not in self._cost:
            return self.deepest
        p = self._hits / self._tries
        best, best_rate = 0, 1.0 / self._cost[0]
        for drafts in range(1, self.deepest + 1):
            rate = (1.0 - p ** (drafts + 1)) / (1.0 - p) if p < 1.0 else 1.0 + drafts
            rate /= interpolate(self._cost, drafts)
            if rate > best_rate:
                best, best_rate = drafts, rate
        if best == 0:
            self._declined += 1
            return int(self._declined % _PROBE == 0)
        return best

    def learn(self, drafted: int, accepted: int, seconds: float) -> None:
        old = self._cost.get(drafted)
        self._cost[drafted] = seconds if old is None else _FORGET * old + (1.0 - _FORGET) * seconds
        if drafted:
            tested = min(accepted + 1, drafted)  # drafts after the first miss were never tested
            self._hits = 0.95 * self._hits + accepted
            self._tries = 0.95 * self._tries + tested
