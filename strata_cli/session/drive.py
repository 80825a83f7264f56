"""The one loop around `Engine.step`: it hands events on, waits where nothing can happen, and takes orders. No torch."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from strata_cli.config import EngineConfig
from strata_cli.engine.types import Event, Request
from strata_cli.model.memory import MemoryPlan

LOOK_S = 0.05  # the longest wait before keys and interrupts are looked at again


class AnyEngine(Protocol):
    """What commands use of `strata_cli.engine.engine.Engine`, whose docstrings say what each does."""

    config: EngineConfig
    ctx: int
    memory: MemoryPlan
    clock: Callable[[], float]

    def submit(self, request: Request) -> None: ...
    def cancel(self, request_id: str) -> bool: ...
    def pause(self, paused: bool = True) -> None: ...
    def step(self) -> list[Event]: ...
    def idle_s(self) -> float: ...
    def close(self) -> None: ...
    @property
    def has_work(self) -> bool: ...
    @property
    def downgrades(self) -> list[str]: ...


class Observer(Protocol):
    """Gets the events of each window, in order, and may submit and cancel then."""

    def events(self, events: Sequence[Event]) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Later:
    """A request that joins when `at_s` seconds of the drive are over and `windows` windows are done; windows are not
    waited for while nothing runs.
    """

    request: Request
    at_s: float = 0.0
    windows: int = 0


@dataclass(frozen=True, slots=True)
class Orders:
    """What is wanted before a window.

    Args:
        cancel: ids of requests that end now, with what they have; one that is not there is passed over.
        pause: admit nobody for now.
        stop: admit nobody any more, and return when nothing runs.
        leave: return at once, whatever still runs.
    """

    cancel: Collection[str] = ()
    pause: bool = False
    stop: bool = False
    leave: bool = False


def drive(
    engine: AnyEngine,
    observers: Sequence[Observer],
    *,
    later: Iterable[Later] = (),
    orders: Callable[[], Orders] = Orders,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Step the engine until all that was submitted, before or by `later`, is done.

    orders: asked before every window, and every `LOOK_S` while nothing can happen. tick: called as often, after it.
    Returns when each of `later` joined, by id, in seconds since the call; what the engine or an observer raises goes
    through, and leaves the requests where they are.
    """
    coming, joined = list(later), dict[str, float]()
    start, windows = engine.clock(), 0
    while not (wanted := orders()).leave:
        engine.pause(False)  # so that `has_work` counts those who wait, too
        if not wanted.stop:
            now = engine.clock() - start
            there = [x for x in coming if x.at_s <= now]
            due = [x for x in there if x.windows <= windows] or ([] if engine.has_work else there)
            for each in due:
                coming.remove(each)
                engine.submit(each.request)
                joined[each.request.id] = engine.clock() - start
        for request_id in wanted.cancel:
            engine.cancel(request_id)
        if not (engine.has_work or coming):
            break
        engine.pause(wanted.pause or wanted.stop)
        if not engine.has_work and wanted.stop:
            break
        idle_s = engine.idle_s() if engine.has_work else LOOK_S
        if idle_s > 0:
            now = engine.clock() - start
            time.sleep(min(idle_s, LOOK_S, *(x.at_s - now for x in coming if x.at_s > now)))
        else:
            events, windows = engine.step(), windows + 1
            for observer in observers:
                observer.events(events)
        tick()
    engine.pause(False)
    return joined
