"""From hidden rows to tokens, row by row: norm, output head, penalties, bias, temperature, top-k, top-p, min-p, noise.

A token is argmax(score + gumbel(seed, position, id)) over the request's own processed scores, so it depends on the
prompt, the parameters and the seed alone. The drafter draws with the same noise and so guesses the sample, not just
the argmax. Order of the processors: as transformers has them; bias after the penalties.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from strata_kernels.head.pool import Drawn, Draws, Manner, SamplerPool
from strata_kernels.norm import rms_norm
from strata_kernels.params import HeadParams, HeadWeights
from strata_kernels.product import product, product_at
from strata_kernels.sampling import PURPOSES, gumbel

LANES = 32  # candidates are padded to whole vectors: a vector and its scalar tail round logarithms differently


def head(x: Tensor, draws: Draws, pool: SamplerPool, weights: HeadWeights, params: HeadParams) -> Drawn:
    """x [R, D] -> the normed rows, and a token for each draw."""
    hidden = rms_norm(x, weights.norm, params.eps)
    scores = score(hidden.index_select(0, draws.rows), draws, weights, params)
    processed = penalize(scores, draws, pool) if draws.penalties else scores
    best, tokens = processed.max(-1)
    wanted = draws.probabilities or draws.distributions
    p = torch.zeros_like(processed) if draws.distributions else None
    probability = best.clone() if wanted else None
    for manner in draws.manners:
        draw(processed, tokens, probability, p, manner, draws, pool)
    return Drawn(hidden, tokens, best, scores, probability, p)


def score(wanted: Tensor, draws: Draws, weights: HeadWeights, params: HeadParams) -> Tensor:
    """Float32 scores [W, V] of the wanted rows; -inf for ids that do not exist, or are not in the draft vocabulary."""
    if draws.ids is not None:
        some = product_at(wanted, weights.out, draws.ids, draws.count).float()
        return some.new_full((len(wanted), params.vocab), -torch.inf).index_copy_(1, draws.ids, some)
    scores = product(wanted, [weights.out], draws.count).float()
    if params.real < params.vocab:
        scores[:, params.real :].fill_(-torch.inf)
    return scores


def penalize(scores: Tensor, draws: Draws, pool: SamplerPool) -> Tensor:
    """Repetition (prompt and generated), frequency and presence penalties (generated), then bias: [W, V] -> [W, V].

    A row counts the slot's earlier drafts of this window as if they had all been accepted; only their ids' scores are
    worked out anew, so no row needs counts of its own.
    """
    slots = draws.slots

    def column(values: Tensor) -> Tensor:
        return values.index_select(0, slots).unsqueeze(1)

    repetition, frequency, presence = column(pool.repetition), column(pool.frequency), column(pool.presence)
    counts, bias = pool.counts.index_select(0, slots), pool.bias.index_select(0, slots)

    def punish(x: Tensor, known: Tensor | None, counted: Tensor, biases: Tensor) -> Tensor:
        y = torch.where(x < 0, x * repetition, x / repetition)
        y = y if known is None else torch.where(known, y, x)
        return y - counted * frequency - (counted > 0) * presence + biases

    out = punish(scores, pool.seen.index_select(0, slots) | (counts > 0), counts, bias)
    if draws.drafts.shape[1]:
        ids = draws.drafts.index_select(0, slots)  # [W, T]
        before = torch.arange(ids.shape[1], device=ids.device) < draws.earlier.unsqueeze(1)
        extra = ((ids.unsqueeze(2) == ids.unsqueeze(1)) & before.unsqueeze(1)).sum(-1)
        again = punish(scores.gather(1, ids), None, counts.gather(1, ids) + extra, bias.gather(1, ids))
        out.scatter_(1, ids, torch.where(extra > 0, again, out.gather(1, ids)))
    return out


def draw(
    scores: Tensor,
    tokens: Tensor,
    probability: Tensor | None,
    p: Tensor | None,
    manner: Manner,
    draws: Draws,
    pool: SamplerPool,
) -> None:
    """Fill in the tokens [W], their probabilities [W] and distributions [W, V] of the draws of one manner."""
    index = manner.index
    some = scores if index is None else scores.index_select(0, index)
    if manner.greedy:
        chosen = tokens if index is None else tokens.index_select(0, index)
        if probability is not None:
            _put(probability, index, some.softmax(-1).gather(1, chosen.unsqueeze(1)).squeeze(1))
        if p is not None:
            _put(p, index, torch.zeros_like(some).scatter_(1, chosen.unsqueeze(1), 1.0))
        return
    slots = draws.slots if index is None else draws.slots.index_select(0, index)
    positions = draws.positions if index is None else draws.positions.index_select(0, index)
    ids, kept = candidates(some, manner, slots, pool)
    noise = noisy(ids, kept, pool.seeds.index_select(0, slots), positions, PURPOSES[draws.purpose])
    best = noise.argmax(-1, keepdim=True)
    _put(tokens, index, ids.gather(1, best).squeeze(1))
    if probability is not None:
        shares = kept.softmax(-1)
        _put(probability, index, shares.gather(1, best).squeeze(1))
        if p is not None:
            _put(p, index, torch.zeros_like(some).scatter_add_(1, ids, shares))


def _put(target: Tensor, index: Tensor | None, values: Tensor) -> None:
    if index is None:
        target.copy_(values)
    else:
        target.index_copy_(0, index, values)


def candidates(scores: Tensor, manner: Manner, slots: Tensor, pool: SamplerPool) -> tuple[Tensor, Tensor]:
    """What temperature, top-k, top-p and min-p leave of scores [n, V]: ids and scores [n, C], whole lanes wide, -inf
    where nothing is left.
    """
    vocab = scores.shape[1]
    kept = scores / pool.temperature.index_select(0, slots).unsqueeze(1)
    if 0 < manner.top_k < vocab:
        kept, ids = kept.topk(manner.top_k, -1)
    elif manner.top_p:
        kept, ids = kept.sort(stable=True, dim=-1, descending=True)
    else:
        ids = torch.arange(vocab, device=scores.device).expand_as(kept)
    if padding := -kept.shape[1] % LANES:
        kept, ids = F.pad(kept, (0, padding), value=-torch.inf), F.pad(ids, (0, padding))
    if manner.top_p:
        p = kept.softmax(-1)
        out = p.cumsum(-1) - p >= pool.top_p.index_select(0, slots).unsqueeze(1)  # mass of the more probable ones
        out[:, 0].zero_()
        kept = kept.masked_fill(out, -torch.inf)
    if manner.min_p:  # p < min_p * max p, without the sum that both sides share
        floor = kept.amax(-1, keepdim=True) + pool.min_p.index_select(0, slots).unsqueeze(1)
        kept = kept.masked_fill(kept < floor, -torch.inf)
    return ids, kept


def noisy(ids: Tensor, scores: Tensor, seeds: Tensor, positions: Tensor, purpose: int | Tensor) -> Tensor:
    """Scores [n, C] of ids [n, C] with the noise of (seed, position, id, purpose) added; what is out stays out."""
    noise = gumbel(seeds.unsqueeze(1), ids, positions.unsqueeze(1), purpose)
    return torch.where(scores == -torch.inf, scores, scores + noise)
