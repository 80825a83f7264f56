"""Counts of windows that the live screen, the summary of a run and `inspect` share. No torch, no terminal.

A `Tally` takes the StepRecords of a live run and those read back from a statistics file alike.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from math import exp, log
from typing import Any

from strata_cli.engine.record import StepRecord
from strata_cli.engine.types import SpecStats

DECODE_KINDS = ("chain", "batch")
LOG_BIN = log(1.01)  # step times are kept in bins 1 % apart, so quantiles need no list of all windows


@dataclass(slots=True)
class Group:
    """Windows that have something in common. Times in ms."""

    windows: int = 0
    rows: int = 0
    prompt_rows: int = 0
    tokens: int = 0
    ms: float = 0.0
    bins: Counter[int] = field(default_factory=Counter)  # step_ms in bins of LOG_BIN

    def quantile(self, q: float) -> float:
        """The q-quantile of step_ms, to within half a bin (0.5 %)."""
        rank = q * (self.windows - 1)
        for b, n in sorted(self.bins.items()):
            rank -= n
            if rank < 0:
                return exp(b * LOG_BIN)
        return 0.0


def reads_prompt(reason: str, prompt: bool) -> bool:
    """Whether a slot without rows of its own was at its prompt, reading or waiting to, rather than sitting out."""
    return prompt or reason == "prefill"


@dataclass(slots=True)
class SlotTally:
    """One slot over a stretch of windows: `windows` had rows of it (L >= 1), in `sat_out` ones its request waited."""

    windows: int = 0
    sat_out: int = 0
    prompt_windows: int = 0
    rows: int = 0  # sum of L
    tokens: int = 0  # all commits, the first token of a prompt included
    spec: SpecStats = field(default_factory=SpecStats)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, L: int, keeps: int, verified: int, accepted: int, reason: str, prompt: bool, times: int = 1) -> None:
        self.tokens += keeps * times
        if L >= 1:
            self.windows += times
            self.rows += L * times
            self.reasons[reason] += times
            _record(self.spec, times, verified, accepted, keeps)
        elif reads_prompt(reason, prompt):
            self.prompt_windows += times
        else:
            self.sat_out += times
            self.reasons[reason] += times

    @property
    def tokens_per_window(self) -> float | None:
        """Tokens a decoding window brought this slot, those it sat out included."""
        windows = self.windows + self.sat_out
        return self.spec.keeps / windows if windows else None

    @property
    def mean_L(self) -> float | None:
        return self.rows / self.windows if self.windows else None


def _record(into: SpecStats, times: int, verified: int, accepted: int, keeps: int) -> None:
    """Add `times` equal windows; what one window counts is defined by SpecStats.record alone."""
    one = SpecStats()
    one.record(verified, verified, accepted, keeps)
    merge_spec(into, one, times)


def merge_spec(into: SpecStats, other: SpecStats, times: int = 1) -> None:
    """Add `other`, `times` times, to `into`."""
    for name in ("windows", "drafted", "verified", "accepted", "keeps"):
        setattr(into, name, getattr(into, name) + times * getattr(other, name))
    for name in ("verified_at", "reached_at", "accepted_at"):
        sums, counts = getattr(into, name), getattr(other, name)
        sums.extend([0] * (len(counts) - len(sums)))
        for j, n in enumerate(counts):
            sums[j] += times * n


Cell = tuple[int, int, int, int, int, str, int, bool]


class Tally:
    """Counts of any number of windows. Memory grows with the number of different situations, not of windows."""

    def __init__(self) -> None:
        self.drafts = self.verified = self.accepted = self.prefix_hit_tokens = 0
        self.expert_windows = self.experts = 0
        self.requests: Counter[int] = Counter()  # requests that began in a slot
        self.fuse_windows = 0
        self.fuse: tuple[float, str] | None = None  # when chain_off first appeared, and why
        self.downgrades: dict[str, float] = {}  # text -> t of its first window
        self.phase_ms: dict[str, defaultdict[str, float]] = {}  # kind -> phase -> ms
        # (slot, L, keeps, verified, accepted, reason, bits of ctx, prompt rows present) -> windows
        self.cells: Counter[Cell] = Counter()
        # (kind, rows, bucket, bin of ms) -> [windows, ms, tokens, prompt rows]
        self.sizes: dict[tuple[str, int, int, int], list[float]] = {}
        self.seats: dict[tuple[int, ...], list[float]] = {}  # slots that held a request -> [windows, ms]
        self._holds: dict[int, str] = {}

    def add(self, windows: Iterable[StepRecord]) -> None:
        """Count these windows, in order."""
        # A million lines pass through here: locals, and one dict entry for what would be several counters.
        sizes, seats = self.sizes, self.seats
        cells: list[Cell] = []
        request: list[str] = []
        for w in windows:
            step_ms, prompt = w.step_ms, w.prompt
            prompt_rows = sum(prompt)
            size = (w.kind, w.rows, w.bucket, round(log(step_ms) / LOG_BIN) if step_ms > 0 else -9999)
            sums = sizes.get(size)
            if sums is None:
                sums = sizes[size] = [0, 0.0, 0, 0]
                self.phase_ms.setdefault(w.kind, defaultdict(float))
            sums[0] += 1
            sums[1] += step_ms
            sums[2] += sum(w.keeps)
            sums[3] += prompt_rows
            phases = self.phase_ms[w.kind]
            for name, ms in w.ms.items():
                phases[name] += ms
            held = tuple(w.slot)
            sums = seats.get(held)
            if sums is None:
                sums = seats[held] = [0, 0.0]
            sums[0] += 1
            sums[1] += step_ms
            self.drafts += w.drafts
            self.verified += w.verified
            self.accepted += w.accepted
            self.prefix_hit_tokens += w.prefix_hit_tokens
            if w.experts is not None:
                self.expert_windows += 1
                self.experts += w.experts
            if w.request != request:
                request = w.request
                self._seat(w)
            if w.chain_off is not None or w.downgrades:
                self._degraded(w)
            reads = map(bool, prompt) if prompt_rows else repeat(False)
            bits = map(int.bit_length, w.ctx)
            cells += zip(w.slot, w.L, w.keeps, w.drafted_by, w.accepted_by, w.reason, bits, reads)
        self.cells.update(cells)

    def _seat(self, w: StepRecord) -> None:
        for slot, request in zip(w.slot, w.request):
            if self._holds.get(slot) != request:
                self._holds[slot] = request
                self.requests[slot] += 1

    def _degraded(self, w: StepRecord) -> None:
        if w.chain_off is not None:
            self.fuse_windows += 1
            self.fuse = self.fuse or (w.t, w.chain_off)
        for text in w.downgrades:
            self.downgrades.setdefault(text, w.t)

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.verified if self.verified else None

    def groups(self, key: Callable[[str, int, int], Hashable | None]) -> dict[Any, Group]:
        """Windows by `key(kind, rows, rows after padding)`; None leaves a window out."""
        found: dict[Any, Group] = {}
        for (kind, rows, bucket, b), (windows, ms, tokens, prompt_rows) in self.sizes.items():
            if (k := key(kind, rows, bucket or rows)) is not None:
                group = found.setdefault(k, Group())
                group.windows += int(windows)
                group.rows += rows * int(windows)
                group.prompt_rows += int(prompt_rows)
                group.tokens += int(tokens)
                group.ms += ms
                group.bins[b] += int(windows)
        return found

    def total(self) -> Group:
        return self.groups(lambda kind, rows, padded: 0).get(0, Group())

    def by_kind(self) -> dict[str, Group]:
        return dict(sorted(self.groups(lambda kind, rows, padded: kind).items()))

    def padding_rows(self) -> int:
        """Rows computed for nothing, because windows are padded to a bucket."""
        return sum((bucket - rows) * int(sums[0]) for (_, rows, bucket, _), sums in self.sizes.items() if bucket)

    def mean_slots(self) -> float | None:
        """Slots that held a request, averaged over the time in windows."""
        ms = sum(sums[1] for sums in self.seats.values())
        return sum(len(held) * sums[1] for held, sums in self.seats.items()) / ms if ms else None

    def slot_ms(self, slot: int) -> float:
        """Time in windows while the slot held a request."""
        return sum(sums[1] for held, sums in self.seats.items() if slot in held)

    def phases(self) -> dict[str, float]:
        """ms by phase, `other` being what the phases leave of step_ms; empty where the file has no phases."""
        sums: dict[str, float] = {}
        for phases in self.phase_ms.values():
            for name, ms in phases.items():
                sums[name] = sums.get(name, 0.0) + ms
        if sums:
            sums["other"] = max(self.total().ms - sum(sums.values()), 0.0)
        return sums

    def slots(self) -> dict[int, SlotTally]:
        """Counts by slot, in slot order."""
        found: dict[int, SlotTally] = {}
        for (slot, L, keeps, verified, accepted, reason, _, prompt), times in self.cells.items():
            found.setdefault(slot, SlotTally()).add(L, keeps, verified, accepted, reason, prompt, times)
        return dict(sorted(found.items()))

    def spec(self) -> SpecStats:
        """Drafting over all slots."""
        total = SpecStats()
        for slot in self.slots().values():
            merge_spec(total, slot.spec)
        return total


@dataclass(frozen=True, slots=True)
class SlowSlot:
    """The slot that gets markedly fewer tokens from a window than the others, and why."""

    slot: int
    tokens_per_window: float
    others: float
    why: str


SLOW = 0.7  # a slot is slow below this share of what the others get
SLOW_WINDOWS = 8  # fewer windows than this say nothing


def slow_slot(slots: Mapping[int, SlotTally]) -> SlowSlot | None:
    """The slowest slot, if it is slow: tokens a window (those it sat out included) below SLOW of the others' mean."""
    rates = {
        slot: (counts.tokens_per_window or 0.0)
        for slot, counts in slots.items()
        if counts.windows + counts.sat_out >= SLOW_WINDOWS
    }
    if len(rates) < 2:
        return None
    slot = min(rates, key=lambda s: rates[s])
    others = sum(rate for s, rate in rates.items() if s != slot) / (len(rates) - 1)
    if rates[slot] >= SLOW * others:
        return None
    rest = SlotTally()
    for s in rates:
        if s != slot:
            merge_spec(rest.spec, slots[s].spec)
            rest.windows += slots[s].windows
            rest.rows += slots[s].rows
            rest.sat_out += slots[s].sat_out
    return SlowSlot(slot, rates[slot], others, _why_slow(slots[slot], rest))


def _why_slow(own: SlotTally, rest: SlotTally) -> str:
    seen = own.windows + own.sat_out
    if own.sat_out / seen > 0.25 + rest.sat_out / max(rest.windows + rest.sat_out, 1):
        return f"it sat out {own.sat_out} of {seen} windows"
    rate, other_rate = own.spec.acceptance_rate, rest.spec.acceptance_rate
    if rate is not None and other_rate is not None and rate < other_rate - 0.1:
        return f"{rate:.0%} of its drafts accepted, of the others' {other_rate:.0%}"
    reason = own.reasons.most_common(1)[0][0] if own.reasons else "unknown"
    return f"its L is {own.mean_L or 0:.1f}, the others' {rest.mean_L or 0:.1f} (reason: {reason})"
