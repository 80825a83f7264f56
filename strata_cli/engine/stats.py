"""The step-statistics file of a run, and what the run came to. Knows no terminal and no torch."""

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from strata_cli.engine.record import SCHEMA, StatsHeader, StepRecord
from strata_cli.engine.tally import Tally
from strata_cli.engine.types import Downgrade, Event, Finished, WindowDone
from strata_cli.errors import UsageError


class StepStatsWriter:
    """Appends a header line and one line a window. A file that fails is turned off with one warning, never an error.

    A pipe whose reader lags is not waited for: up to `MAX_PENDING` bytes wait in memory, beyond that it is turned off.

    Args:
        path: the file; written anew, or continued with `append` (a resumed run adds its own header line).
        warn: called once with the reason when writing is turned off; the reason is also kept in `warning`.

    Raises:
        UsageError: the file cannot be opened, which is known before any work is done.
    """

    MAX_PENDING = 4 << 20

    def __init__(
        self,
        path: str | Path,
        *,
        append: bool = False,
        warn: Callable[[str], None] | None = None,
    ):
        self.path = str(path)
        self.warning: str | None = None
        self._warn = warn
        self._encoder = msgspec.json.Encoder(enc_hook=str)
        self._pending = bytearray()
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | (os.O_APPEND if append else os.O_TRUNC)
        try:
            self._fd: int | None = os.open(self.path, flags, 0o644)
        except OSError as e:
            raise UsageError(
                f"step statistics cannot be written to {self.path}: {e.strerror}", "--step-stats PATH"
            ) from e

    def begin(self, header: Mapping[str, Any]) -> None:
        """The header line, once the model is there: what StatsHeader holds, by name, the schema being the writer's."""
        if self._fd is not None:
            self._put(StatsHeader(schema=SCHEMA, **header))

    def write(self, record: StepRecord) -> None:
        """Write one window's line. Does nothing once writing is off or the writer is closed."""
        if self._fd is not None:
            ms = {name: round(ms, 4) for name, ms in record.ms.items()}
            self._put(replace(record, t=round(record.t, 6), step_ms=round(record.step_ms, 4), ms=ms))

    def close(self) -> None:
        """Hand over what still waits (the only place that may wait for a slow reader) and close."""
        if self._fd is None:
            return
        try:
            os.set_blocking(self._fd, True)
            self._drain()
        except OSError as e:
            self._turn_off(e.strerror or str(e))
            return
        os.close(self._fd)
        self._fd = None

    def _put(self, line: StatsHeader | StepRecord) -> None:
        if self._fd is None:
            return
        self._pending += self._encoder.encode(line) + b"\n"
        try:
            self._drain()
        except OSError as e:
            if e.errno != errno.EAGAIN:
                self._turn_off(e.strerror or str(e))
            elif len(self._pending) > self.MAX_PENDING:
                self._turn_off(f"its reader is {self.MAX_PENDING >> 20} MiB behind")

    def _drain(self) -> None:
        assert self._fd is not None
        while self._pending:
            del self._pending[: os.write(self._fd, self._pending)]

    def _turn_off(self, why: str) -> None:
        self.warning = f"step statistics are off from here on: {self.path}: {why}"
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._pending.clear()
        if self._warn is not None:
            self._warn(self.warning)


@dataclass(frozen=True, slots=True)
class Totals:
    """What a run came to. Times as named; `per_position` and `conditional` as SpecStats defines them."""

    requests: int
    failed: int
    tokens: int
    wall_s: float
    tok_per_s: float | None
    windows: dict[str, int]
    drafts: int
    verified: int
    accepted: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    per_position: list[float]
    conditional: list[float | None]
    prefix_hit_tokens: int
    prefix_hits: int
    prefix_misses: int
    phase_ms: dict[str, float]
    downgrades: list[str]


class RunSummary:
    """Eats the engine's events and says what the run came to."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._requests = self._failed = self._cached = self._hits = self._misses = 0
        self._downgrades: list[str] = []

    def events(self, events: Iterable[Event]) -> None:
        events = list(events)
        self.tally.add(e.record for e in events if isinstance(e, WindowDone))
        for event in events:
            if isinstance(event, WindowDone):
                self._hits += event.record.prefix_hits
                self._misses += event.record.prefix_misses
            elif isinstance(event, Finished):
                self._requests += 1
                self._failed += event.result.finish_reason == "error"
                self._cached += event.result.cached_tokens
            elif isinstance(event, Downgrade):
                self._downgrades.append(f"{event.what}: {event.why}")

    def totals(self, wall_s: float) -> Totals:
        """`wall_s`: seconds the caller measured around the run, which `tok_per_s` is of."""
        tally, spec, total = self.tally, self.tally.spec(), self.tally.total()
        return Totals(
            requests=self._requests,
            failed=self._failed,
            tokens=total.tokens,
            wall_s=wall_s,
            tok_per_s=total.tokens / wall_s if wall_s > 0 else None,
            windows={kind: group.windows for kind, group in tally.by_kind().items()},
            drafts=tally.drafts,
            verified=tally.verified,
            accepted=tally.accepted,
            acceptance_rate=tally.acceptance_rate,
            mean_acceptance_length=spec.mean_acceptance_length,
            per_position=spec.per_position(),
            conditional=spec.conditional(),
            prefix_hit_tokens=self._cached,
            prefix_hits=self._hits,
            prefix_misses=self._misses,
            phase_ms=tally.phases(),
            downgrades=list(dict.fromkeys([*self._downgrades, *tally.downgrades])),
        )
