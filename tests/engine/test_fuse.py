"""Memory that runs out in the chain path: the window is undone, done again without drafts, and everybody is told."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from strata_cli.engine.engine import Engine
from strata_cli.engine.types import Request
from strata_cli.errors import StrataError
from tests.support.engine import engine, prompt, request, run, tiny

ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"
    ),
    MemoryError("no memory"),
]


def requests(temperature: float) -> list[Request]:
    sizes = (3, 30, 70, 9, 140, 12)
    return [request(str(i), prompt(n, seed=i), temperature=temperature, max_tokens=30) for i, n in enumerate(sizes)]


def failing(call: Callable[..., Any], at: int, error: Exception) -> Callable[..., Any]:
    """`call`, but its `at`-th call raises once."""
    count = [0]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if count[0] == at:
            raise error
        return call(*args, **kwargs)

    return wrapped


def drafting_only(e: Engine, call: Callable[..., Any], at: int, error: Exception) -> Callable[..., Any]:
    """Raises at the `at`-th call that belongs to a window with drafts."""
    count = [0]

    def wrapped(segments: Any, *args: Any) -> Any:
        if any(not s.certain and len(s.tokens) > 1 for s in segments):
            count[0] += 1
            if count[0] == at:
                raise error
        return call(segments, *args)

    return wrapped


def at_head(e: Engine, at: int, error: Exception) -> None:
    e.runner.head_forward = failing(e.runner.head_forward, at, error)  # type: ignore[method-assign]


def at_draft_logits(e: Engine, at: int, error: Exception) -> None:
    e.runner.draft_logits = failing(e.runner.draft_logits, at, error)  # type: ignore[method-assign]


def at_verify(e: Engine, at: int, error: Exception) -> None:
    e.runner.forward = drafting_only(e, e.runner.forward, at, error)  # type: ignore[method-assign]


def at_layer(layer: int) -> Callable[[Engine, int, Exception], None]:
    """Half way through the verify forward: the layers before it have replayed and held already."""

    def inject(e: Engine, at: int, error: Exception) -> None:
        experts = e.runner.model.layers[layer].experts
        armed = [False]
        call = type(experts).__call__

        def forward(segments: Any, original: Any = e.runner.forward) -> Any:
            armed[0] = any(not s.certain and len(s.tokens) > 1 for s in segments)
            return original(segments)

        count = [0]

        class Failing(type(experts)):  # type: ignore[misc]
            def __call__(self, *args: Any) -> Any:
                if armed[0]:
                    count[0] += 1
                    if count[0] == at:
                        raise error
                return call(self, *args)

        experts.__class__ = Failing
        e.runner.forward = forward  # type: ignore[method-assign]

    return inject


def at_sampling(e: Engine, at: int, error: Exception) -> None:
    sample = e.judge.sample
    count = [0]

    def wrapped(parts: Any, hidden: Any) -> None:
        if any(p.drafts for p in parts):
            count[0] += 1
            if count[0] == at:
                sample(parts, hidden)  # everything is drawn, then it fails: nothing of it may stay
                raise error
        sample(parts, hidden)

    e.judge.sample = wrapped  # type: ignore[method-assign]


POINTS = {
    "first pass of the head": (at_head, 1),
    "catching up": (at_head, 2),
    "a step of the chain": (at_head, 4),
    "a later chain": (at_head, 11),
    "the draft head's logits": (at_draft_logits, 3),
    "the verify forward": (at_verify, 2),
    "its first layer": (at_layer(0), 3),
    "its third layer": (at_layer(2), 2),
    "its last layer": (at_layer(3), 4),
    "sampling": (at_sampling, 3),
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("point", POINTS)
def test_the_fuse(point: str, temperature: float) -> None:
    inject, at = POINTS[point]
    whole = run(engine(tiny(), mtp_varlen=False), requests(temperature))
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


def test_other_errors_are_not_swallowed() -> None:
    e = engine(tiny(), mtp_varlen=False)
    at_head(e, 3, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        run(e, requests(0.0))


def test_memory_that_stays_out_is_one_clear_line() -> None:
    e = engine(tiny(), mtp_varlen=False)

    def full(segments: Any) -> Any:
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
