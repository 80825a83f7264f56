"""How likely each draft is to be accepted: per slot and position, from what windows have shown. No torch.

Position j (1-based) is the j-th draft of a chain. Its conditional acceptance a_j is P(accepted | drafts 1..j-1 were);
survival s_j = a_1 * ... * a_j never rises with j. A position that a window did not reach says nothing (censoring), so
only conditional acceptance is estimated; the cumulative figure would be biased by the planner's own choices.
"""

from collections import deque
from collections.abc import Sequence

FIRST_GUESS = 0.75  # acceptance of a drafter nobody has seen yet; optimistic, so that it is tried
FLOOR, CEILING = 0.01, 0.995
MEMORY = 40  # observations that a slot remembers, per position
POOL_MEMORY = 500  # the same for the pool over all slots
STRENGTH = 10.0  # observations that a slot's prior is worth
POOL_STRENGTH = 3.0
CARRY = 0.9  # how much of a slot's difference from the pool at j-1 is expected again at j
AGE_EVERY, AGE = 16, 0.93  # every 16 windows evidence shrinks by 7 %: what was not tried for long becomes unknown
BINS = 10  # of the draft's own probability
BIN_STRENGTH = 10.0


def _clip(p: float) -> float:
    return FLOOR if p < FLOOR else CEILING if p > CEILING else p


class _Counts:
    """Accepted and observed drafts by position, forgetting exponentially."""

    def __init__(self, depth: int, memory: float):
        self.keep = 1.0 - 1.0 / memory
        self.accepted = [0.0] * depth
        self.seen = [0.0] * depth

    def add(self, j: int, accepted: float) -> None:
        self.accepted[j] = self.accepted[j] * self.keep + accepted
        self.seen[j] = self.seen[j] * self.keep + 1.0

    def age(self, factor: float) -> None:
        self.accepted = [x * factor for x in self.accepted]
        self.seen = [x * factor for x in self.seen]


class AcceptanceTracker:
    """Estimates of conditional acceptance for `slots` slots and chains of up to `depth` drafts.

    A slot's estimate at j is its own evidence, shrunk to a prior: the pool's rate at j, moved (in odds) by how the slot
    differs from the pool at j-1. So a new request starts from the pool, and a slot known to be bad at its first
    draft is not believed to be good at its third because other slots are.
    """

    def __init__(self, slots: int, depth: int):
        self.depth = depth
        self._pool = _Counts(depth, POOL_MEMORY)
        self._slots = [_Counts(depth, MEMORY) for _ in range(slots)]
        self._bins = _Counts(BINS, POOL_MEMORY)
        self._cache: list[tuple[list[float], list[float]] | None] = [None] * slots
        self._windows = 0

    def reset(self, slot: int) -> None:
        """A new request took the slot: nothing is known of it but the pool."""
        self._slots[slot] = _Counts(self.depth, MEMORY)
        self._cache[slot] = None

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
        for j in range(min(accepted + 1, verified)):
            hit = j < accepted
            self._slots[slot].add(j, hit)
            self._pool.add(j, hit)
            p = probabilities[j] if j < len(probabilities) else None
            if p is not None:
                self._bins.add(min(int(p * BINS), BINS - 1), hit)
        if dropped is not None and accepted == verified < self.depth:
            self._slots[slot].add(verified, dropped)
            self._pool.add(verified, dropped)
        if verified or dropped is not None:
            self._cache[slot] = None

    def tick(self) -> None:
        """A window passed. Evidence ages by windows, never by wall time."""
        self._windows += 1
        if self._windows % AGE_EVERY == 0:
            for counts in (*self._slots, self._bins):
                counts.age(AGE)
            self._cache = [None] * len(self._cache)

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
        b = min(int(probability * BINS), BINS - 1)
        prior = self._estimate(slot)[0][position - 1]
        return _clip((self._bins.accepted[b] + BIN_STRENGTH * prior) / (self._bins.seen[b] + BIN_STRENGTH))

    def _estimate(self, slot: int) -> tuple[list[float], list[float]]:
        cached = self._cache[slot]
        if cached is not None:
            return cached
        own, pool = self._slots[slot], self._pool
        conditional, survival = [], []
        shared, ratio, alive = FIRST_GUESS, 1.0, 1.0
        for held, seen, pool_held, pool_seen in zip(own.accepted, own.seen, pool.accepted, pool.seen):
            # a position the pool has never reached is taken to be like the one before it
            shared = _clip((pool_held + POOL_STRENGTH * shared) / (pool_seen + POOL_STRENGTH))
            odds = shared / (1.0 - shared)
            prior = odds * ratio**CARRY
            a = _clip((held + STRENGTH * prior / (1.0 + prior)) / (seen + STRENGTH))
            ratio = a / (1.0 - a) / odds
            alive *= a
            conditional.append(a)
            survival.append(alive)
        self._cache[slot] = conditional, survival
        return conditional, survival


BANDS = (0, 4096, 16384, 32768)  # contexts from this many tokens on
ROLLING = 200  # first drafts looked back on, per band
ENOUGH = 100
COLLAPSED = 0.15  # below this a drafter is as good as broken
FALLEN = 0.4  # of the best band's rate


class CollapseWatch:
    """Watches the rolling acceptance of first drafts by context length, and speaks once when it collapses."""

    def __init__(self) -> None:
        self._recent = [deque[bool](maxlen=ROLLING) for _ in BANDS]
        self._best = 0.0
        self._told = False

    def observe(self, ctx: int, accepted: bool) -> None:
        """A first draft was judged at a context of `ctx` tokens."""
        self._recent[max(i for i, start in enumerate(BANDS) if ctx >= start)].append(accepted)

    def warning(self) -> str | None:
        """One line with the figures, the first time a band's rate has collapsed; None before and ever after."""
        if self._told:
            return None
        for start, recent in zip(BANDS, self._recent):
            if len(recent) < ENOUGH:
                continue
            rate = sum(recent) / len(recent)
            self._best = max(self._best, rate)
            if rate < max(COLLAPSED, FALLEN * self._best):
                self._told = True
                was = f"; the best so far was {self._best:.0%}" if rate < self._best else ""
                return (
                    f"draft acceptance collapsed: {rate:.0%} of the last {len(recent)} first drafts held "
                    f"at contexts of {start} tokens and more{was}"
                )
        return None
