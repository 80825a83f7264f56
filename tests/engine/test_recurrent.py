"""Recurrent state after accepted and rejected drafts: what one token at a time gives, bit by bit, and transformers."""

import random
from collections.abc import Iterator
from functools import cache

import pytest
import torch
from transformers.cache_utils import DynamicCache

from strata_kernels.window import Segment
from tests.support.engine import ByHand, engine, prompt, tiny
from tests.support.tiny import SHAPES, reference_model

PROMPT = 9
TEXT = prompt(60, seed=4)
MOST = 6  # rows of a slot in a window
LAYOUTS = ["plain", "dense-attention", "one-of-each"]

State = tuple[torch.Tensor, torch.Tensor]  # of a slot: state [layers, ...], convolution columns [layers, ...]


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Texts(ByHand):
    """Slots that all read the same text, by window: each commits so many of its rows. One more is spare."""

    def __init__(self, shape: str, slots: int = 3):
        super().__init__(engine(tiny(shape), batch=slots + 1, spec=MOST - 1, ctx=128), len(TEXT) + MOST)

    def rows(self, shares: dict[int, tuple[int, int]]) -> dict[int, torch.Tensor]:
        """(L, keeps) by slot: `keeps` rows of the text, then drafts that are wrong. Logits [L, V] by slot."""
        segments = []
        for slot, (L, keeps) in shares.items():
            at = self.lengths[slot]
            wrong = [(token + 1 + j) % 131 for j, token in enumerate(TEXT[at + keeps : at + L])]
            segments.append(Segment(slot, at, [*TEXT[at : at + keeps], *wrong]))
        logits = self.window(segments)
        for slot, (_, keeps) in shares.items():
            self.keep(slot, keeps)
        return logits

    def state(self, slot: int) -> State:
        state, conv = self.states()
        return state[:, slot], conv[:, slot]


@cache
def one_at_a_time(shape: str, n: int) -> tuple[list[torch.Tensor], list[State]]:
    """Logits of the rows behind the prompt, and the state behind each of them (the prompt's first)."""
    texts = Texts(shape, 1)
    texts.read([0], TEXT[:PROMPT])
    logits, states = [], [texts.state(0)]
    for _ in range(n):
        logits.append(texts.rows({0: (1, 1)})[0][0])
        states.append(texts.state(0))
    return logits, states


def same(a: State, b: State) -> bool:
    return torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])


@pytest.mark.parametrize("shape", LAYOUTS)
def test_every_keeps_of_every_L(shape: str) -> None:
    """A wide window of which `keeps` rows hold, then windows of one row: the state and the logits of plain decoding."""
    logits, states = one_at_a_time(shape, MOST + 3)
    for L in range(1, MOST + 1):
        for keeps in range(1, L + 1):
            texts = Texts(shape, 1)
            texts.read([0], TEXT[:PROMPT])
            found = list(texts.rows({0: (L, keeps)})[0][:keeps])
            found += [texts.rows({0: (1, 1)})[0][0] for _ in range(2)]
            assert all(torch.equal(a, b) for a, b in zip(found, logits, strict=False)), (L, keeps)
            assert same(texts.state(0), states[keeps + 2])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", LAYOUTS)
def test_any_windows_of_three_slots(shape: str, seed: int) -> None:
    """Slots with their own L and keeps, sitting out, read out (which replays what is pending) and refilled between."""
    logits, states = one_at_a_time(shape, 40)
    chance, texts = random.Random(seed), Texts(shape)
    texts.read([0, 1], TEXT[:PROMPT])
    texts.read([2], TEXT[:PROMPT])  # alone
    recurrent = texts.engine.runner.recurrent
    for _ in range(14):
        shares = {}
        for slot in range(3):
            if chance.random() < 0.75 and texts.lengths[slot] < PROMPT + 30:
                L = chance.randint(1, MOST)
                shares[slot] = (L, chance.randint(1, L))
        if not shares:
            continue
        before = list(texts.lengths)
        for slot, rows in texts.rows(shares).items():
            first = before[slot] - PROMPT
            assert all(torch.equal(a, b) for a, b in zip(rows[: shares[slot][1]], logits[first:], strict=False))
        slot = chance.randrange(3)
        if chance.random() < 0.5:
            taken = texts.state(slot)
            assert same(taken, states[texts.lengths[slot] - PROMPT])
            if chance.random() < 0.5:
                recurrent.pool.snap_state[1], recurrent.pool.snap_conv[1] = taken
                recurrent.release(slot)
                assert not recurrent.pool.state[:, slot].any() and not recurrent.pool.conv[:, slot].any()
                recurrent.restore(slot, 1)


@pytest.mark.parametrize("shape", LAYOUTS)
def test_copies_for_the_prefix_cache(shape: str) -> None:
    """Taken in the middle of prompt rows, beside another slot's decode rows: the state as if the prompt ended there."""
    long = prompt(130, seed=6)
    texts = Texts(shape, 2)
    texts.read([0], TEXT[:PROMPT])
    texts.rows({0: (5, 3)})
    decoding = Segment(0, texts.lengths[0], TEXT[:2])
    texts.window([decoding, Segment(1, 0, long, certain=True, captures=[(1, 3), (64, 0), (130, 2)])])
    pool = texts.engine.runner.recurrent.pool
    for length, place in ((1, 3), (64, 0), (130, 2)):
        shorter = Texts(shape, 1)
        shorter.read([0], long[:length])
        assert same((pool.snap_state[place], pool.snap_conv[place]), shorter.state(0))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_state_is_transformers(shape: str) -> None:
    """Against its own cache after the same tokens: some rows kept, some rejected, one row alone at the end."""
    texts = Texts(shape, 1)
    texts.read([0], TEXT[:PROMPT])
    for L, keeps in ((5, 3), (4, 1), (1, 1), (6, 6), (3, 2), (1, 1)):
        texts.rows({0: (L, keeps)})
    state, conv = texts.state(0)
    model = reference_model(tiny(shape))
    cache = DynamicCache(config=model.config)
    model(torch.tensor([TEXT[: PROMPT + 14]]), past_key_values=cache, use_cache=True)
    theirs = [layer for layer in cache.layers if hasattr(layer, "recurrent_states")]
    assert len(theirs) == len(state)
    for i, layer in enumerate(theirs):
        assert torch.allclose(state[i], _tensor(layer.recurrent_states)[0], atol=2e-4)
        columns = _tensor(layer.conv_states)[0].t()[-conv.shape[1] :]  # theirs [C, kernel], the newest last
        assert torch.allclose(conv[i], columns, atol=1e-4)


def _tensor(found: torch.Tensor | dict[int, torch.Tensor]) -> torch.Tensor:
    return found if torch.is_tensor(found) else next(iter(found.values()))
