"""Rejection sampling is exact in distribution: chi-square over many seeds, which a wrong rule fails."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch

from strata_cli.config import SamplingParams
from strata_cli.engine.verify import Accepted, Judged, accept_coupled, accept_rejection
from strata_kernels.head import reference
from strata_kernels.head.pool import Drawn, Draws, Manner, SamplerPool
from tests.support.draws import Row, admitted, distribution
from tests.support.engine import engine, prompt, request, run, tiny
from tests.support.tiny import reference_model

VOCAB, SEEDS = 6, 3000
P = torch.tensor([[0.4, 0.2, 0.2, 0.1, 0.07, 0.03], [0.05, 0.5, 0.05, 0.2, 0.1, 0.1], [1 / 6] * 6])
Q = torch.tensor([[0.1, 0.5, 0.1, 0.1, 0.1, 0.1], [0.2, 0.2, 0.2, 0.2, 0.1, 0.1]])


def limit(freedom: int) -> float:
    """What chi-square exceeds once in 1,000 (Wilson and Hilferty, 1931)."""
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + 3.09 * spread**0.5) ** 3)


def chi_square(counts: torch.Tensor, p: torch.Tensor) -> float:
    expected = p * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def many(p: torch.Tensor, purpose: str = "coupled") -> tuple[Drawn, Draws, SamplerPool]:
    """A draw for each seed and row of p [n, V]; a slot a seed, its draws one behind the other."""
    n = len(p)
    slots, rows = torch.arange(SEEDS).repeat_interleave(n), torch.arange(n * SEEDS)
    pool = admitted([Row(SamplingParams(temperature=1.0), seed, 10) for seed in range(SEEDS)], VOCAB).pool
    none, drafts = torch.zeros_like(rows), torch.zeros(SEEDS, 0, dtype=torch.int64)
    draws = Draws(rows, slots, 10 + rows % n, none, drafts, len(rows), (Manner(None, False),), purpose=purpose)
    scores = p.log().repeat(SEEDS, 1)
    tokens, probability, shares = none.clone(), torch.zeros(len(rows)), torch.zeros_like(scores)
    reference.draw(scores, tokens, probability, shares, draws.manners[0], draws, pool)
    assert torch.allclose(shares, p.repeat(SEEDS, 1), atol=1e-6)
    return Drawn(scores, tokens, scores.amax(-1), scores, probability, shares), draws, pool


def drawn(p: torch.Tensor, purpose: str = "coupled") -> list[list[int]]:
    """Tokens of the rows of p for every seed."""
    return many(p, purpose)[0].tokens.view(SEEDS, -1).tolist()


def asked(drafts: list[list[int]]) -> Judged:
    """Two drafts for each seed, as drawn from Q."""
    first = torch.arange(SEEDS) * 3
    return Judged(torch.full((SEEDS,), 3), first, torch.tensor(drafts), Q.expand(SEEDS, -1, -1))


def kept(accepted: Accepted) -> list[tuple[list[int], int]]:
    return [(row[: held + 1], held) for row, held in zip(accepted.targets.tolist(), accepted.held.tolist())]


@cache
def judged() -> list[tuple[list[int], int]]:
    """Kept tokens and the number of drafts that held, by seed; the drafts come from q, by the drafter's own noise."""
    targets, draws, pool = many(P)
    return kept(accept_rejection(targets, asked(drawn(Q, "draft")), draws, pool))


def statistics(texts: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Chi-square of the first tokens, and of the second ones where there is a second."""
    counts = torch.zeros(2, VOCAB)
    for tokens in texts:
        for j, token in enumerate(tokens[:2]):
            counts[j, token] += 1
    return chi_square(counts[0], P[0]), chi_square(counts[1], P[1])


def test_the_rule_is_exact() -> None:
    first, second = statistics([tokens for tokens, _ in judged()])
    assert first < limit(VOCAB - 1)
    assert second < limit(VOCAB - 1)


def test_a_wrong_rule_is_noticed() -> None:
    """Drawing from p instead of the residual after a rejection."""
    instead = drawn(P[:1], "residual")
    first, _ = statistics([tokens if held else instead[seed] for seed, (tokens, held) in enumerate(judged())])
    assert first > limit(VOCAB - 1)


def test_coupled_sampling_is_exact_too() -> None:
    accepted = kept(accept_coupled(many(P)[0], asked(drawn(Q))))
    first, second = statistics([tokens for tokens, _ in accepted])
    assert first < limit(VOCAB - 1)
    assert second < limit(VOCAB - 1)


def test_acceptance_is_what_theory_says() -> None:
    """Rejection keeps a first draft with probability sum min(p, q); coupling with at least (1 - d) / (1 + d)."""
    overlap = torch.minimum(P[0], Q[0]).sum().item()
    assert sum(held > 0 for _, held in judged()) / SEEDS == pytest.approx(overlap, abs=0.03)
    same = sum(g == t for g, t in zip(drawn(Q[:1]), drawn(P[:1]))) / SEEDS
    assert same > overlap / (2 - overlap) - 0.03


# ------------------------------------------------------------------ the engine

TOP, MANY = 3, 600
PROMPT = prompt(8)
MANNER: dict[str, Any] = {"temperature": 0.9, "top_k": TOP, "frequency_penalty": 1.5, "max_tokens": 4}


@cache
def exact() -> dict[tuple[int, ...], float]:
    """The probability of every text of three tokens: transformers' logits, processed by hand."""
    model = reference_model(tiny("dense-attention", agree=1.0))
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        longer = {}
        for text, p in texts.items():
            with torch.inference_mode():
                logits = model(torch.tensor([[*PROMPT, *text]])).logits[0, -1].tolist()
            for token, n in Counter(text).items():
                logits[token] -= 1.5 * n
            best = sorted(range(len(logits)), key=logits.__getitem__)[-TOP:]
            shares = torch.tensor([logits[t] / 0.9 for t in best]).softmax(0).tolist()
            longer.update({(*text, t): p * share for t, share in zip(best, shares)})
        texts = longer
    return texts


@pytest.mark.parametrize("accept", ["rejection", "coupled"])
@pytest.mark.parametrize(
    "manner", [{"mtp_varlen": False}, {"mtp_varlen": False, "spec_min_p": 0.5}, {"spec_min_p": 0.3}, {"rows": 24}]
)
def test_the_engine_samples_its_own_distribution(accept: str, manner: dict[str, Any]) -> None:
    """Texts over many seeds against their exact probabilities; two drafts a window, wrong and right ones, all of them
    judged or some left out for their probability.
    """
    e = engine(tiny("dense-attention", agree=1.0), accept=accept, batch=16, spec=2, ctx=64, **manner)
    found = run(e, [request(f"{seed:04}", PROMPT, seed=seed, **MANNER) for seed in range(MANY)])
    specs = [r.spec for r in found.results.values()]
    assert 0.3 < sum(s.accepted for s in specs) / sum(s.verified for s in specs) < 0.98
    if manner != {"mtp_varlen": False}:
        assert len({L for r in found.records for L in r.L if L}) > 1
    counts = Counter(tuple(tokens[:3]) for tokens in found.tokens())
    assert counts.keys() <= exact().keys()
    order = sorted(exact(), key=exact().__getitem__, reverse=True)
    likely = [text for text in order if exact()[text] * MANY >= 5]
    pools = [[text] for text in likely[:-1]] + [[likely[-1], *order[len(likely) :]]]  # the rare ones count together
    p = torch.tensor([sum(exact()[text] for text in pool) for pool in pools])
    seen = torch.tensor([float(sum(counts[text] for text in pool)) for pool in pools])
    assert len(pools) > 4
    assert chi_square(seen, p) < limit(len(pools) - 1)


def test_slots_are_judged_by_their_own_L() -> None:
    """Beside each other in one window, first draws anywhere: what each gives alone; L = 0 gives nothing to keep."""
    targets, draws, pool = many(P)
    guesses = drawn(Q, "draft")
    whole = asked(guesses)
    every = kept(accept_rejection(targets, whole, draws, pool))
    for L in (1, 2):
        whole.L = torch.full((SEEDS,), L)
        for (shorter, held), (longer, all_held) in zip(kept(accept_rejection(targets, whole, draws, pool)), every):
            assert held == min(all_held, L - 1)
            assert shorter[:-1] == longer[:held]
            assert shorter == longer[: held + 1] or all_held >= L - 1  # all of its drafts held: drawn from p
    coupled = kept(accept_coupled(targets, whole))
    assert all(held <= 1 for _, held in coupled) and any(held == 1 for _, held in coupled)
    whole.L = torch.zeros(SEEDS, dtype=torch.int64)
    assert not accept_coupled(targets, whole).held.any()


def test_greedy_rejection_is_the_argmax() -> None:
    requests = [request(str(i), prompt(8 + i, seed=i)) for i in range(4)]
    found = run(engine(tiny(), accept="rejection", mtp_varlen=False), requests)
    assert found.tokens() == run(engine(tiny(), spec=0), requests).tokens()
    assert sum(r.spec.accepted for r in found.results.values()) > 0


def test_processing_applies_to_both_distributions() -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(1))
    p = distribution(logits, [Row(SamplingParams(temperature=0.5, top_k=3), 1, 1)])
    assert int((p > 0).sum()) == 3
    assert p.sum().item() == pytest.approx(1.0, abs=1e-6)
