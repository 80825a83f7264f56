"""The engine against transformers in float32, on random checkpoints of several shapes."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.cache_utils import DynamicCache, MtpCache

from strata_cli.config import EngineConfig
from strata_cli.engine.drafters import Chained
from strata_cli.engine.drafters.mtp import MtpDrafter
from strata_kernels.weight import Weight
from tests.support.engine import ByHand, draft, engine, loaded, prompt, request, run, tiny
from tests.support.tiny import SHAPES, reference_model, reference_mtp

LENGTHS = (1, 2, 7, 64, 65, 130, 300)


@cache
def transformers_model(directory: Path) -> Any:
    return reference_model(directory)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_of_prefill_and_decode(shape: str) -> None:
    """A prompt in one chunk and in chunks, then decode rows on the cache: all rows' logits."""
    directory = tiny(shape)
    model = transformers_model(directory)
    tokens = prompt(150, seed=2)
    expected = model(torch.tensor([tokens])).logits[0]
    for chunks in ([150], [64, 64, 20, 1, 1], [1] * 20 + [130]):
        by_hand = ByHand(engine(directory, spec=0, batch=2, ctx=256), 150)
        rows, at = [], 0
        for n in chunks:
            rows.append(by_hand.read([1], tokens[at : at + n]))
            at += n
        assert (torch.cat(rows) - expected).abs().max() < 2e-4


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("spec", "batch"), [(0, 1), (4, 4), (4, 1), (0, 4)])
def test_greedy_tokens(shape: str, spec: int, batch: int) -> None:
    directory = tiny(shape)
    model = transformers_model(directory)
    prompts = {str(n): prompt(n, seed=n) for n in LENGTHS}
    found = run(
        engine(directory, spec=spec, batch=batch, mtp_varlen=False),
        [request(i, tokens) for i, tokens in prompts.items()],
    )
    for i, tokens in prompts.items():
        text = found.results[i].token_ids
        forced = model(torch.tensor([[*tokens, *text]])).logits[0, len(tokens) - 1 : -1]
        assert text == forced.argmax(-1).tolist()
        if shape != "wide":  # there a router's near-tie makes transformers' cached decoding differ from its own forward
            out = model.generate(torch.tensor([tokens]), max_new_tokens=24, do_sample=False, pad_token_id=0)
            assert text == out[0, len(tokens) :].tolist()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("length", [1, 2, 9, 130])
def test_chained_drafts(shape: str, length: int) -> None:
    """Drafts after a prompt and its first token, against MtpModel run on its own output."""
    directory = tiny(shape)
    tokens = prompt(length, seed=length)
    e = engine(directory, spec=4, mtp_varlen=False)
    e.submit(request("0", tokens))
    e.step()
    slot = e.seats[0]
    assert slot is not None
    first = slot.life.tokens[-1]
    drafts = draft(e, {0: 4})[0]

    model = reference_model(directory)
    mtp = reference_mtp(model)
    cache = DynamicCache(config=model.config)
    hidden = model.model(torch.tensor([tokens]), past_key_values=cache, use_cache=True).last_hidden_state
    assert int(model.lm_head(hidden[:, -1]).argmax()) == first
    own = MtpCache(config=model.config.get_mtp_config())
    shifted = torch.tensor([[*tokens[1:], first]])
    rows = mtp.forward_layer(0, hidden, torch.arange(length)[None], own, input_ids=shifted)
    last, expected = rows[:, -1:], []
    for step in range(4):
        token = mtp.shared_head(last[:, -1]).argmax(-1, keepdim=True)
        expected.append(int(token))
        last = mtp.forward_layer(0, last, torch.tensor([[length + step]]), own, input_ids=token)
    assert drafts == expected


def test_drafts_later_in_the_text() -> None:
    """After several windows with accepted and rejected drafts the head has seen exactly the committed tokens."""
    directory = tiny(agree=0.9)
    e = engine(directory, spec=3, mtp_varlen=False)
    e.submit(request("0", prompt(11), max_tokens=60, temperature=0.8))
    model = reference_model(directory)
    mtp = reference_mtp(model)
    drafter = e.drafters["mtp"]
    assert isinstance(drafter, MtpDrafter)
    for window in range(9):
        e.step()
        slot = e.seats[0]
        assert slot is not None
        tokens = list(slot.life.tokens)
        hidden = model.model(torch.tensor([tokens[:-1]])).last_hidden_state
        own = MtpCache(config=model.config.get_mtp_config())
        n = len(tokens) - 1
        rows = mtp.forward_layer(0, hidden, torch.arange(n)[None], own, input_ids=torch.tensor([tokens[1:]]))
        expected = int(mtp.shared_head(rows[:, -1]).argmax())
        if window % 2:  # looking changes what waits; the next window has to cope with it
            seen, params = list(drafter.seen), e.runner.sampler.params
            params[0] = replace(slot.life.request.params, temperature=0.0)
            assert draft(e, {0: 1})[0] == [expected]
            params[0] = slot.life.request.params
            drafter.seen[:] = seen


def test_padded_ids_are_never_sampled_or_drafted() -> None:
    """Rows of the vocabulary beyond the tokenizer's ids: the likeliest ones of all, and never chosen."""
    whole = loaded(tiny())
    matrix = whole.weights.head.out.parts["weight"].clone()
    matrix[300:] *= 30
    loud = Weight("f32", {"weight": matrix}, whole.weights.head.out.shape)
    main, own = whole.weights.head, whole.weights.mtp
    assert own is not None
    head = replace(own, head=replace(own.head, out=loud))
    padded = replace(whole, weights=replace(whole.weights, head=replace(main, out=loud), mtp=head))
    for temperature in (0.0, 1.0):
        e = padded.engine(EngineConfig(mtp_varlen=False, device="cpu"), (), vocab=300)
        drafts: list[int] = []
        drafter = e.drafters["mtp"]
        call = drafter.run

        def noted(asks: bool, call: Any = call, e: Any = e, drafts: list[int] = drafts) -> Chained:
            ran: Chained = call(asks)
            for slot, made in ran.made.items():
                drafts.extend(e.runner.buffers.chosen[slot, : made.drafts].tolist())
            return ran

        drafter.run = noted  # type: ignore[method-assign]
        found = run(e, [request(str(i), prompt(9, seed=i), temperature=temperature, seed=i) for i in range(4)])
        assert max(t for text in found.tokens() for t in text) < 300
        assert drafts and max(drafts) < 300
        loose = run(
            padded.engine(EngineConfig(mtp_varlen=False, device="cpu"), ()), [request("0", prompt(9), temperature=0.0)]
        )
        assert max(loose.tokens("0")[0]) >= 300  # they are the likeliest
