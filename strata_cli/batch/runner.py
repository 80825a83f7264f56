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

PAUSE_S = 0.05  # between looks at the keys while nothing runs


class Observer(Protocol):
    """Gets the events of each window, in order."""

    def events(self, events: Sequence[Event]) -> None: ...


class Screen(Protocol):
    """The observer that a person looks at, and can press keys on (`strata_cli.ui.live`)."""

    wants_stop: bool
    paused: bool

    def events(self, events: Sequence[Event]) -> None: ...
    def tick(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Job:
    """A line of the input and its request. `thinking`: the prompt ends inside a thinking block."""

    asked: PromptRecord
    request: Request
    thinking: bool = False


@dataclass(slots=True)
class Outcome:
    """How many requests failed, and how many have no record because the run was stopped."""

    failed: int = 0
    left: int = 0


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
    screen: Screen,
    observers: Sequence[Observer] = (),
    interrupted: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run all jobs and write a record as soon as one ends.

    A request that the engine refuses, or that fails alone, is an error record. When `interrupted` turns true the window
    in progress is the last; when the screen wants to stop, requests in a slot still finish. What is left has no record.
    """
    outcome = Outcome()
    pending: dict[str, Job] = {}

    def finish(job: Job, result: Result) -> None:
        text = ""
        if isinstance(watch := job.request.watch, StopWatch):
            watch.close()
            text = watch.text
        outcome.failed += result.finish_reason == "error"
        write(records.line(job.asked, result, text, int(time.time()), job.thinking))

    for job in jobs:
        pending[job.request.id] = job
        try:
            engine.submit(job.request)
        except UsageError as fault:
            del pending[job.request.id]
            finish(job, failed_result(job.request, str(fault)))
    while pending and not interrupted():
        engine.pause(screen.paused or screen.wants_stop)
        if engine.has_work:
            events = engine.step()
            for event in events:
                if isinstance(event, Finished):
                    finish(pending.pop(event.request_id), event.result)
            for observer in (*observers, screen):
                observer.events(events)
        elif screen.wants_stop:
            break
        else:
            time.sleep(PAUSE_S)
        screen.tick()
    outcome.left = len(pending)
    return outcome
