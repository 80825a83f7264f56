"""Draws from rows of scores that a test writes: the head's specification over what admission puts into the sampler."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from strata_cli.config import SamplingParams
from strata_cli.engine.life import Life, Slot
from strata_cli.engine.sampling import SlotSampler
from strata_cli.engine.types import Request
from strata_kernels.head import reference
from strata_kernels.head.pool import Drawn, Draws
from strata_kernels.layout import sampler_pool

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Row:
    """Whose token a row yields, and where: `drafts` of its window stand before it."""

    params: SamplingParams
    seed: int
    position: int
    prompt: Sequence[int] = (0,)
    generated: Sequence[int] = ()
    drafts: Sequence[int] = field(default=())


def admitted(rows: Sequence[Row], vocab: int) -> SlotSampler:
    """A sampler with a slot for each row."""
    sampler = SlotSampler(sampler_pool(len(rows), vocab), CPU)
    for i, row in enumerate(rows):
        life = Life(Request(str(i), list(row.prompt), row.params), row.seed, 0.0, 99, [*row.prompt, *row.generated])
        sampler.admit(Slot(i, life, i + 1))
    return sampler


def draw(
    scores: Tensor, rows: Sequence[Row], purpose: str = "coupled", sampler: SlotSampler | None = None
) -> tuple[Drawn, Draws, SlotSampler]:
    """Tokens, their probabilities and whole distributions of scores [n, V], row by row; row i is of slot i."""
    n, vocab = scores.shape
    sampler = sampler or admitted(rows, vocab)
    drafts = torch.zeros(n, max(len(row.drafts) for row in rows), dtype=torch.int64)
    for i, row in enumerate(rows):
        drafts[i, : len(row.drafts)] = torch.tensor(row.drafts)
    every = torch.arange(n)
    draws = Draws(
        rows=every,
        slots=every,
        positions=torch.tensor([row.position for row in rows]),
        earlier=torch.tensor([len(row.drafts) for row in rows]),
        drafts=drafts,
        count=n,
        manners=tuple(replace(m, index=torch.tensor(index)) for m, index in sampler.manners(range(n))),
        penalties=any(map(sampler.penalised, range(n))),
        purpose=purpose,
        distributions=True,
    )
    processed = reference.penalize(scores, draws, sampler.pool) if draws.penalties else scores
    best, tokens = processed.max(-1)
    probability, p = torch.zeros(n), torch.zeros_like(scores)
    for manner in draws.manners:
        reference.draw(processed, tokens, probability, p, manner, draws, sampler.pool)
    return Drawn(scores, tokens, best, scores, probability, p), draws, sampler


def distribution(scores: Tensor, rows: Sequence[Row]) -> Tensor:
    """The processed distributions [n, V]."""
    found = draw(scores, rows)[0].distributions
    assert found is not None
    return found
