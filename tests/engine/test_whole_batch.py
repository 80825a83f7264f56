"""What a toy could not pass: one forward for all slots, ragged chains, drafts that are judged for what they are."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from strata_cli.engine.drafters import GoOn, Proposal, Seen, Wish
from strata_cli.engine.engine import Engine
from strata_cli.engine.types import Request
from tests.support.engine import engine, prompt, request, run, tiny

FOUR = [request(str(i), prompt(9 + 7 * i, seed=i), max_tokens=30) for i in range(4)]


class Scripted:
    """Drafts the true continuations (known from a run without drafts), or tokens that are never right."""

    def __init__(self, answers: dict[int, list[int]], right: bool):
        self.answers, self.right = answers, right

    def start(self, slot: int, hidden: Any) -> None: ...

    def observe(self, seen: Sequence[Seen]) -> None: ...

    def propose(self, wishes: Sequence[Wish], go_on: GoOn) -> dict[int, Proposal]:
        return {w.slot: Proposal([self._draft(w, j) for j in range(w.depth)]) for w in wishes}

    def _draft(self, wish: Wish, j: int) -> int:
        text = next(a for a in self.answers.values() if a[: len(wish.tokens)] == list(wish.tokens))
        token = text[len(wish.tokens) + j] if len(wish.tokens) + j < len(text) else 0
        return token if self.right else (token + 1) % 131


def scripted(right: bool, **settings: Any) -> Engine:
    plain = run(engine(tiny(), spec=0), FOUR)
    answers = {i: [*FOUR[i].prompt, *plain.results[str(i)].token_ids] for i in range(4)}
    e = engine(tiny(), mtp_varlen=False, **settings)
    e.drafters = {"mtp": Scripted(answers, right)}
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
        from strata_cli.engine.planner import Choice

        seen.append(1)
        return [Choice(1, "user") for _ in views] if len(seen) % 2 else choose(views)

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


def test_bytes_and_steps_of_recurrent_state() -> None:
    """One state a slot and the small inputs of its rows; a row is stepped in its window, and again when it is kept."""
    e = engine(tiny(), mtp_varlen=False, prefix_cache=False)
    cache, config = e.cache.recurrent, e.runner.model.config
    layers = config.layer_types.count("linear_attention")
    heads, keys = config.linear_num_value_heads, config.linear_num_key_heads
    k, v = config.linear_key_head_dim, config.linear_value_head_dim
    channels = 2 * keys * k + heads * v
    state = heads * k * v + (config.linear_conv_kernel_dim - 1) * channels
    row = keys * k + heads * v + 2 * heads + channels
    assert cache.bytes_per_slot == 4 * layers * (state + 5 * row)
    steps: list[int] = []
    found = run(e, FOUR, lambda e, window: steps.append(e.cache.recurrent.steps))
    before, waiting = 0, {}
    for record, after in zip(found.records, steps):
        expected = 0
        for request_id, prompt_rows, L, keeps in zip(record.request, record.prompt, record.L, record.keeps):
            expected += prompt_rows + L + (waiting.get(request_id, 0) if L or prompt_rows else 0)
            waiting[request_id] = keeps if L else 0
        assert after - before == layers * expected
        before = after


def test_rows_do_not_depend_on_their_company() -> None:
    """Bit by bit: the hidden row of one token alone, among decode rows, and beside another slot's prompt."""
    from strata_cli.model.rows import Segment

    outcomes = []
    for company in ([], [(1, 1)], [(1, 3), (2, 5)], [(1, 70), (2, 1), (3, 17)]):
        e = engine(tiny(), prefix_cache=False)
        with torch.inference_mode():
            for slot in range(4):
                assert e.cache.reserve(slot, 200)
                e.runner.forward([Segment(slot, 0, prompt(30, seed=slot), True)])
                e.cache.advance(slot, 30)
            others = [Segment(slot, 30, prompt(n, seed=slot), n > 5) for slot, n in company]
            rows, hidden = e.runner.forward([*others, Segment(0, 30, [3, 4, 5])])
            start = rows.starts[-1]
            outcomes.append((hidden[start : start + 3], e.runner.logits(hidden, range(start, start + 3))))
    for hidden, logits in outcomes[1:]:
        assert torch.equal(hidden, outcomes[0][0])
        assert torch.equal(logits, outcomes[0][1])
