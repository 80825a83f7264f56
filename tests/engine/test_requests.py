"""What callers may rely on: ids of their own, steps that never wait, states that a request passes through."""

import time
from typing import Any

import pytest

from strata_cli.engine.engine import Engine
from strata_cli.engine.life import Life
from strata_cli.engine.types import Finished, Started
from strata_cli.errors import UsageError
from tests.support.engine import engine, prompt, request, run, set_clock, tiny


@pytest.fixture(autouse=True)
def nobody_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        pytest.fail("step() waits")

    monkeypatch.setattr(time, "sleep", sleep)


def test_an_id_that_waits_or_runs_is_refused() -> None:
    e = engine(tiny(), batch=1, mtp_varlen=False)
    e.submit(request("a", prompt(9)))
    e.submit(request("b", prompt(9)))
    e.step()
    for taken in ("a", "b"):  # one runs, one waits
        with pytest.raises(UsageError, match=f"request {taken}: another one of this id") as caught:
            e.submit(request(taken, prompt(5)))
        assert caught.value.hint
    ended = [x.request_id for _ in range(60) if e.has_work for x in e.step() if isinstance(x, Finished)]
    assert ended == ["a", "b"]
    again = run(e, [request("a", prompt(9))])
    assert again.results["a"].token_ids == run(engine(tiny(), spec=0), [request("a", prompt(9))]).tokens()[0]


def test_an_id_is_free_again_once_cancelled() -> None:
    e = engine(tiny(), batch=1)
    e.submit(request("a", prompt(9)))
    e.submit(request("b", prompt(9)))
    e.step()
    assert e.cancel("b") and e.cancel("a") and not e.cancel("a")
    e.submit(request("b", prompt(9)))
    e.submit(request("a", prompt(9)))
    ended = [x.request_id for _ in range(60) if e.has_work for x in e.step() if isinstance(x, Finished)]
    assert ended == ["b", "a", "b", "a"]


def test_gather_says_how_long_nothing_can_happen() -> None:
    now = [5.0]
    e = engine(tiny(), prefill_policy="gather", gather_ms=80.0, spec=0)
    set_clock(e, lambda: now[0])
    assert e.idle_s() == 0.0 and not e.has_work  # nothing waits
    e.submit(request("0", prompt(6)))
    now[0] += 0.030
    assert e.has_work and e.idle_s() == pytest.approx(0.050)
    assert e.step() == [] and e.seats == [None] * 4  # and it comes back at once
    now[0] += 0.049
    assert e.step() == [] and e.idle_s() == pytest.approx(0.001)
    now[0] += 0.0011
    assert e.idle_s() == 0.0
    assert any(isinstance(x, Started) for x in e.step())
    e.submit(request("1", prompt(6)))
    assert e.idle_s() == 0.0  # another one runs: there is something to do
    assert not any(isinstance(x, Started) for x in e.step())
    for i in range(2, 5):
        e.submit(request(str(i), prompt(6)))
    assert e.idle_s() == 0.0
    assert sum(isinstance(x, Started) for x in e.step()) == 3  # all seats can be filled: nobody is held


def test_a_paused_engine_is_idle_without_end() -> None:
    e = engine(tiny(), prefill_policy="gather", gather_ms=80.0)
    e.submit(request("0", prompt(6)))
    e.pause()
    assert not e.has_work and e.step() == [] and e.idle_s() == 0.0
    e.pause(False)
    assert e.has_work and e.idle_s() > 0


def test_waiting_reading_decoding_done() -> None:
    e = engine(tiny(), batch=1, prefill_chunk=64, max_batched_tokens=64, mtp_varlen=False)
    for i, name in enumerate(("first", "second")):
        e.submit(request(name, prompt(150, seed=i), max_tokens=8))
    lives: dict[str, Life] = {life.request.id: life for life in e.seating.lives()}
    states: dict[str, list[str]] = {name: [life.state] for name, life in lives.items()}
    while e.has_work:
        e.step()
        for name, life in lives.items():
            if life.state != states[name][-1]:
                states[name].append(life.state)
            assert (life.seat is not None) == (life.state in ("reading", "decoding"))
    for found in states.values():
        assert found == ["waiting", "reading", "decoding", "done"]


def test_a_preempted_request_waits_and_reads_again() -> None:
    e, seen = engine(tiny(), pages=4, ctx=192, batch=2, mtp_varlen=False, prefix_cache=False), list[str]()
    for i in range(2):
        e.submit(request(str(i), prompt(50), max_tokens=60))
    late = e.seating.lives()[1]
    while e.has_work:
        if not seen or late.state != seen[-1]:
            seen.append(late.state)
        e.step()
    assert [*seen, late.state] == ["waiting", "decoding", "waiting", "decoding", "done"]
    assert late.tokens[50:] == run(engine(tiny(), spec=0), [request("1", prompt(50), max_tokens=60)]).tokens()[0]


def test_a_step_with_nothing_to_do_does_nothing() -> None:
    e: Engine = engine(tiny())
    before: Any = e.runner.model.forwards
    assert e.step() == [] and not e.has_work and e.runner.model.forwards == before
