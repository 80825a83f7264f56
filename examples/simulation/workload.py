"""Requests with known acceptance curves, and what windows truly cost. No torch."""

import argparse
import csv
import json
import math
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from pathlib import Path

from strata_cli.engine.planning import WindowCost

DOMAINS = (0.93, 0.85, 0.75, 0.60, 0.40)  # first-draft acceptance: code, extraction, mixed, factual, prose
DIFFER = (0.93, 0.75, 0.60, 0.40)
WORKLOADS = ("differ", "stationary", "changing", "flips", "giant")
BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)
EXPERTS, PER_TOKEN = 256, 8


def bucket_function(sizes: Sequence[int]) -> Callable[[int], int]:
    """rows -> rows after padding to the captured sizes; beyond the last, multiples of it."""
    sizes = sorted(sizes)

    def pad(rows: int) -> int:
        if rows > sizes[-1]:
            return -(-rows // sizes[-1]) * sizes[-1]
        return sizes[bisect_left(sizes, rows)]

    return pad


@dataclass
class Job:
    """A request. `pieces`: (first token, acceptance of drafts) in order; `luck[t]` decides token t for every policy."""

    id: str
    arrival_s: float
    ctx: int
    tokens: int
    pieces: list[tuple[int, float]]
    luck: list[float]
    done: int = 0
    missed: int = 0

    def acceptance(self, token: int) -> float:
        return next(a for start, a in reversed(self.pieces) if start <= token)


@dataclass
class World:
    """True costs and the noise of measured times. `decline`: acceptance of each further draft, relative to the last."""

    cost: WindowCost
    bucket: Callable[[int], int]
    decline: float = 1.0
    noise: float = 0.05
    outliers: float = 0.01
    confidence: float = 0.0
    period: int = 0  # above 0: of so many windows the first ten are measured three times as long (other work)

    def measured(self, ms: float, rng: random.Random, window: int) -> float:
        slow = rng.uniform(2, 8) if rng.random() < self.outliers else 1.0
        if self.period and window % self.period < 10:
            slow *= 3.0
        return ms * slow * math.exp(rng.gauss(0.0, self.noise))

    def survivals(self, job: Job, depth: int) -> list[float]:
        a = job.acceptance(job.done)
        return list(accumulate((a * self.decline**j for j in range(depth)), lambda x, y: x * y))

    def chance(self, job: Job, j: int) -> float:
        """Acceptance of this very draft, j (0-based) tokens on: around the curve, as spread as `confidence` says."""
        token = job.done + j
        a = job.acceptance(job.done) * self.decline**j
        if not self.confidence:
            return a
        rng = random.Random(f"{job.id}/{token}")
        return rng.betavariate(a * self.confidence, (1 - a) * self.confidence)


def verify_curve(args: argparse.Namespace, rows: int) -> tuple[list[float], float, float]:
    """True verify ms for 0..rows rows (padded), ms of a chain step, ms of each draft."""
    pad = bucket_function(args.buckets)
    step, draft = {"dense": 1.4, "35b": 0.2, "tiles": 0.5}.get(args.curve, 0.0), 0.0
    if args.curve == "dense":

        def ms(n: int) -> float:
            return 30 + 0.05 * n

    elif (
        args.curve == "35b"
    ):  # 4-bit experts of 1.57 MB in 40 layers and 2 GB shared by all rows, at 920 GB/s, 1 ms launches

        def ms(n: int) -> float:
            return 3.1 + 0.068 * EXPERTS * (1 - (1 - PER_TOKEN / EXPERTS) ** n)

    elif args.curve == "tiles":  # rows cost by tiles of eight

        def ms(n: int) -> float:
            return 4 + 6 * -(-n // 8)

    else:
        data = json.loads(Path(args.curve).read_text())
        known = {int(n): float(v) for n, v in data["verify_ms"].items()}
        step, draft = data.get("step_ms", 0.0), data.get("draft_ms", 0.0)
        pad = bucket_function(sorted(known))

        def ms(n: int) -> float:
            return known[n] if n in known else known[max(known)] * n / max(known)

    step = args.draft_step if args.draft_step is not None else step
    return [0.0] + [ms(pad(n)) for n in range(1, rows + 1)], step, draft


def jobs(workload: str, slots: int, seed: int) -> Iterator[Job]:
    """Requests without end, each there when a slot is free. Deterministic for (workload, seed)."""
    rng = random.Random(f"{workload}/{seed}")
    n = 0
    while True:
        if workload == "differ":
            tokens, pieces = 10**6, [(0, DIFFER[n % len(DIFFER)])]
        elif workload == "stationary":
            tokens, pieces = rng.randint(1500, 3000), [(0, rng.choice(DOMAINS))]
        elif workload == "flips":  # against every memory: good for as long as it takes to be believed, then bad
            tokens = 1200
            pieces = [(at, 0.95 if at // 150 % 2 else 0.05) for at in range(0, tokens, 150)]
        elif workload == "giant":  # every eighth request is long, and unlucky
            tokens, pieces = rng.randint(200, 400), [(0, 0.1 if n % 8 == 7 else 0.85)]
        else:
            tokens, pieces, at = rng.randint(200, 1200), [], 0
            while at < tokens:
                pieces.append((at, rng.choice(DOMAINS)))
                at += rng.randint(100, 500)
        ctx = 60000 if workload == "giant" and n % 8 == 7 else rng.randint(50, 4000)
        yield make_job(f"{workload}-{seed}-{n}", 0.0, ctx, tokens, pieces)
        n += 1


def make_job(name: str, arrival_s: float, ctx: int, tokens: int, pieces: list[tuple[int, float]]) -> Job:
    rng = random.Random(name)
    luck = [rng.random() for _ in range(min(tokens, 5000) + 32)]  # an endless request meets it again and again
    return Job(name, arrival_s, ctx, tokens, pieces, luck)


def arriving(path: str | None, count: int, speed: float, seed: int) -> list[Job]:
    """Requests with arrival times: of a trace file, or Poisson at 1 a second with log-normal lengths."""
    rng = random.Random(seed)
    found: list[tuple[float, int, int]] = []
    if path:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
                found.append((at, int(row["ContextTokens"]), max(1, int(row["GeneratedTokens"]))))
    else:
        at = 0.0
        for _ in range(count):
            at += rng.expovariate(1.0)
            found.append((at, int(rng.lognormvariate(6, 1)) + 1, int(rng.lognormvariate(5, 0.8)) + 1))
    first = found[0][0]
    return [
        make_job(f"arrival-{seed}-{n}", (at - first) / speed, ctx, tokens, [(0, rng.choice(DOMAINS))])
        for n, (at, ctx, tokens) in enumerate(found[:count])
    ]
