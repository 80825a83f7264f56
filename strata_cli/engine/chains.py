"""The chains of a window while they are drafted: which go on, and how many rows each slot takes in the end. No torch.

A plan is made from what drafts are worth on average; each draft's own probability then says more. Where a draft turns
out to be worth clearly less than one that the plan left out or than a row costs, or one left out more than one that is
in, the rest of the window is planned again, steps already run being paid for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

CLEARLY = 0.1  # a difference in expected tokens
REPLANS = 2  # a window: each takes time too
AHEAD = 2  # steps that a plan made again may be longer: what lies further is planned when it gets nearer

# survivals and limits of all slots that take part, steps of the chain already run -> L of each
Replan = Callable[[Sequence[list[float]], Sequence[int], int], Sequence[int]]


@dataclass(slots=True)
class Chain:
    """One slot's drafts in this window.

    `L`: rows as planned by now, `limit`: the most it may still take, both with the golden row. `survivals` of all
    drafts it might make; `probabilities` and `chances` (of holding once reached) of those it made.
    """

    L: int
    limit: int
    survivals: list[float]
    probabilities: list[float | None] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)

    def add(self, probability: float | None, chance: float | None) -> float:
        """One more draft was made; `chance` is None where nothing new is known of it. Returns how much more it is worth
        than expected, as a ratio.
        """
        j, survivals = len(self.chances), self.survivals
        self.probabilities.append(probability)
        expected = survivals[j] / survivals[j - 1] if j else survivals[0]
        if chance is None:
            self.chances.append(expected)
            return 1.0
        self.chances.append(chance)
        change = chance / expected
        for k in range(j, len(survivals)):
            survivals[k] *= change
        return change


class Chains:
    """The chains of one window, by slot, slots that do not draft included.

    Args:
        replan: how to plan again, or None: L stands whatever the probabilities say.
        price: what a row costs on average, in tokens.
        chance: (slot, position from 1, probability) -> chance that the draft holds once it is reached.
        min_p: a draft less probable than this ends its chain.
        certain: a draft that was made gets a row, always. Under rejection sampling the text would be biased if a draft
            were left out for what it is; whether another one follows it may depend on it.
    """

    def __init__(
        self,
        chains: dict[int, Chain],
        replan: Replan | None,
        price: float,
        chance: Callable[[int, int, float], float],
        min_p: float,
        certain: bool,
    ):
        self.chains, self.replan, self.price, self.chance = chains, replan, price, chance
        self.min_p, self.certain = min_p, certain
        self.replans = 0
        if replan is not None:
            self._weigh()

    def _weigh(self) -> None:
        """What the plan's least row is worth, and the best one left out, or what a row costs."""
        self.least, self.most = 1.0, self.price
        for c in self.chains.values():
            if c.L > 1:
                self.least = min(self.least, c.survivals[c.L - 2])
            if c.limit > c.L:
                self.most = max(self.most, c.survivals[c.L - 1])

    def go_on(self, depth: int, probabilities: Mapping[int, float | None]) -> set[int]:
        """Which of these slots make another draft, now that each has made its draft number `depth` (from 1).

        probabilities: of the draft just made, by slot; None: its drafter knows none.
        """
        surprised = False
        for slot, p in probabilities.items():
            chain = self.chains[slot]
            chance = None if p is None or self.replan is None else self.chance(slot, depth, p)
            change = chain.add(p, chance)
            if p is not None and p < self.min_p:
                self.end(slot, depth if self.certain else depth - 1)
                surprised = True
            elif chance is not None:
                L, s = chain.L, chain.survivals
                too_many = change < 1.0 and L > 1 and s[L - 2] < self.most - CLEARLY
                too_few = change > 1.0 and chain.limit > L and s[L - 1] > self.least + CLEARLY
                surprised = surprised or too_many or too_few
        if surprised and self.replan is not None and self.replans < REPLANS:
            self.replans += 1
            chains = self.chains.values()
            longest = max(c.L for c in chains) + AHEAD
            limits = [min(c.limit, longest) for c in chains]
            for chain, L in zip(chains, self.replan([c.survivals for c in chains], limits, depth)):
                chain.L = L
            self._weigh()
        going = {slot for slot in probabilities if depth + 1 < self.chains[slot].L}
        for slot in probabilities.keys() - going:
            self.end(slot, depth)
        return going

    def end(self, slot: int, drafts: int) -> None:
        """The slot's chain has no more than so many drafts to give."""
        chain = self.chains[slot]
        chain.limit = min(chain.limit, drafts + 1)
        chain.L = min(chain.L, chain.limit)
