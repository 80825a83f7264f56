"""How likely each draft is to be accepted: per slot and position, from what windows have shown. No torch.

Position j (1-based) is the j-th draft of a chain. Its conditional acceptance a_j is P(accepted | drafts 1..j-1 were);
survival s_j = a_1 * ... * a_j never rises with j. A position that a window did not reach says nothing (censoring), so
only conditional acceptance is estimated; the cumulative figure would be biased by the planner's own choices.
"""

from collections import deque
from collections.abc import Sequence

from strata_cli.engine.planning.tuning import DEFAULT, Tuning


class _Counts:
    """Accepted and observed drafts by position, forgetting exponentially."""

    def __init__(self, depth: int, memory: float):
        self.keep = 1.0 - 1.0 / memory
        self.accepted = [0.0] * depth
        self.seen = [0.0] * depth

    def add(self, j: int, accepted: float) -> None:
        self.accepted[j] = self.accepted[j] * self.keep + accepted
        self.seen[j] = self.seen[j] * self.keep + 1.0

    def age(self, keep: float) -> None:
        self.accepted = [x * keep for x in self.accepted]
        self.seen = [x * keep for x in self.seen]


class AcceptanceTracker:
    """Estimates of conditional acceptance for `slots` slots and chains of up to `depth` drafts.

    A slot's estimate at j is its own evidence, shrunk to a prior: the pool's rate at j, moved (in odds) by how the slot
    differs from the pool at j-1. So a new request starts from the pool, and a slot known to be bad at its first draft
    is not believed to be good at its third because other slots are.
    """

    def __init__(self, slots: int, depth: int, tuning: Tuning = DEFAULT):
        self.depth, self.tuning = depth, tuning
        self._pool = _Counts(depth, tuning.shared)
        self._slots = [_Counts(depth, tuning.memory) for _ in range(slots)]
        self._bins = _Counts(tuning.bins, tuning.shared)  # by the drafts' own probabilities, finer near 1
        self._told, self._untold = 0.0, 1.0  # variance of what drafts do: what probabilities tell of it, and all
        self._cache: dict[int, tuple[list[float], list[float]]] = {}
        self._windows = 0

    def reset(self, slot: int) -> None:
        """A new request took the slot: nothing is known of it but the pool."""
        self._slots[slot] = _Counts(self.depth, self.tuning.memory)
        self._cache.pop(slot, None)

    def observe(
        self,
        slot: int,
        verified: int,
        accepted: int,
        probabilities: Sequence[float | None] = (),
        dropped: float | None = None,
    ) -> None:
        """One window's outcome: of `verified` drafts the first `accepted` held; the one after them was refused.

        `probabilities[j]`: the drafter's own probability of draft j + 1, where known. `dropped`: the chance given to a
        draft that followed them but was not verified. It counts as that much of an acceptance: without it only the
        drafts that looked good would count.
        """
        assert 0 <= accepted <= verified <= self.depth
        expected = self._estimate(slot)[0]
        for j in range(min(accepted + 1, verified)):
            hit = j < accepted
            self._slots[slot].add(j, hit)
            self._pool.add(j, hit)
            p = probabilities[j] if j < len(probabilities) else None
            if p is not None and self.tuning.bins:
                a, keep = expected[j], self._bins.keep
                self._told = self._told * keep + (hit - a) * (self._of_bin(self._bin(p), a) - a)
                self._untold = self._untold * keep + a * (1.0 - a)
                self._bins.add(self._bin(p), hit)
        if dropped is not None and accepted == verified < self.depth:
            self._slots[slot].add(verified, dropped)
            self._pool.add(verified, dropped)
        if verified or dropped is not None:
            self._cache.pop(slot, None)

    def tick(self) -> None:
        """A window passed. Evidence ages by windows, never by wall time."""
        self._windows += 1
        if self._windows % self.tuning.samples == 0:
            for counts in (*self._slots, self._bins):
                counts.age(1.0 - self.tuning.samples / self.tuning.fade)
            self._cache.clear()

    def survival(self, slot: int, depth: int) -> list[float]:
        """s_1..s_depth of the slot: never rising, each in 0..1."""
        return self._estimate(slot)[1][:depth]

    def conditional(self, slot: int, position: int) -> float:
        """a_position of the slot (1-based)."""
        return self._estimate(slot)[0][position - 1]

    def sharpened(self, slot: int, position: int, probability: float) -> float:
        """The chance of the slot's draft at a position to which its drafter gave this `probability`.

        By how drafts of such probabilities fared, in whatever slot; where few were seen, by the slot's own rate. A
        probability is never taken at its word: under coupled sampling an improbable draft holds far more often.
        """
        return self._of_bin(self._bin(probability), self.conditional(slot, position))

    def worth(self, slot: int, depth: int, row: float, draft: float) -> list[tuple[float, float]]:
        """What the slot's drafts 1..depth are expected to bring beyond their cost, `draft` for each and `row` for its
        row: as they are on average, and where those that their probabilities show not to be worth it get no row.

        A draft's chance is taken to be one of two: what it is more by where it holds, it is less by where it does not.
        """
        told = max(self._told / self._untold, 0.0) ** 0.5
        found, high, likely = [], 1.0, 1.0
        for a, s in zip(*(e[:depth] for e in self._estimate(slot))):
            high, likely = high * (a + (1.0 - a) * told), likely * a
            low = (s - likely * high) / (1.0 - likely)
            good = likely * max(high - row, 0.0) + (1.0 - likely) * max(low - row, 0.0)
            found.append((max(s - row - draft, 0.0), max(good - draft, 0.0)))
        return found

    def hopeless(self, slot: int, price: float) -> float:
        """The probability below which the slot's drafts hold less often than `price`; 0 where there is none."""
        rate, b = self.conditional(slot, 1), 0
        while b < self.tuning.bins and self._bins.seen[b] and self._of_bin(b, rate) < price:
            b += 1
        return 1.0 - (1.0 - b / self.tuning.bins) ** 2

    def _bin(self, probability: float) -> int:
        return min(int((1.0 - (1.0 - min(probability, 1.0)) ** 0.5) * self.tuning.bins), self.tuning.bins - 1)

    def _of_bin(self, b: int, prior: float) -> float:
        strength = self.tuning.strength
        return (self._bins.accepted[b] + strength * prior) / (self._bins.seen[b] + strength)

    def _estimate(self, slot: int) -> tuple[list[float], list[float]]:
        if slot in self._cache:
            return self._cache[slot]
        own, pool, strength = self._slots[slot], self._pool, self.tuning.strength
        conditional, survival = [], []
        shared, ratio, alive = self.tuning.guess, 1.0, 1.0
        for held, seen, pool_held, pool_seen in zip(own.accepted, own.seen, pool.accepted, pool.seen):
            # a position the pool has never reached is taken to be like the one before it
            shared = (pool_held + strength * shared) / (pool_seen + strength)
            odds = shared / (1.0 - shared)
            prior = odds * ratio
            a = (held + strength * prior / (1.0 + prior)) / (seen + strength)
            ratio = a / (1.0 - a) / odds
            alive *= a
            conditional.append(a)
            survival.append(alive)
        self._cache[slot] = conditional, survival
        return conditional, survival


class CollapseWatch:
    """Watches the rolling acceptance of first drafts by context length, and speaks once when it collapses."""

    def __init__(self, tuning: Tuning = DEFAULT) -> None:
        self.tuning = tuning
        self._recent: dict[int, deque[tuple[int, bool]]] = {}  # bands, each twice as wide as the one before
        self._best = tuning.guess
        self._told = False

    def observe(self, ctx: int, accepted: bool) -> None:
        """A first draft was judged at a context of `ctx` tokens."""
        band = (ctx // self.tuning.band).bit_length()
        self._recent.setdefault(band, deque(maxlen=self.tuning.rolling)).append((ctx, accepted))

    def warning(self) -> str | None:
        """One line with the figures, the first time a band's rate has collapsed; None before and ever after."""
        if self._told:
            return None
        for recent in self._recent.values():
            if 2 * len(recent) < self.tuning.rolling:
                continue
            rate = sum(held for _, held in recent) / len(recent)
            self._best = max(self._best, rate)
            if rate < self.tuning.collapsed * self._best:
                self._told = True
                at = [ctx for ctx, _ in recent]
                return (
                    f"draft acceptance collapsed: {rate:.0%} of the last {len(recent)} first drafts held "
                    f"at contexts of {min(at)} to {max(at)} tokens; the best so far was {self._best:.0%}"
                )
        return None
