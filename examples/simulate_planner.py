"""Judge the choice of L without a GPU: the real planner in a simulated engine whose true costs and curves are known.

Slots decode requests whose drafts are accepted by given curves; a window takes the time of a given curve, measured with
noise and outliers. Every policy meets the same requests and luck. The oracle plans with the true curves and times.

    python examples/simulate_planner.py                                  one workload, a table
    python examples/simulate_planner.py --workload changing --curve 35b --draft-step 0.2
    python examples/simulate_planner.py --arrivals trace.csv --speed 4   TIMESTAMP,ContextTokens,GeneratedTokens
    python examples/simulate_planner.py --suite --seeds 3                the figures to hold; exit 1 if one does not
    python examples/simulate_planner.py --ablate                         each rule of planning off alone: its worth
    python examples/simulate_planner.py --overhead                       what planning itself costs
"""

import argparse
import sys
from collections.abc import Sequence
from statistics import mean, median

from simulation.ablation import ablate
from simulation.run import Score, simulate
from simulation.workload import BUCKETS, WORKLOADS

from strata_cli.engine.planning import Tuning


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
        for workload in WORKLOADS[:3]:
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
        "--curve", default="dense", help="dense, 35b, tiles, or a JSON file: verify_ms {rows: ms}, step_ms, draft_ms"
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
    p.add_argument("--ablate", action="store_true", help="what each rule of planning is worth, as a table")
    p.add_argument("--suite", action="store_true", help="every workload, curve and budget, against the figures to hold")
    p.add_argument("--overhead", action="store_true", help="CPU time that planning takes, for 4, 8 and 16 slots")
    p.set_defaults(tuning=Tuning(), period=0, blind=False)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if args.suite:
        return 0 if suite(args) else 1
    if args.ablate:
        ablate(args)
        return 0
    if args.overhead:
        overhead(args)
        return 0
    table(simulate(args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
