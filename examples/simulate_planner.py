"""Judge the choice of L without a GPU: the real planner in a simulated engine whose true costs and curves are known.

Slots decode requests whose drafts are accepted by given curves; a window takes the time of a given curve, measured with
noise and outliers. Every policy meets the same requests and luck. The oracle plans with the true curves and times.

    python examples/simulate_planner.py                                  one workload, a table
    python examples/simulate_planner.py --workload changing --curve 35b --draft-step 0.2
    python examples/simulate_planner.py --arrivals trace.csv --speed 4   TIMESTAMP,ContextTokens,GeneratedTokens
    python examples/simulate_planner.py --suite --seeds 3                the figures to hold; exit 1 if one does not
    python examples/simulate_planner.py --overhead                       what planning itself costs
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import mean, median

from simulation.workload import BUCKETS, WORKLOADS, Job, World, arriving, bucket_function, jobs, verify_curve

from strata_cli.engine.planning import Choice, Made, Outcome, Planner, SlotView, Tuning, WindowCost, plan_rows
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
            draft, verify, other = (world.measured(ms, self.rng) for ms in (draft_ms, verify_ms, cost.other))
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
            bucket=world.bucket,
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
        cost, bucket_function(args.buckets), args.decline, args.noise, args.outliers, confidence=args.confidence
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


def table(scores: dict[str, list[Score]]) -> None:
    rate = {name: mean(s.per_s for s in runs) for name, runs in scores.items()}
    best = max((name for name in rate if name.startswith("fixed")), key=lambda name: rate[name])
    print(
        f"{'policy':14s} {'tok/s':>8s} {'regret':>8s} {'best fixed':>10s} {'rows':>6s} {'plan us':>8s}  mean L by slot"
    )
    for name, runs in scores.items():
        rows = sum(s.rows for s in runs) / sum(s.windows for s in runs)
        us = median(us for s in runs for us in s.plan_us)
        by_slot = " ".join(f"{mean(L):.2f}" for _, L in sorted(runs[0].by_slot.items()))
        regret, gain = 1 - rate[name] / rate["oracle"], rate[name] / rate[best] - 1
        wait = f"  {mean(t for s in runs for t in s.latencies_s):.2f} s a request" if runs[0].latencies_s else ""
        print(f"{name:14s} {rate[name]:8.1f} {regret:8.1%} {gain:+10.1%} {rows:6.1f} {us:8.0f}  {by_slot}{wait}")
    reasons: dict[str, int] = {}
    for s in scores["plan_rows"]:
        for reason, n in s.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + n
    print("plan_rows' reasons:", ", ".join(f"{r} {n}" for r, n in sorted(reasons.items(), key=lambda x: -x[1])))


def suite(args: argparse.Namespace) -> bool:
    """The figures that plan_rows must hold, over workloads, row budgets and curves."""
    ok = True
    print("curve      workload    rows  regret allowed  over best fixed  over L=1  over uniform")
    for curve, step in (("dense", None), ("35b", 0.2), ("35b", 0.65)):
        for workload in WORKLOADS:
            for rows in (8, 12, 16, 20):
                case = vars(args) | {"curve": curve, "draft_step": step, "workload": workload, "rows": rows}
                scores = simulate(argparse.Namespace(**case))
                rate = {name: mean(s.per_s for s in runs) for name, runs in scores.items()}
                mine = rate["plan_rows"]
                regret, allowed = 1 - mine / rate["oracle"], 0.06 if workload == "changing" else 0.03
                fixed = mine / max(r for name, r in rate.items() if name.startswith("fixed")) - 1
                plain, uniform = mine / rate["fixed L=1"] - 1, mine / rate["plan_uniform"] - 1
                need = 0.03 if curve == "dense" and workload == "differ" and rows in (12, 16) else -0.02
                good = regret <= allowed and fixed >= need and plain >= -0.02
                ok = ok and good
                label = curve if step is None else f"{curve} {step}"
                print(
                    f"{label:10s} {workload:11s} {rows:4d} {regret:7.1%} {allowed:7.0%} {fixed:+16.1%} {plain:+9.1%}"
                    f" {uniform:+13.1%}  {'ok' if good else 'FAIL'}",
                    flush=True,
                )
    return ok


def overhead(args: argparse.Namespace) -> None:
    """Microseconds a window of choosing, stopping chains early and learning, where requests change all the time."""
    print("slots  spec  rows  windows  median us  mean us   99 % us")
    for slots in (4, 8, 16):
        case = vars(args) | {"slots": slots, "rows": slots * (args.spec + 1), "workload": "changing", "confidence": 4.0}
        (score,) = simulate(argparse.Namespace(**case | {"seeds": 1, "arrivals": None}), only="plan_rows")["plan_rows"]
        us = sorted(score.plan_us)
        print(
            f"{slots:5d} {args.spec:5d} {case['rows']:5d} {len(us):8d} {median(us):10.0f} {mean(us):8.0f}"
            f" {us[len(us) * 99 // 100]:9.0f}",
            flush=True,
        )


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--workload", choices=WORKLOADS, default="differ")
    p.add_argument(
        "--curve", default="dense", help="dense, 35b, or a JSON file: verify_ms {rows: ms}, step_ms, draft_ms"
    )
    p.add_argument("--draft-step", type=float, help="ms of one step of the chain (dense 1.4, 35b 0.2)")
    p.add_argument("--per-ctx", type=float, default=0.0, help="ms per token of context in the window")
    p.add_argument("--slots", type=int, default=4)
    p.add_argument("--rows", type=int, default=16, help="row budget of a window")
    p.add_argument("--spec", type=int, default=8, help="most drafts in a chain")
    p.add_argument("--fair", choices=("total", "slots"), default="total")
    p.add_argument("--buckets", type=lambda s: [int(n) for n in s.split(",")], default=list(BUCKETS))
    p.add_argument("--decline", type=float, default=1.0, help="acceptance of each further draft, relative to the last")
    p.add_argument("--noise", type=float, default=0.05, help="log-normal noise of measured times")
    p.add_argument(
        "--outliers", type=float, default=0.01, help="share of measured times that are 2 to 8 times too long"
    )
    p.add_argument(
        "--confidence", type=float, default=0.0, help="above 0: drafts carry probabilities; less = more telling"
    )
    p.add_argument("--arrivals", help="a trace file (CSV), or poisson; default: slots never wait for a request")
    p.add_argument("--requests", type=int, default=200, help="requests of the trace")
    p.add_argument("--speed", type=float, default=1.0, help="the trace's clock, sped up")
    p.add_argument("--warmup", type=int, default=2000, help="tokens before measuring")
    p.add_argument("--tokens", type=int, default=12000, help="tokens measured")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--seeds", type=int, default=1, help="runs, each with its own seed, averaged")
    p.add_argument("--tune", nargs="*", default=[])
    p.add_argument("--suite", action="store_true", help="every workload, curve and budget, against the figures to hold")
    p.add_argument("--overhead", action="store_true", help="CPU time that planning takes, for 4, 8 and 16 slots")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    args.tuning = Tuning(**{k: eval(v) for k, v in (t.split("=") for t in args.tune)})
    if args.suite:
        return 0 if suite(args) else 1
    if args.overhead:
        overhead(args)
        return 0
    table(simulate(args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
