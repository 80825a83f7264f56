"""The real planner, and an oracle, in a simulated engine. No torch."""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate

from simulation.workload import Job, World, arriving, bucket_function, jobs, verify_curve
from strata_cli.engine.planning import Choice, Made, Outcome, Planner, SlotView, WindowCost, plan_rows
from strata_cli.engine.planning.rows import seats


@dataclass(frozen=True)
class Slot:
    """A slot that a request took, as far as the planner is concerned."""

    index: int


@dataclass
class Score:
    """What one policy did after warm-up. Rates are of expected tokens and times without noise: less luck to average."""

    tokens: int = 0
    expected: float = 0.0
    ms: float = 0.0
    windows: int = 0
    rows: int = 0
    plan_us: list[float] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    by_slot: dict[int, list[int]] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def per_s(self) -> float:
        return 1000 * self.expected / self.ms if self.ms else 0.0


class Oracle:
    """Plans with the true curves and the true times, window by window: no learning, no probing, no hysteresis."""

    def __init__(self, world: World, rows: int, spec: int, fair: str):
        self.world, self.rows, self.spec, self.fair = world, rows, spec, fair

    def choose(self, views: Sequence[SlotView], seated: dict[int, Job]) -> list[Choice]:
        at = seats([v.missed for v in views], self.rows)
        survivals = [self.world.survivals(seated[views[i].slot], self.spec) for i in at]
        plan = plan_rows(survivals, [views[i].limit for i in at], self.rows, self.world.cost, self.fair)
        chosen = dict(zip(at, plan.L))
        return [Choice(chosen.get(i, 0), "cost", max(chosen.get(i, 0) - 1, 0)) for i in range(len(views))]


@dataclass
class Run:
    """One policy over one stream of requests."""

    world: World
    policy: Planner | Oracle
    slots: int
    spec: int
    seed: int
    clock_ms: float = 0.0
    seated: dict[int, Job] = field(default_factory=dict)
    score: Score = field(default_factory=Score)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.planning_s = 0.0  # of the policy in this window; a clock of CPU time alone would cost a tenth of it

    @contextmanager
    def planning(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.planning_s += time.perf_counter() - began

    def window(self) -> None:
        """One window over the seated requests: choose, draft, verify, commit, record."""
        world, policy, self.planning_s = self.world, self.policy, 0.0
        views = []
        for slot, job in sorted(self.seated.items()):
            left = job.tokens - job.done
            limit, why = min((self.spec + 1, "user"), (left, "fits"))
            views.append(SlotView(slot, job.id, job.ctx + job.done, limit, why, job.missed))
        with self.planning():
            choices = policy.choose(views, self.seated) if isinstance(policy, Oracle) else policy.choose(views)
        # draft: each chain to its depth, or to the first draft below its threshold
        taken, made = {v.slot: c.L for v, c in zip(views, choices)}, {}
        for v, c in zip(views, choices):
            chances = [world.chance(self.seated[v.slot], j) for j in range(c.depth)] if world.confidence else []
            short = next((j + 1 for j, p in enumerate(chances) if p < c.stop), c.depth)
            if c.depth:
                made[v.slot] = Made(short, chances[:short] or None)
        depth, drafts = max((m.drafts for m in made.values()), default=0), sum(m.drafts for m in made.values())
        if isinstance(policy, Planner):
            with self.planning():
                taken.update({slot: c.L for slot, c in policy.settle(made).items()})
        rows = sum(taken.values())
        cost = world.cost
        took = [v for v in views if taken[v.slot]]
        ctx = sum(v.ctx for v in took)
        verify_ms = cost.verify[rows] + cost.per_ctx * ctx
        draft_ms = cost.start + cost.step * depth + cost.draft * drafts if depth else 0.0
        self.clock_ms += verify_ms + draft_ms + cost.other
        self.score.ms += verify_ms + draft_ms + cost.other
        outcomes = []
        for view, choice in zip(views, choices):
            job, L = self.seated[view.slot], taken[view.slot]
            job.missed = 0 if L else job.missed + 1
            chances = [world.chance(job, j) for j in range(L - 1)]
            luck = [job.luck[(job.done + j) % len(job.luck)] for j in range(L - 1)]
            accepted = next((j for j in range(L - 1) if luck[j] >= chances[j]), max(L - 1, 0))
            self.score.expected += min(L, 1) + sum(accumulate(chances, lambda x, y: x * y))
            outcomes.append(Outcome(view.slot, L, max(L - 1, 0), accepted))
            keeps = accepted + 1 if L else 0
            job.done += keeps
            self.score.tokens += keeps
            self.score.by_slot.setdefault(view.slot, []).append(L)
            self.score.reasons[choice.reason] = self.score.reasons.get(choice.reason, 0) + 1
            if job.done >= job.tokens:
                self.score.latencies_s.append(self.clock_ms / 1000 - job.arrival_s)
                del self.seated[view.slot]
        self.score.windows += 1
        self.score.rows += rows
        if isinstance(policy, Planner):
            draft, verify, other = (
                world.measured(ms, self.rng, self.score.windows) for ms in (draft_ms, verify_ms, cost.other)
            )
            with self.planning():
                policy.record(
                    outcomes,
                    depth=depth,
                    drafts=drafts,
                    draft_ms=draft,
                    verify_ms=verify,
                    other_ms=other,
                    rows=rows,
                    ctx_total=ctx,
                )
        self.score.plan_us.append(1e6 * self.planning_s)

    def seat(self, job: Job, slot: int) -> None:
        self.seated[slot] = job
        if isinstance(self.policy, Planner):
            self.policy.admit(Slot(slot))

    def endless(self, source: Iterator[Job], warmup: int, tokens: int) -> Score:
        """Slots always taken, until `tokens` tokens have come after `warmup` tokens."""
        while self.score.tokens < tokens or warmup:
            if warmup and self.score.tokens >= warmup:
                self.score, warmup = Score(), 0
            for slot in range(self.slots):
                if slot not in self.seated:
                    self.seat(next(source), slot)
            self.window()
        return self.score

    def arrivals(self, waiting: list[Job]) -> Score:
        """Requests come at their times and wait for a slot; until all are done. Idle time counts for nobody."""
        while waiting or self.seated:
            if not self.seated and waiting:
                self.clock_ms = max(self.clock_ms, 1000 * waiting[0].arrival_s)
            for slot in range(self.slots):
                if slot not in self.seated and waiting and 1000 * waiting[0].arrival_s <= self.clock_ms:
                    self.seat(waiting.pop(0), slot)
            self.window()
        return self.score


def policies(args: argparse.Namespace, world: World) -> dict[str, Callable[[], Planner | Oracle]]:
    def planner(plan: str, varlen: bool, spec: int) -> Planner:
        return Planner(
            spec=spec,
            rows=args.rows,
            plan=plan,
            fair=args.fair,
            varlen=varlen,
            batch=args.slots,
            bucket=(lambda rows: rows) if args.blind else world.bucket,
            tuning=args.tuning,
        )

    made: dict[str, Callable[[], Planner | Oracle]] = {}
    most = args.spec + 1 if args.arrivals else args.rows // args.slots
    for n in range(1, min(5, most) + 1):  # with all slots taken, a longer L is cut to the budget: the same again
        made[f"fixed L={n}"] = lambda n=n: planner("rows", False, n - 1)  # type: ignore[misc]
    made["plan_uniform"] = lambda: planner("uniform", True, args.spec)
    made["plan_rows"] = lambda: planner("rows", True, args.spec)
    made["oracle"] = lambda: Oracle(world, args.rows, args.spec, args.fair)
    return made


def simulate(args: argparse.Namespace, only: str | None = None) -> dict[str, list[Score]]:
    """Every policy (or the one named) over the same requests, once per seed."""
    verify, step, draft = verify_curve(args, args.rows)
    cost = WindowCost(verify, step=step, draft=draft, per_ctx=args.per_ctx)
    world = World(
        cost, bucket_function(args.buckets), args.decline, args.noise, args.outliers, args.confidence, args.period
    )
    scores: dict[str, list[Score]] = {}
    for name, make in policies(args, world).items():
        if only not in (None, name):
            continue
        for seed in range(args.seed, args.seed + args.seeds):
            run = Run(world, make(), args.slots, args.spec, seed)
            if args.arrivals:
                path = None if args.arrivals == "poisson" else args.arrivals
                score = run.arrivals(arriving(path, args.requests, args.speed, seed))
            else:
                score = run.endless(jobs(args.workload, args.slots, seed), args.warmup, args.tokens)
            scores.setdefault(name, []).append(score)
    return scores
