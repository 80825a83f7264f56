"""Lays windows out in the buffers and runs them: the only place where the engine meets the model.

Everything is laid before the copy in; from there to the copy out nothing is read but, where a window asks, the
probabilities of its drafts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from strata_cli.engine.buffers import DrawRegion, WindowBuffers
from strata_cli.engine.cache.recurrent import RecurrentCache
from strata_cli.engine.sampling import SlotSampler
from strata_cli.engine.verify import Accepted, Judged, accept_coupled, accept_rejection
from strata_cli.engine.window import Share, WindowPlan
from strata_cli.model.decoder import Decoder
from strata_cli.model.mtp import MtpHead
from strata_kernels.head.pool import Drawn, Draws
from strata_kernels.window import Rows, Segment


@dataclass(frozen=True, slots=True)
class LaidWindow:
    """A window as it lies in the buffers. `starts`: first row of each ordered share; `firsts`: its first draw; `keep`:
    hidden rows that stay; `known`: slots whose drafts the host wrote.
    """

    plan: WindowPlan
    rows: Rows
    draws: Draws
    starts: tuple[int, ...]
    firsts: tuple[int, ...]
    keep: int
    known: frozenset[int]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What the host reads of a window: targets [S, T + 1], held [S], whether each draw is of numbers [W], experts
    touched; and the draws themselves.
    """

    targets: np.ndarray
    held: np.ndarray
    finite: np.ndarray
    experts: int | None
    drawn: Drawn


class Runner:
    """The model, its MTP head (None: drafts come from elsewhere or not at all), and what a window reads and writes."""

    def __init__(
        self,
        model: Decoder,
        head: MtpHead | None,
        buffers: WindowBuffers,
        recurrent: RecurrentCache,
        sampler: SlotSampler,
        q: Tensor | None = None,
    ):
        """q [S, T, V]: room for the distributions of drafts, where they are judged by rejection sampling."""
        self.model, self.head, self.buffers = model, head, buffers
        self.recurrent, self.sampler, self.q = recurrent, sampler, q
        self.reads_free = buffers.device.type == "cpu"
        self._L, self._first, self._yields = buffers.accept.device.unbind(0)
        expert_layers = model.expert_layers
        self._touched = buffers.touched[:expert_layers] if expert_layers else None
        self._outs: dict[int, Tensor] = {}

    # ------------------------------------------------------------------ laying out

    def draws(self, region: DrawRegion, which: Sequence[tuple[int, int, int, int]], after_drafts: bool) -> Draws:
        """Draws (row, slot, position, earlier drafts) in a region of the buffers."""
        slots = [slot for _, slot, _, _ in which]
        penalties = any(map(self.sampler.penalised, set(slots)))
        manners = self.sampler.manners(slots)
        padded = self.buffers.sizes.padded(max(1, len(which)))  # a window may draw nothing: it reads a prompt's middle
        return region.lay(which, padded, manners, penalties, after_drafts)

    def lay(self, plan: WindowPlan, known: Mapping[int, Sequence[int]]) -> LaidWindow:
        """The verify forward of a plan. known: drafts that the host knows, by slot."""
        segments, starts, firsts = [], [], []
        which: list[tuple[int, int, int, int]] = []
        keep: list[tuple[int, int]] = []
        accept, judged = self.buffers.accept.host, self.buffers.judged.host
        accept[:], judged[:] = 0, 0
        row = 0
        for share in plan.ordered:
            index = share.slot.index
            segments.append(self._segment(share, known.get(index)))
            starts.append(row)
            firsts.append(len(which))
            accept[:, index] = share.L, len(which), share.draws > 0
            if share.L:
                at = index * self.buffers.sizes.chain
                judged[at : at + share.drafts] = row + 1 + np.arange(share.drafts)
            last, position = row + share.rows - 1, len(share.slot.life.tokens)
            many = share.draws
            which += [(last - many + 1 + j, index, position + j, j) for j in range(many)]
            keep += self._kept(share, row)
            row += share.rows
        buffers = self.buffers
        rows = buffers.lay(buffers.verify, segments, self.recurrent.replay)
        draws = self.draws(buffers.draws, which, after_drafts=False)
        draws.distributions = self.q is not None
        if buffers.sizes.ring and keep:
            buffers.keep.host[:, : len(keep)] = np.asarray(keep, np.int64).T
        return LaidWindow(plan, rows, draws, tuple(starts), tuple(firsts), len(keep), frozenset(known))

    def _segment(self, share: Share, known: Sequence[int] | None) -> Segment:
        slot, at = share.slot, share.slot.length
        if share.read:
            captures = [(length - at, place) for length, place in share.captures]
            tokens = slot.life.tokens[at : at + share.read]
            return Segment(slot.index, at, tokens, certain=True, captures=captures)
        golden = slot.life.tokens[at]
        if known is not None:
            return Segment(slot.index, at, [golden, *known[: share.drafts]])
        return Segment(slot.index, at, [golden], drafts=share.drafts)

    def _kept(self, share: Share, row: int) -> list[tuple[int, int]]:
        """Hidden rows of a share that stay, from and to: those the MTP head has still to see, and of cached prefixes.

        Rows of drafts go in before their verdict: what is rejected is overwritten before it is read.
        """
        slot, buffers = share.slot, self.buffers
        if not buffers.sizes.ring:
            return []
        rows = range(share.L) if share.L else range(share.read - 1, share.read)
        kept = [(row + i, buffers.ring(slot.index, slot.length + i)) for i in rows]
        return kept + [(row + length - slot.length - 1, buffers.places_at + place) for length, place in share.captures]

    # ------------------------------------------------------------------ running

    def draft(self, rows: Rows, draws: Draws, step: int, last: bool) -> None:
        """One step of the chain: the head over `rows`, then each chain's draft, into the buffers."""
        buffers = self.buffers
        drawn = self._head(rows, draws, resolve=step > 0)
        assert drawn is not None
        if not last:
            buffers.rows(buffers.chain_at, draws.rows.shape[0]).copy_(drawn.hidden.index_select(0, draws.rows))
        buffers.drafts.device.index_copy_(0, buffers.put[step].head(draws.rows.shape[0]), drawn.tokens)
        if draws.probabilities and drawn.probability is not None:
            buffers.steps(step, draws.rows.shape[0]).copy_(drawn.probability)
        if drawn.distributions is not None:
            q, slots = drawn.distributions[: draws.count], draws.slots[: draws.count]
            sure = torch.zeros_like(q).scatter_(1, drawn.tokens[: draws.count].unsqueeze(1), 1.0)
            assert self.q is not None
            self.q[slots, step] = torch.where(q.isnan().any(1, keepdim=True), sure, q)

    def catch_up(self, rows: Rows) -> None:
        """The head over rows of committed tokens, for its keys and values alone."""
        self._head(rows, None, resolve=False)

    def _head(self, rows: Rows, draws: Draws | None, resolve: bool) -> Drawn | None:
        assert self.head is not None
        if resolve:
            self._resolve(rows)
        hidden = self.buffers.hidden.index_select(0, rows.hidden)
        return self.head.forward(rows, hidden, draws, self.sampler.pool)

    def _resolve(self, rows: Rows) -> None:
        """Tokens of the rows, some of which are drafts made on the device."""
        rows.tokens.copy_(self.buffers.block.index_select(0, rows.sources))

    def adopt(self, slot: int, length: int, place: int) -> None:
        """The hidden row of a cached prefix waits for the head, as if the slot had read it."""
        if self.buffers.sizes.ring:
            source = self.buffers.hidden[self.buffers.places_at + place]
            self.buffers.hidden[self.buffers.ring(slot, length - 1)] = source

    def forward(self, layout: LaidWindow) -> Tensor:
        """The model over all rows of a window: hidden rows [R, D] before the final norm."""
        if any(s.drafts and s.slot.index not in layout.known for s in layout.plan.busy):
            self._resolve(layout.rows)
        self.buffers.touched.zero_()
        return self.model.forward(layout.rows)

    def judge(self, layout: LaidWindow, x: Tensor) -> Outcomes:
        """Every row's own draw, and which drafts hold. Nothing before the last lines moves what is committed, so a
        window that fails can be run again.
        """
        buffers, rows, draws, sizes = self.buffers, layout.rows, layout.draws, self.buffers.sizes
        drafts = rows.tokens.index_select(0, buffers.judged.device).view(sizes.slots, sizes.chain)
        draws.drafts = drafts
        drawn = self.model.draw(x, draws, self.sampler.pool)
        if sizes.ring:
            buffers.rows(0, rows.padded).copy_(drawn.hidden)
            if layout.keep:
                come, go = buffers.keep.head(layout.keep).unbind(0)
                buffers.hidden.index_copy_(0, go, buffers.hidden.index_select(0, come))
        accepted = self._accept(layout, drawn, drafts)
        outcomes = self._report(accepted, drawn)
        pool, kept = self.recurrent.pool, accepted.held + 1
        pending = torch.where(self._L > 0, kept, pool.pending)
        if self.sampler.counts_for([s.slot.index for s in layout.plan.busy]):
            self.sampler.commit(accepted.targets, kept * self._yields)
        pool.pending.copy_(pending)
        return outcomes

    def _accept(self, layout: LaidWindow, drawn: Drawn, drafts: Tensor) -> Accepted:
        judged = Judged(self._L, self._first, drafts, self.q)
        if self.q is None:
            return accept_coupled(drawn, judged)
        for share in layout.plan.busy:  # a drafter without any distribution put all on its draft
            if share.drafts and share.slot.index in layout.known:
                at = share.slot.index
                self.q[at] = torch.zeros_like(self.q[at]).scatter_(1, drafts[at].unsqueeze(1), 1.0)
        return accept_rejection(drawn, judged, layout.draws, self.sampler.pool)

    def _report(self, accepted: Accepted, drawn: Drawn) -> Outcomes:
        """The copy out: one tensor of integers."""
        targets, held, finite = accepted.targets, accepted.held, drawn.best.isfinite().to(torch.int64)
        parts = [targets.reshape(-1), held, finite]
        if self._touched is not None:
            parts.append(self._touched.sum(1).max().view(1))
        size = sum(p.shape[0] for p in parts)
        if size not in self._outs:
            self._outs[size] = self.buffers.out[:size]
        torch.cat(parts, out=self._outs[size])
        out = self.buffers.download()
        slots, most = targets.shape
        a, b = slots * most, slots * most + slots
        experts = int(out[size - 1]) if self._touched is not None else None
        return Outcomes(out[:a].reshape(slots, most), out[a:b], out[b : b + finite.shape[0]] > 0, experts, drawn)
