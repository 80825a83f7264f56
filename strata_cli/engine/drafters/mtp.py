"""Chained drafts by the model's own MTP head.

The head lags the main model: hidden rows of committed tokens wait in a ring per slot until it has seen them. Before a
slot drafts, one batched pass catches up with the true hidden rows; its last row gives the first draft; then the head
runs on its own output. Step t of the chain is of the slots whose chain has t drafts, longest chains first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from strata_cli.engine.drafters import Chained, Proposal
from strata_cli.engine.drafters.vocab import DraftVocab
from strata_cli.engine.life import Slot
from strata_cli.engine.planning import Made
from strata_cli.engine.runner import Runner
from strata_cli.engine.window import Share
from strata_kernels.head.pool import Draws
from strata_kernels.window import Rows, Segment


@dataclass(slots=True)
class _Step:
    """One forward of the head and what is drawn from it. `n` chains reach it."""

    rows: Rows
    draws: Draws | None
    n: int


class MtpDrafter:
    """Under rejection sampling it draws with noise of its own and its distributions are kept. `vocab`: the ids to draft
    from, None for all.
    """

    def __init__(self, runner: Runner, vocab: DraftVocab | None = None):
        self.runner, self.buffers, self.vocab = runner, runner.buffers, vocab
        sizes = self.buffers.sizes
        self.seen = [0] * sizes.slots  # (hidden row i, token i + 1) pairs that the head has seen, in order
        self._shares: list[Share] = []
        self._steps: list[_Step] = []
        self._reached: list[tuple[Slot, int]] = []  # what the head has seen once the laid pass has run
        self._prompts: Rows | None = None
        self._read: list[tuple[Slot, int]] = []
        self._ids: Tensor | None = None
        self._stale = vocab is not None

    def admit(self, slot: Slot) -> None:
        """A prefix of p tokens owns p - 1 of the head's entries, and one hidden row that waits."""
        self.seen[slot.index] = max(slot.length - 1, 0)

    def release(self, slot: int) -> None:
        self.seen[slot] = 0

    def undo(self, slot: Slot) -> None:
        self.seen[slot.index] = 0

    def committed(self, slot: Slot, tokens: Sequence[int]) -> None:
        if self.vocab is not None and self.vocab.count(tokens):
            self._stale = True

    def lay(self, shares: Sequence[Share], others: Sequence[Slot]) -> Proposal:
        """Catch-up rows and chains of all shares; of the others, those whose ring would not hold another window."""
        ring, spec = self.buffers.sizes.ring, self.buffers.sizes.chain
        if self._stale and self.vocab is not None:
            self._ids, self._stale = torch.tensor(self.vocab.ids(), device=self.buffers.device), False
        self._shares = sorted(shares, key=lambda s: -s.depth)
        full = [s for s in others if s.length - self.seen[s.index] + spec + 1 > ring]
        slots = [s.slot for s in self._shares] + full
        self._steps, self._reached = [], [(slot, slot.length) for slot in slots]
        if not slots:
            return Proposal()
        section = self.buffers.catch_up
        assert section is not None
        rows = self.buffers.lay(section, [self._pending(slot, slot.length) for slot in slots])
        counts = [slot.length - self.seen[slot.index] for slot in slots]
        last = (np.cumsum(counts) - 1).tolist()
        for depth in range(1, max((s.depth for s in self._shares), default=0) + 1):
            chains = [s for s in self._shares if s.depth >= depth]
            if depth > 1:
                links = [self._link(i, s, depth) for i, s in enumerate(chains)]
                rows = self.buffers.lay(self.buffers.chain[depth - 2], links)
            picked = last if depth == 1 else range(len(chains))
            self._steps.append(_Step(rows, self._draws(chains, picked, depth), len(chains)))
        if not self._steps:
            self._steps.append(_Step(rows, None, 0))
        return Proposal({s.slot.index: Made(s.depth, None) for s in self._shares})

    def _pending(self, slot: Slot, end: int) -> Segment:
        """The slot's hidden rows up to `end` that the head has not seen: row i beside token i + 1, at i + 1."""
        begin = self.seen[slot.index]
        hidden = [self.buffers.ring(slot.index, i) for i in range(begin, end)]
        return Segment(slot.index, begin + 1, slot.life.tokens[begin + 1 : end + 1], hidden=hidden)

    def _link(self, i: int, share: Share, depth: int) -> Segment:
        """The chain's row number `depth`: its last draft beside the head's own row."""
        position = share.slot.length + depth - 1
        return Segment(
            share.slot.index, position, (), drafts=1, first_draft=depth - 2, hidden=[self.buffers.chain_at + i]
        )

    def _draws(self, chains: Sequence[Share], picked: Sequence[int], depth: int) -> Draws:
        """Draft number `depth` of each chain, and where it goes."""
        put = self.buffers.put[depth - 1].host
        put[:] = len(self.buffers.drafts.host) - 1
        for i, share in enumerate(chains):
            put[i] = share.slot.index * self.buffers.sizes.chain + depth - 1
        which = [(row, s.slot.index, s.slot.length + depth, depth - 1) for row, s in zip(picked, chains, strict=False)]
        draws = self.runner.draws(self.buffers.chain_draws[depth - 1], which, after_drafts=depth > 1)
        draws.ids, draws.purpose = self._ids, "draft" if self.runner.q is not None else "coupled"
        draws.distributions = self.runner.q is not None
        return draws

    def run(self, asks: bool) -> Chained:
        """Run what was laid. Asked, a chain ends behind a draft less probable than its share's `stop`; where reading
        costs nothing the steps that no chain is left for are saved.
        """
        steps = drafts = 0
        found: list[list[float]] = []
        going = [True] * len(self._shares)
        for number, step in enumerate(self._steps):
            if step.draws is None:
                self.runner.catch_up(step.rows)
                break
            step.draws.probabilities = asks
            self.runner.draft(step.rows, step.draws, number, last=number + 1 == len(self._steps))
            steps, drafts = steps + 1, drafts + step.n
            if asks and self.runner.reads_free:
                found.append(self.buffers.read_probabilities()[number, : step.n].tolist())
                for i, p in enumerate(found[-1]):
                    going[i] = going[i] and not p < self._shares[i].stop
                if number + 1 < len(self._steps) and not any(going[: self._steps[number + 1].n]):
                    break
        for slot, length in self._reached:
            self.seen[slot.index] = length
        if asks and steps and not self.runner.reads_free:
            found = self.buffers.read_probabilities()[:steps].tolist()
        made = {s.slot.index: self._made(i, s, steps, found, asks) for i, s in enumerate(self._shares)}
        return Chained(made, steps, drafts)

    def _made(self, i: int, share: Share, steps: int, found: Sequence[Sequence[float]], asks: bool) -> Made:
        n = min(share.depth, steps)
        if not asks:
            return Made(n, None)
        # a head that overflows makes bad drafts: they are judged like any others
        return Made(n, [p if p == p else 0.0 for p in (found[j][i] for j in range(n))])

    def lay_prompts(self, reading: Sequence[tuple[Share, int]]) -> None:
        """A pass over the rows that the window reads: all but each slot's last, which waits for the token after it."""
        segments = []
        self._prompts, self._read = None, []
        for share, start in reading:
            slot = share.slot
            begin, end = self.seen[slot.index], slot.length + share.read - 1
            if end > begin:
                hidden = [
                    start + i - slot.length if i >= slot.length else self.buffers.ring(slot.index, i)
                    for i in range(begin, end)
                ]
                tokens = slot.life.tokens[begin + 1 : end + 1]
                segments.append(Segment(slot.index, begin + 1, tokens, hidden=hidden))
                self._read.append((slot, end))
        section = self.buffers.prompt
        if segments and section is not None:
            self._prompts = self.buffers.lay(section, segments)

    def read_prompts(self) -> None:
        if self._prompts is not None:
            self.runner.catch_up(self._prompts)
        for slot, end in self._read:
            self.seen[slot.index] = end
        self._prompts, self._read = None, []
