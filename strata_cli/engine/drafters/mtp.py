"""Chained drafts by the model's own MTP head.

The head lags the main model: hidden rows of committed tokens wait per slot until it has seen them. Before a slot
drafts, one batched pass catches up with the true hidden rows; its last row gives the first draft; then the head runs
on its own output.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from strata_cli.engine.drafters import GoOn, Proposal, Seen, Wish
from strata_cli.engine.drafters.vocab import DraftVocab
from strata_cli.engine.runner import Runner
from strata_cli.engine.sampling import distribution, sample
from strata_cli.model.rows import Segment

RING_ROWS = 32  # waiting hidden rows of a slot that does not draft; beyond it they are caught up with the next chain


class MtpDrafter:
    """`rejection`: draw with the drafter's own noise and keep its distributions, for rejection sampling. `vocab`: the
    ids to draft from, None for all.
    """

    def __init__(self, runner: Runner, slots: int, rejection: bool, vocab: DraftVocab | None = None):
        self.runner, self.rejection, self.vocab = runner, rejection, vocab
        if vocab is not None:
            runner.restrict_drafts(vocab.ids())
        self.waiting: list[list[Tensor]] = [
            [] for _ in range(slots)
        ]  # hidden rows [n, D] up to the slot's last cached token

    def observe(self, seen: Sequence[Seen]) -> None:
        """Keep committed rows until the head needs them.

        Prompt rows, and rows beyond the ring, go through it now in one pass, all but each slot's last, which waits for
        the token after it.
        """
        segments: list[Segment] = []
        hidden: list[Tensor] = []
        for rows in seen:
            self.waiting[rows.slot].append(rows.hidden.clone())
            if self.vocab is not None and self.vocab.count(rows.tokens[len(rows.tokens) - rows.fresh :]):
                self.runner.restrict_drafts(self.vocab.ids())
            if rows.prompt or sum(map(len, self.waiting[rows.slot])) > RING_ROWS:
                self._take(rows.slot, rows.tokens, 1, segments, hidden)
        if segments:
            self.runner.head_forward(segments, torch.cat(hidden))

    def start(self, slot: int, hidden: Tensor | None) -> None:
        """Nothing waits for the slot but the pending hidden row of its prefix."""
        self.waiting[slot] = [] if hidden is None else [hidden]

    def _take(
        self, slot: int, tokens: Sequence[int], leave: int, segments: list[Segment], hidden: list[Tensor]
    ) -> None:
        """Move the slot's waiting rows but the last `leave` into a pass of the head: row i beside token i + 1, at i +
        1.
        """
        rows = torch.cat(self.waiting[slot])
        n = len(rows) - leave
        if n > 0:
            first = self.runner.cache.lengths[slot] - len(rows) + 1
            segments.append(Segment(slot, first, tokens[first : first + n]))
            hidden.append(rows[:n])
            self.waiting[slot] = [rows[n:]] if leave else []

    def propose(self, wishes: Sequence[Wish], go_on: GoOn) -> dict[int, Proposal]:
        """Draft for all wishes together; each slot for as long as `go_on` says, at most for its wish."""
        proposals = {w.slot: Proposal() for w in wishes}
        segments: list[Segment] = []
        caught_up: list[Tensor] = []
        for wish in wishes:
            self._take(wish.slot, wish.tokens, 0, segments, caught_up)
        rows, hidden = self.runner.head_forward(segments, torch.cat(caught_up))
        last = [start + len(s.tokens) - 1 for start, s in zip(rows.starts, segments)]
        drafting, depth = list(wishes), 1
        while True:
            logits = self.runner.draft_logits(hidden, last)
            made = self._draw(drafting, logits, proposals)
            wanted = go_on(depth, made)
            going = [i for i, wish in enumerate(drafting) if wish.slot in wanted and depth < wish.depth]
            if not going:
                return proposals
            depth += 1
            hidden = hidden[[last[i] for i in going]]
            drafting = [drafting[i] for i in going]
            segments = []
            for wish in drafting:
                drafts = proposals[wish.slot].tokens
                segments.append(Segment(wish.slot, len(wish.tokens) + len(drafts) - 1, drafts[-1:]))
            rows, hidden = self.runner.head_forward(segments, hidden)
            last = list(range(len(drafting)))

    def _draw(
        self, drafting: Sequence[Wish], logits: Tensor, proposals: dict[int, Proposal]
    ) -> dict[int, float | None]:
        """Add each slot's next draft; returns their probabilities."""
        draws = [w.draw(len(w.tokens) + len(proposals[w.slot].tokens), proposals[w.slot].tokens) for w in drafting]
        tokens, probabilities = sample(logits, draws, "draft" if self.rejection else "coupled")
        whole = distribution(logits, draws) if self.rejection else None
        made: dict[int, float | None] = {}
        for i, (wish, token, p) in enumerate(zip(drafting, tokens.tolist(), probabilities.tolist())):
            proposal = proposals[wish.slot]
            if math.isnan(p):  # a head that overflows makes bad drafts: they are judged like any others
                p = 0.0
                if whole is not None:
                    whole[i] = F.one_hot(tokens[i], whole.shape[1])
            proposal.tokens.append(token)
            proposal.probabilities.append(p)
            if whole is not None:
                proposal.distributions.append(whole[i])
            made[wish.slot] = p
        return made
