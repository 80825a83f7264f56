"""Chains of a window: who goes on, what a draft's own probability changes, what it may never change."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strata_cli.engine.chains import AHEAD, REPLANS, Chain, Chains
from strata_cli.engine.steptime import WindowCost
from strata_cli.engine.window import plan_rows

SPEC = 5


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[list[float]], int, WindowCost, list[list[float]], float]:
    """Survivals of some slots, a row budget, a cost, the probabilities that drafts will have, a threshold."""
    slots = draw(st.integers(1, 4))
    rates = st.lists(st.floats(0.02, 0.99), min_size=slots, max_size=slots)
    survivals = [[a ** (j + 1) for j in range(SPEC)] for a in draw(rates)]
    rows = draw(st.integers(slots, slots * (SPEC + 1)))
    tile = draw(st.sampled_from([1, 4, 8]))
    verify = [0.0] + [10.0 + draw(st.sampled_from([0.1, 1.0])) * (-(-n // tile) * tile) for n in range(1, rows + 1)]
    chances = st.lists(st.sampled_from([0.02, 0.3, 0.6, 0.95]), min_size=SPEC, max_size=SPEC)
    cost = WindowCost(verify, step=draw(st.sampled_from([0.1, 1.0])))
    return survivals, rows, cost, [draw(chances) for _ in range(slots)], draw(st.sampled_from([0.0, 0.1, 0.5]))


def drafted(case: tuple, certain: bool = False, again: bool = True) -> tuple[list[int], list[int], list[int], int]:
    """L as planned, drafts made, L in the end, and how often the window was planned again."""
    survivals, rows, cost, chances, min_p = case
    limits, times = [SPEC + 1] * len(survivals), 0
    first = plan_rows(survivals, limits, rows, cost).L

    def replan(survivals: Sequence[list[float]], limits: Sequence[int], made: int) -> Sequence[int]:
        nonlocal times
        times += 1
        return plan_rows(survivals, limits, rows, cost, "total", made).L

    chains = Chains(
        {i: Chain(n, SPEC + 1 if n > 1 else 1, list(s)) for i, (n, s) in enumerate(zip(first, survivals))},
        replan if again else None,
        0.0,
        lambda slot, position, probability: probability,
        min_p,
        certain,
    )
    going, made, depth = {i for i, n in enumerate(first) if n > 1}, [0] * len(first), 0
    while going:
        depth += 1
        for slot in going:
            made[slot] = depth
        on = chains.go_on(depth, {slot: chances[slot][depth - 1] for slot in sorted(going)})
        assert on <= going
        going = on
    return first, made, [chain.L for chain in chains.chains.values()], times


@given(windows())
def test_rows_stay_within_the_budget_and_within_what_was_drafted(case: tuple) -> None:
    first, made, L, times = drafted(case)
    assert sum(L) <= case[1]
    assert all(1 <= n <= drafts + 1 for n, drafts in zip(L, made))
    assert times <= REPLANS
    assert max(L) <= max(first) + AHEAD * REPLANS


@given(windows())
def test_a_draft_below_the_threshold_never_gets_a_row(case: tuple) -> None:
    *_, chances, min_p = case
    _, _, L, _ = drafted(case)
    assert all(p >= min_p for n, row in zip(L, chances) for p in row[: n - 1])


@given(windows(), st.integers(0, 3), st.sampled_from([0.02, 0.95]))
def test_certain_drafts_all_get_rows_and_no_row_depends_on_the_draft_in_it(case: tuple, slot: int, p: float) -> None:
    """Rejection sampling needs this: whether draft j of a slot is judged depends on the drafts before it alone."""
    survivals, rows, cost, chances, min_p = case
    _, made, L, _ = drafted(case, certain=True, again=False)
    assert [n + 1 for n in made] == L
    if slot < len(L):
        for j in range(SPEC):  # another draft at j: the rows up to it stay
            other = [list(row) for row in chances]
            other[slot][j] = p
            changed = drafted((survivals, rows, cost, other, min_p), certain=True, again=False)[2]
            assert min(changed[slot], j + 2) == min(L[slot], j + 2)


@given(windows())
def test_without_news_the_plan_stands(case: tuple) -> None:
    survivals, rows, cost, _, _ = case
    expected = [[b / a for a, b in pairwise([1.0, *s])] for s in survivals]
    first, made, L, times = drafted((survivals, rows, cost, expected, 0.0))
    assert (L, times) == (first, 0)
    assert made == [n - 1 for n in first]
