"""Random lives: any settings, arrivals, cancellations and shortages; every text is that of its request alone."""

import random
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch

from strata_cli.config import SamplingParams
from strata_cli.engine.engine import Engine
from strata_cli.engine.runner import LaidWindow
from strata_cli.engine.types import Request
from tests.support.engine import Run, engine, prompt, run, tiny

CTX = 256
SEEDS = range(16)


def settings(chance: random.Random) -> dict[str, Any]:
    batch = chance.randint(1, 6)
    return {
        "batch": batch,
        "batch_groups": chance.choice([1, 2]) if batch > 1 else 1,
        "spec": chance.choice([0, 1, 2, 4, 4, 8]),
        "mtp_varlen": chance.random() < 0.5,
        "plan": chance.choice(["rows", "uniform"]),
        "rows": chance.choice([None, None, chance.randint(1, 12)]),
        "fair": chance.choice(["total", "slots"]),
        "drafter": chance.choice(["mtp", "mtp", "ngram", "off"]),
        "draft_vocab": chance.choice([None, None, 30]),
        "spec_min_p": chance.choice([0.0, 0.0, 0.2]),
        "ctx": CTX,
        "prefill_chunk": chance.choice([64, 65, 100, 128, 200, 512]),
        "max_batched_tokens": chance.choice([64, 70, 130, 256, 1024]),
        "prefill_policy": chance.choice(["mixed", "immediate", "gather"]),
        "gather_ms": chance.choice([0.0, 2.0]),
        "prefix_cache": chance.random() < 0.7,
        "prefix_cache_mib": chance.choice([0, 1, 256]),
    }


def sampling(chance: random.Random) -> dict[str, Any]:
    params: dict[str, Any] = {
        "temperature": chance.choice([0.0, 0.0, 0.7, 1.0, 1.5]),
        "max_tokens": chance.choice([1, 2, 3, 7, 16, 30, 60, 120]),
        "seed": chance.randrange(2**64),
    }
    for name, share, values in (
        ("top_k", 0.3, [1, 5, 40, 200]),
        ("top_p", 0.3, [0.5, 0.9, 0.99]),
        ("min_p", 0.2, [0.01, 0.1]),
        ("repetition_penalty", 0.3, [0.8, 1.1, 1.5]),
        ("presence_penalty", 0.2, [-1.0, 0.5]),
        ("frequency_penalty", 0.2, [-0.2, 0.5]),
        ("logit_bias", 0.2, [((chance.randrange(131), chance.choice([5.0, -100.0, 100.0])),)]),
        ("logprobs", 0.3, [0, 3]),
        ("stop_token_ids", 0.3, [tuple(chance.randrange(131) for _ in range(8))]),
    ):
        if chance.random() < share:
            params[name] = chance.choice(values)
    return params


def own_drafts(chance: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    """What a request may say about its own drafts."""
    drafters = ["off", "ngram"] if config["spec"] and config["drafter"] != "off" else ["off"]
    own: dict[str, Any] = {}
    if chance.random() < 0.3:
        own["spec"] = chance.randint(0, config["spec"])
    if chance.random() < 0.2:
        own["drafter"] = chance.choice(drafters)
    return own


@dataclass
class Life:
    """A scenario: `requests` as they come (each with its twin without drafts in `plain`), at which step, and who is
    cancelled at which step; `fault`: (where, at which call) memory runs out once.
    """

    seed: int
    shape: str
    agree: float
    config: dict[str, Any]
    pages: int | None
    requests: list[Request] = field(default_factory=list)
    plain: list[Request] = field(default_factory=list)
    arrivals: dict[str, int] = field(default_factory=dict)
    cancelled: dict[str, int] = field(default_factory=dict)
    fault: tuple[str, int] | None = None

    @classmethod
    def make(cls, seed: int) -> "Life":
        chance = random.Random(seed)
        shape = chance.choice(["one-of-each", "one-of-each", "plain", "dense-attention"])
        config = settings(chance)
        life = cls(seed, shape, chance.choice([0.0, 0.8, 1.0]), config, chance.choice([None, 5, 6, 8, 12]))
        stem = prompt(200, seed=seed)
        for i in range(chance.randint(2, 8)):
            shared = chance.choice([0, 0, 1, 63, 64, 65, 128, chance.randint(1, 180)])
            tokens = stem[:shared] + prompt(chance.randint(1, 70), seed=1000 + 10 * seed + i)
            params, own = sampling(chance), own_drafts(chance, config)
            turn = chance.choice([None, chance.randint(0, len(tokens))])
            life.requests.append(Request(str(i), tokens, SamplingParams(**params, **own), None, turn))
            life.plain.append(Request(str(i), tokens, SamplingParams(**params)))
            life.arrivals[str(i)] = chance.choice([0, 0, chance.randint(1, 25)]) if i else 0
        for _ in range(chance.choice([0, 0, 1, 2])):
            life.cancelled[str(chance.randrange(len(life.requests)))] = chance.randint(1, 30)
        if config["spec"] and chance.random() < 0.5:
            life.fault = chance.choice([("head", chance.randint(1, 30)), ("rows", chance.randint(1, 15))])
        return life

    def live(self) -> tuple[Engine, Run]:
        e = engine(tiny(self.shape, agree=self.agree), pages=self.pages, **self.config)
        if self.fault is not None:
            self._break(e, *self.fault)
        late = sorted((r for r in self.requests if self.arrivals[r.id]), key=lambda r: self.arrivals[r.id])
        step = [0]

        def between(e: Engine, _: int) -> None:
            step[0] += 1
            while late and (self.arrivals[late[0].id] <= step[0] or not e.has_work):
                e.submit(late.pop(0))
            for request_id, when in self.cancelled.items():
                if when == step[0]:
                    e.cancel(request_id)

        return e, run(e, [r for r in self.requests if not self.arrivals[r.id]], between)

    def _break(self, e: Engine, where: str, at: int) -> None:
        """Memory runs out once: in the head, or after a window with drafts has gone through the model."""
        calls, head, forward = [0], e.runner._head, e.runner.forward

        def count() -> None:
            calls[0] += 1
            if calls[0] == at:
                raise torch.OutOfMemoryError("out of memory")

        def head_forward(*args: Any, **kwargs: Any) -> Any:
            count()
            return head(*args, **kwargs)

        def main_forward(layout: LaidWindow) -> Any:
            found = forward(layout)
            if any(share.drafts for share in layout.plan.busy):
                count()
            return found

        if where == "head":
            e.runner._head = head_forward  # type: ignore[method-assign]
        else:
            e.runner.forward = main_forward  # type: ignore[method-assign]


@cache
def lived(seed: int) -> tuple[Life, Engine, Run]:
    life = Life.make(seed)
    return life, *life.live()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_life(seed: int) -> None:
    life, e, found = lived(seed)
    alone = run(engine(tiny(life.shape, agree=life.agree), batch=1, spec=0, ctx=CTX, prefix_cache=False), life.plain)
    assert found.results.keys() == alone.results.keys()
    for i, result in found.results.items():
        expected, n = alone.results[i], len(result.token_ids)
        assert result.token_ids == expected.token_ids[:n]
        assert result.logprobs == expected.logprobs[:n]
        assert found.hashes.get(i, []) == alone.hashes[i][:n]
        if result.finish_reason != "cancelled":
            assert (result.finish_reason, n) == (expected.finish_reason, len(expected.token_ids))
        else:
            assert i in life.cancelled
    nothing_is_left(e)
    for r in found.records:
        assert sum(r.L) <= (life.config["rows"] or life.config["batch"] * (life.config["spec"] + 1))
        assert sum(r.prompt) <= life.config["max_batched_tokens"]
        assert all(p <= life.config["prefill_chunk"] for p in r.prompt)


def nothing_is_left(e: Engine) -> None:
    """Every page is free or an entry's of the prefix cache, counted as often, and so is every place; no slot remembers
    anything.
    """
    pages, held = e.kv.pages, [0] * e.kv.pages.count
    entries = list(e.prefix.entries.values()) if e.prefix is not None else []
    for entry in entries:
        for page in entry.pages:
            held[page] += 1
    assert pages.references == held
    assert sorted(pages.free) == [page for page in range(1, pages.count) if not held[page]]
    if e.prefix is not None:
        places = range(e.runner.buffers.sizes.places)
        assert sorted([*e.prefix.free, *(entry.place for entry in entries)]) == list(places)
        assert e.prefix.nbytes == sum(entry.nbytes for entry in entries)
    recurrent, sampler = e.runner.recurrent, e.runner.sampler
    assert not any(e.seats) and not any(e.kv.owned) and not e.kv.tables.any()
    assert not any(recurrent.pending) and not recurrent.pool.pending.any()
    assert not recurrent.pool.state.any() and not recurrent.pool.conv.any()
    assert not any(sampler.params) and not e.scheduler.reading and not e.scheduler.queue
    assert not any(getattr(e.drafters.get("mtp"), "seen", []))
    assert not any(index.tokens for index in getattr(e.drafters.get("ngram"), "indices", []))


def test_lives_are_as_varied_as_they_claim() -> None:
    """Between them they preempt, hit the prefix cache, lose memory, sit out and cancel."""
    runs = [lived(seed)[2] for seed in SEEDS]
    assert any(n > 1 for found in runs for n in found.started.values())
    assert any(r.prefix_hit_tokens for found in runs for r in found.records)
    assert any(r.chain_off for found in runs for r in found.records)
    assert any("sitout" in r.reason for found in runs for r in found.records)
    assert any(x.finish_reason == "cancelled" for found in runs for x in found.results.values())
