"""Drafts at a stated acceptance, for measurements: recorded text with seeded errors, at the price of real drafts.

The head of a checkpoint with random weights is never right, and a trained one is as right as its text is easy; this
drafter is right as often as it is told to be. The real drafter still runs for its cost; what it proposes is thrown
away. The text stays true: a draft is only ever a guess, and every one is verified. No torch.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from strata_cli.engine.drafters import Drafter, KeepDrafting, Proposal, Seen, Wish
from strata_cli.engine.seeds import derive_seed

if TYPE_CHECKING:
    from torch import Tensor


class ReplayDrafter:
    """Proposes what `texts` (each prompt and completion) hold next.

    `rates[j]`: how often draft j + 1 of a chain is right when those before it were; the last one holds for all further
    ones. Whether it is depends on `seed`, the text and the token's place alone, so drafts of a request are the same
    alone or beside others. A wrong draft is another of the `vocab` ids. A slot whose text was not recorded gets the
    real drafter's proposal.
    """

    def __init__(
        self, drafter: Drafter, texts: Sequence[Sequence[int]], rates: Sequence[float], vocab: int, seed: int = 0
    ):
        assert rates and all(0 <= rate <= 1 for rate in rates) and vocab > 1
        self.drafter, self.rates, self.vocab, self.seed = drafter, rates, vocab, seed
        self.texts = [list(text) for text in texts]
        self.playing: dict[int, int] = {}  # slot -> its text

    def start(self, slot: int, hidden: "Tensor | None") -> None:
        self.playing.pop(slot, None)
        self.drafter.start(slot, hidden)

    def observe(self, seen: Sequence[Seen]) -> None:
        self.drafter.observe(seen)

    def propose(self, wishes: Sequence[Wish], keep: KeepDrafting) -> dict[int, Proposal]:
        """Replayed drafts. `keep` is asked without a probability: that of a draft the real head did not make says
        nothing.
        """
        planned: list[Wish] = []
        for wish in wishes:
            depth = 0
            while depth < wish.depth and keep(wish.slot, depth, None):
                depth += 1
            if depth:
                planned.append(replace(wish, depth=depth))
        proposals = self.drafter.propose(planned, _always) if planned else {}
        for wish in planned:
            text = self._text(wish)
            if text is not None:
                proposals[wish.slot] = Proposal(self._drafts(text, len(wish.tokens), wish.depth))
        return {wish.slot: proposals.get(wish.slot, Proposal()) for wish in wishes}

    def _text(self, wish: Wish) -> int | None:
        """The recorded text that the slot's tokens begin; several may, until they part."""
        tokens, n = list(wish.tokens), len(wish.tokens)
        known = self.playing.get(wish.slot)
        if known is not None and self.texts[known][:n] == tokens:
            return known
        found = next((i for i, text in enumerate(self.texts) if text[:n] == tokens), None)
        if found is not None:
            self.playing[wish.slot] = found
        return found

    def _drafts(self, text: int, at: int, depth: int) -> list[int]:
        """Up to `depth` tokens of the text from place `at` on, each wrong as often as its rate says; behind the end of
        the recording nothing is true, so nothing is drafted.
        """
        drafts = []
        for j, token in enumerate(self.texts[text][at : at + depth]):
            chance = derive_seed(self.seed, text, at + j)
            if chance / 2**63 >= self.rates[min(j, len(self.rates) - 1)]:
                token = (token + 1 + chance % (self.vocab - 1)) % self.vocab
            drafts.append(token)
        return drafts


def _always(slot: int, depth: int, probability: float | None) -> bool:
    return True
