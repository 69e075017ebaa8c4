"""What adds up over rounds: TPOT and round distributions, acceptance, hiccups. One turn has one, and so has a run.

A **round** i took d_i, verified m_i draft rows beyond the anchor, accepted a_i and emitted k_i tokens. The
definitions are these, and nobody else computes them:

- TPOT of a token = d_i / k_i, the same for each token of the round. Quantiles are over all tokens but the first of
  a turn. Mean TPOT = (t_last - t_first) / (n - 1) and tok/s of a turn is its inverse.
- The **first round** is the one that emits a turn's first token; it runs from the end of prefill and is a part of
  TTFT. So it is no sample of the round distribution, nor of the running median of hiccups. When it emits more than
  one token, only the first token is left out: the other k - 1 are samples of d / k like any others, and the mean's
  n - 1 counts them. (They arrive at t_first, so the mean is then a little below the quantiles. That is what happened.)
- A round that emits nothing (k = 0) is a round, with its duration, and no token: it gives no TPOT sample.
- Acceptance length L = sum k / rounds over rounds with m > 0, so the bonus token counts; tokens per round is over
  all rounds. Rate = sum a / sum m. Position j = #(a >= j) / #(m >= j): of the rounds that verified a j-th draft, the
  share that accepted it. (Other engines divide by all rounds.) The histogram counts a over rounds with m > 0.
- Hiccup: d_i > 3 x the median of the turn's rounds before it.

Two tallies merge into the tally of both. Knows nothing of events, clocks or text.
"""

from __future__ import annotations

from collections import Counter

from lingchat.stats.histogram import ExactSamples, Histogram, Samples

HICCUP = 3.0
WAITS = ("ttft", "queue", "tokenize", "prefill", "first_round")  # TTFT and its parts
_WIDEST = 256  # positions and histogram end here, so that a damaged trace cannot ask for a list of a billion


def _samples(exact: bool) -> Samples:
    return ExactSamples() if exact else Histogram()


class Tally:
    """Counters and distributions over rounds. Unknown values are None, never 0."""

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact
        self.turns = 0  # turns that were asked for
        self.tokens = 0  # emitted
        self.prompt_tokens: int | None = None
        self.reused: int | None = None  # prompt tokens whose state was already there
        self.rounds = 0
        self.drafted_rounds = 0  # rounds with m > 0
        self.drafted_tokens = 0  # tokens emitted by them
        self.draft_n = 0  # drafts verified
        self.draft_n_accepted = 0
        self.hiccups = 0
        self.stalls = 0
        self.draft_us = 0  # sums, where the engine reports them
        self.verify_us = 0
        self._drafters: Counter[str] = Counter()
        self._verified: Counter[int] = Counter()  # m -> rounds, m > 0
        self._accepted: Counter[int] = Counter()  # a -> rounds with m > 0
        self._token_us = _samples(exact)
        self._round_us = _samples(exact)
        self._waits_us = {part: _samples(exact) for part in WAITS}  # one sample a turn that had a first token
        self._turns_with_tokens = 0
        self._decode_ns = 0  # sum over turns of t_last - t_first

    # -- folding -----------------------------------------------------------------------------------------------

    def add_round(self, dt_us: int, k: int, m: int, a: int) -> None:
        """One round of one turn, in order. Merged tallies take no rounds: the first round is told by `tokens`."""
        first = self.tokens == 0
        self.rounds += 1
        if m > 0:
            self.drafted_rounds += 1
            self.drafted_tokens += k
            self.draft_n += m
            self.draft_n_accepted += a
            self._verified[min(m, _WIDEST)] += 1
            self._accepted[min(a, _WIDEST)] += 1
        if k > 0:
            self._token_us.add(dt_us / k, k - 1 if first else k)
            self.tokens += k
        if first:
            self._turns_with_tokens = 1 if k > 0 else 0
        else:
            self.hiccups += self._is_hiccup(dt_us)
            self._round_us.add(dt_us)

    def _is_hiccup(self, dt_us: int) -> bool:
        shortest = self._round_us.smallest
        if shortest is None or dt_us <= HICCUP * shortest:  # a median is no less than the minimum: most rounds end here
            return False
        median = self._round_us.quantile(0.5)
        return median is not None and dt_us > HICCUP * median

    def merge(self, other: Tally) -> None:
        """Adds another turn or run, folded with the same `exact`."""
        self.turns += other.turns
        self.tokens += other.tokens
        self.prompt_tokens = _sum(self.prompt_tokens, other.prompt_tokens)
        self.reused = _sum(self.reused, other.reused)
        self.rounds += other.rounds
        self.drafted_rounds += other.drafted_rounds
        self.drafted_tokens += other.drafted_tokens
        self.draft_n += other.draft_n
        self.draft_n_accepted += other.draft_n_accepted
        self.hiccups += other.hiccups
        self.stalls += other.stalls
        self.draft_us += other.draft_us
        self.verify_us += other.verify_us
        self._drafters.update(other._drafters)
        self._verified.update(other._verified)
        self._accepted.update(other._accepted)
        self._token_us.merge(other._token_us)
        self._round_us.merge(other._round_us)
        for part, samples in self._waits_us.items():
            samples.merge(other._waits_us[part])
        self._turns_with_tokens += other._turns_with_tokens
        self._decode_ns += other._decode_ns

    # -- speed -------------------------------------------------------------------------------------------------

    def tpot(self, q: float) -> float | None:
        """Quantile `q` (0 to 1) of the TPOT of all tokens but each turn's first, in ms."""
        return _ms(self._token_us.quantile(q))

    def round(self, q: float) -> float | None:
        """Quantile `q` (0 to 1) of the duration of rounds after each turn's first, in ms."""
        return _ms(self._round_us.quantile(q))

    def ttft(self, q: float) -> float | None:
        """Quantile `q` (0 to 1) of TTFT over turns, in ms."""
        return self.wait("ttft", q)

    def wait(self, part: str, q: float) -> float | None:
        """Quantile `q` (0 to 1) over turns of TTFT or one of its parts (`WAITS`), in ms."""
        return _ms(self._waits_us[part].quantile(q))

    @property
    def _later_tokens(self) -> int:
        return self.tokens - self._turns_with_tokens

    @property
    def mean_tpot_ms(self) -> float | None:
        """(t_last - t_first) / (n - 1), in ms."""
        if self._later_tokens <= 0 or self._decode_ns <= 0:
            return None
        return self._decode_ns / self._later_tokens / 1e6

    @property
    def tok_s(self) -> float | None:
        """(n - 1) / (t_last - t_first): never prefill, never the time between turns."""
        if self._later_tokens <= 0 or self._decode_ns <= 0:
            return None
        return self._later_tokens / self._decode_ns * 1e9

    # -- acceptance --------------------------------------------------------------------------------------------

    @property
    def accept_len(self) -> float | None:
        """Acceptance length L: tokens per round over rounds with something drafted; None without drafting."""
        return self.drafted_tokens / self.drafted_rounds if self.drafted_rounds else None

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens per round over all rounds."""
        return self.tokens / self.rounds if self.rounds else None

    @property
    def accept_rate(self) -> float | None:
        """Accepted share of the drafts that were verified, 0 to 1."""
        return self.draft_n_accepted / self.draft_n if self.draft_n else None

    @property
    def width(self) -> int:
        """The most drafts a round verified, K."""
        return max(self._verified, default=0)

    @property
    def positions(self) -> list[float]:
        """Entry j - 1 is #(a >= j) / #(m >= j), for j = 1..K."""
        shares = []
        for j in range(1, self.width + 1):
            tried = sum(n for m, n in self._verified.items() if m >= j)
            passed = sum(n for a, n in self._accepted.items() if a >= j)
            shares.append(passed / tried)
        return shares

    @property
    def accept_hist(self) -> list[int]:
        """Rounds by accepted drafts a = 0..K, over rounds with m > 0; empty without drafting."""
        return [self._accepted[a] for a in range(self.width + 1)] if self.drafted_rounds else []

    @property
    def drafter(self) -> str | None:
        """The drafter of most rounds that verified drafts."""
        return self._drafters.most_common(1)[0][0] if self._drafters else None

    @property
    def drafters(self) -> dict[str, int]:
        """Rounds with m > 0, by drafter."""
        return dict(self._drafters)


def _sum(one: int | None, other: int | None) -> int | None:
    if one is None:
        return other
    return one if other is None else one + other


def _ms(us: float | None) -> float | None:
    return None if us is None else us / 1000.0
