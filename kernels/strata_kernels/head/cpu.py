"""The head on a CPU: norm, products and draws as compiled calls, the tensors' side of `compiled.py`.

Top-k and top-p are torch's, and so are the distributions of rejection sampling, as in `reference.py`.
"""

from dataclasses import replace

import torch
from torch import Tensor

from strata_kernels.head import compiled, reference
from strata_kernels.head.pool import Drawn, Draws, Manner, SamplerPool
from strata_kernels.norm.compiled import rms_norm_rows
from strata_kernels.params import HeadParams, HeadWeights
from strata_kernels.product import product
from strata_kernels.sampling import PURPOSES
from strata_kernels.sampling.compiled import add_gumbel


def head(x: Tensor, draws: Draws, pool: SamplerPool, weights: HeadWeights, params: HeadParams) -> Drawn:
    """As the reference's."""
    rows, width = x.shape
    wide = x.float().contiguous()
    normed = torch.empty_like(wide)
    rms_norm_rows(wide.data_ptr(), weights.norm.data_ptr(), normed.data_ptr(), rows, width, params.eps)
    wanted = torch.empty(draws.rows.shape[0], width)
    compiled.gather_rows(
        normed.data_ptr(), width * 4, draws.rows.data_ptr(), draws.rows.shape[0], width, wanted.data_ptr()
    )
    scores = _score(wanted, draws, weights, params)
    processed = _penalize(scores, draws, pool) if draws.penalties else scores
    count, vocab = draws.count, params.vocab
    tokens, best = torch.zeros(len(wanted), dtype=torch.int64), torch.zeros(len(wanted))
    probability = torch.zeros(len(wanted)) if draws.probabilities or draws.distributions else None
    shares = 0 if probability is None else probability.data_ptr()
    compiled.draw_best(processed.data_ptr(), count, vocab, tokens.data_ptr(), best.data_ptr(), shares)
    p = torch.zeros_like(processed) if draws.distributions else None
    for manner in draws.manners:
        if p is not None:
            reference.draw(processed, tokens, probability, p, manner, draws, pool)
        elif not manner.greedy and (manner.top_k or manner.top_p):
            _draw_some(processed, tokens, probability, manner, draws, pool)
        elif not manner.greedy:
            index = manner.index
            compiled.draw_noisy(
                processed.data_ptr(),
                0 if index is None else index.data_ptr(),
                count if index is None else len(index),
                vocab,
                draws.slots.data_ptr(),
                draws.positions.data_ptr(),
                pool.seeds.data_ptr(),
                pool.temperature.data_ptr(),
                pool.min_p.data_ptr(),
                PURPOSES[draws.purpose],
                tokens.data_ptr(),
                shares,
            )
    return Drawn(normed.to(x.dtype), tokens, best, scores, probability, p)


def _score(wanted: Tensor, draws: Draws, weights: HeadWeights, params: HeadParams) -> Tensor:
    if draws.ids is not None:
        return reference.score(wanted, draws, weights, params)
    scores = product(wanted, [weights.out], draws.count)
    if params.real < params.vocab:
        compiled.mask_behind(scores.data_ptr(), draws.count, params.vocab, params.real)
    return scores


def _penalize(scores: Tensor, draws: Draws, pool: SamplerPool) -> Tensor:
    out, drafts = torch.empty_like(scores), draws.drafts.contiguous()
    compiled.penalize(
        scores.data_ptr(),
        draws.count,
        scores.shape[1],
        out.data_ptr(),
        draws.slots.data_ptr(),
        draws.earlier.data_ptr(),
        drafts.data_ptr(),
        drafts.shape[1],
        *(column.data_ptr() for column in (pool.repetition, pool.frequency, pool.presence)),
        *(table.data_ptr() for table in (pool.counts, pool.seen, pool.bias)),
    )
    return out


def _draw_some(
    scores: Tensor, tokens: Tensor, probability: Tensor | None, manner: Manner, draws: Draws, pool: SamplerPool
) -> None:
    """The draws of a manner with top-k or top-p: torch's candidates, noise by compiled calls."""
    index = torch.arange(draws.count) if manner.index is None else manner.index
    slots = draws.slots.index_select(0, index)
    ids, kept = reference.candidates(scores.index_select(0, index), replace(manner, index=index), slots, pool)
    ids, noisy = ids.contiguous(), kept.clone()
    seeds, positions = pool.seeds.index_select(0, slots), draws.positions.index_select(0, index)
    add_gumbel(
        noisy.data_ptr(), ids.data_ptr(), *noisy.shape, seeds.data_ptr(), positions.data_ptr(), PURPOSES[draws.purpose]
    )
    best = noisy.argmax(-1, keepdim=True)
    tokens.index_copy_(0, index, ids.gather(1, best).squeeze(1))
    if probability is not None:
        probability.index_copy_(0, index, kept.softmax(-1).gather(1, best).squeeze(1))
