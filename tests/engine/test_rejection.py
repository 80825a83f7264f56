"""Rejection sampling is exact in distribution: chi-square over many seeds, which a wrong rule fails."""

from collections.abc import Callable, Sequence

import pytest
import torch

from strata_cli.config import SamplingParams
from strata_cli.engine.sampling import Draw, distribution, sample
from strata_cli.engine.verify import accept_coupled, accept_rejection
from tests.support.engine import engine, prompt, request, run, tiny

VOCAB, SEEDS = 6, 3000
P = torch.tensor([[0.4, 0.2, 0.2, 0.1, 0.07, 0.03], [0.05, 0.5, 0.05, 0.2, 0.1, 0.1], [1 / 6] * 6])
Q = torch.tensor([[0.1, 0.5, 0.1, 0.1, 0.1, 0.1], [0.2, 0.2, 0.2, 0.2, 0.1, 0.1]])
LIMIT = 20.5  # chi-square with 5 degrees of freedom: exceeded once in 1,000


def draws(seed: int) -> list[Draw]:
    return [Draw(SamplingParams(temperature=1.0), seed, 10 + j) for j in range(3)]


def drafted(seed: int) -> list[int]:
    """Two drafts from q, with the drafter's own noise."""
    return sample(Q.log(), draws(seed)[:2], "draft")[0].tolist()


def chi_square(counts: torch.Tensor, p: torch.Tensor) -> float:
    expected = p * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def outcomes(rule: Callable[[list[int], Sequence[Draw]], list[int]]) -> tuple[float, float]:
    """Chi-square of the first token, and of the second one where there is a second."""
    first, second = torch.zeros(VOCAB), torch.zeros(VOCAB)
    for seed in range(SEEDS):
        kept = rule(drafted(seed), draws(seed))
        first[kept[0]] += 1
        if len(kept) > 1:
            second[kept[1]] += 1
    return chi_square(first, P[0]), chi_square(second, P[1])


def test_the_rule_is_exact() -> None:
    first, second = outcomes(lambda d, rows: accept_rejection(d, P, Q, rows)[0])
    assert first < LIMIT
    assert second < LIMIT


def test_a_wrong_rule_is_noticed() -> None:
    """Drawing from p instead of the residual after a rejection."""

    def wrong(d: list[int], rows: Sequence[Draw]) -> list[int]:
        kept, held = accept_rejection(d, P, Q, rows)
        return kept if held else [int(sample(P[:1].log(), rows[:1], "residual")[0])]

    first, _ = outcomes(wrong)
    assert first > LIMIT


def test_coupled_sampling_is_exact_too() -> None:
    def coupled(_: list[int], rows: Sequence[Draw]) -> list[int]:
        guesses = sample(Q.log(), rows[:2])[0].tolist()
        return accept_coupled(guesses, sample(P.log(), rows)[0].tolist())

    first, second = outcomes(coupled)
    assert first < LIMIT
    assert second < LIMIT


def test_acceptance_is_what_theory_says() -> None:
    """Rejection keeps a first draft with probability sum min(p, q); coupling with at least (1 - d) / (1 + d)."""
    held = sum(accept_rejection(drafted(s), P, Q, draws(s))[1] > 0 for s in range(SEEDS)) / SEEDS
    overlap = torch.minimum(P[0], Q[0]).sum().item()
    assert held == pytest.approx(overlap, abs=0.03)
    same = sum(
        sample(Q[:1].log(), draws(s)[:1])[0].item() == sample(P[:1].log(), draws(s)[:1])[0].item() for s in range(SEEDS)
    )
    assert same / SEEDS > overlap / (2 - overlap) - 0.03


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_engine_samples_from_its_own_distribution(temperature: float) -> None:
    """Second token after a fixed prompt over many seeds, against its exact distribution; greedy is the argmax."""
    many = 600 if temperature else 3
    settings = {"accept": "rejection", "mtp_varlen": False, "batch": 8, "spec": 2, "ctx": 64}
    manner = {"temperature": temperature, "top_k": 4, "max_tokens": 2}
    found = run(engine(tiny(), **settings), [request(f"{i:04}", prompt(8), seed=i, **manner) for i in range(many)])
    assert sum(r.spec.verified for r in found.results.values()) == 0  # two tokens: the second one has no draft
    manner["max_tokens"] = 3
    found = run(engine(tiny(), **settings), [request(f"{i:04}", prompt(8), seed=i, **manner) for i in range(many)])
    plain = run(
        engine(tiny(), spec=0, batch=8, ctx=64), [request(f"{i:04}", prompt(8), seed=i, **manner) for i in range(many)]
    )
    if temperature == 0:
        assert found.tokens() == plain.tokens()
        return
    assert sum(r.spec.accepted for r in found.results.values()) > 0
    pairs = [tuple(t[:2]) for t in found.tokens()]
    wanted = [tuple(t[:2]) for t in plain.tokens()]
    kinds = [k for k in set(wanted) if wanted.count(k) >= 20]
    # two samples of one distribution: the homogeneity statistic, its limit for that many kinds at about 1 in 1,000
    statistic = sum((pairs.count(k) - wanted.count(k)) ** 2 / (pairs.count(k) + wanted.count(k)) for k in kinds)
    assert statistic < len(kinds) + 3.5 * (2 * len(kinds)) ** 0.5 + 5


def test_processing_applies_to_both_distributions() -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(1))
    p = distribution(logits, [Draw(SamplingParams(temperature=0.5, top_k=3), 1, 1)])
    assert int((p > 0).sum()) == 3
    assert p.sum().item() == pytest.approx(1.0, abs=1e-6)
