"""Prompt lookup: what followed the last few tokens when they stood in the text before. No model, no torch."""

from collections.abc import Sequence
from typing import Any

from strata_cli.engine.drafters import GoOn, Proposal, Seen, Wish

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

    def start(self, slot: int, hidden: Any) -> None:
        self.indices[slot] = NgramIndex()

    def observe(self, seen: Sequence[Seen]) -> None:
        """Nothing to do: a slot's new tokens are indexed when it next drafts."""

    def propose(self, wishes: Sequence[Wish], go_on: GoOn) -> dict[int, Proposal]:
        """Look up every wish whole: an n-gram has no probability, and costs no more when it is long."""
        proposals = {}
        for wish in wishes:
            index = self.indices[wish.slot]
            index.extend(wish.tokens[len(index.tokens) :])
            proposals[wish.slot] = Proposal(index.propose(wish.depth))
        return proposals
