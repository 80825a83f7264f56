"""How likely each draft is to be accepted: per slot and position, from what windows have shown. No torch.

a_j = P(draft j of a chain, from 1, is accepted | those before it were); survival s_j = a_1 * ... * a_j. A position that
a window did not reach says nothing (censoring): the cumulative figure would be biased by the planner's own choices.
"""

from collections import deque
from collections.abc import Sequence

from strata_cli.engine.planning.tuning import DEFAULT, Tuning


class _Counts:
    """Accepted and observed drafts by position, or by whatever else, forgetting exponentially."""

    def __init__(self, depth: int, memory: float):
        self.keep = 1.0 - 1.0 / memory
        self.accepted, self.seen = [0.0] * depth, [0.0] * depth

    def add(self, j: int, accepted: float) -> None:
        self.accepted[j] = self.accepted[j] * self.keep + accepted
        self.seen[j] = self.seen[j] * self.keep + 1.0

    def fade(self, drafts: int) -> None:
        keep = self.keep**drafts
        self.accepted, self.seen = [x * keep for x in self.accepted], [x * keep for x in self.seen]

    def rate(self, j: int, prior: float, strength: float) -> float:
        return (self.accepted[j] + strength * prior) / (self.seen[j] + strength)


class AcceptanceTracker:
    """Estimates of conditional acceptance for `slots` slots and chains of up to `depth` drafts.

    A slot's estimate at j is its own evidence, shrunk to a prior: the pool's rate at j, moved (in odds) by how the slot
    differs from the pool at j-1, so that one bad at its first draft is not believed good at its third as others are.
    """

    def __init__(self, slots: int, depth: int, tuning: Tuning = DEFAULT):
        self.depth, self.tuning = depth, tuning
        self._pool = _Counts(depth, tuning.shared)
        self._slots = [_Counts(depth, tuning.memory) for _ in range(slots)]
        self.bins = _Counts(tuning.bins, tuning.shared * max(tuning.bins, 1))  # by probability, finer near 1
        self._cache: dict[int, tuple[list[float], list[float]]] = {}

    def reset(self, slot: int) -> None:
        """A new request took the slot: nothing is known of it but the pool."""
        self._slots[slot] = _Counts(self.depth, self.tuning.memory)
        self._cache.pop(slot, None)

    def observe(
        self, slot: int, verified: int, accepted: int, known: Sequence[float | None] = (), dropped: float | None = None
    ) -> None:
        """Of `verified` drafts the first `accepted` held; the one after them was refused. `known[j]`: the drafter's own
        probability of draft j + 1. `dropped`: the chance given to a draft that followed them but was not verified. It
        counts as that much of an acceptance, or only what looked good would count.
        """
        assert 0 <= accepted <= verified <= self.depth
        judged = [1.0] * accepted + [0.0] * (verified > accepted)
        for p, hit in zip(known, judged):
            if p is not None and self.tuning.bins:
                self.bins.add(self._bin(p), hit)
        self.bins.fade(min(len(judged), len(known)))  # what was left out as bad is tried again
        if dropped is not None and accepted == verified < self.depth:
            judged.append(dropped)
        for j, hit in enumerate(judged):
            self._slots[slot].add(j, hit)
            self._pool.add(j, hit)
        if judged:
            self._cache.pop(slot, None)

    def survival(self, slot: int, depth: int) -> list[float]:
        """s_1..s_depth of the slot: never rising, each in 0..1."""
        return self._estimate(slot)[1][:depth]

    def conditional(self, slot: int, position: int) -> float:
        """a_position of the slot (1-based)."""
        return self._estimate(slot)[0][position - 1]

    def chances(self, slot: int, probabilities: Sequence[float | None]) -> list[float]:
        """Of drafts to hold once reached, by their drafter's probabilities: by how such drafts fared in any slot, where
        few were seen by the slot's own rate; never at their word: coupled, improbable drafts hold far more often.
        """
        rates, strength = zip(self._estimate(slot)[0], probabilities), self.tuning.strength
        return [a if p is None else self.bins.rate(self._bin(p), a, strength) for a, p in rates]

    def hopeless(self, slot: int, price: float) -> float:
        """The probability below which the slot's drafts hold less often than `price`; 0 where there is none."""
        b, rate, bins = 0, self.conditional(slot, 1), self.tuning.bins
        while b < bins and self.bins.seen[b] and self.bins.rate(b, rate, self.tuning.strength) < price:
            b += 1
        return 1.0 - (1.0 - b / bins) ** 2

    def _bin(self, probability: float) -> int:
        return min(int((1.0 - (1.0 - min(probability, 1.0)) ** 0.5) * self.tuning.bins), self.tuning.bins - 1)

    def _estimate(self, slot: int) -> tuple[list[float], list[float]]:
        if slot not in self._cache:
            conditional, survival = self._cache[slot] = [], []
            own, pool, strength = self._slots[slot], self._pool, self.tuning.strength
            shared, ratio, alive = self.tuning.guess, 1.0, 1.0
            for held, seen, all_held, all_seen in zip(own.accepted, own.seen, pool.accepted, pool.seen):
                # a position the pool has never reached is taken to be like the one before it
                shared = min((all_held + strength * shared) / (all_seen + strength), 0.999)
                odds = shared / (1.0 - shared) * ratio
                a = min((held + strength * odds / (1.0 + odds)) / (seen + strength), 0.999)  # never sure: finite odds
                ratio = a / (1.0 - a) * (1.0 - shared) / shared
                alive *= a
                conditional.append(a)
                survival.append(alive)
        return self._cache[slot]


class CollapseWatch:
    """Watches the rolling acceptance of first drafts by context length, and speaks once when it collapses."""

    def __init__(self, tuning: Tuning = DEFAULT) -> None:
        self.tuning, self._best, self._done = tuning, tuning.guess, False
        self._recent: dict[int, deque[tuple[int, bool]]] = {}  # bands of context, each twice as wide as the one before

    def observe(self, ctx: int, accepted: bool) -> None:
        """A first draft was judged at a context of `ctx` tokens."""
        band = (ctx // self.tuning.band).bit_length()
        self._recent.setdefault(band, deque(maxlen=self.tuning.rolling)).append((ctx, accepted))

    def warning(self) -> str | None:
        """One line with the figures, the first time a band's rate has collapsed; None before and ever after."""
        for recent in self._recent.values():
            if self._done or 2 * (n := len(recent)) < self.tuning.rolling:
                continue
            rate = sum(held for _, held in recent) / n
            self._best = max(self._best, rate)
            if rate < self.tuning.collapsed * self._best:
                self._done = True
                at = f"at contexts of {min(recent)[0]} to {max(recent)[0]} tokens; the best so far was {self._best:.0%}"
                return f"draft acceptance collapsed: {rate:.0%} of the last {n} first drafts held {at}"
        return None
