"""Replayed drafts: as right as asked for, whoever runs beside, and the real drafter still works for them."""

from collections.abc import Sequence

import pytest

from strata_cli.engine.drafters import GoOn, Proposal, Seen, Wish
from strata_cli.engine.drafters.replay import ReplayDrafter

VOCAB, SLOTS = 50, 4
TEXTS = [[(7 * i + 3) % VOCAB for i in range(400)], [(11 * i + 3) % VOCAB for i in range(400)]]  # both begin with 3


class Counting:
    """A drafter that proposes zeros and counts them."""

    def __init__(self) -> None:
        self.steps = 0
        self.started: list[int] = []

    def propose(self, wishes: Sequence[Wish], go_on: GoOn) -> dict[int, Proposal]:
        found = {}
        for wish in wishes:
            drafts: list[int] = []
            going = True
            while going:
                drafts.append(0)
                going = wish.slot in go_on(len(drafts), {wish.slot: 0.0}) and len(drafts) < wish.depth
            self.steps += len(drafts)
            found[wish.slot] = Proposal(drafts, [0.0] * len(drafts))
        return found

    def observe(self, seen: Sequence[Seen]) -> None: ...

    def start(self, slot: int, hidden: object) -> None:
        self.started.append(slot)


def wish(slot: int, tokens: list[int], depth: int) -> Wish:
    return Wish(slot, depth, tokens, lambda position, drafts: pytest.fail("a replay draws nothing"))


def chains(drafter: ReplayDrafter, text: int, depth: int, slot: int = 0) -> list[list[int]]:
    """The drafts at every place of the text, as a request would ask for them."""
    drafter.start(slot, None)
    asked = [wish(slot, TEXTS[text][:n], depth) for n in range(2, len(TEXTS[text]) - depth)]
    return [drafter.propose([w], lambda _, made: made)[slot].tokens for w in asked]


@pytest.mark.parametrize("rate", [0.8, 0.5])
def test_drafts_are_right_as_often_as_asked(rate: float) -> None:
    drafter = ReplayDrafter(Counting(), TEXTS, rate, VOCAB, SLOTS)
    right: list[list[bool]] = [[], [], []]
    for text in (0, 1):
        for n, drafts in enumerate(chains(drafter, text, 3), start=2):
            assert len(drafts) == 3 and all(0 <= token < VOCAB for token in drafts)
            for j, token in enumerate(drafts):
                right[j].append(token == TEXTS[text][n + j])
    for found in right:
        assert sum(found) / len(found) == pytest.approx(rate, abs=0.07)  # 790 draws: four standard deviations


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_always_and_never(rate: float) -> None:
    for n, drafts in enumerate(chains(ReplayDrafter(Counting(), TEXTS, rate, VOCAB, SLOTS), 0, 4), start=2):
        assert [token == TEXTS[0][n + j] for j, token in enumerate(drafts)] == [rate == 1.0] * 4


def test_a_request_gets_the_same_drafts_beside_others_and_in_another_slot() -> None:
    alone = chains(ReplayDrafter(Counting(), TEXTS, 0.7, VOCAB, SLOTS), 1, 4)
    drafter = ReplayDrafter(Counting(), TEXTS, 0.7, VOCAB, SLOTS)
    for n, drafts in enumerate(alone, start=2):
        both = drafter.propose([wish(0, TEXTS[0][:n], 2), wish(3, TEXTS[1][:n], 4)], lambda _, made: made)
        assert both[3].tokens == drafts
        assert len(both[0].tokens) == 2


def test_texts_that_begin_alike_are_told_apart_when_they_part() -> None:
    drafter = ReplayDrafter(Counting(), TEXTS, 1.0, VOCAB, SLOTS)
    assert drafter.propose([wish(0, [3], 2)], lambda _, made: made)[0].tokens == TEXTS[0][1:3]  # either may be meant
    assert drafter.propose([wish(0, TEXTS[1][:2], 2)], lambda _, made: made)[0].tokens == TEXTS[1][2:4]
    drafter.start(0, None)
    assert drafter.propose([wish(0, TEXTS[0][:5], 2)], lambda _, made: made)[0].tokens == TEXTS[0][5:7]


def test_the_real_drafter_works_for_every_draft_and_nothing_is_proposed_where_nothing_was_recorded() -> None:
    real = Counting()
    drafter = ReplayDrafter(real, TEXTS, 1.0, VOCAB, SLOTS)
    drafter.start(2, None)
    found = drafter.propose(
        [wish(0, TEXTS[0][:9], 4), wish(1, [1, 2], 3)], lambda depth, made: made if depth < 3 else ()
    )
    assert real.steps == 6 and real.started == [2]
    assert found[0].tokens == TEXTS[0][9:12]
    assert found[1].tokens == []
    assert drafter.propose([wish(0, TEXTS[0][:398], 4)], lambda _, made: made)[0].tokens == TEXTS[0][398:]
    assert drafter.propose([wish(0, TEXTS[0][:9], 4)], lambda *_: ())[0].tokens == TEXTS[0][9:10]
