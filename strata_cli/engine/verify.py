"""Which drafts hold: pure functions of drafts and draws, on the device, for all slots at once.

S slots, T = most drafts of a chain, W draws. A slot's draws lie one behind the other: that of its golden row, then
those of its drafts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from strata_kernels.head.pool import Drawn, Draws, SamplerPool
from strata_kernels.head.reference import noisy
from strata_kernels.sampling import PURPOSES, uniform


@dataclass(slots=True)
class Judged:
    """What is to be judged. L [S]: rows of each slot (0: none); first [S]: its first draw; drafts [S, T]; q [S, T, V]:
    the distributions they were drawn from (rejection sampling alone).
    """

    L: Tensor
    first: Tensor
    drafts: Tensor
    q: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """targets [S, T + 1]: the tokens to commit, as far as they go; held [S]: drafts accepted of each slot."""

    targets: Tensor
    held: Tensor


def by_slot(values: Tensor, judged: Judged) -> Tensor:
    """values [W, ...] of the draws, by slot and place in the chain: [S, T + 1, ...]; undefined behind a slot's last."""
    most = judged.drafts.shape[1] + 1
    at = judged.first.unsqueeze(1) + torch.arange(most, device=values.device)
    at.clamp_(max=values.shape[0] - 1)
    return values.index_select(0, at.view(-1)).view(*at.shape, *values.shape[1:])


def _held(right: Tensor, judged: Judged) -> Tensor:
    """Drafts before the first that is not right, [S]; right [S, T]."""
    place = torch.arange(1, right.shape[1] + 1, device=right.device)
    return (right & (place < judged.L.unsqueeze(1))).to(torch.int64).cumprod(1).sum(1)


def accept_coupled(drawn: Drawn, judged: Judged) -> Accepted:
    """A draft holds when it equals the token drawn for its place, and all before it did."""
    targets = by_slot(drawn.tokens, judged)
    return Accepted(targets, _held(targets[:, :-1] == judged.drafts, judged))


def accept_rejection(drawn: Drawn, judged: Judged, draws: Draws, pool: SamplerPool) -> Accepted:
    """Speculative sampling (Leviathan et al., 2023; Chen et al., 2023): keep draft d with probability min(1, p(d) /
    q(d)).

    At the first rejection the token comes from the residual max(p - q, 0), renormalised; after the last draft from p.
    """
    assert drawn.distributions is not None and judged.q is not None
    drafts, depth = judged.drafts, judged.drafts.shape[1]
    p = by_slot(drawn.distributions, judged)  # [S, T + 1, V]
    positions = by_slot(draws.positions, judged)
    seeds = pool.seeds.unsqueeze(1)
    u = uniform(seeds, drafts, positions[:, :depth], PURPOSES["accept"])
    own = drafts.unsqueeze(2)
    right = u * judged.q.gather(2, own).squeeze(2) < p[:, :depth].gather(2, own).squeeze(2)
    held = _held(right, judged)
    slots = torch.arange(len(held), device=held.device)
    refused = held < judged.L - 1
    rest = p[slots, held]
    less = (rest - judged.q[slots, held.clamp(max=max(depth - 1, 0))]).clamp_min_(0) if depth else rest
    # p = q up to rounding: the rejection itself was rounding
    rest = torch.where((refused & less.any(1)).unsqueeze(1), less, rest)
    ids = torch.arange(rest.shape[1], device=rest.device).expand_as(rest)
    purpose = torch.where(refused, PURPOSES["residual"], PURPOSES["coupled"]).unsqueeze(1)
    last = noisy(ids, rest.log(), pool.seeds, positions[slots, held], purpose).argmax(1)
    targets = torch.cat((drafts, last.unsqueeze(1)), 1).scatter_(1, held.unsqueeze(1), last.unsqueeze(1))
    return Accepted(targets, held)
