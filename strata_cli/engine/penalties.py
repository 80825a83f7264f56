"""Token counts of the slots that penalise: committed tokens only; a window's drafts are counted for its own rows
alone.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from strata_cli.config import SamplingParams
from strata_cli.engine.sampling import Draw


class PenaltyCounts:
    """Per slot, where its request asks for it: how often each token was generated, and which are in the prompt or
    generated.
    """

    def __init__(self, vocab: int, device: torch.device):
        self.vocab, self.device = vocab, device
        self.counts: dict[int, Tensor] = {}
        self.seen: dict[int, Tensor] = {}

    def start(self, slot: int, params: SamplingParams, prompt: Sequence[int], generated: Sequence[int]) -> None:
        self.stop(slot)
        if params.has_penalties:
            self.counts[slot] = torch.zeros(self.vocab, dtype=torch.int32, device=self.device)
            self.seen[slot] = torch.zeros(self.vocab, dtype=torch.bool, device=self.device)
            self.seen[slot][torch.tensor(prompt, device=self.device)] = True
            self.commit(slot, generated)

    def stop(self, slot: int) -> None:
        self.counts.pop(slot, None)
        self.seen.pop(slot, None)

    def commit(self, slot: int, tokens: Sequence[int]) -> None:
        """Count committed tokens."""
        if slot in self.counts and tokens:
            self._count(self.counts[slot], self.seen[slot], tokens)

    def _count(self, counts: Tensor, seen: Tensor, tokens: Sequence[int]) -> None:
        ids = torch.tensor(tokens, device=self.device)
        counts.index_add_(0, ids, torch.ones(len(tokens), dtype=torch.int32, device=self.device))
        seen[ids] = True

    def draw(self, slot: int, params: SamplingParams, seed: int, position: int, drafts: Sequence[int]) -> Draw:
        """The draw of the row at `position`, as if `drafts` before it had all been accepted."""
        counts, seen = self.counts.get(slot), self.seen.get(slot)
        if counts is not None and seen is not None and drafts:
            counts, seen = counts.clone(), seen.clone()
            self._count(counts, seen, drafts)
        return Draw(params, seed, position, counts, seen)
