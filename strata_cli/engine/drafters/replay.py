"""Drafts with a stated acceptance, for benchmarks: the recorded text with seeded errors, at the price of the real head.

The real drafter runs its chain for every wish and its guesses are thrown away; what is proposed instead is what the
request is known to say, each draft wrong with probability 1 - acceptance. Verification is as ever, so the text is true.
"""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from strata_cli.engine.drafters import Drafter, GoOn, Proposal, Seen, Wish
from strata_cli.engine.seeds import derive_seed

if TYPE_CHECKING:
    from torch import Tensor


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

    def start(self, slot: int, hidden: "Tensor | None") -> None:
        self.playing[slot] = None
        self.inner.start(slot, hidden)

    def observe(self, seen: Sequence[Seen]) -> None:
        self.inner.observe(seen)

    def propose(self, wishes: Sequence[Wish], go_on: GoOn) -> dict[int, Proposal]:
        """The inner drafter's chain lengths with replayed tokens. The head's own probabilities say nothing of them."""
        lengths = self.inner.propose(wishes, lambda depth, made: go_on(depth, dict.fromkeys(made)))
        return {w.slot: self._replay(w, len(lengths[w.slot].tokens)) for w in wishes}

    def _replay(self, wish: Wish, n: int) -> Proposal:
        text = self._text(wish)
        if text is None:
            return Proposal()
        first = len(wish.tokens)
        coming = list(self.texts[text][first : first + n])
        return Proposal([self._spoil(text, first + j, token) for j, token in enumerate(coming)])

    def _text(self, wish: Wish) -> int | None:
        """The recorded text that the slot's tokens begin; None for a request that was not recorded."""
        known, tokens = self.playing[wish.slot], list(wish.tokens)
        order = range(len(self.texts)) if known is None else (known, *range(len(self.texts)))
        found = next((i for i in order if list(self.texts[i][: len(tokens)]) == tokens), None)
        self.playing[wish.slot] = found
        return found

    def _spoil(self, text: int, position: int, token: int) -> int:
        draw = random.Random(derive_seed(self.seed, text, position))
        return token if draw.random() < self.acceptance else (token + 1) % self.vocab
