"""Drafts with a stated acceptance, for benchmarks: the recorded text with seeded errors, at the price of the real head.

The real drafter runs its chain for every share and its guesses are thrown away; what is proposed instead is what the
request is known to say, each draft wrong with probability 1 - acceptance. Verification is as ever, so the text is true.
"""

import random
from collections.abc import Sequence

from strata_cli.engine.drafters import Chained, Drafter, Proposal
from strata_cli.engine.life import Slot
from strata_cli.engine.planning import Made
from strata_cli.engine.seeds import derive_seed
from strata_cli.engine.window import Share


class ReplayDrafter:
    """The drafter protocol around another drafter.

    Args:
        inner: runs for its cost.
        texts: prompt and completion of every request that will come, as it is without drafts.
        acceptance: the probability that a draft whose predecessors hold is right, 0 to 1.
        vocab: number of token ids.
        seed: of the errors; they depend on it, on the text and on the position, so every run has the same ones.
    """

    def __init__(
        self, inner: Drafter, texts: Sequence[Sequence[int]], acceptance: float, vocab: int, slots: int, seed: int = 0
    ):
        self.inner, self.texts, self.acceptance, self.vocab, self.seed = inner, texts, acceptance, vocab, seed
        self.playing: list[int | None] = [None] * slots  # which text a slot's request is
        self._made: dict[int, Made] = {}

    def admit(self, slot: Slot) -> None:
        self.playing[slot.index] = None
        self.inner.admit(slot)

    def release(self, slot: int) -> None:
        self.inner.release(slot)

    def undo(self, slot: Slot) -> None:
        self.inner.undo(slot)

    def lay_prompts(self, reading: Sequence[tuple[Share, int]]) -> None:
        self.inner.lay_prompts(reading)

    def read_prompts(self) -> None:
        self.inner.read_prompts()

    def committed(self, slot: Slot, tokens: Sequence[int]) -> None:
        self.inner.committed(slot, tokens)

    def lay(self, shares: Sequence[Share], others: Sequence[Slot]) -> Proposal:
        """The inner drafter's chain lengths with replayed tokens."""
        lengths = self.inner.lay(shares, others).made
        tokens = {s.slot.index: self._replay(s, lengths[s.slot.index].drafts) for s in shares}
        self._made = {slot: Made(len(found), None) for slot, found in tokens.items()}
        return Proposal(self._made, tokens)

    def run(self, asks: bool) -> Chained:
        """Whole chains: the head's own probabilities say nothing of what is replayed."""
        ran = self.inner.run(False)
        return Chained(self._made, ran.steps, ran.drafts)

    def _replay(self, share: Share, n: int) -> list[int]:
        text = self._text(share.slot)
        if text is None:
            return []
        first = len(share.slot.life.tokens)
        return [self._spoil(text, first + j, t) for j, t in enumerate(self.texts[text][first : first + n])]

    def _text(self, slot: Slot) -> int | None:
        """The recorded text that the slot's tokens begin; None for a request that was not recorded."""
        known, tokens = self.playing[slot.index], slot.life.tokens
        order = range(len(self.texts)) if known is None else (known, *range(len(self.texts)))
        found = next((i for i in order if list(self.texts[i][: len(tokens)]) == tokens), None)
        self.playing[slot.index] = found
        return found

    def _spoil(self, text: int, position: int, token: int) -> int:
        draw = random.Random(derive_seed(self.seed, text, position))
        return token if draw.random() < self.acceptance else (token + 1) % self.vocab
