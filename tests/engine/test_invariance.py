"""A row's bits do not depend on its company: composition of the window, number of threads, the demo model's sizes."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from strata_cli.demo import model_path
from strata_kernels.window import Segment
from tests.support.engine import ByHand, Run, engine, loaded, prompt, request, run, tiny

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


class Contexts:
    """Slots that hold a context each; windows run over them and leave nothing behind."""

    def __init__(self, model: str):
        self.by_hand = ByHand(engine(directory(model), batch=SLOTS, spec=7, ctx=512, prefix_cache=False), 400)
        with torch.inference_mode():
            for slot in range(SLOTS):
                self.by_hand.read([slot], prompt(CONTEXT + slot, seed=slot))

    @torch.inference_mode()
    def __call__(self, segments: list[Segment]) -> dict[int, torch.Tensor]:
        """Logits of every row by slot; none of them is committed, and prompt rows are taken back."""
        pool = self.by_hand.engine.runner.recurrent.pool
        before = pool.state.clone(), pool.conv.clone()
        logits = self.by_hand.window(segments)
        pool.state.copy_(before[0])
        pool.conv.copy_(before[1])
        return logits


@pytest.mark.parametrize("model", MODELS)
def test_rows_in_any_window(model: str, threads: int) -> None:
    """Decode rows, drafts and prompt rows of a slot: alone, in any order, beside any others, cut short or not."""
    forward, chance = Contexts(model), random.Random(threads)
    texts = [prompt(200, seed=50 + slot) for slot in range(SLOTS)]

    def segment(slot: int, n: int, certain: bool) -> Segment:
        return Segment(slot, CONTEXT + slot, texts[slot][:n], certain=certain)

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
def test_rows_of_the_reference(model: str, compiled: Callable[..., None], threads: int) -> None:
    """As it runs where no faster sibling does: each expert with the rows that are routed to it."""
    compiled()
    test_rows_in_any_window(model, threads)


@pytest.mark.parametrize("kv_dtype", ["auto", "float16"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounded_weights_and_keys(dtype: str, kv_dtype: str) -> None:
    """Rows of a window see keys, values and inputs as the cache holds them, rounded; so do the windows after it."""
    requests = [request(str(i), prompt(9 + 40 * i, seed=i), temperature=0.5 * i) for i in range(4)]

    def run_with(**settings: Any) -> Run:
        settings = {"dtype": dtype, "kv_dtype": kv_dtype, "mtp_varlen": False, **settings}
        return run(engine(tiny(dtype=dtype), **settings), requests)

    found, alone = run_with(), run_with(batch=1, spec=0, prefix_cache=False)
    assert (found.tokens(), found.bits()) == (alone.tokens(), alone.bits())
    assert sum(r.spec.accepted for r in found.results.values()) > 0


def text(e: Any, temperature: float) -> Run:
    vocab = loaded(model_path()).model.vocab_size
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
    assert len(e.kv.pages.free) == 5 - len(e.prefix.entries)  # type: ignore[union-attr]
