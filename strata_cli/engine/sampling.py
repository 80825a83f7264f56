"""From logits to tokens, row by row: penalties, bias, temperature, top-k, top-p, min-p, then seeded Gumbel noise.

A token is argmax(score + gumbel(seed, position, id)) over the request's own processed scores, so it depends on the
prompt, the parameters and the seed alone. The drafter draws with the same noise and so guesses the sample, not just
the argmax. Order of the processors: as transformers has them; bias after the penalties.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from strata_cli.config import SamplingParams
from strata_kernels.sampling import PURPOSES, gumbel

LANES = 32  # candidates are padded to whole vectors: a vector and its scalar tail round logarithms differently


@dataclass(frozen=True, slots=True)
class Draw:
    """One row to be drawn: the slot's parameters and seed, the absolute position of the token, its penalty counts.

    counts [V] int32: times each token was generated before this row; seen [V] bool: in the prompt or generated.
    """

    params: SamplingParams
    seed: int
    position: int
    counts: Tensor | None = None
    seen: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Candidates:
    """What is left of some rows after processing: ids [n, C] and their scores [n, C] (-inf = out), logits over
    temperature.
    """

    ids: Tensor
    scores: Tensor


def signed(seed: int) -> int:
    """A 64-bit seed as the int64 with the same bits."""
    return seed - 2**64 if seed >= 2**63 else seed


def penalize(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Repetition (prompt and generated), frequency and presence penalties (generated), then bias. logits [R, V] ->
    [R, V].

    Rows without any of them keep their values; the input is not changed.
    """
    rows = [i for i, d in enumerate(draws) if d.params.has_penalties]
    biased = [(i, d.params.logit_bias) for i, d in enumerate(draws) if d.params.logit_bias]
    if not rows and not biased:
        return logits
    logits = logits.clone()
    if rows:
        counts, seen = [], []
        for i in rows:
            c, s = draws[i].counts, draws[i].seen
            assert c is not None and s is not None, "a penalised row brings its counts"
            counts.append(c)
            seen.append(s)
        counted, known = torch.stack(counts), torch.stack(seen)

        def column(name: str) -> Tensor:
            return torch.tensor(
                [[getattr(draws[i].params, name)] for i in rows], dtype=torch.float32, device=logits.device
            )

        x, repetition = logits[rows], column("repetition_penalty")
        x = torch.where(known, torch.where(x < 0, x * repetition, x / repetition), x)
        x = x - counted * column("frequency_penalty") - (counted > 0) * column("presence_penalty")
        logits[rows] = x
    for i, bias in biased:
        ids = torch.tensor([token for token, _ in bias], device=logits.device)
        logits[i, ids] += torch.tensor([value for _, value in bias], dtype=torch.float32, device=logits.device)
    return logits


def candidates(logits: Tensor, params: Sequence[SamplingParams]) -> Candidates:
    """Temperature, top-k, top-p and min-p of rows of one group. logits [n, V] -> candidates, whole lanes wide."""
    top_k = params[0].top_k
    vocab = logits.shape[1]

    def column(name: str) -> Tensor:
        return torch.tensor([[getattr(p, name)] for p in params], dtype=torch.float32, device=logits.device)

    scores = logits / column("temperature")
    cut = params[0].top_p < 1
    if 0 < top_k < vocab:
        scores, ids = scores.topk(top_k, -1)
    elif cut:
        scores, ids = scores.sort(stable=True, dim=-1, descending=True)
    else:
        ids = torch.arange(vocab, device=logits.device).expand_as(scores)
    padding = -scores.shape[1] % LANES
    scores, ids = F.pad(scores, (0, padding), value=-torch.inf), F.pad(ids, (0, padding))
    if cut:
        p = scores.softmax(-1)
        before = p.cumsum(-1) - p  # mass of the more probable ones
        out = before >= column("top_p")
        out[:, 0] = False
        scores = scores.masked_fill(out, -torch.inf)
    if any(p.min_p > 0 for p in params):
        # p < min_p * max p, without the sum that both sides share
        depth = [[math.log(p.min_p) if p.min_p else -math.inf] for p in params]
        floor = scores.amax(-1, keepdim=True) + torch.tensor(depth, device=logits.device)
        scores = scores.masked_fill(scores < floor, -torch.inf)
    return Candidates(ids, scores)


def noisy(found: Candidates, draws: Sequence[Draw], purpose: str) -> Tensor:
    """Scores with the noise of (seed, position, id, purpose) added; what is out stays out. [n, C]."""
    seeds = torch.tensor([[signed(d.seed)] for d in draws], device=found.ids.device)
    positions = torch.tensor([[d.position] for d in draws], device=found.ids.device)
    noise = gumbel(seeds, found.ids, positions, PURPOSES[purpose])
    return torch.where(found.scores == -torch.inf, -torch.inf, found.scores + noise)


def sample(logits: Tensor, draws: Sequence[Draw], purpose: str = "coupled") -> tuple[Tensor, Tensor]:
    """Draw every row. logits [R, V] float32 (unprocessed) -> token ids [R] int64 and their processed probabilities [R].

    Temperature 0: the argmax after penalties and bias, the lowest id among equals; its probability at temperature 1.
    """
    logits = penalize(logits, draws)
    tokens = logits.argmax(-1)
    probability = torch.empty(len(draws), device=logits.device)
    greedy = [i for i, d in enumerate(draws) if d.params.temperature == 0]
    if greedy:
        probability[greedy] = logits[greedy].softmax(-1).gather(1, tokens[greedy, None]).squeeze(1)
    for rows in groups(draws):
        chosen = [draws[i] for i in rows]
        found = candidates(logits[rows], [d.params for d in chosen])
        best = noisy(found, chosen, purpose).argmax(-1, keepdim=True)
        tokens[rows] = found.ids.gather(1, best).squeeze(1)
        probability[rows] = found.scores.softmax(-1).gather(1, best).squeeze(1)
    return tokens, probability


def groups(draws: Sequence[Draw]) -> list[list[int]]:
    """Indices of the sampled rows, by top_k and use of top_p: a row's bits must not depend on its neighbours'
    settings.
    """
    found: dict[tuple[int, bool], list[int]] = {}
    for i, d in enumerate(draws):
        if d.params.temperature > 0:
            found.setdefault((d.params.top_k, d.params.top_p < 1), []).append(i)
    return list(found.values())


def distribution(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Processed probabilities over the whole vocabulary, [R, V]; temperature 0 puts all on the argmax."""
    logits = penalize(logits, draws)
    p = torch.zeros_like(logits)
    greedy = [i for i, d in enumerate(draws) if d.params.temperature == 0]
    if greedy:
        p[greedy, logits[greedy].argmax(-1)] = 1
    for rows in groups(draws):
        found = candidates(logits[rows], [draws[i].params for i in rows])
        p[rows] = p[rows].scatter_add(1, found.ids, found.scores.softmax(-1))
    return p


def logprobs(logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log probabilities of the unprocessed distribution: of tokens [R], and values and ids [R, top] of the most
    probable.
    """
    lp = logits.log_softmax(-1)
    values, ids = lp.topk(top, -1) if top else (lp[:, :0], torch.zeros_like(lp[:, :0], dtype=torch.int64))
    return lp.gather(1, tokens[:, None]).squeeze(1), values, ids
