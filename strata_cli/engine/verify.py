"""Which drafts hold: pure functions of drafts and draws."""

from collections.abc import Sequence

import torch
from torch import Tensor

from strata_cli.engine.sampling import Candidates, Draw, noisy, signed
from strata_kernels.sampling import PURPOSES, uniform


def accept_coupled(drafts: Sequence[int], targets: Sequence[int]) -> list[int]:
    """Tokens to commit: targets as far as each draft before them equals its target. len(targets) = len(drafts) + 1."""
    kept = 0
    while kept < len(drafts) and drafts[kept] == targets[kept]:
        kept += 1
    return list(targets[: kept + 1])


def accept_rejection(drafts: Sequence[int], p: Tensor, q: Tensor, draws: Sequence[Draw]) -> tuple[list[int], int]:
    """Speculative sampling (Leviathan et al., 2023; Chen et al., 2023): keep draft d with probability min(1, p(d) /
    q(d)).

    p [n + 1, V]: target distributions; q [n, V]: the drafter's own; draws: the n + 1 rows. At the first rejection the
    token comes from the residual max(p - q, 0), renormalised; after the last draft from p. Returns the tokens to
    commit and how many drafts held.
    """
    for j, draft in enumerate(drafts):
        row = draws[j]
        seed, token, position = (torch.tensor([x]) for x in (signed(row.seed), draft, row.position))
        u = uniform(seed, token, position, PURPOSES["accept"]).item()
        if u * q[j, draft].item() < p[j, draft].item():
            continue
        residual = (p[j] - q[j]).clamp_min(0)
        if not residual.any():  # p = q up to rounding: the rejection itself was rounding
            residual = p[j]
        return [*drafts[:j], draw_from(residual, row, "residual")], j
    return [*drafts, draw_from(p[len(drafts)], draws[len(drafts)], "coupled")], len(drafts)


def draw_from(weights: Tensor, row: Draw, purpose: str) -> int:
    """A token with probability proportional to weights [V], by the row's noise."""
    ids = torch.arange(len(weights), device=weights.device)[None]
    best = noisy(Candidates(ids, weights.log()[None]), [row], purpose).argmax(-1)
    return int(best)
