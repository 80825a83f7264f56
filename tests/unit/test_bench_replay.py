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
    """A drafter that makes whole chains, of tokens that nobody sees, and counts them. `most`: what it makes at most."""

    def __init__(self, most: int = 99) -> None:
        self.steps, self.most = 0, most
        self.calls: list[str] = []
        self.made: dict[int, Made] = {}

    def lay(self, shares: Sequence[Share], others: Sequence[Slot]) -> Proposal:
        self.made = {s.slot.index: Made(min(s.depth, self.most)) for s in shares}
        return Proposal(self.made)

    def run(self, asks: bool) -> Chained:
        assert not asks, "its own probabilities say nothing of what is replayed"
        drafts = [made.drafts for made in self.made.values()]
        self.steps += sum(drafts)
        return Chained(self.made, max(drafts, default=0), sum(drafts))

    def admit(self, slot: Slot) -> None:
        self.calls.append(f"admit {slot.index}")

    def release(self, slot: int) -> None:
        self.calls.append(f"release {slot}")

    def undo(self, slot: Slot) -> None:
        self.calls.append(f"undo {slot.index}")

    def lay_prompts(self, reading: Sequence[tuple[Share, int]]) -> None:
        self.calls.append("lay prompts")

    def read_prompts(self) -> None:
        self.calls.append("read prompts")

    def committed(self, slot: Slot, tokens: Sequence[int]) -> None:
        self.calls.append(f"committed {slot.index} {len(tokens)}")


def seat(slot: int, tokens: list[int]) -> Slot:
    life = Life(Request(str(slot), tokens[:1], SamplingParams()), 0, 0.0, 999, tokens)
    return Slot(slot, life, 1, len(tokens) - 1)


def share(slot: int, tokens: list[int], depth: int) -> Share:
    return Share(seat(slot, tokens), L=depth + 1, depth=depth, drafter="mtp")


def drafts(drafter: ReplayDrafter, *shares: Share) -> dict[int, list[int]]:
    """What is proposed, and that it is what is said to be made, before the chains ran and after."""
    proposal = drafter.lay(shares, [])
    found = {slot: list(tokens) for slot, tokens in proposal.tokens.items()}
    for made in (proposal.made, drafter.run(True).made):
        assert {slot: m.drafts for slot, m in made.items()} == {slot: len(tokens) for slot, tokens in found.items()}
        assert all(m.probabilities is None for m in made.values())
    return found


def chains(drafter: ReplayDrafter, text: int, depth: int, slot: int = 0) -> list[list[int]]:
    """The drafts at every place of the text, as a request would ask for them."""
    drafter.admit(seat(slot, TEXTS[text][:2]))
    asked = [share(slot, TEXTS[text][:n], depth) for n in range(2, len(TEXTS[text]) - depth)]
    return [drafts(drafter, one)[slot] for one in asked]


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
    drafter.admit(seat(0, TEXTS[0][:5]))
    assert drafts(drafter, share(0, TEXTS[0][:5], 2))[0] == TEXTS[0][5:7]


def test_the_real_drafter_works_for_every_draft_and_nothing_is_proposed_where_nothing_was_recorded() -> None:
    real = Counting(most=3)
    drafter = ReplayDrafter(real, TEXTS, 1.0, VOCAB, SLOTS)
    found = drafts(drafter, share(0, TEXTS[0][:9], 4), share(1, [1, 2], 3))
    assert real.steps == 6
    assert found == {0: TEXTS[0][9:12], 1: []}
    assert drafts(drafter, share(0, TEXTS[0][:398], 4))[0] == TEXTS[0][398:]


def test_the_real_drafter_hears_all_that_happens() -> None:
    real = Counting()
    drafter = ReplayDrafter(real, TEXTS, 1.0, VOCAB, SLOTS)
    slot = seat(2, TEXTS[0][:9])
    drafter.admit(slot)
    drafter.lay_prompts([])
    drafter.read_prompts()
    drafter.committed(slot, (4, 5))
    drafter.undo(slot)
    drafter.release(2)
    assert real.calls == ["admit 2", "lay prompts", "read prompts", "committed 2 2", "undo 2", "release 2"]
