"""The head's compiled sibling against its specification: the same tokens, shares within rounding, bits by row alone."""

from dataclasses import replace
from itertools import product as every
from typing import Any

import pytest
import torch
from torch import Tensor

from strata_kernels import compiling
from strata_kernels.head import cpu, reference
from strata_kernels.head.pool import Drawn, Draws, Manner, SamplerPool
from strata_kernels.params import HeadParams, HeadWeights
from strata_kernels.weight import Weight

pytestmark = pytest.mark.skipif(bool(compiling.fault()), reason=compiling.fault() or "-")

SLOTS, CHAIN, DIM = 4, 3, 24


def made(vocab: int, seed: int = 0) -> tuple[Tensor, SamplerPool, HeadWeights, HeadParams]:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g)

    weights = HeadWeights(normal(DIM), Weight("f32", {"weight": normal(vocab, DIM)}, (vocab, DIM)))
    pool = SamplerPool(
        temperature=torch.tensor([0.7, 1.0, 1.3, 0.4]),
        top_p=torch.tensor([0.9, 0.5, 1.0, 0.95]),
        min_p=torch.tensor([0.05, 0.0, 0.2, 0.01]).log(),
        repetition=torch.tensor([1.0, 1.3, 0.9, 1.1]),
        frequency=torch.tensor([0.0, 0.4, -0.2, 0.1]),
        presence=torch.tensor([0.0, 0.3, 0.5, 0.0]),
        seeds=torch.randint(-(2**62), 2**62, (SLOTS,), generator=g),
        counts=torch.randint(0, 3, (SLOTS, vocab), generator=g).to(torch.int32),
        seen=torch.rand(SLOTS, vocab, generator=g) < 0.3,
        bias=normal(SLOTS, vocab) * (torch.rand(SLOTS, vocab, generator=g) < 0.1),
    )
    return normal(40, DIM), pool, weights, HeadParams(DIM, vocab, vocab - 3, 1e-6)


def draws(n: int, vocab: int, manners: tuple[Manner, ...], **more: Any) -> Draws:
    g = torch.Generator().manual_seed(n)
    slots = torch.arange(n) % SLOTS
    return Draws(
        rows=torch.randint(0, 40, (n,), generator=g),
        slots=slots,
        positions=torch.randint(0, 5000, (n,), generator=g),
        earlier=torch.randint(0, CHAIN + 1, (n,), generator=g),
        drafts=torch.randint(0, min(vocab, 5), (SLOTS, CHAIN), generator=g),  # few ids: drafts repeat
        count=n,
        manners=manners,
        probabilities=True,
        **more,
    )


MANNERS = {
    "greedy": Manner(None, True),
    "all ids": Manner(None, False),
    "min-p": Manner(None, False, min_p=True),
    "top-k": Manner(None, False, top_k=5),
    "top-p": Manner(None, False, top_p=True),
    "all three": Manner(None, False, 7, True, True),
}


def agree(a: Drawn, b: Drawn, n: int) -> None:
    assert torch.equal(a.tokens[:n], b.tokens[:n])
    assert torch.allclose(a.hidden, b.hidden, atol=1e-5)
    assert torch.allclose(a.best[:n], b.best[:n], atol=1e-4)
    assert a.probability is not None and b.probability is not None
    assert torch.allclose(a.probability[:n], b.probability[:n], atol=1e-5)


@pytest.mark.parametrize(("name", "penalties", "vocab"), list(every(MANNERS, (False, True), (37, 131, 2048))))
def test_as_the_reference(name: str, penalties: bool, vocab: int) -> None:
    x, pool, weights, params = made(vocab)
    if not MANNERS[name].min_p:
        pool = replace(pool, min_p=torch.full((SLOTS,), -torch.inf))
    for n in (1, 3, 17):
        asked = draws(n, vocab, (MANNERS[name],), penalties=penalties)
        agree(cpu.head(x, asked, pool, weights, params), reference.head(x, asked, pool, weights, params), n)


@pytest.mark.parametrize("penalties", [False, True])
def test_manners_beside_each_other(penalties: bool) -> None:
    """Each row is drawn as it is alone, bit by bit."""
    x, pool, weights, params = made(131)
    split = [torch.tensor(part) for part in ([0, 4, 8], [1, 5], [2, 6, 7], [3])]
    kinds = (Manner(None, True), Manner(None, False, min_p=True), Manner(None, False, 9), Manner(None, False, 0, True))
    manners = tuple(replace(kind, index=index) for kind, index in zip(kinds, split, strict=True))
    asked = draws(9, 131, manners, penalties=penalties)
    found = cpu.head(x, asked, pool, weights, params)
    agree(found, reference.head(x, asked, pool, weights, params), 9)
    for kind, index in zip(kinds, split, strict=True):
        for i in index.tolist():
            one = replace(
                asked,
                rows=asked.rows[i : i + 1],
                slots=asked.slots[i : i + 1],
                positions=asked.positions[i : i + 1],
                earlier=asked.earlier[i : i + 1],
                count=1,
                manners=(kind,),
            )
            alone = cpu.head(x, one, pool, weights, params)
            assert torch.equal(alone.tokens, found.tokens[i : i + 1])
            assert torch.equal(alone.scores[0], found.scores[i])
            assert alone.probability is not None and found.probability is not None
            assert torch.equal(alone.probability, found.probability[i : i + 1])


def test_the_lowest_of_equal_scores_and_rows_that_are_not_numbers() -> None:
    x, pool, weights, params = made(131)
    scores = weights.out.parts["weight"]
    scores[70] = scores[20]
    x[1, 3] = torch.nan
    asked = replace(draws(2, 131, (MANNERS["greedy"],)), rows=torch.tensor([0, 1]))
    normed = torch.nn.functional.rms_norm(x[:1], (DIM,), weights.norm, 1e-6)
    scores[20] = scores[70] = normed[0] * 9  # the best by far, twice
    found = cpu.head(x, asked, pool, weights, params)
    assert found.tokens[0] == 20
    assert found.best[0].isfinite() and found.best[1].isnan()
    assert found.probability is not None and found.probability[1].isnan()


def test_noise_is_the_reference_s() -> None:
    """Ids far from the best get no noise: where all stand close together, each does."""
    x, pool, weights, params = made(2048)
    pool = replace(pool, temperature=torch.full((SLOTS,), 50.0), min_p=torch.full((SLOTS,), -torch.inf))
    for seed in range(8):
        pool.seeds.random_(generator=torch.Generator().manual_seed(seed))
        asked = draws(16, 2048, (MANNERS["all ids"],))
        agree(cpu.head(x, asked, pool, weights, params), reference.head(x, asked, pool, weights, params), 16)
