"""AcceptanceTracker: censoring, prior, forgetting, sharpening; CollapseWatch: speaks once, with the figure."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.engine.planning.acceptance import AcceptanceTracker, CollapseWatch
from strata_cli.engine.planning.tuning import DEFAULT

DEPTH = 5
windows = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, DEPTH), st.integers(0, DEPTH)).map(
        lambda w: (w[0], w[1], min(w[1], w[2]))
    ),
    max_size=80,
)


def chain(rng: random.Random, curve: list[float], drafts: int) -> int:
    """Accepted drafts of one window whose drafts hold with the given conditional chances."""
    accepted = 0
    while accepted < drafts and rng.random() < curve[accepted]:
        accepted += 1
    return accepted


def fed(curves: list[list[float]], n: int, drafts: int = DEPTH, seed: int = 1) -> AcceptanceTracker:
    rng = random.Random(seed)
    tracker = AcceptanceTracker(len(curves), DEPTH)
    for _ in range(n):
        for slot, curve in enumerate(curves):
            tracker.observe(slot, drafts, chain(rng, curve, drafts))
    return tracker


@given(windows)
def test_survival_never_rises_and_stays_a_probability(history: list[tuple[int, int, int]]) -> None:
    tracker = AcceptanceTracker(3, DEPTH)
    for slot, verified, accepted in history:
        tracker.observe(slot, verified, accepted)
    for slot in range(3):
        survival = tracker.survival(slot, DEPTH)
        assert len(survival) == DEPTH
        assert all(1 >= a >= b >= 0 for a, b in zip([1.0, *survival], survival))
        assert tracker.survival(slot, 2) == survival[:2]


def test_learns_a_curve_from_censored_windows() -> None:
    curve = [0.9, 0.8, 0.7, 0.6, 0.5]
    estimates = [fed([curve] * 4, 400, seed=seed) for seed in range(5)]
    for j, a in enumerate(curve):
        assert sum(t.conditional(s, j + 1) for t in estimates for s in range(4)) / 20 == pytest.approx(a, abs=0.05)


def test_positions_not_reached_are_unknown_not_refused() -> None:
    tracker = AcceptanceTracker(1, DEPTH)
    before = [tracker.conditional(0, j) for j in range(1, DEPTH + 1)]
    for _ in range(100):  # position 1 always held, 2 never got a row
        tracker.observe(0, 1, 1)
    after = [tracker.conditional(0, j) for j in range(1, DEPTH + 1)]
    assert after[0] > 0.95
    assert all(b >= a for a, b in zip(before, after))
    for _ in range(100):  # the first draft refused: nothing is learned of the four after it but by the prior
        tracker.observe(0, DEPTH, 0)
    assert tracker._pool.seen[1:] == [0.0] * (DEPTH - 1)


def test_a_bad_slot_does_not_drag_the_others() -> None:
    alone = fed([[0.9] * DEPTH] * 3, 300)
    beside = fed([[0.9] * DEPTH] * 3 + [[0.1] * DEPTH], 300)
    for slot in range(3):
        assert beside.conditional(slot, 1) > 0.75
        assert sum(alone.survival(slot, 4)) - sum(beside.survival(slot, 4)) < 0.5
    assert beside.conditional(3, 1) < 0.25


def test_a_slot_bad_at_its_first_draft_is_not_believed_good_at_its_third() -> None:
    tracker = fed([[0.95] * DEPTH] * 3 + [[0.2] * DEPTH], 200)
    assert tracker.conditional(3, 3) < tracker.conditional(0, 3) - 0.1


def test_a_new_request_starts_from_the_pool() -> None:
    tracker = fed([[0.9] * DEPTH] * 3 + [[0.1] * DEPTH], 200)
    bad = tracker.conditional(3, 1)
    tracker.reset(3)
    pool = tracker._pool.accepted[0] / tracker._pool.seen[0]
    assert bad < 0.25 and tracker.conditional(3, 1) == pytest.approx(pool, abs=0.02)
    assert tracker.conditional(0, 1) > 0.8, "the others keep what is known of them"


def test_follows_a_change() -> None:
    tracker = fed([[0.9] * DEPTH], 300)
    for _ in range(60):
        tracker.observe(0, 3, 0)
    assert tracker.conditional(0, 1) < 0.3


def test_the_draft_s_own_probability_sharpens() -> None:
    rng = random.Random(3)
    tracker = AcceptanceTracker(1, DEPTH)
    for _ in range(3000):
        p = rng.random()
        tracker.observe(0, 1, int(rng.random() < p), [p])
    assert tracker.chances(0, [0.95])[0] > 0.85 and tracker.chances(0, [0.05])[0] < 0.15


def test_overconfident_drafts_are_not_believed() -> None:
    rng = random.Random(4)
    tracker = AcceptanceTracker(1, DEPTH)
    for _ in range(2000):  # says .95 or .55, holds in half of the cases whatever it says
        tracker.observe(0, 1, int(rng.random() < 0.5), [rng.choice([0.95, 0.55])])
    assert tracker.chances(0, [0.95])[0] == pytest.approx(0.5, abs=0.1)


def test_collapse_is_told_once_with_its_figure() -> None:
    watch = CollapseWatch()
    for _ in range(DEFAULT.rolling):
        watch.observe(100, True)
        assert watch.warning() is None
    for i in range(DEFAULT.rolling // 2):
        watch.observe(40000 + i, i % 5 == 0)
    message = watch.warning()
    assert message is not None and "20%" in message and "40000 to 40099 tokens" in message and "100%" in message
    assert watch.warning() is None


def test_hard_text_is_no_collapse() -> None:
    watch = CollapseWatch()
    for i in range(500):
        watch.observe(100, i % 10 < 9)
        watch.observe(9000, i % 2 == 0)
        assert watch.warning() is None
