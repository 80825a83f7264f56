"""From requests to records: the loop around `Engine.step`. No torch.

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
from strata_cli.session import Engine
from strata_cli.text.stop import StopWatch


class Observer(Protocol):
    """Gets the events of each window, in order."""

    def events(self, events: Sequence[Event]) -> None: ...


@dataclass(frozen=True, slots=True)
class Job:
    """A line of the input and its request. `thinking`: the prompt ends inside a thinking block."""

    asked: PromptRecord
    request: Request
    thinking: bool = False


class StepStats:
    """The observer that writes the step-statistics file."""

    def __init__(self, writer: StepStatsWriter):
        self._writer = writer

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, WindowDone):
                self._writer.write(event.record)


def run_batch(
    engine: Engine,
    jobs: Iterable[Job],
    records: RecordWriter,
    write: Callable[[bytes], None],
    observers: Sequence[Observer],
    interrupted: Callable[[], bool] = lambda: False,
) -> int:
    """Run all jobs and write a record as soon as one ends; returns how many failed.

    A request that the engine refuses, or that fails alone, is an error record. When `interrupted` turns true the window
    in progress is the last; what runs then has no record.
    """
    failed = 0
    running: dict[str, Job] = {}

    def finish(job: Job, result: Result) -> None:
        nonlocal failed
        text = ""
        if isinstance(watch := job.request.watch, StopWatch):
            watch.close()
            text = watch.text
        failed += result.finish_reason == "error"
        write(records.line(job.asked, result, text, int(time.time()), job.thinking))

    for job in jobs:
        running[job.request.id] = job
        try:
            engine.submit(job.request)
        except UsageError as fault:
            del running[job.request.id]
            finish(job, failed_result(job.request, str(fault)))
    while engine.has_work and not interrupted():
        events = engine.step()
        for event in events:
            if isinstance(event, Finished):
                finish(running.pop(event.request_id), event.result)
        for observer in observers:
            observer.events(events)
    return failed
