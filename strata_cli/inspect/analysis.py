"""One pass over a statistics file, and the report that everything else (tables, plots, page, verdict) is drawn from."""

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from strata_cli.engine.record import BY_SLOT, StepRecord
from strata_cli.engine.tally import DECODE_KINDS, SlotTally, Tally, reads_prompt, slow_slot
from strata_cli.engine.types import SpecStats
from strata_cli.errors import StrataError
from strata_cli.inspect.reader import Reader

MAX_BINS = 240


@dataclass(slots=True)
class Timeline:
    """Sums over equal stretches of time, at most MAX_BINS of them: when time runs past, the stretches double."""

    width_s: float = 0.25
    bins: dict[int, list[float]] = field(default_factory=dict)  # -> [windows, tokens, verified, accepted, ms]

    def add(self, windows: Iterable[StepRecord]) -> None:
        bins = self.bins
        for w in windows:
            n = int(w.t / self.width_s)
            while n >= MAX_BINS:
                self._double()
                bins, n = self.bins, int(w.t / self.width_s)
            sums = bins.get(n)
            if sums is None:
                sums = bins[n] = [0, 0, 0, 0, 0.0]
            sums[0] += 1
            sums[1] += sum(w.keeps)
            sums[2] += w.verified
            sums[3] += w.accepted
            sums[4] += w.step_ms

    def _double(self) -> None:
        merged: dict[int, list[float]] = {}
        for n, sums in self.bins.items():
            into = merged.setdefault(n // 2, [0, 0, 0, 0, 0.0])
            into[:] = [a + b for a, b in zip(into, sums, strict=True)]
        self.bins, self.width_s = merged, self.width_s * 2


@dataclass(slots=True)
class Analysis:
    """What one pass found. Seconds on the file's time line: `start` is when its first window began."""

    name: str
    reader: Reader
    tally: Tally
    timeline: Timeline
    start: float = 0.0
    end: float = 0.0
    slot: int | None = None
    since: float | None = None


def analyse(stream: IO[bytes], name: str, *, slot: int | None = None, since: float | None = None) -> Analysis:
    """Read a statistics file once.

    Args:
        name: what to call it.
        slot: count this slot's share of the windows only; rows and step_ms stay those of whole windows.
        since: leave out windows that ended before this second.
    """
    reader = Reader(stream)
    found = Analysis(name, reader, Tally(), Timeline(), slot=slot, since=since)
    first = True
    collecting = gc.isenabled()
    gc.disable()  # nothing here makes cycles, and collections cost a quarter of the pass
    try:
        for lines in reader:
            if since is not None:
                lines = [line for line in lines if line.t >= since]
            if slot is not None:
                lines = list(_only(slot, lines))
            if not lines:
                continue
            if first:
                found.start, first = lines[0].t - lines[0].step_ms / 1000, False
            found.end = lines[-1].t
            found.tally.add(lines)
            found.timeline.add(lines)
    finally:
        if collecting:
            gc.enable()
    return found


def _only(slot: int, lines: Iterable[StepRecord]) -> Iterator[StepRecord]:
    for line in lines:
        if slot in line.slot:
            i = line.slot.index(slot)
            for name in BY_SLOT:
                setattr(line, name, getattr(line, name)[i : i + 1])
            line.drafts = max(line.L[0] - 1, 0)
            line.verified, line.accepted = line.drafted_by[0], line.accepted_by[0]
            yield line


def report(found: Analysis) -> dict[str, Any]:
    """The whole report as plain data; this is what `--json` prints. Times as named, None where nothing was counted."""
    tally, total = found.tally, found.tally.total()
    _check(found)
    header = found.reader.headers[0] if found.reader.headers else None
    seconds = found.end - found.start
    slots, spec = tally.slots(), tally.spec()
    slow = slow_slot(slots)
    return {
        "file": found.name,
        "model": header and header.model,
        "profile": header and header.profile,
        "version": header and header.version,
        "config": header.config if header else {},
        "memory": header and header.memory,
        "runs": max(len(found.reader.headers), 1),
        "slot": found.slot,
        "since": found.since,
        "notes": _notes(found),
        "seconds": seconds,
        "busy_ms": total.ms,
        "windows": total.windows,
        "tokens": total.tokens,
        "tok_per_s": _per(total.tokens, seconds),
        "requests": tally.requests.total(),
        "rows": total.rows,
        "prompt_rows": total.prompt_rows,
        "prefix_hit_tokens": tally.prefix_hit_tokens,
        "padding_rows": tally.padding_rows(),
        "mean_slots": tally.mean_slots(),
        "mean_experts": _per(tally.experts, tally.expert_windows),
        "drafts": tally.drafts,
        "verified": tally.verified,
        "accepted": tally.accepted,
        "acceptance_rate": tally.acceptance_rate,
        "mean_acceptance_length": spec.mean_acceptance_length,
        "positions": _positions(spec),
        "kinds": _kinds(tally),
        "phases_ms": tally.phases(),
        "slots": [_slot(tally, slot, counts) for slot, counts in slots.items()],
        "slow_slot": slow
        and {"slot": slow.slot, "tokens_per_window": slow.tokens_per_window, "others": slow.others, "why": slow.why},
        "L": _distribution(tally, 1),
        "keeps": _distribution(tally, 2),
        "reasons": dict(sum((counts.reasons for counts in slots.values()), Counter()).most_common()),
        "budget": _budget(tally),
        "steps": _steps(tally),
        "row_cost": _row_cost(tally),
        "contexts": _contexts(tally),
        "timeline": _timeline(found),
        "chain_off": tally.fuse and {"t": tally.fuse[0], "why": tally.fuse[1], "windows": tally.fuse_windows},
        "downgrades": [{"t": t, "what": text} for text, t in tally.downgrades.items()],
    }


def _check(found: Analysis) -> None:
    """Refuse a file whose windows contradict themselves: no figure of it would mean anything."""
    for (slot, L, keeps, verified, accepted, *_), times in found.tally.cells.items():
        if not (0 <= accepted <= verified and L >= 0 and keeps >= 0):
            said = f"slot {slot} accepts {accepted} of {verified} verified drafts, L is {L}, keeps {keeps}"
            raise StrataError(f"{found.name}: {times:,} of its windows contradict themselves: {said}")


def _per(count: float, of: float) -> float | None:
    return count / of if of > 0 else None


def _notes(found: Analysis) -> list[str]:
    """What a reader of the numbers must know about the file."""
    reader, notes = found.reader, []
    if reader.bad_lines:
        where = ", ".join(map(str, reader.bad))
        notes.append(f"{reader.bad_lines} lines are not statistics and were left out (line {where})")
    if reader.torn:
        notes.append("the last line is torn and was left out: the run was cut off while writing")
    if reader.older:
        notes.append(f"{reader.older} windows name no slots: their place in the arrays is taken for the slot")
    if reader.derived:
        notes.append(f"acceptance by slot and position is worked out from L and keeps in {reader.derived} windows")
    if reader.older and found.tally.verified and found.tally.total().tokens == found.tally.accepted:
        notes.append("keeps seem to leave the golden token out: tokens are too few by one a slot and window")
    return notes


def _positions(spec: SpecStats) -> list[dict[str, Any]]:
    return [
        {"position": j + 1, "verified": v, "reached": r, "accepted": a, "cumulative": a / v, "conditional": _per(a, r)}
        for j, (v, r, a) in enumerate(zip(spec.verified_at, spec.reached_at, spec.accepted_at, strict=True))
    ]


def _kinds(tally: Tally) -> dict[str, Any]:
    return {
        kind: {
            "windows": group.windows,
            "rows": group.rows,
            "prompt_rows": group.prompt_rows,
            "tokens": group.tokens,
            "ms": group.ms,
            "ms_mean": group.ms / group.windows,
            "ms_p50": group.quantile(0.5),
            "ms_p99": group.quantile(0.99),
            "phases_ms": dict(tally.phase_ms[kind]),
        }
        for kind, group in tally.by_kind().items()
    }


def _slot(tally: Tally, slot: int, counts: SlotTally) -> dict[str, Any]:
    ms = tally.slot_ms(slot)
    return {
        "slot": slot,
        "requests": tally.requests[slot],
        "windows": counts.windows,
        "sat_out": counts.sat_out,
        "prompt_windows": counts.prompt_windows,
        "tokens": counts.tokens,
        "busy_ms": ms,
        "tok_per_s": _per(counts.tokens * 1000, ms),
        "tokens_per_window": counts.tokens_per_window,
        "mean_L": counts.mean_L,
        "verified": counts.spec.verified,
        "accepted": counts.spec.accepted,
        "acceptance_rate": counts.spec.acceptance_rate,
        "mean_acceptance_length": counts.spec.mean_acceptance_length,
        "positions": _positions(counts.spec),
        "reasons": dict(counts.reasons.most_common()),
    }


def _distribution(tally: Tally, column: int) -> dict[str, int]:
    """Slot-windows by L (column 1) or keeps (column 2), prompt windows left out."""
    counts: Counter[int] = Counter()
    for cell, times in tally.cells.items():
        if cell[1] or not reads_prompt(cell[5], cell[7]):
            counts[cell[column]] += times  # type: ignore[index]
    return {str(value): n for value, n in sorted(counts.items())}


def _budget(tally: Tally) -> dict[str, Any]:
    """Slot-windows that the row budget cut short, and in how many of them one more row would have been reached."""
    cut = reached = 0
    for (_, L, _, verified, accepted, reason, _, _), times in tally.cells.items():
        if reason == "budget" and L >= 1:
            cut += times
            reached += times * (accepted == verified == L - 1)
    return {"slot_windows": cut, "next_row_reached": reached}


def _steps(tally: Tally) -> list[dict[str, Any]]:
    """step_ms against rows; windows with prompt rows apart, and in powers of two as all those above 64 rows are."""

    def size(kind: str, rows: int, padded: int) -> tuple[bool, int]:
        prompts = kind not in DECODE_KINDS
        return prompts, 1 << max(rows - 1, 0).bit_length() if prompts or rows > 64 else rows

    return [
        {
            "prompt": key[0],
            "rows_up_to": key[1],
            "windows": group.windows,
            "tokens": group.tokens,
            "ms_mean": group.ms / group.windows,
            "ms_p50": group.quantile(0.5),
            "ms_p90": group.quantile(0.9),
        }
        for key, group in sorted(tally.groups(size).items())
    ]


def _row_cost(tally: Tally) -> dict[str, float] | None:
    """Least squares of step_ms over computed rows, padding included, of windows without prompt rows."""
    groups = tally.groups(lambda kind, rows, padded: padded if kind in DECODE_KINDS else None)
    n = sum(g.windows for g in groups.values())
    if len(groups) < 2:
        return None
    mean_rows = sum(g.windows * rows for rows, g in groups.items()) / n
    mean_ms = sum(g.ms for g in groups.values()) / n
    spread = sum(g.windows * (rows - mean_rows) ** 2 for rows, g in groups.items())
    slope = sum((rows - mean_rows) * (g.ms - g.windows * mean_ms) for rows, g in groups.items()) / spread
    return {"window_ms": mean_ms - slope * mean_rows, "row_ms": slope}


def _contexts(tally: Tally) -> list[dict[str, Any]]:
    """Acceptance by length of the context, in powers of two."""
    found: dict[int, SlotTally] = {}
    for (_, L, keeps, verified, accepted, reason, bits, prompt), times in tally.cells.items():
        if L >= 1:
            found.setdefault(bits, SlotTally()).add(L, keeps, verified, accepted, reason, prompt, times)
    return [
        {
            "from": (1 << bits) >> 1,
            "to": (1 << bits) - 1,
            "windows": counts.windows,
            "verified": counts.spec.verified,
            "accepted": counts.spec.accepted,
            "acceptance_rate": counts.spec.acceptance_rate,
            "mean_acceptance_length": counts.spec.mean_acceptance_length,
        }
        for bits, counts in sorted(found.items())
    ]


def _timeline(found: Analysis) -> dict[str, Any]:
    """Equal stretches from the first to the last window; the last one may be cut short, and says so by its seconds."""
    width, bins = found.timeline.width_s, found.timeline.bins
    points = []
    for n in range(min(bins, default=0), max(bins, default=-1) + 1):
        windows, tokens, verified, accepted, ms = bins.get(n, [0, 0, 0, 0, 0.0])
        seconds = min((n + 1) * width, found.end) - max(n * width, found.start)
        point = {"t": n * width, "seconds": seconds, "windows": windows, "tokens": tokens, "busy_ms": ms}
        points.append({**point, "tok_per_s": _per(tokens, seconds), "acceptance_rate": _per(accepted, verified)})
    return {"width_s": width, "points": points}
