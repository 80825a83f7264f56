"""The engine's one door to choosing L: a planner that remembers how drafts fared and what windows cost. No torch.

Every choice is made from past windows and from the drafter's own probabilities, never from the target's logits of the
same window, so sampling stays exact; every schedule counts windows, never wall time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from strata_cli.engine.planning.acceptance import AcceptanceTracker, CollapseWatch
from strata_cli.engine.planning.rows import Plan, evaluate, plan_fixed, plan_rows, plan_uniform, seats
from strata_cli.engine.planning.steptime import StepTimeEstimator, WindowCost
from strata_cli.engine.planning.tuning import DEFAULT, Tuning
from strata_cli.engine.types import REASONS


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
    """Rows of one slot in the window (0 = it sits out), and one of `types.REASONS`.

    `depth`: the drafts that its chain makes at the most; `stop`: a draft whose own probability is below it ends the
    chain, which then has no more to gain (0: none does).
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


class _Memory:
    """What the planner remembers of one slot's request."""

    def __init__(self, spec: int, window: int, wait: float):
        self.tried = [window] * spec  # the window in which each position was last verified
        self.wait = wait  # windows until a position is tried again
        self.last = 0  # L as last planned; 0: not yet


@dataclass(slots=True)
class _Part:
    """A slot in this window. `chances`: of the drafts that its chain made, of holding once they are reached."""

    view: SlotView
    survivals: list[float]  # of all drafts that it might make
    choice: Choice = Choice(0, "sitout", 0)
    probe: int = 0  # the position that is tried, from 1
    drafts: int = 0  # that its chain made, as far as they count
    ended: bool = False  # by a draft below the threshold
    probabilities: Sequence[float | None] = ()
    chances: list[float] = field(default_factory=list)


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
        self._memories = [_Memory(spec, 0, tuning.probe) for _ in range(batch)]
        self._parts: dict[int, _Part] = {}
        self._cost: WindowCost | None = None  # by which the window may still be settled otherwise

    def admit(self, slot: int) -> None:
        """A new request took the slot."""
        self.acceptance.reset(slot)
        self._memories[slot] = _Memory(self.spec, self._window, self.tuning.probe)

    def release(self, slot: int) -> None:
        """The slot's request left it."""

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
        first draft below the threshold does not count: so it is the same whether the chain stopped there or ran on.
        """
        parts = list(self._parts.values())
        steps = [self._follow(self._parts[slot], m) for slot, m in made.items()]
        L = [min(p.choice.L, p.drafts + 1) for p in parts]
        if self._cost is not None and any(q is not None for p in parts for q in p.probabilities):
            paid = self._cost.other + self._cost.chain(max(steps), sum(steps))
            cost = WindowCost(self._cost.verify, other=paid)
            L = self._best([p.survivals for p in parts], [p.drafts + 1 for p in parts], cost).L
        for p, n in zip(parts, L):
            reason = p.view.limit_reason if n == p.view.limit else p.choice.reason
            if n < p.choice.L:
                gave_out = n == p.drafts + 1 == made[p.view.slot].drafts + 1 and not p.ended
                reason = "nodraft" if gave_out else "acceptance"
            p.choice = replace(p.choice, L=n, reason=reason)
        return {slot: self._parts[slot].choice for slot in made}

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
            if (p := self._parts.get(o.slot)) is None:
                continue
            memory, t = self._memories[o.slot], self.tuning
            # a draft that got no row counts by its chance: else only those that looked good would count
            left_out = p.chances[o.verified] if o.verified == o.L - 1 < len(p.chances) else None
            if o.verified or left_out is not None:
                self.acceptance.observe(o.slot, o.verified, o.accepted, p.probabilities, left_out)
            memory.tried[: o.verified] = [self._window] * o.verified
            if o.verified:
                self._collapse.observe(p.view.ctx, o.accepted > 0)
            if p.probe and o.verified >= p.probe and o.accepted >= p.probe - 1:
                longer = o.accepted < p.probe
                memory.wait = min(memory.wait * 2, t.probe * t.span) if longer else max(memory.wait / 2, t.probe / t.span)
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

    def _adapt(self, parts: list[_Part]) -> None:
        """Choose for all parts; one that had better sit out is taken from them."""
        base, leaver = self.steptime.cost(), None
        while True:
            cost = replace(base, other=base.other + base.per_ctx * sum(p.view.ctx for p in parts))
            plan = self._plan(parts, cost)
            leaver = self._leaver(parts, plan, base.per_ctx)
            if leaver is None:
                break
            parts.remove(leaver)
        for p, n in zip(parts, plan.L):
            self._memories[p.view.slot].last = n
        L = self._measure(parts, plan, cost) or self._probe(parts, plan, cost)
        learning = L is not None or self.certain
        L = L or plan.L
        rows, slots = sum(L), len(L)
        price = plan.tokens / plan.ms * (cost.verify[rows] - cost.verify[slots]) / max(rows - slots, 1)
        if rows >= self.rows and self.tuning.ahead:
            price = max(price, min((p.survivals[n - 2] for p, n in zip(parts, L) if n > 1), default=0.0))
        t = self.tuning
        if not learning:
            self._cost = cost
            deepest = max(L) - 1
            a, b = self._further(parts, price, cost.step * plan.tokens / plan.ms)
            deepest = max(deepest, min(b, deepest + b - a))
        for k, (p, n) in enumerate(zip(parts, L)):
            depth, stop = n - 1, self.min_p
            if not learning:
                depth = max(n - 1, min(p.view.limit - 1, deepest))
                stop = max(stop, self.acceptance.hopeless(p.view.slot, self.tuning.stop * price))
            p.choice = Choice(n, self._reason(parts, k, n, plan, cost), depth, stop)

    def _further(self, parts: Sequence[_Part], row: float, step: float) -> list[int]:
        """Steps by which the chain is made longer than planned, because its drafts' probabilities will tell which of them
        deserve a row. `row`, `step`: what they cost, in tokens.
        """
        hopes = [self.acceptance.worth(p.view.slot, p.view.limit - 1, row) for p in parts]
        ends = []
        for k in (0, 1):
            total = best = 0.0
            end = 0
            for d in range(max(map(len, hopes))):
                total += sum(h[d][k] for h in hopes if d < len(h)) - step
                if total > best:
                    best, end = total, d + 1
            ends.append(end)
        return ends

    def _best(self, survivals: Sequence[Sequence[float]], limits: Sequence[int], cost: WindowCost) -> Plan:
        chooser = plan_rows if self.plan == "rows" else plan_uniform
        return chooser(survivals, limits, self.rows, cost, self.fair)

    def _plan(self, parts: Sequence[_Part], cost: WindowCost) -> Plan:
        """The best plan, or the last window's if that is all but as good (hysteresis: L does not thrash)."""
        survivals = [p.survivals for p in parts]
        best = self._best(survivals, [p.view.limit for p in parts], cost)
        last = [self._memories[p.view.slot].last for p in parts]
        if last == best.L or sum(last) > self.rows or not all(0 < n <= p.view.limit for n, p in zip(last, parts)):
            return best
        stay, share = evaluate(last, survivals, cost, self.fair), self.tuning.stay
        near = best.value * (1 - share) if self.fair == "total" else best.value - len(last) * share
        return stay if stay.value >= near else best

    def _leaver(self, parts: Sequence[_Part], plan: Plan, per_ctx: float) -> _Part | None:
        """A slot that slows the others down by more than it brings: its context costs more than its share of tokens.

        Under "slots" fairness nobody is left out for this.
        """
        free = [(p.view.ctx, -k) for k, p in enumerate(parts) if p.view.missed < self.tuning.max_missed]
        if self.fair != "total" or len(parts) == 1 or not free or not per_ctx:
            return None
        ctx, k = max(free)
        tokens = 1.0 + sum(parts[-k].survivals[: plan.L[-k] - 1])
        return parts[-k] if tokens < (1 - self.tuning.leave) * plan.value * per_ctx * ctx else None

    def _measure(self, parts: Sequence[_Part], plan: Plan, cost: WindowCost) -> list[int] | None:
        """L for a window of as many rows as were not run enough, or not lately; None when all that matters is known."""
        if self._window < self._measured + self.tuning.measure:
            return None
        self._measured = self._window
        survivals, limits = [p.survivals for p in parts], [p.view.limit for p in parts]
        choices: Sequence[int] = range(len(parts), min(self.rows, sum(limits)) + 1)
        if self.plan == "uniform":
            most = self.rows // len(parts)
            choices = sorted({sum(min(n, limit) for limit in limits) for n in range(1, most + 1)})
        wanted = self.steptime.wanted(choices)
        if wanted is None:
            return None
        bucket, known = wanted
        padded = self.steptime.padded
        L = self._best(survivals, limits, WindowCost([1.0 if b == bucket else inf for b in padded])).L
        if known:  # is it worth the doubt: would it be the best if it cost no more than fewer rows do?
            verify = list(cost.verify)
            verify[sum(L)] = verify[max(padded.index(bucket) - 1, 1)]
            if evaluate(L, survivals, replace(cost, verify=verify), self.fair).value <= plan.value:
                return None
        for p, n in zip(parts, L):
            p.probe = max(n - 1, 1) if p.view.limit > 1 else 0  # a slot that cannot draft keeps its limit's reason
        return L

    def _probe(self, parts: Sequence[_Part], plan: Plan, cost: WindowCost) -> list[int] | None:
        """L with positions that were left out for long, for they may have become good: those that would be in the plan
        if they were sure to be accepted once reached. Others whose turn is near come along: a step is paid once.
        """
        memories = [self._memories[p.view.slot] for p in parts]
        shares = [
            (self._window - m.tried[n - 1]) / m.wait if n < p.view.limit else 0.0
            for m, p, n in zip(memories, parts, plan.L)
        ]
        if max(shares) < 1:
            return None
        hoped = [[*p.survivals[: n - 1], ([1.0, *p.survivals])[n - 1]] for p, n in zip(parts, plan.L)]
        L = self._best(hoped, [n + (share > 0.5) for n, share in zip(plan.L, shares)], cost).L
        for p, m, planned, n in zip(parts, memories, plan.L, L):
            if n > planned:
                p.probe = planned
            elif planned < p.view.limit:
                m.tried[planned - 1] = self._window  # even so it would not pay: put off
        return L if any(p.probe for p in parts) else None

    def _follow(self, part: _Part, made: Made) -> int:
        """Read one slot's chain as far as it counts: its length, and what its drafts are worth by their probabilities."""
        known = made.probabilities or ()
        part.probabilities = [*known, *[None] * (made.drafts - len(known))][: made.drafts]
        part.survivals, part.drafts = list(part.survivals), made.drafts
        s = part.survivals
        for j, p in enumerate(part.probabilities):
            expected = chance = s[j] / s[j - 1] if j else s[0]
            if p is not None and self._cost is not None:
                chance = self.acceptance.sharpened(part.view.slot, j + 1, p)
                s[j:] = [x * chance / expected for x in s[j:]]
            part.chances.append(chance)
            if p is not None and p < part.choice.stop:
                part.ended = True
                part.drafts = j if p < self.min_p and not self.certain else j + 1
                return j + 1
        return made.drafts

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
