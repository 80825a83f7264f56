"""A family that the package does not know runs through the engine, and keeps every equality, unchanged."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from strata_cli.engine.types import Request
from tests.support.engine import engine, prompt, request, run
from tests.support.toy_family import Reference, make_toy

SPEC = 3
LENGTHS = (1, 5, 64, 70, 130)
WAYS: dict[str, dict[str, Any]] = {
    "four slots, fixed L": {"mtp_varlen": False},
    "adaptive": {},
    "one slot, long chains": {"batch": 1, "spec": 8, "mtp_varlen": False},
    "two groups": {"batch_groups": 2, "mtp_varlen": False},
    "n-grams": {"drafter": "ngram", "mtp_varlen": False},
    "small chunks": {"prefill_chunk": 64, "max_batched_tokens": 64, "mtp_varlen": False},
    "draft vocabulary": {"draft_vocab": 40, "mtp_varlen": False},
    "pages run short": {"pages": 7, "ctx": 200, "mtp_varlen": False},
}


@cache
def toy(seed: int = 0) -> Path:
    return make_toy(Path(mkdtemp(prefix="strata-toy-")), seed)


def requests(temperature: float) -> list[Request]:
    manners: list[dict[str, Any]] = [{}, {"repetition_penalty": 1.2}, {"top_k": 9}, {}, {"presence_penalty": 0.7}]
    return [
        request(str(i), prompt(n, seed=i), temperature=temperature, seed=40 + i, **manner)
        for i, (n, manner) in enumerate(zip(LENGTHS, manners, strict=True))
    ]


@cache
def base(temperature: float) -> tuple[list[list[int]], list[list[bytes]]]:
    """One slot, no drafts, no prefix cache."""
    plain = run(engine(toy(), batch=1, spec=0, prefix_cache=False), requests(temperature))
    return plain.tokens(), plain.bits()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("way", WAYS)
def test_the_way_changes_nothing(way: str, temperature: float) -> None:
    found = run(engine(toy(), **WAYS[way]), requests(temperature))
    assert (found.tokens(), found.bits()) == base(temperature)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_prefix_that_was_read_before(temperature: float) -> None:
    warm = engine(toy(), mtp_varlen=False)
    first = run(warm, requests(temperature))
    again = [Request(f"again {r.id}", r.prompt, r.params) for r in requests(temperature)]
    second = run(warm, again)
    assert sum(record.prefix_hit_tokens for record in second.records) > 0
    assert (second.tokens(), second.bits()) == (first.tokens(), first.bits()) == base(temperature)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("length", [2, 9, 67])
def test_texts_and_drafts_are_those_of_plain_torch(seed: int, length: int) -> None:
    """Each window keeps what the reference's own chain, made from the text so far, would have kept."""
    reference, text = Reference(toy(seed)), prompt(length, seed)
    for _ in range(24):
        text.append(_clear(reference.forward(text)[1][-1]))
    found = run(
        engine(toy(seed), batch=1, spec=SPEC, mtp_varlen=False, prefix_cache=False), [request("a", text[:length])]
    )
    assert found.tokens("a") == [text[length:]]
    keeps = [record.keeps[0] for record in found.records if record.L[0]]
    at, expected = length + 1, []
    while len(expected) < len(keeps) - 1:  # the last window may end with the text
        chain = reference.drafts(text[:at], SPEC)
        expected.append(1 + next((i for i, token in enumerate(chain) if token != text[at + i]), SPEC))
        at += expected[-1]
    assert keeps[:-1] == expected and max(expected) > 1


def _clear(logits: Any) -> int:
    """The likeliest token, by so much that rounding changes nothing."""
    best = logits.topk(2)
    assert best.values[0] - best.values[1] > 1e-4, "take another seed"
    return int(best.indices[0])
