"""The slots' sampling on the device: parameters and counts written at admission, moved on at commit.

`SlotSampler` also knows, on the host, which slots are drawn alike, so that a window makes no decision on the device.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from strata_cli.config import SamplingParams
from strata_cli.engine.buffers import allocate
from strata_cli.engine.life import Slot
from strata_cli.engine.types import TokenLogprob
from strata_kernels.head.pool import Manner, SamplerPool
from strata_kernels.layout import Arrays

GREEDY = Manner(None, True)


def signed(seed: int) -> int:
    """A 64-bit seed as the int64 with the same bits."""
    return seed - 2**64 if seed >= 2**63 else seed


def manner(params: SamplingParams) -> Manner:
    """How a request's rows are drawn: rows of one manner share a call, and their bits do not depend on each other."""
    if params.temperature == 0:
        return GREEDY
    return Manner(None, False, params.top_k, params.top_p < 1, params.min_p > 0)


class SlotSampler:
    """A resource of the engine (`resources.Resource`): `pool` on the device, the slots' parameters on the host."""

    def __init__(self, planned: Arrays, device: torch.device):
        """planned: `layout.sampler_pool`."""
        self.pool, self.device = SamplerPool(**allocate(planned, device)), device
        slots, vocab = self.pool.counts.shape
        self.params: list[SamplingParams | None] = [None] * slots
        self._flat = torch.arange(slots, device=device).unsqueeze(1) * vocab

    def admit(self, slot: Slot) -> None:
        """The request's parameters, and the counts of its prompt and of what it generated before."""
        i, life, params, pool = slot.index, slot.life, slot.life.request.params, self.pool
        self.params[i] = params
        values = {
            "temperature": params.temperature or 1.0,
            "top_p": params.top_p,
            "min_p": math.log(params.min_p) if params.min_p else -math.inf,
            "repetition": params.repetition_penalty,
            "frequency": params.frequency_penalty,
            "presence": params.presence_penalty,
            "seeds": signed(life.seed),
        }
        for name, value in values.items():
            getattr(pool, name)[i] = value
        pool.bias[i] = 0
        if params.has_penalties:  # else its counts are multiplied with nothing
            pool.counts[i], pool.seen[i] = 0, False
            pool.seen[i][torch.tensor(life.request.prompt, device=self.device)] = True
            if generated := life.tokens[len(life.request.prompt) :]:
                ids = torch.tensor(generated, device=self.device)
                pool.counts[i].index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))
        if params.logit_bias:
            ids = torch.tensor([token for token, _ in params.logit_bias], device=self.device)
            bias = torch.tensor([value for _, value in params.logit_bias], dtype=torch.float32, device=self.device)
            pool.bias[i].index_put_((ids,), bias, accumulate=True)

    def release(self, slot: int) -> None:
        self.params[slot] = None

    def undo(self, slot: Slot) -> None:
        """Counts move at commit alone: a window that failed left nothing."""

    def penalised(self, slot: int) -> bool:
        """Whether the slot's scores are not its logits."""
        params = self.params[slot]
        return params is not None and (params.has_penalties or bool(params.logit_bias))

    def manners(self, slots: Sequence[int]) -> list[tuple[Manner, list[int]]]:
        """The manners of draws of these slots, each with the numbers of its draws."""
        found: dict[Manner, list[int]] = {}
        for i, slot in enumerate(slots):
            params = self.params[slot]
            assert params is not None, f"slot {slot} is empty"
            found.setdefault(manner(params), []).append(i)
        return list(found.items())

    def counts_for(self, slots: Sequence[int]) -> bool:
        """Whether any of these slots counts its tokens."""
        return any(p is not None and p.has_penalties for p in (self.params[s] for s in slots))

    def commit(self, targets: Tensor, keeps: Tensor) -> None:
        """Count the first keeps [S] of targets [S, T + 1], for every slot: the counts of one without penalties are not
        read.
        """
        kept = torch.arange(targets.shape[1], device=targets.device) < keeps.unsqueeze(1)
        places = (targets + self._flat).view(-1)
        self.pool.counts.view(-1).index_add_(0, places, kept.to(torch.int32).view(-1))


def logprobs(scores: Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """Log probabilities of tokens by the unprocessed distributions of their rows, scores [n, V], each with the `top`
    most probable ids.
    """
    lp = scores.log_softmax(-1)
    own = lp.gather(1, torch.tensor(tokens, device=lp.device).unsqueeze(1)).squeeze(1).tolist()
    best, ids = (t.tolist() for t in lp.topk(top, -1)) if top else ([[]] * len(tokens), [[]] * len(tokens))
    return [TokenLogprob(t, p, tuple(zip(i, b))) for t, p, b, i in zip(tokens, own, best, ids)]
