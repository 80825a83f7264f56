"""The loop around the engine: who joins when, what orders do, and that waiting is short and never a step."""

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from strata_cli.config import EngineConfig, SamplingParams
from strata_cli.engine.types import Event, Finished, Request, Result, SpecStats, Started, Timings, Tokens
from strata_cli.session import Later, Orders, drive

LENGTH = 3  # windows of every request


class Clock:
    """Seconds that pass when somebody sleeps, or a window runs."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, list[float]()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.slept.append(seconds)
        self.now += max(seconds, 1e-6)


class StubEngine:
    """Two seats; a request lasts `LENGTH` windows of 10 ms. `hold_s`: nobody is admitted before that time."""

    def __init__(self, clock: Clock, hold_s: float = 0.0):
        self.config, self.ctx, self.memory = EngineConfig(batch=2), 100, SimpleNamespace(total_bytes=0, as_dict=dict)
        self.clock = clock
        self.hold_s = clock() + hold_s
        self.waiting: list[str] = []
        self.seated: dict[str, int] = {}
        self.left: list[Event] = []
        self.paused = False
        self.windows = 0
        self.downgrades: list[str] = []

    def submit(self, request: Request) -> None:
        assert request.id not in (*self.waiting, *self.seated)
        self.waiting.append(request.id)

    def cancel(self, request_id: str) -> bool:
        if request_id in self.waiting:
            self.waiting.remove(request_id)
        elif self.seated.pop(request_id, None) is None:
            return False
        self.left.append(self.end(request_id, "cancelled"))
        return True

    def pause(self, paused: bool = True) -> None:
        self.paused = paused

    def close(self) -> None:
        raise AssertionError("a drive closes nothing")

    @property
    def has_work(self) -> bool:
        return bool(self.left or self.seated or (self.waiting and not self.paused))

    def idle_s(self) -> float:
        return 0.0 if self.left or self.seated else max(0.0, self.hold_s - self.clock())

    def end(self, request_id: str, reason: str) -> Finished:
        return Finished(request_id, 0, Result(request_id, [1], reason, 1, 0, 0, Timings(), SpecStats()))

    def step(self) -> list[Event]:
        assert self.has_work and self.idle_s() == 0, "a step that would do nothing"
        self.windows += 1
        self.clock.now += 0.01
        events, self.left = self.left, []
        while self.waiting and len(self.seated) < 2 and not self.paused:
            self.seated[self.waiting.pop(0)] = LENGTH
            events.append(Started([*self.seated][-1], 0, 0))
        for request_id in list(self.seated):
            events.append(Tokens(request_id, 0, (1,)))
            self.seated[request_id] -= 1
            if not self.seated[request_id]:
                del self.seated[request_id]
                events.append(self.end(request_id, "length"))
        return events


class Log:
    """The observer of these tests: what happened in which window. `then` is called after each."""

    def __init__(self, then: Callable[[int], None] = lambda window: None):
        self.started: dict[str, int] = {}
        self.ended: dict[str, tuple[int, str]] = {}
        self.window = 0
        self.then = then

    def events(self, events: Sequence[Event]) -> None:
        self.window += 1
        for event in events:
            if isinstance(event, Started):
                self.started[event.request_id] = self.window
            elif isinstance(event, Finished):
                self.ended[event.request_id] = self.window, event.result.finish_reason
        self.then(self.window)


def request(name: str) -> Request:
    return Request(name, [1], SamplingParams())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    ticking = Clock()
    monkeypatch.setattr(time, "sleep", ticking.sleep)
    return ticking


def test_all_that_was_submitted_is_done(clock):
    engine, log = StubEngine(clock), Log()
    for name in "abc":
        engine.submit(request(name))
    assert drive(engine, [log]) == {}
    assert log.ended == {"a": (3, "length"), "b": (3, "length"), "c": (6, "length")}
    assert engine.windows == 6 and not clock.slept


def test_every_observer_gets_every_window_in_order_and_then_the_tick(clock):
    engine, seen = StubEngine(clock), []
    engine.submit(request("a"))
    first, second = Log(lambda w: seen.append(("first", w))), Log(lambda w: seen.append(("second", w)))
    drive(engine, [first, second], tick=lambda: seen.append(("tick", engine.windows)))
    assert seen == [(who, w) for w in (1, 2, 3) for who in ("first", "second", "tick")]


def test_an_observer_may_submit_what_goes_on(clock):
    engine = StubEngine(clock)
    engine.submit(request("a"))
    log = Log(lambda window: engine.submit(request("b")) if window == 3 else None)
    drive(engine, [log])
    assert log.ended == {"a": (3, "length"), "b": (6, "length")}


def test_requests_join_by_time(clock):
    engine, log = StubEngine(clock), Log()
    came = drive(engine, [log], later=[Later(request("a")), Later(request("b"), 0.015), Later(request("c"), 1.0)])
    assert log.started == {"a": 1, "b": 3, "c": 6}
    assert came == {"a": 0.0, "b": pytest.approx(0.02), "c": pytest.approx(1.0)}
    assert sum(clock.slept) == pytest.approx(0.95) and max(clock.slept) <= 0.05


def test_requests_join_by_window_or_when_nothing_runs(clock):
    engine, log = StubEngine(clock), Log()
    later = [Later(request("a")), Later(request("b"), windows=2), Later(request("c"), windows=99)]
    drive(engine, [log], later=[*later, Later(request("d"), windows=99)])
    assert log.started == {"a": 1, "b": 3, "c": 6, "d": 6}  # b ends with window 5
    assert not clock.slept


def test_a_hold_is_waited_for_in_short_looks_and_costs_no_step(clock):
    engine, looks = StubEngine(clock, hold_s=0.5), []
    engine.submit(request("a"))
    drive(engine, [Log()], tick=lambda: looks.append(clock.now))
    assert engine.windows == 3
    assert len(looks) == pytest.approx(0.5 / 0.05 + 3, abs=1)
    assert max(clock.slept) <= 0.05


def test_who_joins_by_time_is_not_slept_over(clock):
    """A hold that a second request ends: it comes when it is due, not after the hold."""
    engine, log = StubEngine(clock, hold_s=0.04), Log()
    engine.submit(request("a"))
    came = drive(engine, [log], later=[Later(request("b"), 0.01)])
    assert came["b"] == pytest.approx(0.01, abs=1e-4)


def test_cancel_ends_the_running_and_the_waiting_and_the_rest_goes_on(clock):
    engine, log = StubEngine(clock), Log()
    for name in "abcd":
        engine.submit(request(name))
    drive(engine, [log], orders=lambda: Orders(cancel=("a", "d", "nobody") if log.window == 1 else ()))
    assert log.ended == {"a": (2, "cancelled"), "d": (2, "cancelled"), "b": (3, "length"), "c": (4, "length")}


def test_a_pause_admits_nobody_and_loses_nobody(clock):
    engine, log = StubEngine(clock), Log()
    for name in "abc":
        engine.submit(request(name))
    until = clock.now + 1.0
    drive(engine, [log], orders=lambda: Orders(pause=clock.now < until and log.window > 0))
    assert log.ended == {"a": (3, "length"), "b": (3, "length"), "c": (6, "length")}
    assert sum(clock.slept) == pytest.approx(0.97, abs=0.06)
    assert not engine.paused


def test_stop_finishes_what_runs_and_nothing_else(clock):
    engine, log = StubEngine(clock), Log()
    for name in "abc":
        engine.submit(request(name))
    came = drive(engine, [log], later=[Later(request("d"), 0.02)], orders=lambda: Orders(stop=log.window >= 1))
    assert log.ended == {"a": (3, "length"), "b": (3, "length")}
    assert came == {} and engine.waiting == ["c"] and not clock.slept and not engine.paused


def test_leave_returns_after_the_window(clock):
    engine, log = StubEngine(clock), Log()
    engine.submit(request("a"))
    drive(engine, [log], orders=lambda: Orders(leave=log.window == 2))
    assert engine.windows == 2 and list(engine.seated) == ["a"]


def test_orders_are_asked_before_the_first_window(clock):
    engine = StubEngine(clock)
    engine.submit(request("a"))
    drive(engine, [Log()], orders=lambda: Orders(leave=True))
    assert engine.windows == 0


def test_what_breaks_goes_through(clock):
    def broken(window: int) -> None:
        raise KeyboardInterrupt

    engine = StubEngine(clock)
    engine.submit(request("a"))
    with pytest.raises(KeyboardInterrupt):
        drive(engine, [Log(broken)])
    assert list(engine.seated) == ["a"]
