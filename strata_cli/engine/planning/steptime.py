"""What a window costs in milliseconds, measured while running. No torch.

A window of R rows is taken to cost verify(bucket(R)) + per_ctx * (tokens of context of its slots) + other (the host's
part), and for a chain start (the catch-up) + step * depth + draft * (drafts in all). `verify` is a step function: rows
are padded to a bucket (a row tile on the CPU, a captured graph on a GPU).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import mul
from statistics import median
from typing import TypedDict, Unpack

from strata_cli.engine.planning.tuning import DEFAULT, Tuning


@dataclass(frozen=True, slots=True)
class WindowCost:
    """The cost of a window as plain numbers: what the planners read. All in ms; `verify[r]` is of r rows, padded."""

    verify: list[float]
    start: float = 0.0
    step: float = 0.0
    draft: float = 0.0
    other: float = 0.0
    per_ctx: float = 0.0

    def chain(self, depth: int, drafts: int) -> float:
        """A chain of `depth` steps that makes `drafts` drafts in all."""
        return self.start + self.step * depth + self.draft * drafts if depth else 0.0

    def ms(self, rows: int, depth: int, drafts: int) -> float:
        """A window of `rows` rows behind such a chain; context not included."""
        return self.verify[rows] + self.chain(depth, drafts) + self.other


class Times(TypedDict):
    """What a window of `rows` rows (before padding) cost in ms, its chain having made `drafts` drafts in `depth` steps.
    None for a part that does not show what decode rows cost: it also carried prompt rows, or was done twice.
    """

    rows: int
    depth: int
    drafts: int
    ctx_total: int
    verify_ms: float | None
    draft_ms: float | None
    other_ms: float | None


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to `values` in weighted squares (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for mean, weight in zip(values, weights, strict=True):
        length = 1
        while blocks and blocks[-1][0] > mean:
            m, w, n = blocks.pop()
            mean, weight, length = (m * w + mean * weight) / (w + weight), w + weight, n + length
        blocks.append((mean, weight, length))
    return [mean for mean, _, n in blocks for _ in range(n)]


class _Chain:
    """start, step and draft by least squares with forgetting, none negative; the guess is worth one window (ridge)."""

    def __init__(self, tuning: Tuning):
        self.tuning, self.keep, self.n = tuning, 1.0 - 1.0 / tuning.shared, 0
        self.ms, self.xy = list(tuning.chain), list(tuning.chain)
        self.xx = [[float(i == j) for j in range(3)] for i in range(3)]

    def add(self, depth: int, drafts: int, ms: float, window_ms: float) -> None:
        x = (1.0, depth, drafts)
        if not self.n:
            self.ms, self.xy = ([share * window_ms for share in self.tuning.chain] for _ in range(2))
        if self.n >= self.tuning.trusted:
            ms = self.tuning.cut(ms, sum(map(mul, self.ms, x)))
        self.n += 1
        for i, a in enumerate(x):
            self.xy[i] = self.xy[i] * self.keep + a * ms
            self.xx[i] = [old * self.keep + a * b for old, b in zip(self.xx[i], x)]
        for i, row in enumerate(self.xx):  # coordinate descent: one round a sample, from the last solution
            self.ms[i] = max(0.0, self.ms[i] + (self.xy[i] - sum(map(mul, row, self.ms))) / row[i])


class _Bucket:
    """Windows of one padded number of rows: recent times without context, and means over time with it."""

    def __init__(self, samples: int):
        self.ms = deque[float](maxlen=samples)
        self.last = self.asked = self.seen = 0  # windows: last run, last asked for; times run
        self.median = self.mean_ctx = self.mean_ms = 0.0


class StepTimeEstimator:
    """Measured ms of windows up to `rows` rows, padded by `bucket`; `cost()` is the current WindowCost.

    Each bucket that was really run gives the median of its recent times, made non-decreasing over buckets; what lies
    between is interpolated, beyond them the nearest holds: rows are free until they are seen not to be.
    """

    def __init__(self, rows: int, bucket: Callable[[int], int], tuning: Tuning = DEFAULT):
        self.padded = [0] + [bucket(r) for r in range(1, rows + 1)]
        assert all(r <= p for r, p in enumerate(self.padded)), "a bucket holds the rows padded to it"
        self.tuning, self._windows = tuning, 0
        self._buckets = {b: _Bucket(tuning.samples) for b in sorted({*self.padded[1:]})}
        self._chain = _Chain(tuning)
        self._other: deque[float] = deque(maxlen=tuning.samples)
        self.per_ctx = self._sxx = self._sxy = 0.0

    def record(self, **times: Unpack[Times]) -> None:
        """One window's times."""
        self._windows += 1
        if (ms := times["verify_ms"]) is not None and times["rows"]:
            bucket = self._buckets[self.padded[times["rows"]]]
            self._learn_context(bucket, times["ctx_total"], ms)
            ms = max(ms - self.per_ctx * times["ctx_total"], 1e-3)  # no window is free
            long_ago = bucket.last + self.tuning.doubt * len(bucket.ms) < self._windows
            while long_ago and len(bucket.ms) > 2 and abs(ms / bucket.median - 1.0) > self.tuning.unlike:
                bucket.ms.popleft()  # the machine became slower or faster since
            bucket.ms.append(ms)
            bucket.last, bucket.median = self._windows, median(bucket.ms)
        if (ms := times["draft_ms"]) is not None and times["depth"]:
            self._chain.add(times["depth"], times["drafts"], ms, self.cost().verify[1])
        if (ms := times["other_ms"]) is not None:
            self._other.append(ms)

    def wanted(self, choices: Iterable[int]) -> tuple[int, bool]:
        """A bucket of these numbers of rows that may be worth running to learn its cost (0: none), and whether by all
        means: the least and the most while they are unknown. Any other one that was not run for as many windows as its
        samples are worth: what seems slow is not run by itself, and a burst of other work may have made it seem so.
        """
        asked = {self.padded[r]: self._buckets[self.padded[r]] for r in choices}
        for b in (min(asked), max(asked)):
            if len(asked[b].ms) < self.tuning.trusted:
                return b, True
        due = {b: max(k.last, k.asked) + self.tuning.doubt * (len(k.ms) or 1) for b, k in asked.items()}
        b = min(due, key=lambda b: due[b])
        if due[b] > self._windows:
            return 0, False
        asked[b].asked = self._windows  # whether it is run then or not
        return b, False

    def _learn_context(self, bucket: _Bucket, ctx: int, ms: float) -> None:
        """Slope of ms over context within buckets; shrunk to zero where contexts hardly differ, which says nothing."""
        t, dx = self.tuning, ctx - bucket.mean_ctx
        if bucket.seen >= t.trusted:
            dy = t.cut(ms, bucket.mean_ms + self.per_ctx * dx) - bucket.mean_ms
            self._sxx = self._sxx * self._chain.keep + dx * dx
            self._sxy = self._sxy * self._chain.keep + dx * dy
            self.per_ctx = max(self._sxy, 0.0) / (self._sxx + t.ctx_doubt * ctx * ctx + 1.0)
        bucket.seen += 1
        weight = max(1.0 / bucket.seen, 0.5 / t.samples)
        bucket.mean_ctx += weight * dx
        bucket.mean_ms += weight * (ms - bucket.mean_ms)

    def cost(self) -> WindowCost:
        """As known by now."""
        run = {b: k for b, k in self._buckets.items() if k.ms}
        known = {b: k for b, k in run.items() if len(k.ms) >= self.tuning.trusted} or run
        level = isotonic([k.median for k in known.values()], [len(k.ms) for k in known.values()]) or [1.0]
        at = {b: _interpolate([0, *known], [level[0], *level], b) for b in self._buckets}
        unit, (start, step, draft) = 1.0 if self._chain.n else level[0], self._chain.ms
        verify, other = [0.0, *(at[b] for b in self.padded[1:])], median(self._other or [0.0])
        return WindowCost(verify, unit * start, unit * step, unit * draft, other, self.per_ctx)


def _interpolate(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    """Piecewise linear through the points, as the last one beyond it."""
    i = bisect_left(xs, x)
    if i == len(xs) or xs[i] == x:
        return ys[min(i, len(xs) - 1)]
    return ys[i - 1] + (ys[i] - ys[i - 1]) * (x - xs[i - 1]) / (xs[i] - xs[i - 1])
