"""The engine's one door to choosing L: from past windows and the drafter's own probabilities, never from the target's
logits of the same window, so that sampling stays exact; schedules count windows, never time. No torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import mul
from typing import Unpack

from strata_cli.engine.life import Slot
from strata_cli.engine.planning.acceptance import AcceptanceTracker, CollapseWatch
from strata_cli.engine.planning.rows import Plan, plan_fixed, plan_rows, plan_uniform, seats
from strata_cli.engine.planning.steptime import StepTimeEstimator, Times, WindowCost
from strata_cli.engine.planning.tuning import DEFAULT, Tuning
from strata_cli.engine.types import REASONS


@dataclass(frozen=True, slots=True)
class SlotView:
    """A decoding slot as the planner sees it. `limit`: the most rows it may take now, golden row included, and why no
    more: "user" (spec), "fits" (context or max tokens), "nodraft", "fuse". `missed`: windows it sat out in a row.
    """

    slot: int
    request: str
    ctx: int
    limit: int
    limit_reason: str
    missed: int = 0

    def __post_init__(self) -> None:
        assert self.limit >= 1 and self.limit_reason in REASONS


@dataclass(frozen=True, slots=True)
class Choice:
    """Rows of a slot (0: it sits out), why (`types.REASONS`), the most drafts it makes, a probability that ends it."""

    L: int
    reason: str
    depth: int
    stop: float = 0.0


@dataclass(frozen=True, slots=True)
class Made:
    """What one slot's drafter made: a number of drafts, and each one's probability where asked for and known."""

    drafts: int
    probabilities: Sequence[float | None] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one decoding slot made of a window: rows taken, drafts judged, drafts accepted."""

    slot: int
    L: int
    verified: int
    accepted: int


@dataclass(slots=True)
class _Part:
    """A slot in this window. `survivals`: of all drafts that it may make, `chances`: to hold, of those that it made."""

    view: SlotView
    survivals: list[float]
    choice: Choice = Choice(0, "sitout", 0)
    probe: bool = False  # its rows are not as planned, to learn
    probabilities: Sequence[float | None] = ()
    chances: list[float] = field(default_factory=list)
    ended: bool = False  # its chain, by a draft below the threshold
    settled: Choice = Choice(0, "sitout", 0)


class Planner:
    """Chooses L for the decoding slots of each window: `choose`, then what was drafted to `settle`, then `record`.

    spec: most drafts in a chain. rows: budget of a window. plan: "rows" or "uniform". fair: "total" or "slots". varlen:
    False: L is fixed at the limit, cut only by the budget. batch: number of slots. bucket: rows after padding. min_p: a
    draft less probable ends its chain and gets no row. certain: a draft that was made gets a row, always: rejection
    sampling would be biased if it were left out for what it is (whether another one follows it may depend on it).
    `asks`: whether settling this window wants the drafts' probabilities.
    """

    def __init__(
        self,
        *,
        spec: int,
        rows: int,
        plan: str,
        fair: str,
        varlen: bool,
        batch: int,
        bucket: Callable[[int], int],
        min_p: float = 0.0,
        certain: bool = False,
        tuning: Tuning = DEFAULT,
    ):
        self.spec, self.plan, self.fair, self.varlen, self.tuning = spec, plan, fair, varlen, tuning
        self.min_p, self.certain, self.asks = min_p, certain, False
        self.rows = min(rows, batch * (spec + 1))
        self.acceptance = AcceptanceTracker(batch, spec, tuning)
        self.steptime = StepTimeEstimator(self.rows, bucket, tuning)
        self._collapse = CollapseWatch(tuning)
        self.warning = self._collapse.warning  # acceptance collapsed: one line with the figure, once
        self._window = self._turn = 0
        self._probed = [0] * batch  # the window in which a slot was last tried with more than was planned
        self._parts: dict[int, _Part] = {}
        self._again: tuple[Plan, WindowCost] | None = None  # by which rows are settled; None: as they were chosen
        self._best = plan_rows if plan == "rows" else plan_uniform

    def admit(self, slot: Slot) -> None:
        """A new request took the slot."""
        self.acceptance.reset(slot.index)
        self._probed[slot.index] = self._window

    def release(self, slot: int) -> None:
        """The slot's request left it."""

    def undo(self, slot: Slot) -> None:
        """What failed half way taught nothing."""

    def choose(self, views: Sequence[SlotView]) -> list[Choice]:
        """Rows for each view, in order: in all at most the budget, none above its limit."""
        views = [v if v.limit <= self.spec + 1 else replace(v, limit=self.spec + 1, limit_reason="user") for v in views]
        at = seats([v.missed for v in views], self.rows)
        parts = [_Part(v, self.acceptance.survival(v.slot, v.limit - 1)) for v in (views[i] for i in at)]
        self._again = None
        if parts and self.varlen:
            self._adapt(parts)
        elif parts:
            self._turn += 1
            for p, L in zip(parts, plan_fixed([p.view.limit for p in parts], self.rows, self._turn % len(parts))):
                p.choice = Choice(L, p.view.limit_reason if p.view.limit == L else "budget", L - 1, self.min_p)
        self._parts = {p.view.slot: p for p in parts}
        self.asks = self._again is not None or self.min_p > 0
        return [self._parts[v.slot].choice if v.slot in self._parts else Choice(0, "sitout", 0) for v in views]

    def settle(self, made: Mapping[int, Made]) -> dict[int, Choice]:
        """Rows of each slot that was to draft, now that its drafter made so many drafts. What a chain holds behind its
        first draft below the threshold does not count: it is the same whether the chain stopped there or ran on.
        """
        limits = dict.fromkeys(self._parts, 1)
        for slot, m in made.items():
            p = self._parts[slot]
            known = [*(m.probabilities or ()), *[None] * m.drafts][: m.drafts]
            low = next((j for j, q in enumerate(known) if q is not None and q < p.choice.stop), None)
            p.ended, p.probabilities = low is not None, known if low is None else known[: low + 1]
            p.chances = self.acceptance.chances(slot, p.probabilities if self._again else [None] * len(p.probabilities))
            dropped = p.ended and not self.certain and (p.probabilities[-1] or 0.0) < self.min_p
            limits[slot] += len(p.chances) - dropped
        L = [min(p.choice.L, limits[slot]) for slot, p in self._parts.items()]
        if self._again is not None and any(q is not None for slot in made for q in self._parts[slot].probabilities):
            # what is drafted is paid for; a row must bring as much for its time as windows do in general, not this one
            (usual, cost), many = self._again, 100 * (self.fair == "total")
            steps = [len(self._parts[slot].chances) for slot in made]
            cost = WindowCost(cost.verify, other=cost.other + cost.chain(max(steps), sum(steps)) + many * usual.ms)
            survivals = [list(accumulate(p.chances, mul)) for p in self._parts.values()]
            L = self._best(survivals, [*limits.values()], self.rows, cost, self.fair, many * usual.tokens).L
        for p, n, limit in zip(self._parts.values(), L, limits.values()):
            reason = p.view.limit_reason if n == p.view.limit else p.choice.reason
            if n < p.choice.L:
                reason = "nodraft" if n == limit and not p.ended else "acceptance"
            p.settled = replace(p.choice, L=n, reason=reason)
        return {slot: self._parts[slot].settled for slot in made}

    def record(self, outcomes: Sequence[Outcome], **times: Unpack[Times]) -> None:
        """One window's outcomes (one per decoding slot), and what it cost."""
        self._window += 1
        for o in outcomes:
            if not o.L or (p := self._parts.get(o.slot)) is None:
                continue
            # a draft that got no row counts by its chance: else only those that looked good would count
            left_out = p.chances[o.verified] if o.verified == o.L - 1 < len(p.chances) else None
            self.acceptance.observe(o.slot, o.verified, o.accepted, p.probabilities, left_out)
            if o.verified:
                self._collapse.observe(p.view.ctx, o.accepted > 0)
        self.steptime.record(**times)

    def _adapt(self, parts: list[_Part]) -> None:
        """Choose for all parts. One whose context costs more than its share of tokens brings is taken from them, but
        under "slots" fairness and once it missed too many windows.
        """
        base = self.steptime.cost()
        while True:
            cost = replace(base, other=base.other + base.per_ctx * sum(p.view.ctx for p in parts))
            plan = self._best([p.survivals for p in parts], [p.view.limit for p in parts], self.rows, cost, self.fair)
            free = [(p.view.ctx, k) for k, p in enumerate(parts) if p.view.missed < self.tuning.max_missed]
            ctx, k = max(free, default=(0, 0))
            tokens = 1.0 + sum(parts[k].survivals[: plan.L[k] - 1])
            if self.fair != "total" or len(parts) == 1 or tokens >= plan.value * base.per_ctx * ctx:
                break
            del parts[k]
        learning = self._explore(parts, plan, cost)
        L, value, row, deepest = learning or plan.L, plan.tokens / plan.ms, 0.0, 0
        if learning is None and not self.certain and self.tuning.bins:
            self._again = plan, cost
            row = value * (cost.verify[sum(L)] - cost.verify[len(L)]) / max(sum(L) - len(L), 1)
            # a step is paid once: where rows can be settled by probabilities, whoever has a chance drafts along
            deepest = (max(L) - 1) * any(self.acceptance.bins.seen)
        for p, n in zip(parts, L):
            depth = max(n - 1, sum(s > value * cost.draft for s in p.survivals[:deepest]))
            stop = self.acceptance.hopeless(p.view.slot, row) if depth and row else 0.0
            p.choice = Choice(n, self._reason(p, n, plan, cost), depth, max(stop, self.min_p))

    def _explore(self, parts: Sequence[_Part], plan: Plan, cost: WindowCost) -> list[int] | None:
        """L of a window that is run to learn: the best one if what is not known, or not lately, were good news (rows
        cost no more than fewer do; a position left out for long holds once it is reached). None: the plan stands.
        """
        t, limits, padded, verify = self.tuning, [p.view.limit for p in parts], self.steptime.padded, cost.verify
        survivals, bucket = [p.survivals for p in parts], 0
        if self._window % t.measure == 0:
            sums = {*range(len(parts), min(self.rows, sum(limits)) + 1)}
            if self.plan == "uniform":
                sums = {sum(min(n, limit) for limit in limits) for n in range(1, self.rows // len(parts) + 1)}
            bucket, forced = self.steptime.wanted(sums)
        if bucket:
            low = 1e-3 if forced else verify[max(padded.index(bucket) - 1, 1)]
            verify = [low if b == bucket else ms for b, ms in zip(padded, verify)]
        else:
            waits = [(self._window - self._probed[p.view.slot]) * (n < p.view.limit) for p, n in zip(parts, plan.L)]
            if max(waits) < t.probe:
                return None
            survivals = [[*p.survivals[: n - 1], [1.0, *p.survivals][n - 1]] for p, n in zip(parts, plan.L)]
            # those whose turn is near come along, as a step of the chain is paid once
            limits = [n + (2 * wait > t.probe) for n, wait in zip(plan.L, waits)]
            for p, wait in zip(parts, waits):  # also where it would not pay: it is put off
                self._probed[p.view.slot] += wait * (2 * wait > t.probe)
        L = self._best(survivals, limits, self.rows, replace(cost, verify=verify), self.fair).L
        if plan.L == L or (bucket and padded[sum(L)] != bucket):
            return None
        for p, n, planned in zip(parts, L, plan.L):
            p.probe = n != planned
        return L

    def _reason(self, p: _Part, n: int, plan: Plan, cost: WindowCost) -> str:
        """Why a slot got n rows and no more."""
        if p.probe:
            return "probe"
        if n == p.view.limit:
            return p.view.limit_reason
        rows = sum(plan.L)
        if rows >= self.rows or (self.plan == "uniform" and n >= self.rows // len(plan.L)):
            return "budget"
        # would a draft that is sure to be accepted pay? then it is this slot's acceptance that holds it back
        ms = cost.ms(rows + 1, max(n, max(plan.L) - 1), rows + 1 - len(plan.L))
        return "acceptance" if (plan.tokens + 1.0) * plan.ms > plan.tokens * ms else "cost"
