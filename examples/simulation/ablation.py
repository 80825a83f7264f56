"""Each rule of planning off alone, over workloads that are steady, that change, and that work against it. No torch."""

import argparse
from dataclasses import replace
from math import inf
from statistics import mean
from typing import Any

from simulation.run import simulate
from strata_cli.engine.planning import Tuning

MOE = {"curve": "35b", "draft_step": 0.65}
TILES = {"curve": "tiles", "buckets": list(range(8, 72, 8))}
CASES: dict[str, dict[str, Any]] = {
    "stationary": {"workload": "stationary"} | MOE,
    "differ": {"workload": "differ", "rows": 12},
    "changing": {"workload": "changing"} | MOE,
    "told": {"workload": "changing", "confidence": 1.0} | MOE,
    "alone": {"workload": "changing", "confidence": 1.0, "slots": 1, "rows": 9},
    "flips": {"workload": "flips"} | MOE,
    "bursts": {"workload": "differ", "period": 150} | TILES,
    "giant": {"workload": "giant", "per_ctx": 0.0005} | MOE,
    "arrivals": {"arrivals": "poisson", "speed": 4.0} | MOE,
}
RULES: dict[str, dict[str, Any]] = {
    "a prior for new requests (strength)": {"strength": 0.1},
    "the drafts' own probabilities (bins)": {"bins": 0},
    "outliers cut, changes believed (unlike)": {"unlike": inf},
    "no cost from one sample (trusted)": {"trusted": 1},
    "cost of context (ctx_doubt)": {"ctx_doubt": inf},
    "rows run to be measured (measure)": {"measure": inf},
    "rows looked at again (doubt)": {"doubt": inf},
    "sitting out for a context (max_missed)": {"max_missed": 0},
    "positions tried again (probe)": {"probe": inf},
    "padding rows known to be free (bucket)": {"blind": True},
    "tokens before fairness (fair)": {"fair": "slots"},
}


def ablate(args: argparse.Namespace, cases: dict[str, dict[str, Any]] = CASES) -> None:
    """Per cent of tokens per second that a workload gains by each rule: with it, over without it."""

    def rate(case: dict[str, Any], off: dict[str, Any]) -> float:
        tuning = replace(Tuning(), **{k: v for k, v in off.items() if hasattr(Tuning, k)})
        other = {k: v for k, v in off.items() if not hasattr(Tuning, k)}
        case = vars(args) | {"tokens": 6000, "seeds": 3, "tuning": tuning} | case | other
        return mean(s.per_s for s in simulate(argparse.Namespace(**case), only="plan_rows")["plan_rows"])

    base = {name: rate(case, {}) for name, case in cases.items()}
    print("| rule | " + " | ".join(cases) + " |\n|---|" + "---:|" * len(cases))
    for rule, off in RULES.items():
        gains = [100 * (base[name] / rate(case, off) - 1) for name, case in cases.items()]
        print(f"| {rule} | " + " | ".join(f"{gain:+.1f}" for gain in gains) + " |", flush=True)
