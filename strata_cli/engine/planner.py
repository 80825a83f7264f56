"""The engine's one door to choosing L: a planner that remembers how drafts fared and what windows cost. No torch.

Every choice is made from past windows and from the drafter's own probabilities, never from the target's logits of the
same window, so sampling stays exact; every schedule counts windows, never wall time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from strata_cli.engine.acceptance import AcceptanceTracker, CollapseWatch
from strata_cli.engine.chains import Chain, Chains
from strata_cli.engine.steptime import StepTimeEstimator, WindowCost
from strata_cli.engine.types import REASONS
from strata_cli.engine.window import Plan, evaluate, pays, plan_fixed, plan_rows, plan_uniform, seats, uniform_limit

STAY = 0.005  # the last window's L stay unless something is better by this share
LEAVE = 0.1  # a slot sits out for its context only if its tokens per ms are below the window's by this share
MEASURE_EVERY = 3  # windows between two that are run to learn what a number of rows costs
DOUBT_EVERY = 12  # windows between two that are run because few measurements stand against a number of rows
PROBE_FIRST, PROBE_LEAST, PROBE_MOST = 32, 8, 128  # windows between tries of a position that the plan leaves out


NO_CHAIN = Chain(1, 1, [])  # of a slot that was not asked about


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
        self.view: SlotView | None = None  # of this window


class Planner:
    """Chooses L for the decoding slots of each window.

    Args:
        spec: most drafts in a chain. rows: row budget of a window. plan: "rows" or "uniform". fair: "total" or "slots".
        varlen: False: L is fixed at the limit, cut only by the budget. batch: number of slots.
        bucket: rows after padding, as a function or as the list of captured sizes.
        min_p, certain: see `chains.Chains`; certain drafts also keep L as it was chosen.
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
        min_p: float = 0.0,
        certain: bool = False,
        max_missed: int = 7,
    ):
        self.spec, self.plan, self.fair, self.varlen, self.max_missed = spec, plan, fair, varlen, max_missed
        self.min_p, self.certain = min_p, certain
        self.rows = min(rows, batch * (spec + 1))
        self.acceptance = AcceptanceTracker(batch, spec)
        self.steptime = StepTimeEstimator(self.rows, bucket)
        self._collapse = CollapseWatch()
        self._window = 0
        self._turn = 0
        self._slots = [_Memory(spec, 0) for _ in range(batch)]
        self._chains = self._chained([], [], [], None)

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
            self._slots[v.slot].view, self._slots[v.slot].probe = v, 0
        at = seats([v.missed for v in views], self.rows)
        chosen = self._fixed(views, at) if not self.varlen else self._adaptive(views, at)
        return [chosen.get(i, Choice(0, "sitout")) for i in range(len(views))]

    def go_on(self, depth: int, probabilities: Mapping[int, float | None]) -> set[int]:
        """See `chains.Chains.go_on`."""
        return self._chains.go_on(depth, probabilities)

    def settle(self, slot: int, chosen: Choice, drafts: int) -> Choice:
        """The rows a slot takes in the end, its drafter having made so many drafts; `chosen` came from `choose`."""
        planned, view = self._chains.chains[slot].L, self._slots[slot].view
        L = min(planned, drafts + 1)
        if min(planned, chosen.L) > L:
            return Choice(L, "nodraft")
        if L < chosen.L:
            return Choice(L, "acceptance")
        return Choice(L, view.limit_reason if view is not None and view.limit == L else chosen.reason)

    def record(
        self,
        outcomes: Sequence[Outcome],
        *,
        depth: int,
        drafts: int,
        draft_ms: float | None,
        verify_ms: float | None,
        other_ms: float | None,
        rows: int,
        ctx_total: int,
    ) -> None:
        """One window's outcomes (one per decoding slot) and times in ms.

        The chain had `depth` steps, which made `drafts` drafts in all, verified or not. `rows` before padding. Give
        None for a part that does not show what a window of decode rows costs: it also carried prompt rows, or was done
        twice.
        """
        self._window += 1
        self.acceptance.tick()
        for o in outcomes:
            memory, chain = self._slots[o.slot], self._chains.chains.get(o.slot, NO_CHAIN)
            # a draft that got no row counts by its chance: else only those that looked good would count
            left_out = chain.chances[o.verified] if o.verified == o.L - 1 < len(chain.chances) else None
            self.acceptance.observe(o.slot, o.verified, o.accepted, chain.probabilities, left_out)
            memory.tried[: o.verified] = [self._window] * o.verified
            if o.verified and memory.view is not None:
                self._collapse.observe(memory.view.ctx, o.accepted > 0)
            if memory.probe and o.verified >= memory.probe and o.accepted >= memory.probe - 1:
                held = o.accepted >= memory.probe
                memory.wait = max(memory.wait // 2, PROBE_LEAST) if held else min(memory.wait * 2, PROBE_MOST)
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
        taking = [views[i] for i in at]
        survivals = [self.acceptance.survival(v.slot, v.limit - 1) for v in taking]
        self._chains = self._chained(taking, L, survivals, None)
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
        L = self._measure(taking, plan, survivals, cost) or self._probe(taking, plan, survivals, cost)
        learning = any(self._slots[v.slot].probe for v in taking)
        self._chains = self._chained(taking, L, survivals, None if learning or self.certain else (plan, cost))
        return {i: Choice(n, self._reason(taking, k, n, plan, survivals, cost)) for k, (i, n) in enumerate(zip(at, L))}

    def _chained(
        self,
        taking: Sequence[SlotView],
        L: Sequence[int],
        survivals: Sequence[list[float]],
        again: tuple[Plan, WindowCost] | None,
    ) -> Chains:
        """The window's chains, to be planned again as this plan was, at this cost; None: L stands."""
        chains = {v.slot: Chain(n, v.limit if n > 1 else 1, s) for v, n, s in zip(taking, L, survivals)}
        if again is None:
            return Chains(chains, None, 0.0, self.acceptance.sharpened, self.min_p, self.certain)
        plan, cost = again

        def replan(survivals: Sequence[list[float]], limits: Sequence[int], made: int) -> Sequence[int]:
            return self._best(survivals, limits, cost, made).L

        rows, slots = sum(L), len(L)
        row_ms = (cost.verify[rows] - cost.verify[slots]) / (rows - slots) if rows > slots else 0.0
        price = plan.tokens / plan.ms * row_ms
        return Chains(chains, replan, price, self.acceptance.sharpened, self.min_p, self.certain)

    def _best(
        self, survivals: Sequence[Sequence[float]], limits: Sequence[int], cost: WindowCost, made: int = 0
    ) -> Plan:
        chooser = plan_rows if self.plan == "rows" else plan_uniform
        return chooser(survivals, limits, self.rows, cost, self.fair, made)

    def _plan(self, taking: Sequence[SlotView], survivals: list[list[float]], cost: WindowCost) -> Plan:
        """The best plan, or the last window's if that is all but as good (hysteresis: L does not thrash)."""
        best = self._best(survivals, [v.limit for v in taking], cost)
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
        self, taking: Sequence[SlotView], plan: Plan, survivals: Sequence[Sequence[float]], cost: WindowCost
    ) -> list[int] | None:
        """L for a window of as many rows as were not run enough, or not lately; None when all that matters is known."""
        if self._window % MEASURE_EVERY:
            return None
        slots, limits = len(taking), [v.limit for v in taking]
        if self.plan == "uniform":
            most = min(max(limits), uniform_limit(self.spec, self.rows, slots))
            by_rows = {sum(L): L for n in range(most, 0, -1) for L in [[min(limit, n) for limit in limits]]}
            choices: Sequence[int] = sorted(by_rows)
        else:
            choices = range(slots, min(self.rows, sum(limits)) + 1)
        unknown = wanted = self.steptime.unknown(choices)
        if unknown is None and self._window % DOUBT_EVERY == 0:
            wanted = self.steptime.doubtful(choices)
        if wanted is None:
            return None
        if self.plan == "uniform":
            L = by_rows[wanted]
        else:  # as if rows were free: all that are wanted get used
            free = replace(cost, verify=[1.0] * len(cost.verify), start=0.0, step=0.0, draft=0.0)
            L = plan_rows(survivals, limits, wanted, free, self.fair).L
        if unknown is None:  # is it worth the doubt: would it be the best if it cost no more than fewer rows do?
            verify = list(cost.verify)
            verify[wanted] = max((ms for ms in verify[1:wanted] if ms < verify[wanted]), default=verify[wanted])
            if evaluate(L, survivals, replace(cost, verify=verify), self.fair).value <= plan.value:
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
