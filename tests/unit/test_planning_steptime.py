"""StepTimeEstimator: buckets, medians, monotone, outliers, gaps, context, the chain's cost."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.engine.planning.steptime import StepTimeEstimator, WindowCost, isotonic
from strata_cli.engine.planning.tuning import DEFAULT

TRUSTED = DEFAULT.trusted


def sizes(rows: int) -> int:
    return next(n for n in (1, 2, 4, 8, 16) if n >= rows)


def feed(est: StepTimeEstimator, rows: int, ms: float, n: int = 1, ctx: int = 0) -> None:
    for _ in range(n):
        est.record(rows=rows, depth=0, drafts=0, ctx_total=ctx, verify_ms=ms, draft_ms=None, other_ms=None)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), max_size=8))
def test_isotonic_is_the_best_monotone_fit(points: list[tuple[int, int]]) -> None:
    values, weights = [float(v) for v, _ in points], [float(w) for _, w in points]
    fit = isotonic(values, weights)
    assert len(fit) == len(values) and all(a <= b for a, b in pairwise(fit))
    # independent source: the min-max formula, max over starts of the min over ends of the weighted mean
    for i in range(len(values)):
        best = max(
            min(
                sum(v * w for v, w in zip(values[a : b + 1], weights[a : b + 1])) / sum(weights[a : b + 1])
                for b in range(i, len(values))
            )
            for a in range(i + 1)
        )
        assert fit[i] == pytest.approx(best)


def test_padding_rows_are_free() -> None:
    est = StepTimeEstimator(16, sizes)
    for rows, ms in ((4, 10.0), (8, 15.0), (16, 30.0)):
        feed(est, rows, ms, 10)
    verify = est.cost().verify
    assert verify[4] == pytest.approx(10) and verify[5] == verify[8] == pytest.approx(15)
    assert verify[9] == verify[16] == pytest.approx(30)
    feed(est, 5, 25.0, 32)  # 5 rows are run as 8: the bucket learns, its rows stay alike
    verify = est.cost().verify
    assert verify[5] == verify[8] == pytest.approx(25)


def test_rows_are_free_until_they_are_seen_not_to_be() -> None:
    est = StepTimeEstimator(16, sizes)
    assert len(set(est.cost().verify[1:])) == 1 and est.cost().verify[1] > 0
    feed(est, 4, 28.0, TRUSTED)
    assert est.cost().verify[1:] == pytest.approx([28.0] * 16)


def test_gaps_are_filled_between_buckets_really_run() -> None:
    est = StepTimeEstimator(16, lambda n: -(-n // 4) * 4)
    feed(est, 4, 10.0, 8)
    feed(est, 12, 30.0, 8)
    verify = est.cost().verify
    assert verify[8] == pytest.approx(20)  # half way
    assert verify[16] == pytest.approx(30)  # beyond: as the nearest


def test_outliers_do_not_move_it() -> None:
    rng = random.Random(0)
    est = StepTimeEstimator(16, sizes)
    feed(est, 16, 900.0)  # the first run compiled
    for _ in range(60):
        feed(est, 4, 10 * (50 if rng.random() < 0.1 else rng.uniform(0.97, 1.03)))
        feed(est, 16, 20 * (50 if rng.random() < 0.1 else rng.uniform(0.97, 1.03)))
    assert est.cost().verify[4] == pytest.approx(10, rel=0.03)
    assert est.cost().verify[16] == pytest.approx(20, rel=0.03)


def test_one_sample_is_not_trusted() -> None:
    est = StepTimeEstimator(16, sizes)
    feed(est, 4, 10.0, 10)
    feed(est, 16, 500.0)
    assert est.cost().verify[16] < 20
    feed(est, 16, 11.0, TRUSTED)
    assert est.cost().verify[16] == pytest.approx(11, rel=0.2)


def test_never_falls_with_rows() -> None:
    rng = random.Random(1)
    est = StepTimeEstimator(16, lambda n: n)
    for _ in range(300):
        feed(est, rng.randint(1, 16), rng.uniform(5, 50))
        verify = est.cost().verify
        assert all(0 < a <= b for a, b in pairwise(verify[1:]))


def test_the_chain_is_learned_apart_from_verification() -> None:
    rng = random.Random(2)
    est = StepTimeEstimator(20, lambda n: n)
    for _ in range(400):
        depth = rng.randint(1, 4)
        drafts = rng.randint(depth, 4 * depth)
        ms = (0.8 + 1.5 * depth + 0.1 * drafts) * rng.uniform(0.95, 1.05) * (20 if rng.random() < 0.01 else 1)
        est.record(rows=4 + drafts, depth=depth, drafts=drafts, ctx_total=0, verify_ms=20.0, draft_ms=ms, other_ms=1.0)
    cost = est.cost()
    for depth, drafts in ((1, 1), (2, 8), (4, 16)):
        expected = 20 + 1 + 0.8 + 1.5 * depth + 0.1 * drafts
        assert cost.ms(4 + drafts, depth, drafts) == pytest.approx(expected, rel=0.05)
    assert cost.ms(4, 0, 0) == pytest.approx(21, rel=0.02), "no drafts: no catch-up either"


def test_context_costs_when_it_shows_and_only_then() -> None:
    rng = random.Random(3)
    grows, flat = StepTimeEstimator(4, lambda n: 4), StepTimeEstimator(4, lambda n: 4)
    for _ in range(600):
        ctx = rng.choice([500, 4000, 20000])
        noise = rng.uniform(0.95, 1.05)
        feed(grows, 4, (10 + 0.0004 * ctx) * noise, ctx=ctx)
        feed(flat, 4, 10 * noise, ctx=ctx)
    assert grows.per_ctx == pytest.approx(0.0004, rel=0.15)
    assert grows.cost().verify[4] == pytest.approx(10, rel=0.1)
    assert flat.per_ctx < 0.00002


def test_asks_for_what_was_never_run() -> None:
    est = StepTimeEstimator(16, sizes)
    for expected in (2, 16):  # the ends by all means: they say most
        assert est.wanted(range(2, 17)) == (expected, True)
        feed(est, expected, 10.0 + expected, TRUSTED)
    assert est.wanted(range(2, 17)) == (4, False)
    assert est.wanted(range(2, 17)) == (8, False)
    assert est.wanted(range(2, 17)) == (0, False)
    assert est.wanted([1, 2]) == (1, True)


def asked(est: StepTimeEstimator, windows: int, ms: float) -> list[int]:
    """The windows in which 16 rows are asked for while 4 rows run, and run then, in `ms`."""
    found = []
    for window in range(windows):
        if est.wanted([4, 16]) == (16, False):
            found.append(window)
            feed(est, 16, ms)
        feed(est, 4, 10.0)
    return found


def test_what_rests_on_few_measurements_is_asked_for_again_and_ever_more_rarely() -> None:
    est = StepTimeEstimator(16, sizes)
    feed(est, 4, 10.0, 50)
    feed(est, 16, 20.0, TRUSTED)
    waits = [b - a for a, b in pairwise(asked(est, 4000, 20.0))]
    assert waits[0] == DEFAULT.doubt * (TRUSTED + 1)
    assert waits == sorted(waits) and waits[-1] > 100
    assert len(waits) < 50


def test_a_burst_that_spoilt_all_measurements_is_found_out_after_a_while() -> None:
    est = StepTimeEstimator(16, sizes)
    feed(est, 4, 10.0, 50)
    feed(est, 16, 40.0, 20)
    feed(est, 4, 10.0, 65)
    asked(est, 100, 20.0)
    assert est.cost().verify[16] == pytest.approx(20, rel=0.05)


def test_what_is_asked_for_and_not_run_is_put_off() -> None:
    """The caller may have a reason: it is not asked in every window."""
    est = StepTimeEstimator(16, sizes)
    feed(est, 4, 10.0, 50)
    feed(est, 16, 20.0, TRUSTED)
    feed(est, 4, 10.0, 2 * TRUSTED**2)
    assert est.wanted([4, 16]) == (16, False)
    assert est.wanted([4, 16]) == (0, False)


def test_cost_adds_up() -> None:
    cost = WindowCost([0.0, 10.0, 11.0, 12.0], start=1.0, step=2.0, draft=0.5, other=3.0)
    assert cost.ms(1, 0, 0) == 13
    assert cost.ms(3, 2, 2) == 12 + 1 + 4 + 1 + 3
