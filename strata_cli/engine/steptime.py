"""What a window costs in milliseconds, measured while running. No torch.

A window of R rows, with a chain of `depth` steps that made `drafts` drafts in all, is taken to cost

    verify(bucket(R)) + per_ctx * (tokens of context of its slots)
    + start + step * depth + draft * drafts      (only if anybody drafts; `start` is the catch-up)
    + other                                      (planning, sampling, commit: the host's part)

so one chain step with n slots drafting costs step + draft * n. `verify` is a step function: rows are padded to a bucket
(a row tile on the CPU, a captured graph on a GPU), so a row within the bucket is free.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from statistics import median

SAMPLES = 32  # recent samples kept per bucket
TRUSTED = 3  # samples a bucket needs: fewer could all be outliers (a first run compiles)
SURE = 8  # samples after which one more changes little
GAP = 64  # windows after which a machine may have become slower or faster
CHANGED = 0.15  # a sample this far from those before the gap says that it has
CALM = 4  # doublings of the time between two looks, one for each that showed no change
STALE = 4000  # windows after which a sample no longer counts, so that a bucket given up for slow is tried again
HOPE = 1.0  # standard errors by which a bucket is taken to be faster than its median: what is unsure gets tried
NEAR = 1.4  # buckets nearer than this ratio need not be measured each
REFIT_EVERY = 16  # samples
CLIP = 1.3  # a draft time beyond this many times what was expected, or below its inverse, is cut there
CTX_KEEP = 1.0 - 1.0 / 512
CTX_MEAN = 1.0 / 64
CTX_CLIP = 0.15  # a sample further than this from what was expected is cut there, for the slope over context
DRAFT_KEEP = 1.0 - 1.0 / 256
LEAST_MS = 0.001  # no window is free
DRAFT_PRIOR = (0.0, 1.0, 0.05)  # start, step, draft in ms until measured
DRAFT_RIDGE = (0.5, 0.5, 2.0)  # windows' worth of evidence behind each of them


def prior_ms(rows: int) -> float:
    """Verify ms until anything is measured. Rows are guessed to be cheap, so that wide windows are tried."""
    return 20.0 + 0.2 * rows


@dataclass(frozen=True, slots=True)
class WindowCost:
    """The cost of a window as plain numbers: what the planners read. All in ms; `verify[r]` is of r rows, padded."""

    verify: list[float]
    start: float = 0.0
    step: float = 0.0
    draft: float = 0.0
    other: float = 0.0
    per_ctx: float = 0.0

    def ms(self, rows: int, depth: int, drafts: int) -> float:
        """A window of `rows` rows whose chain has `depth` steps and makes `drafts` drafts; context not included."""
        chain = self.start + self.step * depth + self.draft * drafts if depth else 0.0
        return self.verify[rows] + chain + self.other


def bucket_function(bucket: Callable[[int], int] | Sequence[int]) -> Callable[[int], int]:
    """rows -> rows after padding. A list gives the captured sizes; beyond the last, multiples of it."""
    if callable(bucket):
        return bucket
    sizes = sorted(bucket)
    assert sizes and sizes[0] >= 1, "a bucket holds at least one row"

    def pad(rows: int) -> int:
        if rows > sizes[-1]:
            return -(-rows // sizes[-1]) * sizes[-1]
        return sizes[bisect_left(sizes, rows)]

    return pad


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to `values` in weighted squares (pool adjacent violators)."""
    blocks: list[list[float]] = []  # mean, weight, length
    for value, weight in zip(values, weights, strict=True):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, w, n = blocks.pop()
            last = blocks[-1]
            last[0] = (last[0] * last[1] + mean * w) / (last[1] + w)
            last[1] += w
            last[2] += n
    return [mean for mean, _, n in blocks for _ in range(int(n))]


class _Line:
    """Least squares with forgetting, no negative coefficient, and a prior worth a few samples (ridge)."""

    def __init__(self, prior: Sequence[float], ridge: Sequence[float], keep: float):
        n = len(prior)
        self.keep, self.prior, self.ridge = keep, prior, ridge
        self.xx = [[0.0] * n for _ in range(n)]
        self.xy = [0.0] * n
        self.n = 0
        self.coefficients = list(prior)

    def predict(self, x: Sequence[float]) -> float:
        return sum(c * v for c, v in zip(self.coefficients, x))

    def add(self, x: Sequence[float], y: float) -> None:
        if self.n >= TRUSTED:
            expected = self.predict(x)
            y = min(max(y, expected / CLIP), expected * CLIP)
        self.n += 1
        for i, a in enumerate(x):
            self.xy[i] = self.xy[i] * self.keep + a * y
            row = self.xx[i]
            for j, b in enumerate(x):
                row[j] = row[j] * self.keep + a * b

    def solve(self) -> None:
        """Coordinate descent: each coefficient in turn, cut at zero, starting from the last solution."""
        c = self.coefficients
        for _ in range(8):
            for i, row in enumerate(self.xx):
                rest = sum(map(mul, row, c)) - row[i] * c[i]
                c[i] = max(0.0, (self.xy[i] - rest + self.ridge[i] * self.prior[i]) / (row[i] + self.ridge[i]))


class StepTimeEstimator:
    """Measured ms of windows up to `rows` rows, padded by `bucket`; `cost()` is the current WindowCost.

    Each bucket that was really run gives the median of its recent samples, less an allowance while they are few;
    these are made non-decreasing; between two such buckets the ratio to the prior formula is interpolated, beyond them
    the nearest ratio holds.
    """

    def __init__(
        self,
        rows: int,
        bucket: Callable[[int], int] | Sequence[int],
        prior: Callable[[int], float] = prior_ms,
    ):
        pad = bucket_function(bucket)
        self._padded = [0] + [pad(r) for r in range(1, rows + 1)]
        assert all(r <= p for r, p in enumerate(self._padded)), "a bucket holds the rows padded to it"
        self._prior = prior
        self._samples: dict[int, deque[tuple[int, float]]] = {}  # bucket -> (window, ms without context)
        self._chain = _Line(DRAFT_PRIOR, DRAFT_RIDGE, DRAFT_KEEP)
        self._other: deque[float] = deque(maxlen=SAMPLES)
        self._ctx_mean: dict[int, list[float]] = {}  # bucket -> mean context, mean ms, count
        self._sxx = self._sxy = self._noise = 0.0
        self.per_ctx = 0.0
        self._due: dict[int, int] = {}  # bucket -> window in which it is to be measured again
        self._calm: dict[int, int] = {}  # bucket -> looks after a gap, in a row, that showed no change
        self._windows = 0
        self._new = 0
        self._known: list[int] = []  # buckets with enough samples, in order
        self._cost = self._fit()

    def record(
        self,
        *,
        rows: int,
        depth: int,
        drafts: int,
        ctx_total: int,
        verify_ms: float | None,
        draft_ms: float | None,
        other_ms: float | None,
    ) -> None:
        """One window's times in ms; None for a part that is not like others (it carried prompt rows, it failed)."""
        self._windows += 1
        if verify_ms is not None and rows:
            bucket = self._padded[rows]
            samples = self._samples.setdefault(bucket, deque(maxlen=SAMPLES))
            self._learn_context(bucket, ctx_total, verify_ms, len(samples) >= TRUSTED)
            ms = max(verify_ms - self.per_ctx * ctx_total, LEAST_MS)
            if samples and samples[-1][0] < self._windows - GAP:
                self._look_back(bucket, ms)
            samples.append((self._windows, ms))
            self._put_off(bucket)
            self._new += REFIT_EVERY if len(samples) <= SURE else 1  # what is new is used at once
        if draft_ms is not None and depth:
            self._chain.add((1.0, depth, drafts), draft_ms)
            self._new += REFIT_EVERY if self._chain.n <= TRUSTED else 0
        if other_ms is not None:
            self._other.append(other_ms)
        if self._new >= REFIT_EVERY:
            self._new = 0
            self._cost = self._fit()

    def cost(self) -> WindowCost:
        return self._cost

    def unknown(self, choices: Sequence[int]) -> int | None:
        """Which of these numbers of rows (ascending) is worth measuring: the least, the most, or one in a wide gap."""
        low, high = self._padded[choices[0]], self._padded[choices[-1]]
        known = [b for b in self._known if low <= b <= high]
        for rows in (choices[0], choices[-1]):
            if self._padded[rows] not in known:
                return rows
        for a, b in pairwise(known):
            between = [r for r in choices if a < self._padded[r] < b] if b > a * NEAR else []
            if between:
                return min(between, key=lambda r: (abs(self._padded[r] - (a * b) ** 0.5), -r))
        return None

    def doubtful(self, choices: Sequence[int]) -> int | None:
        """One of these numbers of rows (ascending) whose cost should be measured once more, or None.

        A burst of other work may have spoilt its samples, and a bucket that they make look slow is not run again by
        itself: after n samples it is asked for after n^2 windows, or GAP, and less and less often while nothing
        changes.
        """
        due = {bucket for bucket, window in self._due.items() if window <= self._windows}
        rows = [r for r in choices if self._padded[r] in due] if due else []
        if not rows:
            return None
        chosen = min(rows, key=lambda r: (self._due[self._padded[r]], -r))
        self._put_off(self._padded[chosen])
        return chosen

    def _put_off(self, bucket: int) -> None:
        """When the bucket is to be measured again, if it is not run until then."""
        self._due[bucket] = self._windows + min(len(self._samples[bucket]) ** 2, GAP) * 2 ** self._calm.get(bucket, 0)

    def _look_back(self, bucket: int, ms: float) -> None:
        """The bucket's first sample after a gap: where it is unlike those before, all but two of them are forgotten."""
        samples = self._samples[bucket]
        before = median(old for _, old in samples)
        if abs(ms / before - 1.0) < CHANGED:
            self._calm[bucket] = min(self._calm.get(bucket, 0) + 1, CALM)
            return
        self._calm[bucket] = 0
        while len(samples) > 2:
            samples.popleft()

    def _learn_context(self, bucket: int, ctx: int, ms: float, known: bool) -> None:
        """Slope of ms over context, from how windows of one bucket differ: pooled over buckets, never negative.

        Shrunk by its own uncertainty, to zero where that is more than a quarter of it: contexts that hardly differ say
        nothing.
        """
        mean = self._ctx_mean.setdefault(bucket, [float(ctx), ms, 0])
        mean[2] += 1
        dx = ctx - mean[0]
        if known:
            expected = mean[1] + self.per_ctx * dx
            ms = min(max(ms, expected * (1 - CTX_CLIP)), expected * (1 + CTX_CLIP))
            self._sxx = self._sxx * CTX_KEEP + dx * dx
            self._sxy = self._sxy * CTX_KEEP + dx * (ms - mean[1])
            self._noise = self._noise or (CTX_CLIP * expected) ** 2  # at first the worst that the cut lets through
            self._noise += CTX_MEAN * ((ms - expected) ** 2 - self._noise)
            doubt = 16.0 * self._noise * self._sxx / self._sxy**2 if self._sxy > 0 else 1.0
            self.per_ctx = self._sxy / self._sxx * (1.0 - doubt) if doubt < 1.0 else 0.0
        weight = max(CTX_MEAN, 1.0 / mean[2])
        mean[0] += weight * dx
        mean[1] += weight * (ms - mean[1])

    def _fit(self) -> WindowCost:
        self._chain.solve()
        start, step, draft = self._chain.coefficients
        recent: dict[int, list[float]] = {}
        for bucket, samples in sorted(self._samples.items()):
            while samples and samples[0][0] < self._windows - STALE:
                samples.popleft()
            recent[bucket] = [ms for _, ms in samples]
        middle = {b: median(values) for b, values in recent.items() if len(values) >= TRUSTED}
        self._known = list(middle)
        if middle:
            # noise as the median relative deviation, times 1.48 a standard deviation (robust: outliers do not count)
            noise = 1.48 * median(abs(ms / m - 1.0) for b, m in middle.items() for ms in recent[b])
            counts = [len(recent[b]) for b in middle]
            hoped = [m * (1.0 - min(HOPE * noise / n**0.5, 0.5)) for m, n in zip(middle.values(), counts)]
            level = isotonic(hoped, counts)
            ratios = [(b, ms / self._prior(b)) for b, ms in zip(middle, level)]
        else:
            first = [ms / self._prior(b) for b, values in recent.items() for ms in values]
            ratios = [(1, median(first) if first else 1.0)]
        by_bucket = {b: self._prior(b) * _interpolate(ratios, b) for b in set(self._padded[1:])}
        verify = list(accumulate((by_bucket.get(b, 0.0) for b in self._padded), max))
        other = median(self._other) if self._other else 0.0
        return WindowCost(verify, start, step, draft, other, self.per_ctx)


def _interpolate(points: Sequence[tuple[int, float]], x: int) -> float:
    """Piecewise linear through `points` (sorted by x), constant beyond the first and the last."""
    i = bisect_left(points, x, key=lambda p: p[0])
    if i == len(points):
        return points[-1][1]
    if i == 0 or points[i][0] == x:
        return points[i][1]
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
