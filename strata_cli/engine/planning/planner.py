"""The engine's one door to choosing L: a planner that remembers how drafts fared and what windows cost. No torch.

Every choice is made from past windows and from the drafter's own probabilities, never from the target's logits of the
same window, so sampling stays exact; every schedule counts windows, never wall time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Unpack

from strata_cli.engine.planning.acceptance import AcceptanceTracker, CollapseWatch
from strata_cli.engine.planning.rows import Plan, evaluate, plan_fixed, plan_rows, plan_uniform, seats
from strata_cli.engine.planning.steptime import StepTimeEstimator, Times, WindowCost
from strata_cli.engine.planning.tuning import DEFAULT, Tuning
from strata_cli.engine.types import REASONS


class Seated(Protocol):
    """What the planner needs of a slot that a request took."""

    @property
    def index(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SlotView:
    """A decoding slot as the planner sees it.

    `limit`: the most rows it may take now, golden row included; `limit_reason` says why no more: "user" (spec),
    "fits" (context or max tokens), "nodraft", "fuse". `missed`: windows it sat out in a row. Sizes in tokens.
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
    """Rows of one slot in the window (0 = it sits out), and one of `types.REASONS`. `depth`: the most drafts that its
    chain makes; `stop`: a draft whose own probability is below it ends the chain (0: none does).
    """

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
    """A slot in this window. `drafts`: those that its chain made, as far as they count."""

    view: SlotView
    survivals: list[float]  # of all drafts that it might make
    choice: Choice = Choice(0, "sitout", 0)
    probe: bool = False  # its rows are not as planned, to learn
    sharp: list[float] = field(default_factory=list)  # survivals by what its chain's probabilities say
    drafts: int = 0
    ended: bool = False  # the chain, by a draft below the threshold
    probabilities: Sequence[float | None] = ()
    chances: list[float] = field(default_factory=list)  # of each draft, to hold once it is reached


class Planner:
    """Chooses L for the decoding slots of each window: `choose`, then what was drafted to `settle`, then `record`.

    Args:
        spec: most drafts in a chain. rows: row budget of a window. plan: "rows" or "uniform". fair: "total" or "slots".
        varlen: False: L is fixed at the limit, cut only by the budget. batch: number of slots.
        bucket: rows after padding. min_p: a draft less probable than this ends its chain and gets no row.
        certain: a draft that was made gets a row, always: under rejection sampling the text would be biased if it were
            left out for what it is. Whether another one follows it may depend on it.

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
        self._window = self._measured = self._turn = 0
        self._tried = [[0] * spec for _ in range(batch)]  # the window in which each position was last verified
        self._parts: dict[int, _Part] = {}
        self._cost: WindowCost | None = None  # by which rows are settled; None: as they were chosen

    def admit(self, slot: Seated) -> None:
        """A new request took the slot."""
        self.acceptance.reset(slot.index)
        self._tried[slot.index] = [self._window] * self.spec

    def release(self, slot: int) -> None:
        """The slot's request left it."""

    def undo(self, slot: Seated) -> None:
        """What failed half way taught nothing."""

    def choose(self, views: Sequence[SlotView]) -> list[Choice]:
        """Rows for each view, in order: in all at most the budget, none above its limit."""
        views = [v if v.limit <= self.spec + 1 else replace(v, limit=self.spec + 1, limit_reason="user") for v in views]
        at = seats([v.missed for v in views], self.rows)
        parts = [_Part(v, self.acceptance.survival(v.slot, v.limit - 1)) for v in (views[i] for i in at)]
        self._cost = None
        if parts and self.varlen:
            self._adapt(parts)
        elif parts:
            self._turn += 1
            for p, L in zip(parts, plan_fixed([p.view.limit for p in parts], self.rows, self._turn % len(parts))):
                p.choice = Choice(L, p.view.limit_reason if p.view.limit == L else "budget", L - 1, self.min_p)
        self._parts = {p.view.slot: p for p in parts}
        self.asks = self._cost is not None or self.min_p > 0
        return [self._parts[v.slot].choice if v.slot in self._parts else Choice(0, "sitout", 0) for v in views]

    def settle(self, made: Mapping[int, Made]) -> dict[int, Choice]:
        """Rows of each slot that was to draft, now that its drafter made so many drafts. What a chain holds behind its
        first draft below the threshold does not count: it is the same whether the chain stopped there or ran on.
        """
        parts = list(self._parts.values())
        steps = [self._follow(self._parts[slot], m) for slot, m in made.items()]
        L = [min(p.choice.L, p.drafts + 1) for p in parts]
        if self._cost is not None and any(q is not None for p in parts for q in p.probabilities):
            # what is drafted is paid for; a row must bring as much for its time as windows do in general, not this one
            paid, many = self._cost.other + self._cost.chain(max(steps), sum(steps)), 100 * (self.fair == "total")
            cost = WindowCost(self._cost.verify, other=paid + many * self._usual.ms)
            limits = [p.drafts + 1 for p in parts]
            L = self._best([p.sharp or p.survivals for p in parts], limits, cost, many * self._usual.tokens).L
        settled = {}
        for p, n in zip(parts, L):
            reason = p.view.limit_reason if n == p.view.limit else p.choice.reason
            if n < p.choice.L:
                reason = "nodraft" if n == p.drafts + 1 and not p.ended else "acceptance"
            if p.view.slot in made:
                settled[p.view.slot] = replace(p.choice, L=n, reason=reason)
        return settled

    def record(self, outcomes: Sequence[Outcome], **times: Unpack[Times]) -> None:
        """One window's outcomes (one per decoding slot), and what it cost."""
        self._window += 1
        for o in outcomes:
            p = self._parts.get(o.slot)
            if p is None or not o.L:
                continue
            # a draft that got no row counts by its chance: else only those that looked good would count
            left_out = p.chances[o.verified] if o.verified == o.L - 1 < len(p.chances) else None
            self.acceptance.observe(o.slot, o.verified, o.accepted, p.probabilities, left_out)
            self._tried[o.slot][: o.verified] = [self._window] * o.verified
            if o.verified:
                self._collapse.observe(p.view.ctx, o.accepted > 0)
        self.steptime.record(**times)

    def warning(self) -> str | None:
        """Acceptance collapsed: one line with the figure, once."""
        return self._collapse.warning()

    def _adapt(self, parts: list[_Part]) -> None:
        """Choose for all parts. One whose context costs more than its share of tokens brings is taken from them, but
        under "slots" fairness and once it missed too many windows.
        """
        base = self.steptime.cost()
        while True:
            cost = replace(base, other=base.other + base.per_ctx * sum(p.view.ctx for p in parts))
            plan = self._best([p.survivals for p in parts], [p.view.limit for p in parts], cost)
            free = [i for i, p in enumerate(parts) if p.view.missed < self.tuning.max_missed]
            if self.fair != "total" or len(parts) == 1 or not free or not base.per_ctx:
                break
            k = max(free, key=lambda i: parts[i].view.ctx)
            tokens = 1.0 + sum(parts[k].survivals[: plan.L[k] - 1])
            if tokens >= plan.value * base.per_ctx * parts[k].view.ctx:
                break
            del parts[k]
        learning = self._explore(parts, plan, cost)
        L, slots, value = learning or plan.L, len(parts), plan.tokens / plan.ms
        depths, deepest, row = [n - 1 for n in L], max(L) - 1, 0.0
        if learning is None and not self.certain and self.tuning.bins:
            self._cost, self._usual = cost, plan
            row = value * (cost.verify[sum(L)] - cost.verify[slots]) / max(sum(L) - slots, 1)
            if self.acceptance.told:  # the step is paid once: who has a chance drafts along, and rows are settled later
                worth = [sum(s > value * cost.draft for s in p.survivals[:deepest]) for p in parts]
                depths = list(map(max, depths, worth))
        for k, (p, n, depth) in enumerate(zip(parts, L, depths)):
            stop = self.acceptance.hopeless(p.view.slot, row) if depth and row else 0.0
            p.choice = Choice(n, self._reason(parts, k, n, plan, cost), depth, max(stop, self.min_p))

    def _best(
        self, survivals: Sequence[Sequence[float]], limits: Sequence[int], cost: WindowCost, beside: float = 0.0
    ) -> Plan:
        chooser = plan_rows if self.plan == "rows" else plan_uniform
        return chooser(survivals, limits, self.rows, cost, self.fair, beside)

    def _explore(self, parts: Sequence[_Part], plan: Plan, cost: WindowCost) -> list[int] | None:
        """L of a window that is run to learn: the best one if what is not known, or not lately, were good news. None
        where there is nothing, or where even so the plan would stand.

        Good news of a number of rows: it costs no more than fewer do. Of positions left out for long: they hold once
        they are reached; others whose turn is near come along, as a step of the chain is paid once.
        """
        survivals, limits = [p.survivals for p in parts], [p.view.limit for p in parts]
        bucket, forced, verify, padded = 0, False, cost.verify, self.steptime.padded
        if self._window >= self._measured + self.tuning.measure:
            self._measured = self._window
            sums: Sequence[int] = range(len(parts), min(self.rows, sum(limits)) + 1)
            if self.plan == "uniform":
                most = self.rows // len(parts)
                sums = sorted({sum(min(n, limit) for limit in limits) for n in range(1, most + 1)})
            bucket, forced = self.steptime.wanted(sums)
        if bucket:
            low = 1e-3 if forced else verify[max(padded.index(bucket) - 1, 1)]
            verify = [low if b == bucket else ms for b, ms in zip(padded, verify)]
        else:
            at = [(self._tried[p.view.slot], n - 1) for p, n in zip(parts, plan.L)]
            waits = [self._window - tried[j] if j + 1 < m else 0 for (tried, j), m in zip(at, limits)]
            if max(waits) < self.tuning.probe:
                return None
            survivals = [[*p.survivals[: n - 1], [1.0, *p.survivals][n - 1]] for p, n in zip(parts, plan.L)]
            limits = [n + (2 * wait > self.tuning.probe) for n, wait in zip(plan.L, waits)]
            for (tried, j), wait in zip(at, waits):
                if wait >= self.tuning.probe:
                    tried[j] = self._window  # if it would not pay even so, it is put off
        L = self._best(survivals, limits, replace(cost, verify=verify)).L
        if plan.L == L or (bucket and padded[sum(L)] != bucket):
            return None
        for p, n, planned in zip(parts, L, plan.L):
            p.probe = n != planned
        return L

    def _follow(self, part: _Part, made: Made) -> int:
        """Read one slot's chain as far as it counts: its length, and what its drafts are worth."""
        part.probabilities = [*(made.probabilities or ()), *[None] * made.drafts][: made.drafts]
        part.drafts, part.ended, part.chances, s = made.drafts, False, [], [1.0, *part.survivals]
        for j, p in enumerate(part.probabilities, 1):
            expected = chance = s[j] / s[j - 1]
            if p is not None and self._cost is not None:
                chance = self.acceptance.sharpened(part.view.slot, j, p)
                s[j:] = [x * chance / expected for x in s[j:]]
            part.chances.append(chance)
            if p is not None and p < part.choice.stop:
                part.ended, part.drafts = True, j if self.certain or p >= self.min_p else j - 1
                break
        part.sharp = s[1:]
        return len(part.chances)

    def _reason(self, parts: Sequence[_Part], k: int, n: int, plan: Plan, cost: WindowCost) -> str:
        """Why slot k got n rows and no more."""
        view = parts[k].view
        if parts[k].probe:
            return "probe"
        if n == view.limit:
            return view.limit_reason
        if sum(plan.L) >= self.rows or (self.plan == "uniform" and n >= self.rows // len(parts)):
            return "budget"
        # would a draft that is sure to be accepted pay? then it is this slot's acceptance that holds it back
        sure = [[*p.survivals[: m - 1], 1.0] for p, m in zip(parts, plan.L)]
        more = [m + (i == k) for i, m in enumerate(plan.L)]
        return "acceptance" if evaluate(more, sure, cost, self.fair).value > plan.value else "cost"
