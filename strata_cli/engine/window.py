"""How many rows each slot gets in a window: pure functions of survivals, limits, a row budget and a cost. No torch.

Survivals s_1 >= s_2 >= ... of a slot are the chances that its first, second, ... draft is accepted, so L rows are
expected to yield 1 + s_1 + ... + s_(L-1) tokens. A limit is the most rows a slot may take, golden row included.
Fairness "total" maximises expected tokens per ms; "slots" the sum over slots of log(expected tokens) - log(ms), which
is proportional fairness between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from strata_cli.engine.steptime import WindowCost


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows per slot and what they are expected to bring: tokens per window, ms, and the value by the fairness asked."""

    L: list[int]
    tokens: float
    ms: float
    value: float


def evaluate(L: Sequence[int], survivals: Sequence[Sequence[float]], cost: WindowCost, fair: str = "total") -> Plan:
    """The plan that gives slot i exactly `L[i]` >= 1 rows."""
    yields = [1.0 + sum(s[: n - 1]) for n, s in zip(L, survivals, strict=True)]
    rows, tokens = sum(L), sum(yields)
    ms = cost.ms(rows, max(L) - 1, rows - len(L))
    value = tokens / ms if fair == "total" else sum(map(log, yields)) - len(L) * log(ms)
    return Plan(list(L), tokens, ms, value)


def uniform_limit(spec: int, rows: int, slots: int) -> int:
    """The most rows per slot when all slots get the same number."""
    return min(spec + 1, rows // slots)


def plan_uniform(
    survivals: Sequence[Sequence[float]],
    limits: Sequence[int],
    rows: int,
    cost: WindowCost,
    fair: str = "total",
) -> Plan:
    """One L for all slots (cut to each slot's own limit): the one of greatest value. Needs rows >= slots >= 1."""
    most = min(max(limits), rows // len(limits))
    plans = (evaluate([min(n, limit) for limit in limits], survivals, cost, fair) for n in range(1, most + 1))
    return max(plans, key=lambda plan: plan.value)


def plan_rows(
    survivals: Sequence[Sequence[float]],
    limits: Sequence[int],
    rows: int,
    cost: WindowCost,
    fair: str = "total",
) -> Plan:
    """Each slot its own L: the best over every chain depth and every number of rows. Needs rows >= slots >= 1.

    For a given depth and number of rows the best choice is the rows of greatest gain, over all slots together. A slot's
    gains never rise with position, so the choice is a prefix of each slot's chain, and this greedy is exact: no other
    allocation has a greater value (separable concave allocation). L = 1 for every slot is always among the candidates.
    """
    slots = len(limits)
    total = fair == "total"
    gains: list[tuple[float, int, int]] = []  # (minus gain, position, slot): ties go to shallow positions first
    for i, (s, limit) in enumerate(zip(survivals, limits, strict=True)):
        if total:
            gains += [(-s[j], j, i) for j in range(limit - 1)]
        else:
            tokens = 1.0
            for j in range(limit - 1):
                gains.append((log(tokens / (tokens + s[j])), j, i))
                tokens += s[j]
    gains.sort()
    base = float(slots) if total else 0.0
    room = rows - slots
    verify, fixed = cost.verify, cost.other + cost.start
    ms = verify[slots] + cost.other
    best, best_depth, best_drafts = (base / ms if total else -slots * log(ms)), 0, 0
    for depth in range(1, max(limits)):
        chain = fixed + cost.step * depth
        gained, n = base, 0
        for gain, j, _ in gains:
            if j >= depth:
                continue
            if n == room:
                break
            n += 1
            gained -= gain
            ms = verify[slots + n] + chain + cost.draft * n
            value = gained / ms if total else gained - slots * log(ms)
            if value > best:
                best, best_depth, best_drafts = value, depth, n
    L = [1] * slots
    if best_drafts:
        for _, _, i in [g for g in gains if g[1] < best_depth][:best_drafts]:
            L[i] += 1
    return evaluate(L, survivals, cost, fair)


def plan_fixed(limits: Sequence[int], rows: int, first: int = 0) -> list[int]:
    """Every slot its limit, cut to the budget: rows go round one at a time, starting with slot `first`."""
    slots = len(limits)
    L = [1] * slots
    left = rows - slots
    order = [(first + k) % slots for k in range(slots)]
    while left > 0:
        wanting = [i for i in order if L[i] < limits[i]][:left]
        if not wanting:
            break
        for i in wanting:
            L[i] += 1
        left -= len(wanting)
    return L


def seats(missed: Sequence[int], rows: int) -> list[int]:
    """Which slots (indices, in order) take part when the budget has `rows` rows: those that missed most windows."""
    order = sorted(range(len(missed)), key=lambda i: (-missed[i], i))
    return sorted(order[:rows])


def pays(plan: Plan, i: int, gain: float, survivals: Sequence[Sequence[float]], cost: WindowCost, fair: str) -> bool:
    """Whether one more row for slot `i`, expected to yield `gain` tokens, would raise the plan's value."""
    L = list(plan.L)
    L[i] += 1
    rows = sum(L)
    ms = cost.ms(rows, max(L) - 1, rows - len(L))
    if fair == "total":
        return (plan.tokens + gain) / ms > plan.value
    tokens = 1.0 + sum(survivals[i][: plan.L[i] - 1])
    return log((tokens + gain) / tokens) > len(L) * log(ms / plan.ms)
