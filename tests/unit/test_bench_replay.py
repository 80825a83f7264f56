"""Replayed drafts: as right as asked for, whoever runs beside, and the real drafter still works for them."""

from collections.abc import Sequence

import pytest

from strata_cli.config import SamplingParams
from strata_cli.engine.drafters import Chained, Proposal
from strata_cli.engine.drafters.replay import ReplayDrafter
from strata_cli.engine.life import Life, Slot
from strata_cli.engine.planning import Made
from strata_cli.engine.types import Request
from strata_cli.engine.window import Share

VOCAB, SLOTS = 50, 4
TEXTS = [[(7 * i + 3) % VOCAB for i in range(400)], [(11 * i + 3) % VOCAB for i in range(400)]]  # both begin with 3


class Counting:
    """A drafter that makes zeros, each with a probability, and counts them."""

    def __init__(self) -> None:
        self.steps = 0
        self.happened: list[tuple[str, int]] = []
        self._laid: dict[int, Made] = {}

    def admit(self, slot: Slot) -> None:
        self.happened.append(("admit", slot.index))

    def release(self, slot: int) -> None:
        self.happened.append(("release", slot))

    def undo(self, slot: Slot) -> None:
        self.happened.append(("undo", slot.index))

    def committed(self, slot: Slot, tokens: Sequence[int]) -> None:
        self.happened.append(("committed", len(tokens)))

    def lay_prompts(self, reading: Sequence[tuple[Share, int]]) -> None:
        self.happened.append(("lay_prompts", len(reading)))

    def read_prompts(self) -> None:
        self.happened.append(("read_prompts", 0))

    def lay(self, shares: Sequence[Share], others: Sequence[Slot]) -> Proposal:
        self._laid = {s.slot.index: Made(s.depth) for s in shares}
        return Proposal(self._laid, {slot: [0] * made.drafts for slot, made in self._laid.items()})

    def run(self, asks: bool) -> Chained:
        many = [made.drafts for made in self._laid.values()]
        self.steps += sum(many)
        made = {slot: Made(made.drafts, [0.5] * made.drafts if asks else None) for slot, made in self._laid.items()}
        return Chained(made, max(many, default=0), sum(many))


def seated(slot: int, tokens: Sequence[int]) -> Slot:
    """A slot whose request has these tokens so far."""
    request = Request("r", [tokens[0]], SamplingParams())
    return Slot(slot, Life(request, 0, 0.0, 1000, list(tokens)), entered=1, length=len(tokens) - 1)


def share(slot: int, tokens: Sequence[int], depth: int) -> Share:
    return Share(seated(slot, tokens), L=depth + 1, depth=depth, drafter="mtp")


def drafts(drafter: ReplayDrafter, *shares: Share) -> dict[int, list[int]]:
    """What is proposed for a window's shares, after the chains were run."""
    laid = drafter.lay(shares, ())
    assert laid.made == {slot: Made(len(tokens)) for slot, tokens in laid.tokens.items()}
    assert drafter.run(False).made == laid.made
    return {slot: list(tokens) for slot, tokens in laid.tokens.items()}


def chains(drafter: ReplayDrafter, text: int, depth: int, slot: int = 0) -> list[list[int]]:
    """The drafts at every place of the text, as a request would ask for them."""
    drafter.admit(seated(slot, TEXTS[text][:2]))
    places = range(2, len(TEXTS[text]) - depth)
    return [drafts(drafter, share(slot, TEXTS[text][:n], depth))[slot] for n in places]


@pytest.mark.parametrize("rate", [0.8, 0.5])
def test_drafts_are_right_as_often_as_asked(rate: float) -> None:
    drafter = ReplayDrafter(Counting(), TEXTS, rate, VOCAB, SLOTS)
    right: list[list[bool]] = [[], [], []]
    for text in (0, 1):
        for n, made in enumerate(chains(drafter, text, 3), start=2):
            assert len(made) == 3 and all(0 <= token < VOCAB for token in made)
            for j, token in enumerate(made):
                right[j].append(token == TEXTS[text][n + j])
    for found in right:
        assert sum(found) / len(found) == pytest.approx(rate, abs=0.07)  # 790 draws: four standard deviations


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_always_and_never(rate: float) -> None:
    for n, made in enumerate(chains(ReplayDrafter(Counting(), TEXTS, rate, VOCAB, SLOTS), 0, 4), start=2):
        assert [token == TEXTS[0][n + j] for j, token in enumerate(made)] == [rate == 1.0] * 4


def test_a_request_gets_the_same_drafts_beside_others_and_in_another_slot() -> None:
    alone = chains(ReplayDrafter(Counting(), TEXTS, 0.7, VOCAB, SLOTS), 1, 4)
    drafter = ReplayDrafter(Counting(), TEXTS, 0.7, VOCAB, SLOTS)
    for n, made in enumerate(alone, start=2):
        both = drafts(drafter, share(0, TEXTS[0][:n], 2), share(3, TEXTS[1][:n], 4))
        assert both[3] == made
        assert len(both[0]) == 2


def test_texts_that_begin_alike_are_told_apart_when_they_part() -> None:
    drafter = ReplayDrafter(Counting(), TEXTS, 1.0, VOCAB, SLOTS)
    assert drafts(drafter, share(0, [3], 2))[0] == TEXTS[0][1:3]  # either may be meant
    assert drafts(drafter, share(0, TEXTS[1][:2], 2))[0] == TEXTS[1][2:4]
    drafter.admit(seated(0, [3]))
    assert drafts(drafter, share(0, TEXTS[0][:5], 2))[0] == TEXTS[0][5:7]


def test_the_real_drafter_works_for_every_draft_and_nothing_is_proposed_where_nothing_was_recorded() -> None:
    real = Counting()
    drafter = ReplayDrafter(real, TEXTS, 1.0, VOCAB, SLOTS)
    found = drafts(drafter, share(0, TEXTS[0][:9], 3), share(1, [1, 2], 3))
    assert real.steps == 6
    assert found == {0: TEXTS[0][9:12], 1: []}
    assert drafts(drafter, share(0, TEXTS[0][:398], 4))[0] == TEXTS[0][398:]
    assert drafts(drafter, share(0, TEXTS[0][:9], 1))[0] == TEXTS[0][9:10]


def test_the_real_heads_probabilities_end_no_replayed_chain_and_its_price_counts() -> None:
    drafter = ReplayDrafter(Counting(), TEXTS, 1.0, VOCAB, SLOTS)
    drafter.lay([share(0, TEXTS[0][:9], 4), share(1, [1, 2], 2)], ())
    assert drafter.run(True) == Chained({0: Made(4), 1: Made(0)}, steps=4, drafts=6)


def test_all_that_happens_to_a_slot_reaches_the_real_drafter() -> None:
    real = Counting()
    drafter, slot = ReplayDrafter(real, TEXTS, 1.0, VOCAB, SLOTS), seated(2, [3])
    drafter.admit(slot)
    drafter.lay_prompts([(share(2, [3], 0), 0)])
    drafter.read_prompts()
    drafter.committed(slot, [1, 2])
    drafter.undo(slot)
    drafter.release(2)
    assert real.happened == [
        *(("admit", 2), ("lay_prompts", 1), ("read_prompts", 0), ("committed", 2), ("undo", 2), ("release", 2)),
    ]
