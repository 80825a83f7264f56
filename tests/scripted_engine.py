"""A scripted engine: seeded events that look like a real run, for the tests of what people see. No torch.

Every slot has its own chance of acceptance, so that the right answers (which slot is slow, and why) are known.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from strata_cli.engine.record import StepRecord
from strata_cli.engine.types import (
    Event,
    Finished,
    Result,
    SpecStats,
    Started,
    Timings,
    Tokens,
    WindowDone,
)


@dataclass
class Seat:
    request: str
    prompt: int
    limit: int
    read: int = 0
    tokens: list[int] = field(default_factory=list)
    spec: SpecStats = field(default_factory=SpecStats)


@dataclass
class ScriptedEngine:
    """`step()` returns the events of one window, [] once `requests` have all finished."""

    requests: int = 12
    slots: int = 4
    spec: int = 4
    acceptance: tuple[float, ...] = (0.85, 0.8, 0.75, 0.8)  # by slot
    rows: int | None = None
    prompt_tokens: tuple[int, int] = (20, 200)
    max_tokens: tuple[int, int] = (30, 120)
    chunk: int = 128
    sit_out: dict[int, float] = field(default_factory=dict)  # slot -> chance of sitting a window out
    host_ms: float = 0.6
    seed: int = 0
    t: float = 0.0
    chain_off: str | None = None
    downgrades: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.waiting = [
            Seat(f"line-{n:06d}", self.rng.randint(*self.prompt_tokens), self.rng.randint(*self.max_tokens))
            for n in range(1, self.requests + 1)
        ]
        self.seats: dict[int, Seat] = {}
        self.paused = False

    def limits(self) -> dict[str, tuple[int, int]]:
        """Request id -> (prompt tokens, most tokens of the answer)."""
        return {s.request: (s.prompt, s.limit) for s in [*self.seats.values(), *self.waiting]}

    def pause(self, paused: bool = True) -> None:
        self.paused = paused

    def idle_s(self) -> float:
        return 0.0

    def clock(self) -> float:
        return self.t

    @property
    def has_work(self) -> bool:
        return bool(self.seats or (self.waiting and not self.paused))

    def step(self) -> list[Event]:
        events: list[Event] = []
        for slot in range(self.slots) if not self.paused else ():
            if slot not in self.seats and self.waiting:
                seat = self.seats[slot] = self.waiting.pop(0)
                seat.read = 16 if self.rng.random() < 0.2 else 0
                events.append(Started(seat.request, slot, seat.read))
        if not self.seats:
            return events
        record, done = self._window(sum(e.cached_tokens for e in events if isinstance(e, Started)))
        events += [
            Tokens(r, s, tuple(range(k)))
            for r, s, k in zip(record.request, record.slot, record.keeps, strict=True)
            if k
        ]
        for slot in done:
            seat = self.seats.pop(slot)
            result = Result(
                seat.request, seat.tokens, "length", seat.prompt, 0, self.seed, Timings(decode_tok_s=50.0), seat.spec
            )
            events.append(Finished(seat.request, slot, result))
        return [*events, WindowDone(record)]

    def run(self) -> Iterator[list[Event]]:
        while events := self.step():
            yield events

    def records(self) -> Iterator[StepRecord]:
        for events in self.run():
            yield from (e.record for e in events if isinstance(e, WindowDone))

    def _window(self, hits: int) -> tuple[StepRecord, list[int]]:
        rng, budget = self.rng, self.rows or self.slots * (self.spec + 1)
        left = budget - sum(seat.read >= seat.prompt for seat in self.seats.values())
        columns: list[tuple[int, str, int, int, int, int, str, int, int]] = []
        done: list[int] = []
        for slot, seat in sorted(self.seats.items()):
            p = self.acceptance[slot % len(self.acceptance)]
            if seat.read < seat.prompt:
                prompt = min(self.chunk, seat.prompt - seat.read)
                seat.read += prompt
                first = seat.read == seat.prompt
                seat.tokens += [1] * first
                columns.append((slot, seat.request, prompt, 0, int(first), seat.read, "prefill", 0, 0))
            elif rng.random() < self.sit_out.get(slot, 0.0):
                columns.append((slot, seat.request, 0, 0, 0, seat.prompt + len(seat.tokens), "sitout", 0, 0))
            else:
                want = 0 if self.chain_off else (self.spec if p > 0.5 else int(rng.random() < 0.3))
                drafts = max(min(want, left), 0)
                left -= drafts
                accepted = next((j for j in range(drafts) if rng.random() > p), drafts)
                room = seat.limit - len(seat.tokens)
                keeps = min(accepted + 1, room)
                verified = drafts if accepted + 1 <= room else room  # what follows the last token is censored
                accepted = min(accepted, verified)
                seat.spec.record(drafts, verified, accepted, keeps)
                seat.tokens += [1] * keeps
                reason = (
                    "fuse" if self.chain_off else "budget" if drafts < want else "acceptance" if p <= 0.5 else "fits"
                )
                ctx = seat.prompt + len(seat.tokens)
                columns.append((slot, seat.request, 0, 1 + drafts, keeps, ctx, reason, verified, accepted))
            if len(seat.tokens) >= seat.limit:
                done.append(slot)
        slot_, request, prompt_, L, keeps_, ctx_, reason_, verified_, accepted_ = map(list, zip(*columns, strict=True))
        rows, drafts = sum(L) + sum(prompt_), sum(max(n - 1, 0) for n in L)
        bucket = 1 << max(rows - 1, 0).bit_length()
        ms = {
            "plan": 0.05,
            "draft": 0.9 * max(L) if drafts else 0.0,
            "verify": 4.0 + 0.35 * bucket * rng.uniform(0.95, 1.05),
            "sample": 0.3,
            "commit": 0.2,
            "host": self.host_ms,
        }
        step_ms = sum(ms.values()) + 0.01
        self.t += step_ms / 1000
        kind = "prefill" if not sum(L) and sum(prompt_) else "mixed" if sum(prompt_) else "chain" if drafts else "batch"
        record = StepRecord(
            kind=kind,
            t=self.t,
            group=0,
            slots=len(slot_),
            rows=rows,
            drafts=drafts,
            verified=sum(verified_),
            accepted=sum(accepted_),
            step_ms=step_ms,
            slot=slot_,
            request=request,
            prompt=prompt_,
            L=L,
            keeps=keeps_,
            ctx=ctx_,
            reason=reason_,
            ms=ms,
            bucket=bucket,
            experts=None,
            prefix_hit_tokens=hits,
            chain_off=self.chain_off,
            downgrades=list(self.downgrades),
            drafted_by=verified_,
            accepted_by=accepted_,
        )
        return record, done
