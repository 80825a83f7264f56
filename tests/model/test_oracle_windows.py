"""Windows of decode rows and chains of several slots at once, against transformers with its own cache."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, MtpCache

from strata_cli.engine.engine import Engine
from strata_kernels.head.pool import Drawn, Draws
from strata_kernels.window import Rows, Segment
from tests.support import draws
from tests.support.engine import ByHand, draft, engine, prompt, request, tiny
from tests.support.tiny import SHAPES, reference_model, reference_mtp

LENGTHS = (2, 67, 130)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.inference_mode():
        yield


@cache
def oracle(shape: str) -> tuple[Any, Any]:
    model = reference_model(tiny(shape))
    return model, reference_mtp(model)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_of_decode_windows(shape: str) -> None:
    """Three slots, drafts right and wrong, one sits out: every kept row's logits are those of cached decoding."""
    model, _ = oracle(shape)
    by_hand = ByHand(engine(tiny(shape), batch=3, spec=4, ctx=256, mtp_varlen=False), max(LENGTHS) + 25)
    texts = [prompt(n + 20, seed=n) for n in LENGTHS]
    for slot, n in enumerate(LENGTHS):
        by_hand.read([slot], texts[slot][:n])
    found: list[list[Tensor]] = [[], [], []]
    for shares in ([(5, 3), (1, 1), (4, 4)], [(1, 1), None, (3, 1)], [(5, 5), (5, 2), None], [(1, 1), (4, 1), (2, 2)]):
        segments = []
        for slot, share in enumerate(shares):
            if share is not None:
                at, (L, keeps) = by_hand.lengths[slot], share
                wrong = [(t + 1) % 131 for t in texts[slot][at + keeps : at + L]]
                segments.append(Segment(slot, at, [*texts[slot][at : at + keeps], *wrong]))
        for slot, scores in by_hand.window(segments).items():
            _, keeps = shares[slot] or (0, 0)
            found[slot] += scores[:keeps].unbind()
            by_hand.keep(slot, keeps)
    for slot, n in enumerate(LENGTHS):
        own = DynamicCache(config=model.config)
        model(torch.tensor([texts[slot][:n]]), past_key_values=own, use_cache=True)
        assert len(found[slot]) == [10, 4, 7][slot]
        for j, row in enumerate(found[slot]):
            token = torch.tensor([[texts[slot][n + j]]])
            expected = model(token, past_key_values=own, use_cache=True).logits[0, -1]
            assert (row - expected).abs().max() < 2e-4


Pick = Callable[[Tensor, list[int]], int]  # (logits [V], drafts so far) -> the next draft


def chain(
    shape: str, tokens: list[int], prompt_rows: int, depth: int, pick: Pick | None = None
) -> tuple[list[Tensor], list[int]]:
    """MtpModel over `tokens`, then on its own output: hidden rows of each step and the drafts, greedy ones without
    `pick`.
    """
    model, mtp = oracle(shape)
    hidden = model.model(torch.tensor([tokens[:-1]])).last_hidden_state
    own = MtpCache(config=model.config.get_mtp_config())
    n = len(tokens) - 1
    rows = mtp.forward_layer(0, hidden, torch.arange(n)[None], own, input_ids=torch.tensor([tokens[1:]]))
    steps, drafts = [rows[0, prompt_rows - 1 :]], list[int]()
    last = rows[:, -1:]
    for step in range(depth):
        logits = mtp.shared_head(last[:, -1])[0]
        drafts.append(int(logits.argmax()) if pick is None else pick(logits, drafts))
        last = mtp.forward_layer(0, last, torch.tensor([[n + step]]), own, input_ids=torch.tensor([drafts[-1:]]))
        steps.append(last[0])
    return steps, drafts


def prefilled(shape: str) -> Engine:
    """Three prompts read in one window, their first tokens drawn."""
    e = engine(tiny(shape), batch=4, spec=4, ctx=256, mtp_varlen=False)
    for n in LENGTHS:
        e.submit(request(str(n), prompt(n, seed=n)))
    e.step()
    return e


@pytest.mark.parametrize("shape", SHAPES)
def test_chains_of_several_slots_at_once(shape: str) -> None:
    """Each for its own number of steps: drafts and the head's rows, first pass and own output, are MtpModel's."""
    e = prefilled(shape)
    passes: list[dict[int, Tensor]] = []
    head = e.runner._head

    def noted(rows: Rows, asked: Draws | None, resolve: bool) -> Drawn | None:
        drawn = head(rows, asked, resolve)
        assert drawn is not None
        ends = [(slot, int(rows.first[slot]), int(rows.many[slot])) for slot in range(4)]
        passes.append({slot: drawn.hidden[first + many - 1].clone() for slot, first, many in ends if many})
        return drawn

    e.runner._head = noted  # type: ignore[method-assign]
    depths = (4, 1, 3)
    found = draft(e, dict(enumerate(depths)))
    assert len(passes) == 4  # one pass a step, whatever the number of slots
    for slot, (n, depth) in enumerate(zip(LENGTHS, depths)):
        steps, drafts = chain(shape, text_of(e, slot), n, depth)
        assert found[slot] == drafts
        own = [rows[slot] for rows in passes if slot in rows]
        assert len(own) == depth
        assert all((a - b[-1]).abs().max() < 1e-4 for a, b in zip(own, steps))


def text_of(e: Engine, slot: int) -> list[int]:
    seat = e.seats[slot]
    assert seat is not None
    return seat.life.tokens


def test_a_longer_chain_begins_like_a_shorter_one() -> None:
    """Whatever the depth, position 1 is drafted alike: the peers' acceptance fell with the length asked for."""
    whole = draft(prefilled("plain"), dict.fromkeys(range(3), 4))
    for depth in range(1, 4):
        shorter = draft(prefilled("plain"), dict.fromkeys(range(3), depth))
        assert all(shorter[i] == whole[i][:depth] for i in range(3))


@pytest.mark.parametrize("params", [{"temperature": 1.0}, {"temperature": 0.8, "top_k": 9, "presence_penalty": 2.0}])
def test_a_chain_guesses_the_sample_and_not_the_argmax(params: dict[str, Any]) -> None:
    """The request's own processing and noise over the head's logits, its earlier drafts counted with the text."""
    e, told = engine(tiny(), batch=4, spec=4, mtp_varlen=False), 0
    for i in range(4):
        e.submit(request(str(i), prompt(20 + i, seed=i), seed=i, **params))
    e.step()
    found = draft(e, dict.fromkeys(range(4), 4))
    for slot in [s for s in e.seats if s is not None]:
        life, asked = slot.life, slot.life.request

        def pick(logits: Tensor, drafts: list[int], life: Any = life, asked: Any = asked) -> int:
            generated = life.tokens[len(asked.prompt) :]
            position = len(life.tokens) + len(drafts)
            row = draws.Row(asked.params, life.seed, position, asked.prompt, generated, list(drafts))
            return int(draws.draw(logits[None], [row])[0].tokens[0])

        _, drafts = chain("plain", life.tokens, len(asked.prompt), 4, pick)
        assert found[slot.index] == drafts
        told += drafts != chain("plain", life.tokens, len(asked.prompt), 4)[1]
    assert told == 4  # the argmax would have been another chain


@pytest.mark.parametrize("shape", SHAPES)
def test_prompt_rows_of_the_head(shape: str) -> None:
    """Keys and values of the whole prompt are in the head's cache: a chain long after sees every one of them."""
    model, mtp = oracle(shape)
    e = prefilled(shape)
    kv = e.kv
    for slot, n in enumerate(LENGTHS):
        text = text_of(e, slot)
        own = MtpCache(config=model.config.get_mtp_config())
        hidden = model.model(torch.tensor([text[: n - 1]])).last_hidden_state
        mtp.forward_layer(0, hidden, torch.arange(1, n)[None], own, input_ids=torch.tensor([text[1:n]]))
        values = own.layers[0].values[0].transpose(0, 1)  # [n - 1, G, D]
        places = [kv.owned[slot][i // 64] * 64 + i % 64 for i in range(1, n)]
        mine = kv.pool.v[-1].flatten(0, 1)[places]  # the head's layer is the last
        assert (mine - values).abs().max() < 1e-4
