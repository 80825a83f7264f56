"""From requests to records. No torch.

Everything that watches a run (progress lines, the live screen, statistics, the summary) is an Observer and gets each
window's events.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from strata_cli.batch.records import PromptRecord
from strata_cli.batch.results import RecordWriter, failed_result
from strata_cli.engine.stats import StepStatsWriter
from strata_cli.engine.types import Event, Finished, Request, Result, WindowDone
from strata_cli.errors import UsageError
from strata_cli.model.memory import MemoryPlan
from strata_cli.session import AnyEngine, Observer, Orders, drive
from strata_cli.settings import Settings
from strata_cli.text.stop import StopWatch


class KeyedObserver(Observer, Protocol):
    """The observer that a person looks at, and can press keys on (`strata_cli.ui.live`)."""

    wants_stop: bool
    paused: bool

    def tick(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Job:
    """A line of the input and its request. `thinking`: the prompt ends inside a thinking block."""

    asked: PromptRecord
    request: Request
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """How many requests failed, and how many have no record because the run was stopped."""

    failed: int
    left: int


class StepStats:
    """The observer that writes the step-statistics file."""

    def __init__(self, writer: StepStatsWriter, settings: Settings, memory: MemoryPlan):
        self._writer = writer
        writer.begin({**settings.stats_header(), "memory": memory.as_dict()})

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, WindowDone):
                self._writer.write(event.record)


class Recorder:
    """The observer that writes a record as soon as a request ends. `pending`: those that have none yet, by id."""

    def __init__(self, records: RecordWriter, write: Callable[[bytes], None]):
        self._records, self._write = records, write
        self.pending: dict[str, Job] = {}
        self.failed = 0

    def submit(self, job: Job, engine: AnyEngine) -> None:
        """Queue a job; a request that the engine refuses is an error record."""
        self.pending[job.request.id] = job
        try:
            engine.submit(job.request)
        except UsageError as fault:
            self._finish(failed_result(job.request, str(fault)))

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Finished):
                self._finish(event.result)

    def _finish(self, result: Result) -> None:
        job = self.pending.pop(result.request_id)
        text = ""
        if isinstance(watch := job.request.watch, StopWatch):
            watch.close()
            text = watch.text
        self.failed += result.finish_reason == "error"
        self._write(self._records.line(job.asked, result, text, int(time.time()), job.thinking))


def run_batch(
    engine: AnyEngine,
    jobs: Iterable[Job],
    records: RecordWriter,
    write: Callable[[bytes], None],
    screen: KeyedObserver,
    observers: Sequence[Observer] = (),
    interrupted: Callable[[], bool] = lambda: False,
) -> Ending:
    """Run all jobs and write a record as soon as one ends.

    A request that the engine refuses, or that fails alone, is an error record. When `interrupted` turns true the window
    in progress is the last; when the screen wants to stop, requests in a slot still finish. What is left has no record.
    """
    recorder = Recorder(records, write)
    for job in jobs:
        recorder.submit(job, engine)

    def orders() -> Orders:
        return Orders(pause=screen.paused, stop=screen.wants_stop, leave=interrupted())

    drive(engine, (recorder, *observers, screen), orders=orders, tick=screen.tick)
    return Ending(recorder.failed, len(recorder.pending))
