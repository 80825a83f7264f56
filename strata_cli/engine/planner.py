"""The engine's one door to choosing L: a planner that remembers how drafts fared and what windows cost. No torch.

Every choice is made from past windows and from the drafter's own probabilities, never from the target's logits of the
same window, so sampling stays exact; every schedule counts windows, never wall time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from strata_cli.engine.acceptance import AcceptanceTracker, CollapseWatch
from strata_cli.engine.steptime import StepTimeEstimator, WindowCost
from strata_cli.engine.types import REASONS
from strata_cli.engine.window import Plan, evaluate, pays, plan_fixed, plan_rows, plan_uniform, seats, uniform_limit

STAY = 0.005  # the last window's L stay unless something is better by this share
LEAVE = 0.1  # a slot sits out for its context only if its tokens per ms are below the window's by this share
MEASURE_EVERY = 3  # windows between two that are run to learn what a number of rows costs
PROBE_FIRST, PROBE_LEAST, PROBE_MOST = 32, 8, 128  # windows between tries of a position that the plan leaves out


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
    decoded: int = 0

    def __post_init__(self) -> None:
        assert self.limit >= 1 and self.limit_reason in REASONS


@dataclass(frozen=True, slots=True)
class Choice:
    """Rows of one slot in the next window (0 = it sits out), and one of `types.REASONS`."""

    L: int
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one decoding slot made of a window: rows taken, drafts judged, drafts accepted."""

    slot: int
    L: int
    verified: int
    accepted: int


class _Memory:
    """What the planner remembers of one slot's request."""

    def __init__(self, spec: int, window: int):
        self.tried = [window] * spec  # the window in which each position was last verified
        self.wait = PROBE_FIRST  # windows until the next probe
        self.probe = 0  # position probed in this window, or 0
        self.last: tuple[str, int] | None = None  # request and planned L of the last window
        self.ctx = 0
        self.probabilities: list[float | None] = []
        self.alive = 1.0  # survival of this window's drafts so far, by their own probabilities
        self.dropped: float | None = None  # chance given to a draft that was dropped
        self.planned = 0
        self.row_price = self.step_price = 0.0  # tokens that one more row, one more draft must be worth


class Planner:
    """Chooses L for the decoding slots of each window.

    Args:
        spec: most drafts in a chain. rows: row budget of a window. plan: "rows" or "uniform". fair: "total" or "slots".
        varlen: False: L is fixed at the limit, cut only by the budget. batch: number of slots.
        bucket: rows after padding, as a function or as the list of captured sizes.
        max_missed: most windows in a row that a slot sits out for its context (a budget below the number of slots
            may need more: then slots take turns).
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
        bucket: Callable[[int], int] | Sequence[int],
        max_missed: int = 7,
    ):
        self.spec, self.plan, self.fair, self.varlen, self.max_missed = spec, plan, fair, varlen, max_missed
        self.rows = min(rows, batch * (spec + 1))
        self.acceptance = AcceptanceTracker(batch, spec)
        self.steptime = StepTimeEstimator(self.rows, bucket)
        self._collapse = CollapseWatch()
        self._window = 0
        self._turn = 0
        self._slots = [_Memory(spec, 0) for _ in range(batch)]

    def start(self, slot: int) -> None:
        """A new request took the slot."""
        self.acceptance.reset(slot)
        self._slots[slot] = _Memory(self.spec, self._window)

    def choose(self, views: Sequence[SlotView]) -> list[Choice]:
        """Rows for each view, in order: in all at most the budget, none above its limit."""
        if not views:
            return []
        views = [v if v.limit <= self.spec + 1 else replace(v, limit=self.spec + 1, limit_reason="user") for v in views]
        for v in views:
            memory = self._slots[v.slot]
            memory.ctx, memory.probe, memory.planned = v.ctx, 0, 0
            memory.alive, memory.probabilities, memory.dropped = 1.0, [], None
        at = seats([v.missed for v in views], self.rows)
        chosen = self._fixed(views, at) if not self.varlen else self._adaptive(views, at)
        for i, choice in chosen.items():
            self._slots[views[i].slot].planned = choice.L - 1
        return [chosen.get(i, Choice(0, "sitout")) for i in range(len(views))]

    def keep_drafting(self, slot: int, depth: int, probability: float | None) -> bool:
        """Whether the draft just made, after `depth` others of its chain, is worth going on with.

        False drops it and ends the slot's chain. Its survival is known better now that the drafter's probability of it
        is (None: nothing new, the plan stands). Going on pays if this row, and the next one if the plan goes on, yield
        more than the time they take.
        """
        memory = self._slots[slot]
        memory.probabilities.append(probability)
        if probability is None or not self.varlen or memory.probe:
            return True
        before = memory.alive
        memory.alive *= self.acceptance.sharpened(probability)
        gain, price = memory.alive, memory.row_price
        if depth + 1 < memory.planned:
            gain += memory.alive * self.acceptance.conditional(slot, depth + 2)
            price += memory.row_price + memory.step_price
        if gain < price:
            memory.dropped = memory.alive / before
            return False
        return True

    def record(
        self,
        outcomes: Sequence[Outcome],
        *,
        drafters: int,
        depth: int,
        draft_ms: float | None,
        verify_ms: float | None,
        other_ms: float | None,
        rows: int,
        ctx_total: int,
    ) -> None:
        """One window's outcomes (one per decoding slot) and times in ms.

        `drafters` slots drafted, in a chain of `depth` steps. `rows` before padding. Give None for a part that does not
        show what a window of decode rows costs: it also carried prompt rows, or was done twice.
        """
        self._window += 1
        self.acceptance.tick()
        for o in outcomes:
            memory = self._slots[o.slot]
            self.acceptance.observe(o.slot, o.verified, o.accepted, memory.probabilities, memory.dropped)
            memory.tried[: o.verified] = [self._window] * o.verified
            if o.verified:
                self._collapse.observe(memory.ctx, o.accepted > 0)
            if memory.probe and o.verified >= memory.probe and o.accepted >= memory.probe - 1:
                held = o.accepted >= memory.probe
                memory.wait = max(memory.wait // 2, PROBE_LEAST) if held else min(memory.wait * 2, PROBE_MOST)
        # a draft that was dropped for its probability got no row, but was made: at least one a drafter, and one a step
        drafts = max(sum(max(o.L - 1, 0) for o in outcomes), drafters + depth - 1 if depth else 0)
        self.steptime.record(
            rows=rows,
            depth=depth,
            drafts=drafts,
            ctx_total=ctx_total,
            verify_ms=verify_ms,
            draft_ms=draft_ms,
            other_ms=other_ms,
        )

    def warning(self) -> str | None:
        """Acceptance collapsed: one line with the figure, once."""
        return self._collapse.warning()

    def _fixed(self, views: Sequence[SlotView], at: Sequence[int]) -> dict[int, Choice]:
        limits = [views[i].limit for i in at]
        self._turn += 1
        L = plan_fixed(limits, self.rows, self._turn % len(at))
        return {i: Choice(n, views[i].limit_reason if n == views[i].limit else "budget") for i, n in zip(at, L)}

    def _adaptive(self, views: Sequence[SlotView], at: list[int]) -> dict[int, Choice]:
        base = self.steptime.cost()
        while True:
            taking = [views[i] for i in at]
            survivals = [self.acceptance.survival(v.slot, v.limit - 1) for v in taking]
            context = base.per_ctx * sum(v.ctx for v in taking)
            cost = replace(base, other=base.other + context) if context else base
            plan = self._plan(taking, survivals, cost)
            leaver = self._leaver(taking, survivals, plan, base) if context else None
            if leaver is None:
                break
            at = [i for k, i in enumerate(at) if k != leaver]
        for v, n in zip(taking, plan.L):
            self._slots[v.slot].last = v.request, n
        L = self._measure(taking, survivals, cost) or self._probe(taking, plan, survivals, cost)
        self._set_prices(taking, survivals, L, cost)
        return {i: Choice(n, self._reason(taking, k, n, plan, survivals, cost)) for k, (i, n) in enumerate(zip(at, L))}

    def _plan(self, taking: Sequence[SlotView], survivals: list[list[float]], cost: WindowCost) -> Plan:
        """The best plan, or the last window's if that is all but as good (hysteresis: L does not thrash)."""
        limits = [v.limit for v in taking]
        chooser = plan_rows if self.plan == "rows" else plan_uniform
        best = chooser(survivals, limits, self.rows, cost, self.fair)
        last = []
        for v in taking:
            before = self._slots[v.slot].last
            if before is None or before[0] != v.request or before[1] > v.limit:
                return best
            last.append(before[1])
        if last == best.L or sum(last) > self.rows:
            return best
        stay = evaluate(last, survivals, cost, self.fair)
        near = best.value * (1 - STAY) if self.fair == "total" else best.value - len(last) * STAY
        return stay if stay.value >= near else best

    def _leaver(
        self, taking: Sequence[SlotView], survivals: Sequence[Sequence[float]], plan: Plan, base: WindowCost
    ) -> int | None:
        """A slot that slows the others down by more than it brings: its context costs more than its share of tokens.

        Under "slots" fairness nobody is left out for this.
        """
        if self.fair != "total" or len(taking) == 1:
            return None
        free = [k for k, v in enumerate(taking) if v.missed < self.max_missed]
        if not free:
            return None
        k = max(free, key=lambda i: taking[i].ctx)
        tokens = 1.0 + sum(survivals[k][: plan.L[k] - 1])
        own_ms = base.per_ctx * taking[k].ctx
        return k if own_ms and tokens / own_ms < (1 - LEAVE) * plan.value else None

    def _measure(
        self, taking: Sequence[SlotView], survivals: Sequence[Sequence[float]], cost: WindowCost
    ) -> list[int] | None:
        """L for a window of so many rows as were never run, or not for long; None when all that matters is known."""
        slots, limits = len(taking), [v.limit for v in taking]
        if self._window % MEASURE_EVERY:
            return None
        if self.plan == "uniform":
            most = min(max(limits), uniform_limit(self.spec, self.rows, slots))
            same = [[min(limit, n) for limit in limits] for n in range(1, most + 1)]
            wanted = self.steptime.unknown([sum(L) for L in same])
            L = next((L for L in same if sum(L) == wanted), None)
        else:
            wanted = self.steptime.unknown(range(slots, min(self.rows, sum(limits)) + 1))
            # as if rows were free: all that are wanted get used
            free = replace(cost, verify=[1.0] * len(cost.verify), start=0.0, step=0.0, draft=0.0)
            L = plan_rows(survivals, limits, wanted, free, self.fair).L if wanted else None
        if L is None:
            return None
        for v, n in zip(taking, L):
            if v.limit > 1:  # a slot that cannot draft keeps its limit's reason
                self._slots[v.slot].probe = max(n - 1, 1)
        return L

    def _probe(
        self, taking: Sequence[SlotView], plan: Plan, survivals: Sequence[Sequence[float]], cost: WindowCost
    ) -> list[int]:
        """The plan's L, or now and then one more: a position long left out is tried, for it may have become good."""
        L = list(plan.L)
        # windows since the position after L was tried, as a share of the slot's wait; below 0 where there is none
        shares = [-1.0] * len(L)
        for k, v in enumerate(taking):
            memory = self._slots[v.slot]
            if L[k] < v.limit:
                shares[k] = (self._window - memory.tried[L[k] - 1]) / memory.wait
        if max(shares) < 1:
            return L
        matter = self._may_matter(taking, plan, survivals, cost)
        due = [k for k in matter if shares[k] >= 1]
        if not due:
            return L
        first = max(due, key=lambda k: (shares[k], -k))
        if self.plan == "uniform":  # one L for all: all try it, or none
            most = max(L)
            if most >= uniform_limit(self.spec, self.rows, len(L)):
                return L
            trying = [k for k in range(len(L)) if L[k] == most < taking[k].limit]
        else:  # others whose turn is near come along: the chain's step is paid once
            trying = [first] + [k for k in range(len(L)) if k != first and shares[k] > 0.5 and L[k] <= L[first]]
        for k in trying:
            if sum(L) >= self.rows:
                if k != first:
                    break
                # the budget is full: whoever has the least to lose gives a row
                giver = min((i for i, n in enumerate(L) if n > 1 and i != k), key=lambda i: survivals[i][L[i] - 2])
                L[giver] -= 1
            self._slots[taking[k].slot].probe = L[k]
            L[k] += 1
        return L

    def _may_matter(
        self, taking: Sequence[SlotView], plan: Plan, survivals: Sequence[Sequence[float]], cost: WindowCost
    ) -> set[int]:
        """Slots whose next draft would be in the plan if it were sure to be accepted once it is reached.

        Asked of all slots together: one draft may not be worth a step of the chain that four drafts are worth.
        """
        reached = [s[n - 2] if n > 1 else 1.0 for s, n in zip(survivals, plan.L)]
        open_ = sorted((k for k, v in enumerate(taking) if plan.L[k] < v.limit), key=lambda k: -reached[k])
        room = self.rows - sum(plan.L)
        if room <= 0:
            least = min((s[n - 2] for s, n in zip(survivals, plan.L) if n > 1), default=1.0)
            return {k for k in open_ if reached[k] > least}
        L, hoped = list(plan.L), list(survivals)
        for count, k in enumerate(open_[:room], 1):
            hoped[k] = [*survivals[k][: L[k] - 1], reached[k]]
            L[k] += 1
            if evaluate(L, hoped, cost, self.fair).value > plan.value:
                return set(open_[:count])
        return set()

    def _set_prices(
        self, taking: Sequence[SlotView], survivals: Sequence[Sequence[float]], L: Sequence[int], cost: WindowCost
    ) -> None:
        """What one more row and one more draft must yield in tokens, at this window's rate, for `keep_drafting`."""
        plan = evaluate(L, survivals, cost, self.fair)
        rows, slots = sum(L), len(L)
        row_ms = (cost.verify[rows] - cost.verify[slots]) / (rows - slots) if rows > slots else 0.0
        step_ms = cost.draft + cost.step / max(1, sum(n > 1 for n in L))
        for v, s, n in zip(taking, survivals, L):
            rate = plan.tokens if self.fair == "total" else slots * (1.0 + sum(s[: n - 1]))
            memory = self._slots[v.slot]
            memory.row_price, memory.step_price = rate / plan.ms * row_ms, rate / plan.ms * step_ms

    def _reason(
        self,
        taking: Sequence[SlotView],
        k: int,
        n: int,
        plan: Plan,
        survivals: Sequence[Sequence[float]],
        cost: WindowCost,
    ) -> str:
        """Why slot k got n rows and no more."""
        view = taking[k]
        if self._slots[view.slot].probe:
            return "probe"
        if n == view.limit:
            return view.limit_reason
        if sum(plan.L) >= self.rows or (self.plan == "uniform" and n >= self.rows // len(taking)):
            return "budget"
        # would a draft that is sure to be accepted pay? then it is this slot's acceptance that holds it back
        return "acceptance" if pays(plan, k, 1.0, survivals, cost, self.fair) else "cost"
