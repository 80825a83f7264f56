"""Settlement: rows for what was drafted, whatever a draft's own probability says, and what it may never change."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from strata_cli.engine.planning import Choice, Made, Outcome, Planner, SlotView

SPEC = 5
PROBABILITIES = st.lists(st.sampled_from([0.02, 0.3, 0.6, 0.95]), min_size=SPEC, max_size=SPEC)


@st.composite
def windows(draw: st.DrawFn, certain: bool = False) -> tuple[Planner, list[Choice], list[list[float]]]:
    """A planner that has seen some windows, its choices for the next one, and the probabilities that drafts will have."""
    slots = draw(st.integers(1, 4))
    tile = draw(st.sampled_from([1, 4, 8]))
    planner = Planner(
        spec=SPEC,
        rows=draw(st.integers(slots, slots * (SPEC + 1))),
        plan="rows",
        fair=draw(st.sampled_from(["total", "slots"])),
        varlen=True,
        batch=slots,
        bucket=lambda n: -(-n // tile) * tile,
        min_p=draw(st.sampled_from([0.0, 0.1, 0.5])),
        certain=certain,
    )
    rng = draw(st.randoms(use_true_random=False))
    rates = draw(st.lists(st.floats(0.02, 0.99), min_size=slots, max_size=slots))
    views = [SlotView(i, f"r{i}", 100, SPEC + 1, "user") for i in range(slots)]
    for _ in range(draw(st.sampled_from([0, 3, 40]))):
        choices = planner.choose(views)
        L = [c.L for c in choices]
        chances = [[rng.choice([0.02, 0.3, 0.6, 0.95]) for _ in range(c.depth)] for c in choices]
        made = {i: Made(len(p), p) for i, p in enumerate(chances) if p}
        for slot, choice in planner.settle(made).items():
            L[slot] = choice.L
        outcomes = []
        for i, n in enumerate(L):
            accepted = next((j for j in range(n - 1) if rng.random() >= rates[i]), max(n - 1, 0))
            outcomes.append(Outcome(i, n, max(n - 1, 0), accepted))
        planner.record(
            outcomes,
            depth=max(c.depth for c in choices),
            drafts=sum(c.depth for c in choices),
            draft_ms=0.5 * max(c.depth for c in choices),
            verify_ms=10.0 + sum(L),
            other_ms=0.1,
            rows=sum(L),
            ctx_total=100,
        )
    return planner, planner.choose(views), [draw(PROBABILITIES) for _ in range(slots)]


def settled(planner: Planner, choices: list[Choice], chances: list[list[float]], stop: bool) -> list[int]:
    """L in the end, each chain stopped at its threshold, or run on to its depth."""
    made = {}
    for slot, (choice, row) in enumerate(zip(choices, chances)):
        row = row[: choice.depth]
        end = next((j for j, p in enumerate(row, 1) if p < choice.stop), len(row)) if stop else len(row)
        if row:
            made[slot] = Made(end, row[:end])
    final = planner.settle(made)
    return [final[slot].L if slot in made else choice.L for slot, choice in enumerate(choices)]


@settings(deadline=None)
@given(windows())
def test_rows_stay_within_the_budget_and_within_what_was_drafted(case: tuple) -> None:
    planner, choices, chances = case
    L = settled(planner, choices, chances, True)
    assert sum(L) <= planner.rows
    for n, choice in zip(L, choices):
        assert choice.L - 1 <= choice.depth <= SPEC
        assert min(choice.L, 1) <= n <= choice.depth + 1


@settings(deadline=None)
@given(windows(), st.sampled_from([False, True]))
def test_it_is_the_same_whether_chains_stopped_or_ran_on(case: tuple, certain: bool) -> None:
    planner, choices, chances = case
    planner.certain = certain
    views = [SlotView(i, f"r{i}", 100, SPEC + 1, "user") for i in range(len(choices))]
    choices = planner.choose(views)
    parts = {slot: replace(part) for slot, part in planner._parts.items()}  # what settle reads, once more
    stopped = settled(planner, choices, chances, True)
    planner._parts = {slot: replace(part, chances=[]) for slot, part in parts.items()}
    assert settled(planner, choices, chances, False) == stopped


@settings(deadline=None)
@given(windows())
def test_a_draft_below_the_threshold_never_gets_a_row(case: tuple) -> None:
    planner, choices, chances = case
    L = settled(planner, choices, chances, True)
    assert all(p >= planner.min_p for n, row in zip(L, chances) for p in row[: max(n - 1, 0)])


@settings(deadline=None)
@given(windows(certain=True), st.booleans())
def test_certain_drafts_all_get_rows_and_no_row_depends_on_the_draft_in_it(case: tuple, stop: bool) -> None:
    """Rejection sampling needs this: whether draft j of a slot is judged depends on the drafts before it alone."""
    planner, choices, chances = case
    L = settled(planner, choices, chances, stop)
    for n, choice, row in zip(L, choices, chances):
        low = (j for j, p in enumerate(row[: choice.depth], 1) if p < planner.min_p)
        assert n == (1 + next(low, choice.depth) if choice.L else 0)


@settings(deadline=None)
@given(windows())
def test_without_probabilities_the_plan_stands(case: tuple) -> None:
    planner, choices, _ = case
    made = {slot: Made(c.depth) for slot, c in enumerate(choices) if c.depth}
    assert planner.settle(made) == {slot: choices[slot] for slot in made}
