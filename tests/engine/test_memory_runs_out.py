"""Memory that runs out at any allocation: of the builder, an error that says what takes how much; of a step, an error or
a window without drafts, and no token lost.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from strata_cli.config import EngineConfig
from strata_cli.engine.build import load
from strata_cli.engine.types import Request
from strata_cli.errors import FAILED, StrataError
from strata_cli.model.config import load_config
from tests.support.engine import Run, engine, prompt, request, run, tiny


class Memory(TorchDispatchMode):
    """Runs out at the `last`-th allocation, once; torch's on the CPU and numpy's have an error each. `asked`: so far."""

    def __init__(self, last: int = 0) -> None:
        super().__init__()
        self.last, self.asked = last, 0

    def ask(self, error: Exception) -> None:
        self.asked += 1
        if self.asked == self.last:
            raise error

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func._schema.is_mutable and not func.is_view:  # it returns something new
            self.ask(RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"))
        return func(*args, **(kwargs or {}))


@contextmanager
def running_out(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    zeros = np.zeros

    def asked(*args: Any, **kwargs: Any) -> Any:
        memory.ask(MemoryError("Unable to allocate 9 bytes"))
        return zeros(*args, **kwargs)

    with monkeypatch.context() as patched, memory:
        patched.setattr(np, "zeros", asked)
        yield


def build(**settings: Any) -> None:
    directory = tiny("one-of-each", quant="int4-g32")
    config = EngineConfig(device="cpu", accept="rejection", draft_vocab=50, **settings)
    load(directory, load_config(directory), config).engine(config, ())


def test_every_allocation_of_the_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that it ran out, quotes the largest parts, and what makes them smaller."""
    build()  # what is made once a process
    whole = Memory()
    with running_out(whole, monkeypatch):
        build()
    assert whole.asked > 40
    for last in range(1, whole.asked + 1):
        with pytest.raises(StrataError) as caught, running_out(Memory(last), monkeypatch):
            build()
        assert caught.value.what.startswith("memory ran out while loading: "), (last, caught.value.what)
        assert "largest: " in caught.value.what and "MiB" in caught.value.what
        assert "--" in caught.value.hint and caught.value.exit_code == FAILED
        assert "\n" not in str(caught.value)


def requests() -> list[Request]:
    manner: list[dict[str, Any]] = [{}, {"presence_penalty": 0.7, "logprobs": 2}, {"top_k": 9, "top_p": 0.9}]
    return [
        request(str(i), prompt(n, seed=i), temperature=0.8 * (i % 2), max_tokens=12, **manner[i % 3])
        for i, n in enumerate((3, 30, 70, 9, 140))
    ]


@cache
def alone() -> Run:
    return run(engine(tiny("one-of-each"), batch=1, spec=0, prefix_cache=False), requests())


def lives(last: int, monkeypatch: pytest.MonkeyPatch, between: Callable[..., Any] | None = None) -> tuple[int, Run]:
    """All requests, memory running out at an allocation of some step; the allocations there were."""
    e = engine(tiny("one-of-each"), mtp_varlen=False)
    e.runner.model.forwards = 0
    memory, step = Memory(last), e.step

    def limited() -> Any:
        with running_out(memory, monkeypatch):
            return step()

    e.step = limited  # type: ignore[method-assign]
    try:
        return memory.asked, run(e, requests(), between)
    finally:
        lives.asked = memory.asked  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(4))
def test_any_allocation_of_a_step(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = alone()
    lives(0, monkeypatch)
    asked = lives.asked  # type: ignore[attr-defined]
    chance, errors, fused = random.Random(seed), 0, 0
    for _ in range(25):
        try:
            _, found = lives(chance.randint(1, asked), monkeypatch)
        except StrataError as error:
            assert error.what.startswith("memory ran out") and error.hint
            errors += 1
            continue
        assert (found.tokens(), found.bits()) == (expected.tokens(), expected.bits())
        fused += any(r.chain_off for r in found.records)
    assert fused > errors  # most of the work is drafting and verifying drafts
