"""The engine's events become moments of a run: `SnapshotBuilder` eats events and gives Snapshots.

All times are the engine's own (`t` of its windows), so a statistics file replays into the same screens. No torch.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from strata_cli.engine.record import StepRecord
from strata_cli.engine.tally import SlotTally, reads_prompt, slow_slot
from strata_cli.engine.types import Downgrade, Event, Finished, SpecStats, Started, WindowDone
from strata_cli.ui.gpu import NOTHING, Gauges
from strata_cli.ui.snapshot import HISTORY_S, NOW_S, RECENT, Header, Limit, SlotLine, Snapshot


@dataclass(slots=True)
class _Running:
    """A request in a slot."""

    request: str
    since: float
    cached: int = 0
    group: int | None = None  # of its last window
    prompt_done: int = 0
    tokens: int = 0
    state: str = "prompt"
    L: int = 0
    reason: str = ""
    ctx: int = 0
    spec: SpecStats = field(default_factory=SpecStats)
    # (t when the window began, L, keeps, verified, accepted, reason)
    recent: deque[tuple[float, int, int, int, int, str]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def tally(self) -> SlotTally:
        """The recent windows."""
        counts = SlotTally()
        for _, L, keeps, verified, accepted, reason in self.recent:
            counts.add(L, keeps, verified, accepted, reason, False)
        return counts


@dataclass(slots=True)
class _Second:
    """Sums over one second of the engine's clock."""

    second: int
    tokens: int = 0
    rows: int = 0  # of decoding slots
    slot_windows: int = 0
    keeps: int = 0  # in those slot-windows
    verified: int = 0
    accepted: int = 0
    ms: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    phases: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # ms


class SnapshotBuilder:
    """Eats events, gives snapshots.

    Args:
        header: what does not change.
        total: requests of the whole run.
        limits: what is known of the requests, by id.
        done: of them, those that an earlier run did.
    """

    def __init__(self, header: Header, total: int, limits: Mapping[str, Limit] | None = None, done: int = 0):
        self._header = header
        self._total = total
        self._earlier = done
        self._limits = limits or {}
        self._seats: dict[int, _Running] = {}
        self._waiting_again: dict[str, _Running] = {}  # requests that lost their slot when memory ran short
        self._seconds: deque[_Second] = deque(maxlen=HISTORY_S)
        self._begin: float | None = None
        self._now = 0.0
        self._tokens = self._done = self._failed = 0
        self._finished_tokens = 0
        self._cached_tokens = self._cached_requests = 0
        self._downgrades: dict[str, None] = {}
        self.notes: deque[str] = deque(maxlen=3)

    def events(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case WindowDone(record):
                    self._window(record)
                case Started(request, slot, cached):
                    seat = self._waiting_again.pop(request, None) or _Running(request, self._now)
                    seat.cached = seat.prompt_done = cached
                    seat.group, seat.state = None, "prompt"
                    self._seats[slot] = seat
                    self._cached_tokens += cached
                    self._cached_requests += cached > 0
                case Finished(_, slot, result):
                    self._done += 1
                    self._failed += result.finish_reason == "error"
                    self._finished_tokens += len(result.token_ids)
                    if slot is not None:
                        self._seats.pop(slot, None)
                case Downgrade(what, why):
                    self._downgrades[f"{what}: {why}"] = None

    def _window(self, r: StepRecord) -> None:
        started = r.t - r.step_ms / 1000
        if self._begin is None:
            self._begin = started
        self._now = r.t
        if not self._seconds or self._seconds[-1].second != int(r.t):
            self._seconds.append(_Second(int(r.t)))
        sums = self._seconds[-1]
        sums.kinds[r.kind] += 1
        sums.ms += r.step_ms
        sums.verified += r.verified
        sums.accepted += r.accepted
        for phase, ms in r.ms.items():
            sums.phases[phase] += ms
        for text in r.downgrades:
            self._downgrades[text] = None
        for slot in [s for s, seat in self._seats.items() if seat.group == r.group and s not in r.slot]:
            seat = self._seats.pop(slot)
            self._waiting_again[seat.request] = seat
        for i, slot in enumerate(r.slot):
            keeps, L = r.keeps[i], r.L[i]
            sums.tokens += keeps
            self._tokens += keeps
            if L:
                sums.rows += L
                sums.slot_windows += 1
                sums.keeps += keeps
            held = self._seats.get(slot)
            if held is None or held.request != r.request[i]:
                continue  # it finished in this window, and its event came first
            seat = held
            seat.group = r.group
            seat.tokens += keeps
            seat.prompt_done += r.prompt[i]
            seat.L, seat.reason, seat.ctx = L, r.reason[i], r.ctx[i]
            seat.state = "decode" if L else "prompt" if reads_prompt(r.reason[i], r.prompt[i] > 0) else "sat out"
            if L or seat.state == "sat out":
                verified, accepted = r.drafted_by[i], r.accepted_by[i]
                seat.recent.append((started, L, keeps, verified, accepted, r.reason[i]))
                if L:
                    seat.spec.record(max(L - 1, verified), verified, accepted, keeps)

    def snapshot(
        self,
        gauges: Gauges = NOTHING,
        *,
        paused: bool = False,
        stopping: bool = False,
        detail: int | None = None,
    ) -> Snapshot:
        """The run as it is now."""
        elapsed = self._now - (self._begin or 0.0) if self._begin is not None else 0.0
        recent = _add_up([s for s in self._seconds if s.second > self._now - NOW_S])
        span = min(elapsed, self._now - (int(self._now) - NOW_S + 1)) if elapsed else 0.0
        tallies = {slot: seat.tally() for slot, seat in sorted(self._seats.items())}
        return Snapshot(
            header=self._header,
            gauges=gauges,
            slots=tuple(self._view(slot, tallies.get(slot)) for slot in range(self._header.batch)),
            slow=slow_slot(tallies),
            elapsed_s=elapsed,
            tokens=self._tokens,
            tok_per_s=recent.tokens / span if span else None,
            history=self._history(),
            windows_per_s=tuple((kind, n / span) for kind, n in sorted(recent.kinds.items())) if span else (),
            acceptance=recent.accepted / recent.verified if recent.verified else None,
            mean_acceptance_length=recent.keeps / recent.slot_windows if recent.slot_windows else None,
            mean_L=recent.rows / recent.slot_windows if recent.slot_windows else None,
            phases=_shares(recent),
            cached_tokens=self._cached_tokens,
            cached_requests=self._cached_requests,
            total=self._total,
            done=self._earlier + self._done,
            failed=self._failed,
            active=len(self._seats),
            eta_s=self._eta(elapsed),
            downgrades=tuple(self._downgrades),
            notes=tuple(self.notes),
            paused=paused,
            stopping=stopping,
            detail=detail,
        )

    def _view(self, slot: int, recent: SlotTally | None) -> SlotLine:
        seat = self._seats.get(slot)
        if seat is None or recent is None:
            return SlotLine(slot)
        limit = self._limits.get(seat.request)
        span = self._now - seat.recent[0][0] if seat.recent else 0.0
        return SlotLine(
            slot=slot,
            state=seat.state,
            request=seat.request,
            tokens=seat.tokens,
            max_tokens=limit.max_tokens if limit else None,
            prompt_done=seat.prompt_done,
            prompt_tokens=limit.prompt_tokens if limit else None,
            cached_tokens=seat.cached,
            ctx=seat.ctx,
            L=seat.L,
            reason=seat.reason,
            keeps=tuple(keeps for _, _, keeps, _, _, _ in seat.recent),
            acceptance=recent.spec.acceptance_rate,
            mean_keeps=recent.tokens_per_window,
            per_position=tuple(seat.spec.per_position()),
            conditional=tuple(seat.spec.conditional()),
            reasons=tuple(recent.reasons.most_common()),
            tok_per_s=recent.tokens / span if span else None,
            elapsed_s=self._now - seat.since,
        )

    def _history(self) -> tuple[float, ...]:
        """Tokens in each whole second, those without a window included."""
        if not self._seconds:
            return ()
        by_second = {s.second: float(s.tokens) for s in self._seconds}
        last = self._seconds[-1].second
        first = max(self._seconds[0].second, last - HISTORY_S)
        return tuple(by_second.get(second, 0.0) for second in range(first, last))

    def _eta(self, elapsed: float) -> float | None:
        """Seconds until the queue is empty, if what is left is as long as what is done and the speed so far stays."""
        if not self._done or not self._tokens or not elapsed:
            return None
        mean = self._finished_tokens / self._done
        waiting = max(self._total - self._earlier - self._done - len(self._seats), 0)
        left = waiting * mean + sum(max(mean - seat.tokens, 0.0) for seat in self._seats.values())
        return left / (self._tokens / elapsed)


def _add_up(seconds: Iterable[_Second]) -> _Second:
    total = _Second(0)
    for s in seconds:
        for name in ("tokens", "rows", "slot_windows", "keeps", "verified", "accepted", "ms", "kinds"):
            setattr(total, name, getattr(total, name) + getattr(s, name))
        for phase, ms in s.phases.items():
            total.phases[phase] += ms
    return total


def _shares(sums: _Second) -> tuple[tuple[str, float], ...]:
    """The window's time by phase, `other` for what the phases leave."""
    if not sums.ms:
        return ()
    shares = [(name, sums.phases.get(name, 0.0) / sums.ms) for name in ("draft", "verify", "sample", "commit", "plan")]
    host = 1.0 - sum(share for _, share in shares)
    return (*shares, ("host", max(host, 0.0)))
