"""Run the matrix and compare: tokens, the bits of each committed row's logits, and at a fixed length the drafts."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strata_cli.bench.cases import Case
from strata_cli.bench.measure import Results
from strata_cli.config import EngineConfig
from strata_cli.engine.types import Event, Request, Result
from strata_cli.parity.matrix import Sampling, Way
from strata_cli.session import Later, LoadedModel, Orders, drive

if TYPE_CHECKING:
    from torch import Tensor

    from strata_cli.engine.engine import Engine

JOIN_AFTER, CANCEL_AFTER = 3, 5  # windows: when the late ones join, when the first is cancelled


@dataclass(frozen=True, slots=True)
class Scores:
    """The logits that a committed token was drawn from: a hash of their bits, and the best one's lead."""

    bits: bytes
    margin: float


@dataclass(slots=True)
class Run:
    """What came of some requests, by id; `rows` by position of the completion."""

    results: dict[str, Result] = field(default_factory=dict)
    rows: dict[str, list[Scores]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a request first went another way. `position` counts completion tokens from 0; a token or margin is None
    where a run had ended.
    """

    manner: str
    way: str
    request: str
    what: str  # tokens, bits, drafts
    position: int | None
    tokens: tuple[int | None, int | None]  # base, way
    margins: tuple[float | None, float | None]
    note: str = ""


@dataclass(slots=True)
class Cell:
    """One way in one manner: how many requests were compared and how many agreed."""

    manner: str
    way: str
    compared: int = 0
    tokens: int = 0
    bits: int = 0
    drafts: int | None = None  # None: not compared
    drafted: int = 0
    accepted: int = 0
    cached_tokens: int = 0

    @property
    def equal(self) -> bool:
        return self.tokens == self.bits == self.compared and self.drafts in (None, self.compared)


@dataclass(slots=True)
class Report:
    """The whole matrix."""

    cells: list[Cell] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return bool(self.cells) and all(cell.equal for cell in self.cells)


def check(
    model: LoadedModel,
    cases: Sequence[Case],
    base: EngineConfig,
    ways: Sequence[Way],
    manners: Sequence[Sampling],
    note: Callable[[str], None],
) -> Report:
    """Every way in every manner against the base run. The first of `ways` is the one whose drafts the others must
    repeat.
    """
    report = Report()
    for manner in manners:
        note(f"{manner.name}: base")
        expected = _run(model, cases, manner, Way("base", base))
        drafts: dict[str, tuple[object, ...]] = {}
        for way in ways:
            found = _run(model, cases, manner, way)
            drafts = drafts or {id: _drafting(result) for id, result in found.results.items()}
            cell = Cell(manner.name, way.name, drafts=0 if way.drafts else None)
            report.cells.append(cell)
            before = len(report.differences)
            for id in found.results:
                report.differences += _compare(cell, way, id, expected, found, drafts)
            note(f"{manner.name}: {way.name}: {'same' if len(report.differences) == before else 'DIFFERENT'}")
    return report


def _run(model: LoadedModel, cases: Sequence[Case], manner: Sampling, way: Way) -> Run:
    """The cases in one way, on an engine of their own."""
    engine = model.engine(way.config)
    requests = [case.request(model.checkpoint, **manner.params) for case in cases]
    if way.schedule == "twice":
        _step(engine, requests, [], None)
        requests = [case.request(model.checkpoint, **manner.params) for case in cases]
    if way.schedule == "copies":
        requests = [cases[0].request(model.checkpoint, **manner.params) for _ in range(way.config.batch)]
        for i, request in enumerate(requests):
            request.id = f"{request.id}#{i + 1}"
    late = requests[1:] if way.schedule == "late" else []
    cancel = requests[0].id if way.schedule == "cancel" else None
    run = _step(engine, requests[: len(requests) - len(late)], late, cancel)
    engine.close()
    return run


class _Watched(Results):
    """Keeps results, counts windows, and has one request cancelled after a few of them."""

    def __init__(self, leaves: str | None):
        super().__init__()
        self.windows, self._leaving = 0, [leaves] if leaves is not None else []

    def events(self, events: Sequence[Event]) -> None:
        super().events(events)
        self.windows += 1

    def orders(self) -> Orders:
        return Orders(cancel=self._leaving if self.windows == CANCEL_AFTER else ())


def _step(engine: "Engine", now: Sequence[Request], late: Sequence[Request], cancel: str | None) -> Run:
    """Step until all are done; `late` join and `cancel` leaves after a few windows."""
    run = Run()

    def watch(request: str, position: int, row: "Tensor") -> None:
        best = row.float().topk(2).values.tolist()
        digest = hashlib.blake2b(row.float().cpu().numpy().tobytes(), digest_size=16).digest()
        run.rows.setdefault(request, []).append(Scores(digest, best[0] - best[1]))

    engine.judge.watch = watch
    joining = [Later(request) for request in now] + [Later(request, windows=JOIN_AFTER) for request in late]
    results = _Watched(cancel)
    drive(engine, [results], later=joining, orders=results.orders)
    run.results = results.require()
    return run


def _drafting(result: Result) -> tuple[object, ...]:
    spec = result.spec
    return spec.windows, spec.drafted, spec.verified_at, spec.accepted_at


def _compare(
    cell: Cell, way: Way, id: str, expected: Run, found: Run, drafts: dict[str, tuple[object, ...]]
) -> list[Difference]:
    """One request of a way against the base; fills the cell."""
    own = id.rsplit("#", 1)[0] if way.schedule == "copies" else id
    result, wanted = found.results[id], expected.results[own]
    cancelled = result.finish_reason == "cancelled"
    cell.compared += 1
    cell.drafted += result.spec.drafted
    cell.accepted += result.spec.accepted
    cell.cached_tokens += result.cached_tokens
    a, b = wanted.token_ids, result.token_ids
    left, right = expected.rows.get(own, []), found.rows.get(id, [])
    if cancelled:  # what it had until then
        a, left = a[: len(b)], left[: len(right)]

    def difference(what: str, at: int | None, note: str = "") -> Difference:
        def pick(items: Sequence[int], rows: Sequence[Scores]) -> tuple[int | None, float | None]:
            if at is None:
                return None, None
            return (items[at] if at < len(items) else None), (rows[at].margin if at < len(rows) else None)

        (token_a, margin_a), (token_b, margin_b) = pick(a, left), pick(b, right)
        return Difference(cell.manner, cell.way, id, what, at, (token_a, token_b), (margin_a, margin_b), note)

    differences = []
    if (at := _first(a, b)) is None:
        cell.tokens += 1
    else:
        differences.append(difference("tokens", at))
    if (at := _first([r.bits for r in left], [r.bits for r in right])) is None:
        cell.bits += 1
    else:
        differences.append(difference("bits", at))
    if cell.drafts is not None:
        if cancelled or _drafting(result) == drafts[own]:
            cell.drafts += 1
        else:
            note = f"windows, drafts, verified and accepted by position: {drafts[own]} alone, {_drafting(result)} here"
            differences.append(difference("drafts", None, note))
    return differences


def _first(a: Sequence[object], b: Sequence[object]) -> int | None:
    """The first place where two sequences differ."""
    if (at := next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)) is not None:
        return at
    return None if len(a) == len(b) else min(len(a), len(b))
