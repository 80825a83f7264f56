"""The text never depends on the speed: tokens, and the bits of every committed row's logits, whatever else goes on."""

from typing import Any

import pytest

from strata_cli.engine.engine import Engine
from strata_cli.engine.types import Request
from tests.support.engine import Run, engine, prompt, request, run, tiny

LENGTHS = (1, 5, 17, 64, 70, 130)
# One entry a request: every parameter is used by some of them, none by all.
MANNERS: list[dict[str, Any]] = [
    {},
    {"top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1, "frequency_penalty": 0.2},
    {"top_p": 0.9, "presence_penalty": 0.5, "min_p": 0.05},
    {"top_k": 5, "repetition_penalty": 1.3},
    {"top_k": 40, "top_p": 0.8, "min_p": 0.02, "logit_bias": ((7, 4.0), (9, -100.0))},
    {"presence_penalty": 1.0, "frequency_penalty": 0.3},
]
WAYS: dict[str, dict[str, Any]] = {
    "four slots, fixed L": {"mtp_varlen": False},
    "adaptive": {},
    "uniform plan": {"plan": "uniform", "spec": 3},
    "fair to slots": {"fair": "slots"},
    "one slot, long chains": {"batch": 1, "spec": 8, "mtp_varlen": False},
    "two groups": {"batch_groups": 2, "mtp_varlen": False},
    "n-grams": {"drafter": "ngram", "mtp_varlen": False},
    "small chunks": {"prefill_chunk": 64, "max_batched_tokens": 128, "mtp_varlen": False},
    "draft vocabulary": {"draft_vocab": 40, "mtp_varlen": False},
    "threshold": {"spec_min_p": 0.3, "mtp_varlen": False},
    "few rows": {"rows": 3, "mtp_varlen": False},
    "immediate": {"prefill_policy": "immediate"},
    "gather": {"prefill_policy": "gather", "gather_ms": 5.0},
    "pages run short": {"pages": 7, "ctx": 200, "mtp_varlen": False},
    "no prefix cache": {"prefix_cache": False},
}
MODELS = [("plain", 0.8), ("dense-attention", 1.0), ("one-of-each", 0.0)]


def requests(temperature: float) -> list[Request]:
    return [
        request(str(i), prompt(n, seed=i), temperature=temperature, seed=40 + i, **manner)
        for i, (n, manner) in enumerate(zip(LENGTHS, MANNERS))
    ]


_base: dict[tuple[str, float, float], Run] = {}


def base(shape: str, agree: float, temperature: float) -> Run:
    """One slot, no drafts, no prefix cache."""
    key = (shape, agree, temperature)
    if key not in _base:
        plain = engine(tiny(shape, agree=agree), batch=1, spec=0, prefix_cache=False)
        _base[key] = run(plain, requests(temperature))
    return _base[key]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("way", WAYS)
def test_the_way_changes_nothing(way: str, temperature: float) -> None:
    found = run(engine(tiny(), **WAYS[way]), requests(temperature))
    expected = base("plain", 0.8, temperature)
    assert found.tokens() == expected.tokens()
    assert found.bits() == expected.bits()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("shape", "agree"), MODELS[1:])
def test_other_shapes(shape: str, agree: float, temperature: float) -> None:
    found = run(engine(tiny(shape, agree=agree), mtp_varlen=False), requests(temperature))
    expected = base(shape, agree, temperature)
    assert found.tokens() == expected.tokens()
    assert found.bits() == expected.bits()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_drafting_of_a_request_is_the_same_alone_and_beside_others(temperature: float) -> None:
    settings: dict[str, Any] = {"mtp_varlen": False, "prefix_cache": False}
    together = run(engine(tiny(), **settings), requests(temperature))
    alone = [run(engine(tiny(), batch=1, **settings), [r]) for r in requests(temperature)]
    assert together.drafting() == [one.drafting()[0] for one in alone]
    assert sum(sum(accepted) for _, _, _, accepted in together.drafting()) > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_late_joiner_and_cancelled_neighbour(temperature: float) -> None:
    first, *rest = requests(temperature)

    def between(e: Engine, window: int) -> None:
        if window == 3:
            for late in rest[1:3]:
                e.submit(late)
        if window == 6:
            assert e.cancel(rest[0].id)

    found = run(engine(tiny(), mtp_varlen=False), [first, rest[0]], between)
    expected = base("plain", 0.8, temperature)
    same = (first.id, rest[1].id, rest[2].id)
    assert found.tokens(*same) == expected.tokens(*same)
    assert found.bits(*same) == expected.bits(*same)
    cut = found.results[rest[0].id]
    assert cut.finish_reason == "cancelled"
    assert 0 < len(cut.token_ids) < 24
    assert cut.token_ids == expected.results[rest[0].id].token_ids[: len(cut.token_ids)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_four_copies_give_one_answer(temperature: float) -> None:
    copies = [request(str(i), prompt(33), temperature=temperature, seed=5) for i in range(4)]
    found = run(engine(tiny(), mtp_varlen=False), copies)
    assert found.tokens() == found.tokens("0") * 4
    assert found.bits() == found.bits("0") * 4


@pytest.mark.parametrize("tail", [1, 17, 64, 130])
def test_a_prefix_hit_is_a_miss(tail: int) -> None:
    """Only what follows the entry is computed; drafts and their acceptance are the same too."""
    shared, whole = prompt(128, seed=3), prompt(128, seed=3) + prompt(tail, seed=tail)
    warm = engine(tiny(), mtp_varlen=False)
    run(warm, [request("first", [*shared, 5], max_tokens=6)])
    hit = run(warm, [request("x", whole, temperature=0.7)])
    miss = run(engine(tiny(), mtp_varlen=False), [request("x", whole, temperature=0.7)])
    assert hit.results["x"].cached_tokens == 128
    assert sum(sum(r.prompt) for r in hit.records) == tail
    assert sum(r.prefix_hit_tokens for r in hit.records) == 128
    assert hit.tokens() == miss.tokens()
    assert hit.bits() == miss.bits()
    assert hit.drafting() == miss.drafting()


def test_a_hit_beside_its_own_donor() -> None:
    """The donor still decodes over the shared pages while the hit joins; a third has another continuation."""
    shared = prompt(64, seed=9)
    own = [request(str(i), shared + prompt(10 + i, seed=20 + i), temperature=0.7) for i in range(3)]
    solo = [run(engine(tiny(), prefix_cache=False, mtp_varlen=False), [r]) for r in own]

    def between(e: Engine, window: int) -> None:
        if window in (2, 4):
            e.submit(own[window // 2])

    found = run(engine(tiny(), mtp_varlen=False), own[:1], between)
    assert [found.results[str(i)].cached_tokens for i in range(3)] == [0, 64, 64]
    assert found.tokens() == [s.tokens()[0] for s in solo]
    assert found.bits() == [s.bits()[0] for s in solo]
    assert found.drafting() == [s.drafting()[0] for s in solo]


def test_a_conversation_reuses_its_earlier_turns() -> None:
    """The next turn's prompt is prompt + reply + question; what was prefilled before is found again."""
    e, text, lengths = engine(tiny(), mtp_varlen=False), prompt(100, seed=1), []
    for turn in range(4):
        answer = run(e, [request("t", text, temperature=1.0, seed=turn)])
        fresh = run(engine(tiny(), prefix_cache=False), [request("t", text, temperature=1.0, seed=turn)])
        assert answer.tokens() == fresh.tokens()
        assert answer.bits() == fresh.bits()
        lengths.append(answer.results["t"].cached_tokens)
        text = text + answer.results["t"].token_ids + prompt(30, seed=50 + turn)
    assert lengths == [0, 64, 128, 192]
