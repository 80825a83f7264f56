"""Memory that runs out in the chain path: the window is undone, done again without drafts, and everybody is told."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from strata_cli.engine.engine import Engine
from strata_cli.engine.runner import LaidWindow
from strata_cli.engine.types import Request
from strata_cli.engine.window import WindowPlan
from strata_cli.errors import StrataError
from tests.support.engine import Run, engine, prompt, request, run, tiny

ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"
    ),
    MemoryError("no memory"),
]


def requests(temperature: float) -> list[Request]:
    """Every second one with penalties, whose counts must not move twice."""
    sizes = (3, 30, 70, 9, 140, 12)
    manner: list[dict[str, Any]] = [{}, {"presence_penalty": 0.7, "repetition_penalty": 1.2}]
    return [
        request(str(i), prompt(n, seed=i), temperature=temperature, max_tokens=30, **manner[i % 2])
        for i, n in enumerate(sizes)
    ]


def failing(call: Callable[..., Any], at: int, error: Exception) -> Callable[..., Any]:
    """`call`, but its `at`-th call raises once."""
    count = [0]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if count[0] == at:
            raise error
        return call(*args, **kwargs)

    return wrapped


def drafts(layout: LaidWindow) -> bool:
    return any(share.drafts for share in layout.plan.busy)


def drafting_only(call: Callable[..., Any], at: int, error: Exception, behind: bool = False) -> Callable[..., Any]:
    """Raises at the `at`-th call whose first argument, a window's layout, has drafts; `behind`: when all is done."""
    count = [0]

    def wrapped(layout: LaidWindow, *args: Any) -> Any:
        count[0] += drafts(layout)
        now = drafts(layout) and count[0] == at
        found = call(layout, *args) if behind or not now else None
        if now:
            raise error
        return found

    return wrapped


Inject = Callable[[Engine, int, Exception], None]


def at_call(of: Callable[[Engine], object], name: str) -> Inject:
    """At the n-th call of a method, whatever the window."""

    def inject(e: Engine, at: int, error: Exception) -> None:
        owner = of(e)
        setattr(owner, name, failing(getattr(owner, name), at, error))

    return inject


def at_window(name: str, behind: bool = False) -> Inject:
    """At the n-th call of a method of the runner for a window with drafts."""

    def inject(e: Engine, at: int, error: Exception) -> None:
        setattr(e.runner, name, drafting_only(getattr(e.runner, name), at, error, behind))

    return inject


def at_block(number: int, behind: bool = False) -> Inject:
    """Half way through the verify forward: the blocks before it have replayed and held already."""

    def inject(e: Engine, at: int, error: Exception) -> None:
        armed, count = [False], [0]
        forward, bound = e.runner.forward, e.runner.model.blocks[number]

        def arm(layout: LaidWindow) -> Any:
            armed[0] = drafts(layout)
            return forward(layout)

        def run(*args: Any) -> Any:
            count[0] += armed[0]
            now = armed[0] and count[0] == at
            found = bound.run(*args) if behind or not now else None
            if now:
                raise error
            return found

        e.runner.model.blocks[number] = replace(bound, run=run)
        e.runner.forward = arm  # type: ignore[method-assign]

    return inject


def at_report(e: Engine, at: int, error: Exception) -> None:
    """Everything of a window with drafts is drawn and judged, then it fails: nothing of it may stay."""
    judge, report, armed, count = e.runner.judge, e.runner._report, [False], [0]

    def arm(layout: LaidWindow, x: Any) -> Any:
        armed[0] = drafts(layout)
        return judge(layout, x)

    def wrapped(*args: Any) -> Any:
        found = report(*args)
        count[0] += armed[0]
        if armed[0] and count[0] == at:
            raise error
        return found

    e.runner.judge, e.runner._report = arm, wrapped  # type: ignore[method-assign]


def the_drafter(e: Engine) -> object:
    return e.drafters["mtp"]


def the_runner(e: Engine) -> object:
    return e.runner


POINTS: dict[str, tuple[Inject, int]] = {
    "first pass of the head": (at_call(the_runner, "_head"), 1),
    "catching up": (at_call(the_runner, "_head"), 2),
    "a step of the chain": (at_call(the_runner, "_head"), 4),
    "a later chain": (at_call(the_runner, "_head"), 11),
    "a draft's draw": (at_call(the_runner, "draft"), 3),
    "laying out chains": (at_call(the_drafter, "lay"), 4),
    "chains half made": (at_call(the_drafter, "run"), 5),
    "laying out prompts for the head": (at_call(the_drafter, "lay_prompts"), 2),
    "showing the head prompts": (at_call(the_drafter, "read_prompts"), 1),
    "the window's layout": (at_call(the_runner, "lay"), 3),
    "the verify forward": (at_window("forward"), 2),
    "all of the verify forward": (at_window("forward", behind=True), 2),
    "its first block": (at_block(0), 3),
    "behind its first block": (at_block(0, behind=True), 3),
    "its first experts": (at_block(1), 3),
    "its third layer's experts": (at_block(5), 2),
    "its last block": (at_block(7), 4),
    "judging": (at_window("judge"), 3),
    "accepting": (at_window("_accept"), 2),
    "the copy out": (at_report, 3),
}


@cache
def undisturbed(temperature: float) -> Run:
    return run(engine(tiny(), mtp_varlen=False), requests(temperature))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("point", POINTS)
def test_the_fuse(point: str, temperature: float) -> None:
    inject, at = POINTS[point]
    whole = undisturbed(temperature)
    e = engine(tiny(), mtp_varlen=False)
    error = ERRORS[at % len(ERRORS)]
    inject(e, at, error)
    found = run(e, requests(temperature))
    assert found.tokens() == whole.tokens()
    assert found.bits() == whole.bits()
    assert all(r.error is None for r in found.results.values())
    assert [d.what for d in found.downgrades] == ["drafts off"]
    off = [r.chain_off is not None for r in found.records]
    assert any(off) and off == sorted(off)
    blown = off.index(True)
    assert found.records[blown].chain_off is not None and str(error).splitlines()[0] in found.records[blown].chain_off
    assert found.records[blown].downgrades
    assert all(r.drafts == 0 for r in found.records[blown + 1 :])
    assert all(reason == "fuse" for r in found.records[blown + 1 :] for L, reason in zip(r.L, r.reason) if L)
    assert e.downgrades


@pytest.mark.parametrize(("name", "behind"), [("lay", False), ("forward", False), ("forward", True), ("judge", False)])
def test_a_window_that_fails_while_it_also_reads_prompts(name: str, behind: bool) -> None:
    """Prompts begin again, a hit's too; pages and places of the prefix cache that were taken are given back."""
    stem, e = prompt(64, seed=9), engine(tiny(), mtp_varlen=False)
    late = [request(str(i), stem + prompt(70 + 64 * i, seed=i), max_tokens=9) for i in range(2)]
    first = request("first", [*stem, 5], max_tokens=40)
    alone = run(engine(tiny(), spec=0, prefix_cache=False), [first, *late])
    call = getattr(e.runner, name)

    def fails(of: LaidWindow | WindowPlan, *args: Any) -> Any:
        plan = of.plan if isinstance(of, LaidWindow) else of
        reads = [share for share in plan.busy if share.read]
        now = any(share.drafts for share in plan.busy) and len(reads) == 2 and e.fuse.why is None
        if now:
            assert all(share.captures and share.slot.found == 64 for share in reads)
        found = call(of, *args) if behind or not now else None
        if now:
            raise ERRORS[0]
        return found

    def between(e: Engine, window: int) -> None:
        if window == 2:
            for r in late:
                e.submit(r)

    setattr(e.runner, name, fails)
    found = run(e, [first], between)
    assert e.fuse.why is not None
    assert (found.tokens(), found.bits()) == (alone.tokens(), alone.bits())
    assert e.prefix is not None
    assert len(e.prefix.free) + len(e.prefix.entries) == e.runner.buffers.sizes.places
    while e.prefix.evict():
        pass
    assert len(e.kv.pages.free) == e.kv.pages.count - 1


def test_other_errors_are_not_swallowed() -> None:
    e = engine(tiny(), mtp_varlen=False)
    at_call(the_runner, "_head")(e, 3, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        run(e, requests(0.0))


def test_memory_that_stays_out_is_one_clear_line() -> None:
    e = engine(tiny(), mtp_varlen=False)

    def full(layout: Any) -> Any:
        raise ERRORS[0]

    def between(e: Engine, window: int) -> None:
        e.runner.forward = full  # type: ignore[method-assign]

    with pytest.raises(StrataError, match="memory ran out in a window without drafts"):
        run(e, requests(0.0), between)
    assert [d.split(":")[0] for d in e.downgrades] == ["drafts off"]


def test_memory_that_runs_out_without_drafts_is_one_clear_line() -> None:
    e = engine(tiny(), spec=0)
    e.runner.forward = failing(e.runner.forward, 3, ERRORS[1])  # type: ignore[method-assign]
    with pytest.raises(StrataError, match=r"memory ran out in a window without drafts.*lower --ctx"):
        run(e, requests(0.0))
