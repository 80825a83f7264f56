"""Prompt lookup: what followed the last few tokens when they stood in the text before. No model, no torch."""

from collections.abc import Sequence

from strata_cli.engine.drafters import Chained, Proposal
from strata_cli.engine.life import Slot
from strata_cli.engine.planning import Made
from strata_cli.engine.window import Share

LONGEST, SHORTEST = 4, 2  # tokens of context that are looked up, the longest match first


class NgramIndex:
    """The n-grams of one growing text, each with the place behind its last occurrence that has a continuation."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.after: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens; the n-grams that end before each of them now have a continuation."""
        for token in tokens:
            end = len(self.tokens)
            for n in range(SHORTEST, min(LONGEST, end) + 1):
                self.after[tuple(self.tokens[end - n :])] = end
            self.tokens.append(token)

    def propose(self, n: int) -> list[int]:
        """Up to `n` tokens that followed the longest match, the most recent one; [] without a match."""
        for length in range(min(LONGEST, len(self.tokens)), SHORTEST - 1, -1):
            place = self.after.get(tuple(self.tokens[-length:]))
            if place is not None:
                return self.tokens[place : place + n]
        return []


class NgramDrafter:
    """The drafter protocol over one index a slot."""

    def __init__(self, slots: int):
        self.indices = [NgramIndex() for _ in range(slots)]
        self._made: dict[int, Made] = {}

    def admit(self, slot: Slot) -> None:
        self.indices[slot.index] = NgramIndex()

    def release(self, slot: int) -> None:
        self.indices[slot] = NgramIndex()

    def undo(self, slot: Slot) -> None:
        """Its index grows when it drafts, from committed tokens alone."""

    def lay(self, shares: Sequence[Share], others: Sequence[Slot]) -> Proposal:
        """Look up every share whole: an n-gram has no probability, and costs no more when it is long."""
        tokens = {}
        for share in shares:
            index = self.indices[share.slot.index]
            index.extend(share.slot.life.tokens[len(index.tokens) :])
            tokens[share.slot.index] = index.propose(share.depth)
        self._made = {slot: Made(len(found), None) for slot, found in tokens.items()}
        return Proposal(self._made, tokens)

    def run(self, asks: bool) -> Chained:
        drafts = [m.drafts for m in self._made.values()]
        return Chained(self._made, max(drafts, default=0), sum(drafts))

    def lay_prompts(self, reading: Sequence[tuple[Share, int]]) -> None:
        """A prompt is indexed when the slot drafts."""

    def read_prompts(self) -> None: ...

    def committed(self, slot: Slot, tokens: Sequence[int]) -> None:
        """Tokens are indexed when the slot next drafts."""
