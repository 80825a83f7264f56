"""What a toy could not pass: one forward for all slots, ragged chains, drafts that are judged for what they are."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from strata_cli.engine.drafters import Proposal
from strata_cli.engine.drafters.ngram import NgramDrafter
from strata_cli.engine.engine import Engine
from strata_cli.engine.life import Slot
from strata_cli.engine.planning import Choice, Made
from strata_cli.engine.types import Request
from strata_cli.engine.window import Share
from strata_kernels.gated_delta import reference as recurrence
from strata_kernels.window import Segment
from tests.support.engine import ByHand, engine, prompt, request, run, tiny

FOUR = [request(str(i), prompt(9 + 7 * i, seed=i), max_tokens=30) for i in range(4)]


class Scripted(NgramDrafter):
    """Drafts the true continuations (known from a run without drafts), or tokens that are never right."""

    def __init__(self, answers: Sequence[list[int]], right: bool):
        super().__init__(4)
        self.answers, self.right = answers, right

    def lay(self, shares: Sequence[Share], others: Sequence[Slot]) -> Proposal:
        tokens = {s.slot.index: [self._draft(s.slot.life.tokens, j) for j in range(s.depth)] for s in shares}
        self._made = {slot: Made(len(found)) for slot, found in tokens.items()}
        return Proposal(self._made, tokens)

    def _draft(self, known: list[int], j: int) -> int:
        text = next(a for a in self.answers if a[: len(known)] == known)
        token = text[len(known) + j] if len(known) + j < len(text) else 0
        return token if self.right else (token + 1) % 131


def scripted(right: bool, **settings: Any) -> Engine:
    plain = run(engine(tiny(), spec=0), FOUR)
    e = engine(tiny(), mtp_varlen=False, **settings)
    e.drafters["mtp"] = Scripted([[*r.prompt, *plain.results[r.id].token_ids] for r in FOUR], right)
    return e


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_one_forward_and_one_chain_a_window(slots: int) -> None:
    e = engine(tiny(), mtp_varlen=False)
    counts: list[tuple[int, int]] = []

    def between(e: Engine, window: int) -> None:
        assert e.runner.head is not None
        counts.append((e.runner.model.forwards, e.runner.head.forwards))

    found = run(e, FOUR[:slots], between)
    before = (0, 0)
    for record, after in zip(found.records, counts):
        main, head = after[0] - before[0], after[1] - before[1]
        before = after
        assert main == 1
        depth = max([L - 1 for L in record.L if L], default=0)
        # the chain: catching up yields the first draft; and one pass that shows the head new prompt rows
        assert head <= depth + (sum(record.prompt) > 0)
        assert head >= depth


def test_right_drafts_are_all_kept() -> None:
    found = run(scripted(True), FOUR)
    assert found.tokens() == run(engine(tiny(), spec=0), FOUR).tokens()
    decoding = [(L, k) for r in found.records for L, k in zip(r.L, r.keeps) if L]
    assert all(k == L for L, k in decoding)
    assert max(L for L, _ in decoding) == 5
    assert len(decoding) == 4 * 6  # 29 tokens after the first one, five a window


def test_wrong_drafts_keep_one() -> None:
    found = run(scripted(False), FOUR)
    assert found.tokens() == run(engine(tiny(), spec=0), FOUR).tokens()
    decoding = [(L, k) for r in found.records for L, k in zip(r.L, r.keeps) if L]
    assert all(k == 1 for _, k in decoding)
    assert sum(L - 1 for L, _ in decoding) > 0


def test_L_rises_from_one_to_five_at_once_with_real_drafts() -> None:
    """Windows alternate between L = 1 and L = 5; acceptance of the wide ones is what it is when all are wide."""
    e = engine(tiny(agree=1.0), mtp_varlen=False)
    seen: list[int] = []
    choose = e.planner.choose

    def narrow(views: Any) -> Any:
        seen.append(1)
        return [Choice(1, "user", 0) for _ in views] if len(seen) % 2 else choose(views)

    e.planner.choose = narrow  # type: ignore[method-assign]
    found = run(e, [request("0", prompt(20), max_tokens=60)])
    always = run(engine(tiny(agree=1.0), mtp_varlen=False), [request("0", prompt(20), max_tokens=60)])
    L = [r.L[0] for r in found.records if r.L[0]]
    assert (1, 5) in list(itertools.pairwise(L))
    assert found.tokens() == always.tokens()
    rate = found.results["0"].spec.per_position()[0]
    assert rate == pytest.approx(always.results["0"].spec.per_position()[0], abs=0.25)
    assert rate > 0.3


@pytest.mark.parametrize("odd", [{"temperature": 1.0}, {"repetition_penalty": 1.3, "presence_penalty": 0.5}])
def test_an_odd_slot_leaves_all_drafting(odd: dict[str, Any]) -> None:
    requests: list[Request] = [*FOUR[:3], request("3", FOUR[3].prompt, max_tokens=30, **odd)]
    found = run(engine(tiny(), mtp_varlen=False), requests)
    for record in found.records:
        assert all(L > 1 or keeps == 0 or rows or left_one for L, keeps, rows, left_one in _views(record))
    assert all(found.results[str(i)].spec.drafted > 0 for i in range(4))
    assert sum(found.results["3"].spec.accepted_at) > 0


def _views(record: Any) -> list[tuple[int, int, int, bool]]:
    """(L, keeps, prompt rows, whether the budget of tokens left no room for drafts) by slot."""
    return [
        (L, k, p, reason == "fits") for L, k, p, reason in zip(record.L, record.keeps, record.prompt, record.reason)
    ]


def test_bytes_of_recurrent_state() -> None:
    """One state a slot and the small inputs of its rows, nothing a row more."""
    e, layers = engine(tiny(), prefix_cache=False), 3
    heads, keys, k, v, kernel = 4, 2, 16, 16, 4  # of the shape "plain"
    channels = 2 * keys * k + heads * v
    state = heads * k * v + (kernel - 1) * channels
    row = keys * k + heads * v + 2 * heads + channels
    pool = e.runner.recurrent.pool
    parts = (pool.state, pool.conv, pool.k, pool.v, pool.beta, pool.decay, pool.conv_rows)
    assert sum(p.nbytes for p in parts) == 4 * 4 * layers * (state + 5 * row)


def test_steps_of_recurrent_state(monkeypatch: pytest.MonkeyPatch, compiled: Callable[..., None]) -> None:
    """A row is stepped in its window, and again when it is kept: steps of all slots at once, counted by the longest
    slot, and by all slots where they differ.
    """
    compiled("product", "head")
    stepped: list[int] = []
    step = recurrence._step

    def counted(state: torch.Tensor, *args: torch.Tensor) -> None:
        stepped.append(len(state))
        step(state, *args)

    monkeypatch.setattr(recurrence, "_step", counted)
    e, layers, heads = engine(tiny(), mtp_varlen=False, prefix_cache=False), 3, 4
    windows: list[list[int]] = []

    def between(e: Engine, window: int) -> None:
        windows.append(list(stepped))
        stepped.clear()

    found = run(e, FOUR, between)
    waiting: dict[str, int] = {}
    for record, steps in zip(found.records, windows, strict=True):
        rows = [p + L for p, L in zip(record.prompt, record.L)]
        replayed = max(waiting.values(), default=0)  # every slot's state passes through a replay
        assert len(steps) == layers * (max(rows) + replayed)
        assert sum(steps) == layers * heads * (sum(rows) + 4 * replayed)
        waiting = {i: k if L else 0 for i, L, k in zip(record.request, record.L, record.keeps)}
        for i in found.results:  # a slot that was left is empty
            if record is not found.records[-1] and i not in _after(found, record):
                waiting.pop(i, None)


def _after(found: Any, record: Any) -> list[str]:
    return found.records[found.records.index(record) + 1].request  # type: ignore[no-any-return]


def test_rows_do_not_depend_on_their_company() -> None:
    """Bit by bit: the hidden row of one token alone, among decode rows, and beside another slot's prompt."""
    outcomes = []
    for company in ([], [(1, 1)], [(1, 3), (2, 5)], [(1, 70), (2, 1), (3, 17)]):
        by_hand = ByHand(engine(tiny(), prefix_cache=False), 200)
        with torch.inference_mode():
            for slot in range(4):
                by_hand.read([slot], prompt(30, seed=slot))
            others = [Segment(slot, 30, prompt(n, seed=slot), certain=n > 5) for slot, n in company]
            scores = by_hand.window([*others, Segment(0, 30, [3, 4, 5])])[0]
            outcomes.append((by_hand.hidden[0], scores))
    for hidden, scores in outcomes[1:]:
        assert torch.equal(hidden, outcomes[0][0])
        assert torch.equal(scores, outcomes[0][1])
