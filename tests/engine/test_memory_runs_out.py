"""Memory that runs out at any allocation: of the builder, an error that says what takes how much; of a step, an error
or a window without drafts, and no token lost.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from strata_cli.config import EngineConfig
from strata_cli.engine.build import load
from strata_cli.engine.types import Request
from strata_cli.errors import FAILED, StrataError
from strata_cli.model.config import load_config
from tests.support.engine import Run, engine, prompt, request, run, tiny


class Memory(TorchDispatchMode):
    """Runs out once, at allocation number `last`; torch on the CPU and numpy have an error each. `asked`: by now."""

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


def lived(last: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Run | StrataError, int]:
    """All requests, memory running out at an allocation of some step; and the allocations there were."""
    e, memory = engine(tiny("one-of-each"), mtp_varlen=False), Memory(last)
    step = e.step

    def limited() -> Any:
        with running_out(memory, monkeypatch):
            return step()

    e.step = limited  # type: ignore[method-assign]
    try:
        return run(e, requests()), memory.asked
    except StrataError as error:
        return error, memory.asked


@pytest.mark.parametrize("seed", range(2))
def test_any_allocation_of_a_step(seed: int, siblings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(engine(tiny("one-of-each"), batch=1, spec=0, prefix_cache=False), requests())
    _, asked = lived(0, monkeypatch)
    chance, errors, fused = random.Random(seed), 0, 0
    for _ in range(20 if siblings == "fastest" else 8):
        found, _ = lived(chance.randint(1, asked), monkeypatch)
        if isinstance(found, StrataError):
            assert found.what.startswith("memory ran out") and found.hint
            errors += 1
        else:
            assert (found.tokens(), found.bits()) == (expected.tokens(), expected.bits())
            fused += any(r.chain_off for r in found.records)
    assert fused > errors  # most of the work is drafting and verifying drafts
