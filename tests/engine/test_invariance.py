"""A row's bits do not depend on its company: composition of the window, number of threads, the demo model's sizes."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from strata_cli.model.rows import Segment

from strata_cli.config import EngineConfig
from strata_cli.demo import model_path
from strata_cli.engine.build import assemble
from strata_cli.model import layers
from strata_cli.model.weights.safetensors import open_checkpoint
from tests.support.engine import CPU, Run, engine, loaded, prompt, request, run, tiny

MODELS = ["plain", "dense-attention", "wide", "one-of-each", "demo"]
SLOTS, CONTEXT = 4, 70


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def directory(model: str) -> Any:
    return model_path() if model == "demo" else tiny(model)


class Rows:
    """An engine whose slots hold a context each; windows run over it and leave nothing behind."""

    def __init__(self, model: str):
        self.e = engine(directory(model), batch=SLOTS, spec=7, ctx=512, prefix_cache=False)
        with torch.inference_mode():
            for slot in range(SLOTS):
                assert self.e.cache.reserve(slot, 400)
                self.e.runner.forward([Segment(slot, 0, prompt(CONTEXT + slot, seed=slot), True)])
                self.e.cache.advance(slot, CONTEXT + slot)

    @torch.inference_mode()
    def __call__(self, segments: list[Segment]) -> dict[int, torch.Tensor]:
        """Logits of every row by slot; none of them is committed, and prompt rows are taken back."""
        states = [self.e.cache.recurrent.snapshot(slot) for slot in range(SLOTS)]
        rows, hidden = self.e.runner.forward(segments)
        logits = {
            s.slot: self.e.runner.logits(hidden, range(start, start + len(s.tokens)))
            for s, start in zip(segments, rows.starts)
        }
        for slot, state in enumerate(states):
            self.e.cache.recurrent.restore(slot, state)
        return logits


@pytest.mark.parametrize("model", MODELS)
def test_rows_in_any_window(model: str, threads: int) -> None:
    """Decode rows, drafts and prompt rows of a slot: alone, in any order, beside any others, cut short or not."""
    forward, chance = Rows(model), random.Random(threads)
    texts = [prompt(200, seed=50 + slot) for slot in range(SLOTS)]

    def segment(slot: int, n: int, certain: bool) -> Segment:
        return Segment(slot, CONTEXT + slot, texts[slot][:n], certain)

    alone = [forward([segment(slot, 8, False)])[slot] for slot in range(SLOTS)]
    read = [forward([segment(slot, 130, True)])[slot] for slot in range(SLOTS)]
    for _ in range(6):
        slots = chance.sample(range(SLOTS), chance.randint(1, SLOTS))
        window = [segment(s, chance.choice([1, 1, 2, 5, 8, 33, 64, 130]), chance.random() < 0.4) for s in slots]
        window = [s if s.certain or len(s.tokens) <= 8 else segment(s.slot, 8, False) for s in window]
        for slot, logits in forward(window).items():
            expected = read[slot] if len(logits) > 8 else alone[slot]
            assert torch.equal(logits, expected[: len(logits)]), [(s.slot, len(s.tokens), s.certain) for s in window]
    # rows do not know whether they are a prompt's or wait for a verdict
    assert all(torch.equal(a, r[:8]) for a, r in zip(alone, read))


@pytest.mark.parametrize("model", ["plain", "dense-attention"])
def test_rows_of_experts_one_by_one(model: str, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """As a large model has it: each expert with the rows that are routed to it, in whatever order they come."""
    monkeypatch.setattr(layers, "ALL_EXPERTS_WIDTH", 0)
    test_rows_in_any_window(model, threads)


@pytest.mark.parametrize("kv_dtype", ["auto", "float16"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounded_weights_and_keys(dtype: torch.dtype, kv_dtype: str) -> None:
    """Rows of a window see keys, values and inputs as the cache holds them, rounded; so do the windows after it."""
    config, _ = loaded(tiny())
    weights = open_checkpoint(tiny()).load(config, dtype, CPU)
    requests = [request(str(i), prompt(9 + 40 * i, seed=i), temperature=0.5 * i) for i in range(4)]

    def run_with(**settings: Any) -> Run:
        settings = {"kv_dtype": kv_dtype, "mtp_varlen": False, **settings}
        return run(assemble(weights, config, EngineConfig(**settings), (), CPU), requests)

    found, alone = run_with(), run_with(batch=1, spec=0, prefix_cache=False)
    assert (found.tokens(), found.bits()) == (alone.tokens(), alone.bits())
    assert sum(r.spec.accepted for r in found.results.values()) > 0


def text(e: Any, temperature: float) -> Run:
    vocab = loaded(model_path())[0].vocab_size
    manner = {"temperature": temperature, "max_tokens": 16, "repetition_penalty": 1.1, "top_p": 0.95}
    return run(e, [request(str(i), prompt(9 + 40 * i, seed=i, vocab=vocab), seed=i, **manner) for i in range(4)])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_demo_model(temperature: float, threads: int) -> None:
    alone = text(engine(model_path(), batch=1, spec=0, prefix_cache=False), temperature)
    for settings in ({"mtp_varlen": False}, {"batch_groups": 2, "spec": 3, "prefill_chunk": 64}):
        found = text(engine(model_path(), **settings), temperature)
        assert (found.tokens(), found.bits()) == (alone.tokens(), alone.bits())


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_preemption_changes_nothing(temperature: float) -> None:
    """Four texts that grow over pages there are not: the youngest leaves, comes back, goes on with the same bits."""
    manner: dict[str, Any] = {"temperature": temperature, "max_tokens": 130, "frequency_penalty": 0.2, "logprobs": 2}
    requests = [request(str(i), prompt(20 + 9 * i, seed=i), seed=i, **manner) for i in range(4)]
    e = engine(tiny("one-of-each"), pages=6, ctx=256, mtp_varlen=False)
    found = run(e, requests)
    assert max(found.started.values()) > 1
    assert max(found.started.values()) < 6  # nobody is thrown out over and over
    alone = run(engine(tiny("one-of-each"), batch=1, spec=0, prefix_cache=False), requests)
    assert (found.tokens(), found.bits()) == (alone.tokens(), alone.bits())
    assert all(found.results[i].logprobs == alone.results[i].logprobs for i in alone.results)
    assert len(e.cache.kv.pool.free) == 5 - len(e.prefix.entries)  # type: ignore[union-attr]
