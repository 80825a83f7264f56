"""Plans: within budget and limits, optimal by brute force, no worse than any uniform L, leftover rows used."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.engine.planning.rows import evaluate, plan_fixed, plan_rows, plan_uniform, seats
from strata_cli.engine.planning.steptime import WindowCost

FLAT = WindowCost([30.0] * 65)


def survival(a: float, depth: int = 8) -> list[float]:
    return [a ** (k + 1) for k in range(depth)]


@st.composite
def cases(draw: st.DrawFn, slots: int = 3, depth: int = 3) -> tuple[list[list[float]], list[int], int, WindowCost, str]:
    n = draw(st.integers(1, slots))
    chances = st.lists(st.floats(0, 1), min_size=depth, max_size=depth)
    survivals = []
    for _ in range(n):
        s, alive = [], 1.0
        for a in draw(chances):
            alive *= a
            s.append(alive)
        survivals.append(s)
    limits = draw(st.lists(st.integers(1, depth + 1), min_size=n, max_size=n))
    rows = draw(st.integers(n, n * (depth + 1)))
    steps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.5, 3.0]), min_size=rows, max_size=rows))
    verify = [0.0]
    for step in steps:
        verify.append((verify[-1] or 5.0) + step)
    ms = st.sampled_from([0.0, 0.1, 1.0])
    cost = WindowCost(verify, start=draw(ms), step=draw(ms), draft=draw(ms), other=draw(ms))
    return survivals, limits, rows, cost, draw(st.sampled_from(["total", "slots"]))


def value(L: tuple[int, ...], survivals: list[list[float]], cost: WindowCost, fair: str) -> float:
    """From the design: (S + sum of survivals) / T, or sum of log expected tokens - S log T."""
    from math import log

    tokens = [1 + sum(s[: n - 1]) for n, s in zip(L, survivals)]
    drafts = sum(n - 1 for n in L)
    T = cost.verify[sum(L)] + cost.other
    if drafts:
        T += cost.start + cost.step * (max(L) - 1) + cost.draft * drafts
    return sum(tokens) / T if fair == "total" else sum(map(log, tokens)) - len(L) * log(T)


@given(cases())
def test_plan_rows_is_the_best_of_all_allocations(case: tuple) -> None:
    survivals, limits, rows, cost, fair = case
    plan = plan_rows(survivals, limits, rows, cost, fair)
    everything = product(*(range(1, limit + 1) for limit in limits))
    best = max(value(L, survivals, cost, fair) for L in everything if sum(L) <= rows)
    assert plan.value == pytest.approx(best, abs=1e-9)
    assert value(tuple(plan.L), survivals, cost, fair) == pytest.approx(plan.value, abs=1e-9)


@given(cases(slots=6, depth=8))
def test_within_budget_and_limits_and_no_worse_than_any_uniform_L(case: tuple) -> None:
    survivals, limits, rows, cost, fair = case
    plan, uniform = plan_rows(*case), plan_uniform(*case)
    for chosen in (plan, uniform):
        assert sum(chosen.L) <= rows
        assert all(1 <= n <= limit for n, limit in zip(chosen.L, limits))
    for n in range(1, rows // len(limits) + 1):
        same = evaluate([min(n, limit) for limit in limits], survivals, cost, fair)
        assert plan.value >= same.value - 1e-9 and uniform.value >= same.value - 1e-9


def test_uniform_L_at_8_rows_and_spec_4() -> None:
    for slots, most in ((1, 5), (2, 4), (3, 2), (4, 2)):
        plan = plan_uniform([survival(0.9)] * slots, [5] * slots, 8, FLAT)
        assert [most] * slots == plan.L


def test_leftover_rows_are_used() -> None:
    assert plan_rows([survival(0.9)] * 3, [5] * 3, 8, FLAT).L == [3, 3, 2]
    assert plan_fixed([5] * 3, 8) == [3, 3, 2]
    assert plan_fixed([5] * 3, 8, first=2) == [3, 2, 3]


@pytest.mark.parametrize("rows, tokens, uniform", [(12, 10.04, 8.63), (16, 12.19, 10.13)])
def test_the_figures_of_the_theory(rows: int, tokens: float, uniform: float) -> None:
    """Four slots of .93, .75, .60 and .40 with 8 and 12 drafts, up to 8 a chain: yields worked out by hand."""
    survivals = [survival(a) for a in (0.93, 0.75, 0.60, 0.40)]
    plan = plan_rows(survivals, [9] * 4, rows, FLAT)
    assert plan.tokens == pytest.approx(tokens, abs=0.006)
    assert plan_uniform(survivals, [9] * 4, rows, FLAT).tokens == pytest.approx(uniform, abs=0.006)
    if rows == 12:
        assert plan.L == [8, 2, 1, 1]  # .93^7 = .6017 still beats the .60 of the third slot's first draft


def test_no_drafts_when_they_never_pay() -> None:
    dear = WindowCost([10.0 * n for n in range(40)], step=5.0)
    assert plan_rows([survival(0.8)] * 4, [5] * 4, 20, dear).L == [1, 1, 1, 1]
    assert plan_uniform([survival(0.8)] * 4, [5] * 4, 20, dear).L == [1, 1, 1, 1]


def test_one_bad_slot_does_not_drag_the_others() -> None:
    cost = WindowCost([30 + 1.0 * n for n in range(40)], step=1.0)
    good = plan_rows([survival(0.9)] * 3, [5] * 3, 20, cost).L
    mixed = plan_rows([survival(0.9)] * 3 + [survival(0.05)], [5] * 4, 20, cost).L
    assert mixed[:3] == good == [5, 5, 5] and mixed[3] == 1


def test_free_padding_rows_are_used() -> None:
    stairs = WindowCost([30.0 + 40 * (n > 4) + 40 * (n > 8) for n in range(21)])
    assert sum(plan_rows([survival(0.9)] * 2, [9] * 2, 18, stairs).L) in (4, 8)
    assert plan_rows([survival(0.3)] * 2, [9] * 2, 18, stairs).L == [2, 2]


def test_slots_fairness_gives_the_weak_more() -> None:
    survivals = [survival(0.93), survival(0.5)]
    total = plan_rows(survivals, [9] * 2, 6, FLAT, "total").L
    slots = plan_rows(survivals, [9] * 2, 6, FLAT, "slots").L
    assert slots[1] > total[1]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 40), st.integers(0, 5))
def test_fixed_shares_the_budget_evenly(limits: list[int], extra: int, first: int) -> None:
    rows = len(limits) + extra
    L = plan_fixed(limits, rows, first)
    assert sum(L) == min(rows, sum(limits)) and all(1 <= n <= limit for n, limit in zip(L, limits))
    short = [n for n, limit in zip(L, limits) if n < limit]
    assert not short or max(L) - min(short) <= 1


def test_seats_go_to_those_who_waited_longest() -> None:
    assert seats([0, 0, 0, 0], 2) == [0, 1]
    assert seats([0, 0, 1, 1], 2) == [2, 3]
    assert seats([0, 3, 0, 1], 3) == [0, 1, 3]
    assert seats([0, 0], 5) == [0, 1]
