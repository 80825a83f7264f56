"""Recurrent state after accepted and rejected drafts: what one token at a time gives, bit by bit, and transformers."""

import random
from collections.abc import Iterator, Sequence

import pytest
import torch
from strata_cli.model.rows import Segment
from transformers.cache_utils import DynamicCache

from strata_cli.engine.cache.recurrent import RecurrentSnapshot
from strata_cli.engine.engine import Engine
from tests.support.engine import engine, prompt, tiny
from tests.support.tiny import SHAPES, reference_model

PROMPT = 9
TEXT = prompt(60, seed=4)
MOST = 6  # rows of a slot in a window
LAYOUTS = ["plain", "dense-attention", "one-of-each"]


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Seats:
    """Slots of an engine that all read the same text, by window: each commits so many of its rows."""

    def __init__(self, shape: str, slots: int = 3):
        self.e: Engine = engine(tiny(shape), batch=slots, spec=MOST - 1, ctx=128, prefix_cache=False)
        for slot in range(slots):
            assert self.e.cache.reserve(slot, len(TEXT) + MOST)

    def read(self, slots: Sequence[int], rows: int = PROMPT) -> None:
        self.e.runner.forward([Segment(s, self.e.cache.lengths[s], TEXT[:rows], True) for s in slots])
        for slot in slots:
            self.e.cache.advance(slot, rows)

    def window(self, shares: dict[int, tuple[int, int]]) -> dict[int, torch.Tensor]:
        """(L, keeps) by slot: `keeps` rows of the text, then drafts that are wrong. Logits [L, V] by slot."""
        segments = []
        for slot, (L, keeps) in shares.items():
            at = self.e.cache.lengths[slot]
            wrong = [(token + 1 + j) % 131 for j, token in enumerate(TEXT[at + keeps : at + L])]
            segments.append(Segment(slot, at, [*TEXT[at : at + keeps], *wrong]))
        rows, hidden = self.e.runner.forward(segments)
        logits = {}
        for segment, start in zip(segments, rows.starts):
            logits[segment.slot] = self.e.runner.logits(hidden, range(start, start + len(segment.tokens)))
            self.e.cache.commit(segment.slot, shares[segment.slot][1])
        return logits

    def snapshot(self, slot: int) -> RecurrentSnapshot:
        return self.e.cache.recurrent.snapshot(slot)


def one_at_a_time(shape: str, n: int) -> tuple[list[torch.Tensor], list[RecurrentSnapshot]]:
    """Logits of the rows behind the prompt, and the state behind each of them (the prompt's first)."""
    seats = Seats(shape, 1)
    seats.read([0])
    logits, states = [], [seats.snapshot(0)]
    for _ in range(n):
        logits.append(seats.window({0: (1, 1)})[0][0])
        states.append(seats.snapshot(0))
    return logits, states


def same(a: RecurrentSnapshot, b: RecurrentSnapshot) -> bool:
    return torch.equal(a.state, b.state) and torch.equal(a.conv, b.conv)


@pytest.mark.parametrize("shape", LAYOUTS)
def test_every_keeps_of_every_L(shape: str) -> None:
    """A wide window of which `keeps` rows hold, then windows of one row: the state and the logits of plain decoding."""
    logits, states = one_at_a_time(shape, MOST + 3)
    for L in range(1, MOST + 1):
        for keeps in range(1, L + 1):
            seats = Seats(shape, 1)
            seats.read([0])
            found = list(seats.window({0: (L, keeps)})[0][:keeps])
            found += [seats.window({0: (1, 1)})[0][0] for _ in range(2)]
            assert all(torch.equal(a, b) for a, b in zip(found, logits, strict=False)), (L, keeps)
            assert same(seats.snapshot(0), states[keeps + 2])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", LAYOUTS)
def test_any_windows_of_three_slots(shape: str, seed: int) -> None:
    """Slots with their own L and keeps, sitting out, read out (which replays what is pending) and refilled between."""
    logits, states = one_at_a_time(shape, 40)
    chance, seats = random.Random(seed), Seats(shape)
    seats.read([0, 1])
    seats.read([2])  # alone
    for _ in range(14):
        shares = {}
        for slot in range(3):
            if chance.random() < 0.75 and seats.e.cache.lengths[slot] < PROMPT + 30:
                L = chance.randint(1, MOST)
                shares[slot] = (L, chance.randint(1, L))
        if not shares:
            continue
        before = list(seats.e.cache.lengths)
        for slot, rows in seats.window(shares).items():
            first = before[slot] - PROMPT
            assert all(torch.equal(a, b) for a, b in zip(rows[: shares[slot][1]], logits[first:], strict=False))
        slot = chance.randrange(3)
        if chance.random() < 0.5:
            taken = seats.snapshot(slot)
            assert same(taken, states[seats.e.cache.lengths[slot] - PROMPT])
            if chance.random() < 0.5:
                seats.e.cache.recurrent.reset(slot)
                seats.e.cache.recurrent.restore(slot, taken)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_state_is_transformers(shape: str) -> None:
    """Against its own cache after the same tokens: some rows kept, some rejected, one row alone at the end."""
    seats = Seats(shape, 1)
    seats.read([0])
    for L, keeps in ((5, 3), (4, 1), (1, 1), (6, 6), (3, 2), (1, 1)):
        seats.window({0: (L, keeps)})
    own = seats.snapshot(0)
    model = reference_model(tiny(shape))
    cache = DynamicCache(config=model.config)
    model(torch.tensor([TEXT[: PROMPT + 14]]), past_key_values=cache, use_cache=True)
    theirs = [layer for layer in cache.layers if hasattr(layer, "recurrent_states")]
    assert len(theirs) == len(own.state)
    for i, layer in enumerate(theirs):
        assert torch.allclose(own.state[i], _tensor(layer.recurrent_states)[0], atol=2e-4)
        columns = _tensor(layer.conv_states)[0].t()[-own.conv.shape[1] :]  # theirs [C, kernel], the newest last
        assert torch.allclose(own.conv[i], columns, atol=1e-4)


def _tensor(found: torch.Tensor | dict[int, torch.Tensor]) -> torch.Tensor:
    return found if torch.is_tensor(found) else next(iter(found.values()))
