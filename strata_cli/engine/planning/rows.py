"""How many rows each slot gets in a window: pure functions of survivals, limits, a row budget and a cost. No torch.

L rows are expected to yield 1 + s_1 + ... + s_(L-1) tokens. A limit is the most rows a slot may take. Fairness "total"
maximises expected tokens per ms; "slots" the sum over slots of log(expected tokens) - log(ms), proportional fairness.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log

from strata_cli.engine.planning.steptime import WindowCost

Survivals = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows per slot and what they are expected to bring: tokens per window, ms, and the value by the fairness asked."""

    L: list[int]
    tokens: float
    ms: float
    value: float


def evaluate(L: Sequence[int], survivals: Survivals, cost: WindowCost, fair: str = "total") -> Plan:
    """The plan that gives slot i exactly `L[i]` >= 1 rows."""
    yields = [1.0 + sum(s[: n - 1]) for n, s in zip(L, survivals, strict=True)]
    tokens, ms = sum(yields), cost.ms(sum(L), max(L) - 1, sum(L) - len(L))
    value = tokens / ms if fair == "total" else sum(map(log, yields)) - len(L) * log(ms)
    return Plan(list(L), tokens, ms, value)


def plan_uniform(
    survivals: Survivals, limits: Sequence[int], rows: int, cost: WindowCost, fair: str = "total", beside: float = 0.0
) -> Plan:
    """One L for all slots, cut to each one's limit: the one of greatest value. `beside`: as `plan_rows`."""
    most = min(max(limits), rows // len(limits))
    plans = (evaluate([min(n, limit) for limit in limits], survivals, cost, fair) for n in range(1, most + 1))
    return max(plans, key=lambda plan: plan.value + beside / plan.ms)


def plan_rows(
    survivals: Survivals, limits: Sequence[int], rows: int, cost: WindowCost, fair: str = "total", beside: float = 0.0
) -> Plan:
    """Each slot its own L: the best over every chain depth and every number of rows. Needs rows >= slots >= 1.
    `beside`: tokens that come in the time of `cost.other` whatever is chosen (for fairness "total").

    For a depth and a number of rows those of greatest gain over all slots are best; gains never rise with position, so
    they are a prefix of each chain, and this greedy is exact. L = 1 for every slot is always among the candidates.
    """
    slots, deepest, total = len(limits), max(limits) - 1, fair == "total"
    gains: list[tuple[float, int, int]] = []  # (minus gain, position, slot): ties go to shallow positions first
    width = [0.0] * deepest  # what all slots together gain at a position
    for i, limit in enumerate(limits):
        tokens = 1.0
        for j, s in enumerate(survivals[i][: limit - 1]):
            if not total:
                tokens, s = tokens + s, log((tokens + s) / tokens)
            gains.append((-s, j, i))
            width[j] += s
    gains.sort()
    by_drafts = [ms + cost.draft * n for n, ms in enumerate(cost.verify[slots : rows + 1])]
    by_drafts += [inf] * (len(gains) + slots - rows)
    base, fixed, step = slots + beside if total else 0.0, cost.other + cost.start, cost.step
    # under "slots" the geometric mean of the slots' tokens per ms: the same order as the sum of logarithms
    best = (base if total else 1.0) / (by_drafts[0] + cost.other)
    best_depth = best_drafts = 0
    for depth in range(1 if step else max(deepest, 1), deepest + 1):
        if step and total and width[depth - 1] <= best * step:
            break  # this step and all further ones bring less than their time does otherwise
        chain, gained, n = fixed + step * depth, base, 0
        for gain, j, _ in gains:
            if j < depth:
                n += 1
                gained -= gain
                value = (gained if total else exp(gained / slots)) / (by_drafts[n] + chain)
                if value > best:
                    best, best_depth, best_drafts = value, depth, n
    taken = [i for _, j, i in gains if j < best_depth][:best_drafts]
    return evaluate([1 + taken.count(i) for i in range(slots)], survivals, cost, fair)


def plan_fixed(limits: Sequence[int], rows: int, first: int = 0) -> list[int]:
    """Every slot its limit, cut to the budget: rows go round one at a time, starting with slot `first`."""
    L, left = [1] * len(limits), rows - len(limits)
    order = [(first + k) % len(limits) for k in range(len(limits))]
    while wanting := [i for i in order if L[i] < limits[i]][: max(left, 0)]:
        left -= len(wanting)
        for i in wanting:
            L[i] += 1
    return L


def seats(missed: Sequence[int], rows: int) -> list[int]:
    """Which slots (indices, in order) take part when the budget has `rows` rows: those that missed most windows."""
    return sorted(sorted(range(len(missed)), key=lambda i: (-missed[i], i))[:rows])
