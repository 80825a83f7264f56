"""Processed distributions against transformers and plain recomputation; draws against plain arithmetic."""

import math
import random
from typing import Any

import pytest
import torch
from transformers.generation import logits_process as hf

from strata_cli.config import SamplingParams
from strata_cli.engine.life import Life, Slot
from strata_cli.engine.types import Request
from strata_kernels.sampling import gumbel, philox, uniform
from tests.support.draws import Row, admitted, distribution, draw

VOCAB = 131


def rows(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def row(position: int = 7, seed: int = 3, **params: Any) -> Row:
    return Row(SamplingParams(**{"temperature": 1.0, **params}), seed, position)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.7},
        {"temperature": 1.3, "top_k": 1},
        {"top_k": 20},
        {"top_k": 500},
        {"top_p": 0.9},
        {"top_p": 0.05},
        {"min_p": 0.1},
        {"temperature": 0.6, "top_k": 40, "top_p": 0.8, "min_p": 0.02},
        {"temperature": 2.0, "top_p": 0.95, "min_p": 0.3},
    ],
    ids=str,
)
def test_the_processed_distribution_is_transformers(params: dict[str, Any]) -> None:
    logits = rows(9)
    steps: list[Any] = [hf.TemperatureLogitsWarper(params.get("temperature", 1.0))]
    if "top_k" in params:
        steps.append(hf.TopKLogitsWarper(params["top_k"]))
    if "top_p" in params:
        steps.append(hf.TopPLogitsWarper(params["top_p"]))
    if "min_p" in params:
        steps.append(hf.MinPLogitsWarper(params["min_p"]))
    expected = logits
    for step in steps:
        expected = step(None, expected)
    found = distribution(logits, [row(**params)] * 9)
    assert torch.allclose(found, expected.softmax(-1), atol=1e-5)
    assert torch.equal(found > 0, expected.softmax(-1) > 0)


def test_repetition_penalty_counts_prompt_and_text_as_transformers_does() -> None:
    prompt, generated = [3, 9, 9, 40], [7, 9, 130]
    params = SamplingParams(temperature=0.8, repetition_penalty=1.4)
    logits = rows(2, seed=4)
    step = hf.RepetitionPenaltyLogitsProcessor(1.4)
    plain = step(torch.tensor([prompt + generated]), logits[:1].clone())
    drafted = step(torch.tensor([[*prompt, *generated, 55]]), logits[1:].clone())
    expected = (torch.cat((plain, drafted)) / 0.8).softmax(-1)
    asked = [Row(params, 1, 9, prompt, generated), Row(params, 1, 10, prompt, generated, [55])]
    assert torch.allclose(distribution(logits, asked), expected, atol=1e-5)


def test_presence_and_frequency_count_what_was_generated() -> None:
    """OpenAI's definition: logits minus count x frequency minus (count > 0) x presence; the prompt does not count."""
    params = SamplingParams(temperature=1.0, presence_penalty=0.6, frequency_penalty=0.25, logit_bias=((5, 2.0),))
    asked = [Row(params, 1, 5, [11, 12], [20]), Row(params, 1, 7, [11, 12], [20], [21, 22])]
    sampler = admitted(asked, VOCAB)
    targets = torch.tensor([[21, 20, 99], [21, 20, 99]])
    sampler.commit(targets, torch.tensor([2, 2]))  # of three the first two are kept
    logits = rows(2, seed=5)
    expected = logits.clone()
    for line, text in enumerate(([20, 21, 20], [20, 21, 20, 21, 22])):
        for token in set(text):
            expected[line, token] -= 0.25 * text.count(token) + 0.6
        expected[line, 5] += 2.0
    for _ in range(2):  # the drafts left nothing behind
        found = draw(logits, asked, sampler=sampler)[0].distributions
        assert found is not None
        assert torch.allclose(found, expected.softmax(-1), atol=1e-6)


def plain_scores(scores: list[float], of: Row) -> list[float]:
    """Penalties and bias by their definitions, from the tokens themselves: drafts before a row stand in the text."""
    params, text = of.params, [*of.generated, *of.drafts]
    found = []
    for token, score in enumerate(scores):
        if token in text or token in of.prompt:
            score = score * params.repetition_penalty if score < 0 else score / params.repetition_penalty
        score -= params.frequency_penalty * text.count(token) + params.presence_penalty * (token in text)
        found.append(score + sum(bias for t, bias in params.logit_bias if t == token))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_rows_count_the_drafts_before_them_as_if_accepted(seed: int) -> None:
    """Every row of windows of 1 to 5 rows, drafts that repeat each other, the text and the prompt."""
    chance, asked = random.Random(seed), []
    for slot in range(6):
        params = SamplingParams(
            temperature=chance.choice([0.0, 0.9]),
            repetition_penalty=chance.choice([1.0, 1.3, 0.8]),
            frequency_penalty=chance.choice([0.0, 0.4, -0.3]),
            presence_penalty=chance.choice([0.0, 0.7]),
            logit_bias=chance.choice([(), ((3, 1.5), (40, -2.0))]),
        )
        few = [chance.randrange(VOCAB) for _ in range(5)]
        prompt, generated, drafts = ([chance.choice(few) for _ in range(n)] for n in (6, 4, 4))
        asked += [Row(params, slot, 10 + j, prompt, generated, drafts[:j]) for j in range(chance.randint(1, 5))]
    scores = rows(len(asked), seed=seed)
    found, _, _ = draw(scores, asked)
    for i, one in enumerate(asked):
        expected = torch.tensor(plain_scores(scores[i].tolist(), one))
        if one.params.temperature == 0:
            assert found.tokens[i] == expected.argmax()
            assert found.best[i] == pytest.approx(expected.max().item(), abs=1e-5)
        else:
            assert found.distributions is not None
            assert torch.allclose(found.distributions[i], (expected / 0.9).softmax(-1), atol=1e-6)


def test_counts_after_any_windows_are_those_of_the_text() -> None:
    """Slots keep their own number of tokens a window; one is left and taken by a request that has a text already."""
    params = SamplingParams(temperature=1.0, presence_penalty=0.5, repetition_penalty=1.1)
    asked = [Row(params, i, 9, [i, 1, 2], [7, 7, i]) for i in range(3)]
    sampler, chance = admitted(asked, VOCAB), random.Random(5)
    texts = [list(one.generated) for one in asked]
    for window in range(12):
        targets = torch.tensor([[chance.randrange(9) for _ in range(5)] for _ in range(3)])
        keeps = [chance.randint(0, 5) for _ in range(3)]
        sampler.commit(targets, torch.tensor(keeps))
        for slot in range(3):
            texts[slot] += targets[slot, : keeps[slot]].tolist()
        if window == 6:
            sampler.release(1)
            texts[1] = [8, 8, 8, 30]
            life = Life(Request("new", [50], params), 3, 0.0, 99, [50, *texts[1]])
            sampler.admit(Slot(1, life, 9))
    for slot, text in enumerate(texts):
        assert sampler.pool.counts[slot].tolist() == [text.count(token) for token in range(VOCAB)]
    assert sampler.pool.seen.nonzero().tolist() == [[0, 0], [0, 1], [0, 2], [1, 50], [2, 1], [2, 2]]


def test_the_argmax_takes_the_lowest_of_equals() -> None:
    logits = torch.zeros(3, VOCAB)
    logits[0, [17, 40, 99]] = 5.0
    logits[1, [130, 2]] = 1.0
    assert draw(logits, [row(temperature=0.0)] * 3)[0].tokens.tolist() == [17, 2, 0]


def test_a_draw_is_the_gumbel_argmax() -> None:
    """Against double precision arithmetic on plain integers."""
    logits = rows(6, seed=8)
    asked = [row(position=p, seed=2**63 + 5 * p, temperature=0.7) for p in range(6)]
    for line, of, token in zip(logits, asked, draw(logits, asked)[0].tokens.tolist()):
        scores = []
        for i in range(VOCAB):
            v = min((plain_philox(of.seed, i, of.position, 0) + 0.5) * 2.0**-32, 1 - 2.0**-24)
            scores.append(line[i].item() / 0.7 - math.log(-math.log1p(-v)))
        assert token == max(range(VOCAB), key=scores.__getitem__)


def test_draws_do_not_know_their_neighbours() -> None:
    """Each row alone gives what it gives among rows with all kinds of settings."""
    manners: list[dict[str, Any]] = [
        {}, {"top_k": 7}, {"top_p": 0.8}, {"temperature": 0.0}, {"min_p": 0.1}, {"top_k": 7, "top_p": 0.9},
        {"temperature": 0.3}, {"top_k": 60}, {"top_p": 0.99, "min_p": 0.01},
    ]  # fmt: skip
    logits = rows(90, seed=2)
    asked = [row(position=i, seed=i % 5, **manners[i % 9]) for i in range(90)]
    together = draw(logits, asked)[0]
    for i in range(90):
        alone = draw(logits[i : i + 1], asked[i : i + 1])[0]
        assert alone.tokens[0] == together.tokens[i]
        assert alone.probability is not None and together.probability is not None
        assert alone.probability[0] == together.probability[i]


def test_masked_ids_are_never_drawn() -> None:
    logits = rows(200, seed=3)
    logits[:, 100:] = -torch.inf
    for params in ({}, {"top_k": 120}, {"top_p": 0.999}, {"temperature": 50.0}, {"min_p": 1e-9}):
        tokens = draw(logits, [row(position=i, **params) for i in range(200)])[0].tokens
        assert tokens.max() < 100


# ------------------------------------------------------------------ noise


def plain_rounds(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 on Python integers: all four output words."""
    for _ in range(10):
        a, b = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [(b >> 32) ^ counter[1] ^ key[0], b & 0xFFFFFFFF, (a >> 32) ^ counter[3] ^ key[1], a & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def plain_philox(seed: int, token: int, position: int, purpose: int) -> int:
    return plain_rounds([token, position, purpose, 0], [seed & 0xFFFFFFFF, seed >> 32])[0]


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_published_answers(counter: str, key: str, words: str) -> None:
    """The three known-answer vectors of the Random123 library, for the plain form that the tensors are held against."""

    def numbers(line: str) -> list[int]:
        return [int(word, 16) for word in line.split()]

    assert plain_rounds(numbers(counter), numbers(key)) == numbers(words)


def test_philox_known_answer() -> None:
    zero = torch.zeros(1, dtype=torch.int64)
    assert philox(zero, zero, zero, 0).item() == 0x6627E8D5


def test_philox_is_plain_integer_arithmetic() -> None:
    generator = torch.Generator().manual_seed(0)
    seeds = torch.randint(-(2**63), 2**63 - 1, (50, 1), generator=generator)
    ids = torch.randint(0, 2**32, (50, 3), generator=generator)
    positions = torch.randint(0, 2**32, (50, 1), generator=generator)
    found = philox(seeds, ids, positions, 2)
    for i in range(50):
        for j in range(3):
            seed = seeds[i, 0].item() % 2**64
            assert found[i, j].item() == plain_philox(int(seed), int(ids[i, j]), int(positions[i, 0]), 2)


def test_noise_is_finite_and_gumbel() -> None:
    n = 200_000
    ids, one = torch.arange(n), torch.ones(1, dtype=torch.int64)
    u, g = uniform(one, ids, one, 0), gumbel(one, ids, one, 0)
    assert u.min() > 0 and u.max() < 1
    assert torch.isfinite(g).all()
    assert g.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert g.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)


def test_noise_at_the_ends_of_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    from strata_kernels.sampling import reference

    words = torch.tensor([0, 1, 2**32 - 2, 2**32 - 1])
    monkeypatch.setattr(reference, "philox", lambda *_: words)
    found = reference.gumbel(*[torch.zeros(4, dtype=torch.int64)] * 3, 0)
    assert torch.isfinite(found).all()
    assert found[0] > 22 and found[3] < -2.8
    assert torch.all(found[:-1] >= found[1:])
