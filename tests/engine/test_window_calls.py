"""What a window asks of torch: no number read back, nothing made of host data, and how many calls there are."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from strata_cli.demo import model_path
from strata_cli.engine.buffers import WindowBuffers
from strata_cli.engine.engine import Engine
from strata_cli.engine.types import Request, WindowDone
from strata_kernels.product import reference as products
from tests.support.engine import engine, loaded, prompt, request, run, tiny
from tests.support.toy_family import make_toy

READS = {"_local_scalar_dense", "item", "nonzero", "nonzero_static", "masked_select", "_unique", "_unique2"}
READS |= {"unique_dim", "unique_consecutive", "is_nonzero", "equal"}
HOST_DATA = {"lift_fresh", "lift_fresh_copy", "lift"}
COPIES = {"_to_copy", "copy_", "_copy_from", "copy"}
# Of a window of four slots with drafts, the demo model; 3,352 where windows were built on the host
MOST = {"fastest": 400, "specified": 1500}


class Strict(TorchDispatchMode):
    """Notes what would make a device wait for the host or the host for a device. Off inside the buffers' copies."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = False
        self.faults: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masked = name.startswith("index") and any(map(_is_mask, _flat(args[1:])))
        if not self.allowed and (masked or name in READS | HOST_DATA):
            self.faults[name] += 1
        found = func(*args, **(kwargs or {}))
        if not self.allowed and name in COPIES and len({t.device for t in _flat((args, found))}) > 1:
            self.faults[f"{name} across devices"] += 1
        return found

    def note(self, name: str) -> None:
        if not self.allowed:
            self.faults[name] += 1


def _flat(found: Any) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, dict):
        found = list(found.values())
    return [t for x in found for t in _flat(x)] if isinstance(found, list | tuple) else []


def _is_mask(tensor: torch.Tensor) -> bool:
    """Whether indexing with it counts its true elements, on the host."""
    return tensor.dtype in (torch.bool, torch.uint8)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Strict:
    """Beside what is dispatched, what torch does without telling: reading into Python lists, numpy, and back."""
    mode = Strict()

    def noting(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            # a CPU sibling's memory is the host's own: its view of it is no copy
            if _guarded[0] and not (name == "numpy" and sys._getframe(1).f_code.co_filename.endswith("cpu.py")):
                mode.note(name)
            return call(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    for name in ("tolist", "numpy", "item", "cpu", "cuda", "__array__", "__iter__"):
        noting(torch.Tensor, name)
    for name in ("tensor", "as_tensor", "asarray", "from_numpy", "frombuffer"):
        noting(torch, name)

    def allowing(name: str) -> None:
        call: Callable[..., Any] = getattr(WindowBuffers, name)

        def allowed(self: WindowBuffers, *args: Any) -> Any:
            before, mode.allowed = mode.allowed, True
            try:
                return call(self, *args)
            finally:
                mode.allowed = before

        monkeypatch.setattr(WindowBuffers, name, allowed)

    for name in ("upload", "download", "read_probabilities"):
        allowing(name)
    return mode


_guarded = [False]


@contextmanager
def guarding(mode: TorchDispatchMode) -> Iterator[None]:
    _guarded[0] = True
    try:
        with mode:
            yield
    finally:
        _guarded[0] = False


def guard(e: Engine, mode: TorchDispatchMode) -> None:
    """Draft, verify and commit run under the mode."""
    windows, commit = e.windows.run, e._commit

    def run_window(*args: Any) -> Any:
        with guarding(mode):
            return windows(*args)

    def commit_window(*args: Any) -> Any:
        with guarding(mode):
            return commit(*args)

    e.windows.run, e._commit = run_window, commit_window  # type: ignore[method-assign]


MANNERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8},
    "penalties": {"top_p": 0.8, "repetition_penalty": 1.2, "presence_penalty": 0.4, "logit_bias": ((3, 1.0),)},
    "all of it": {"temperature": 0.7, "top_k": 9, "top_p": 0.9, "min_p": 0.02, "frequency_penalty": 0.3},
}
WAYS: dict[str, dict[str, Any]] = {
    "fixed": {"mtp_varlen": False},
    "adaptive": {},
    "no drafts": {"spec": 0},
    "threshold": {"spec_min_p": 0.3},
    "rejection": {"accept": "rejection"},
    "n-grams": {"drafter": "ngram"},
    "chunks": {"prefill_chunk": 64, "max_batched_tokens": 64},
}


@pytest.mark.parametrize("reads_free", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_no_number_is_read_and_nothing_made_of_host_data(
    way: str, reads_free: bool, siblings: str, strict: Strict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request in its own manner, four at a time; both ways to ask for an early stop."""
    # as on a device, where the choice of experts is the device's own
    monkeypatch.setattr(products, "_users", lambda chosen, experts: ((e, slice(None)) for e in range(experts)))
    e = engine(tiny(), **WAYS[way])
    e.runner.reads_free = reads_free
    guard(e, strict)
    requests = [
        request(f"{name} {i}", prompt(5 + 40 * i, seed=i), **manner)
        for i in range(2)
        for name, manner in MANNERS.items()
    ]
    found = run(e, requests)
    assert len(found.results) == 8
    # the tests' watch hashes the rows of every committed token, which reads them
    watched = sum(len(r.token_ids) for r in found.results.values())
    assert strict.faults.pop("numpy", 0) == watched
    assert not strict.faults


def test_the_guard_notices(strict: Strict) -> None:
    x = torch.arange(4)
    with guarding(strict):
        for fault in (
            lambda: int(x[0]),
            lambda: bool(x[0] > 1),
            lambda: x.tolist(),
            lambda: x.nonzero(),
            lambda: x[x > 1],
            lambda: x.unique(),
            lambda: torch.tensor([1, 2]),
            lambda: torch.from_numpy(__import__("numpy").zeros(3)),
            lambda: x[[0, 1]],
            lambda: x.to("meta"),
        ):
            before = strict.faults.total()
            fault()
            assert strict.faults.total() > before
        before = strict.faults.total()
        _ = x[1:] + x[torch.arange(3)], torch.zeros(3), x.index_select(0, x)
        assert strict.faults.total() == before


class Calls(TorchDispatchMode):
    """Counts what is dispatched, views included, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def calls(e: Engine) -> dict[str, list[int]]:
    """Calls of each step, all of it counted, by the window's L."""
    found: dict[str, list[int]] = {}
    while e.has_work:
        with Calls() as counted:
            events = e.step()
        for event in events:
            if isinstance(event, WindowDone):
                found.setdefault(str(event.record.L), []).append(counted.counts.total())
    return found


@pytest.mark.parametrize("blocks", MOST)
@pytest.mark.parametrize("manner", [{}, {"temperature": 0.8}, {"temperature": 0.8, "repetition_penalty": 1.1}], ids=str)
def test_the_calls_of_a_window_with_drafts(manner: dict[str, Any], blocks: str, compiled: Callable[..., None]) -> None:
    """Four slots of the demo model, each with four drafts. The first of a size makes its views; the others use them.

    With the kernels that the table chooses, and with layers as they are specified, over compiled products.
    """
    if blocks == "specified":
        compiled("product", "head")
    e, vocab = engine(model_path(), mtp_varlen=False), loaded(model_path()).model.vocab_size
    for i in range(4):
        e.submit(request(str(i), prompt(9 + 30 * i, seed=i, vocab=vocab), max_tokens=60, **manner))
    _, *others = calls(e)["[5, 5, 5, 5]"]
    assert len(others) > 5
    assert max(others) <= MOST[blocks]


def test_the_calls_of_a_window_do_not_grow_with_its_slots() -> None:
    """One forward for all rows: a loop over slots around anything would show."""

    def of(slots: int) -> int:
        e = engine(tiny(), batch=slots, mtp_varlen=False, prefix_cache=False)
        for i in range(slots):
            e.submit(request(str(i), prompt(5), max_tokens=40))  # one text: as many drafts hold in every slot
        return min(calls(e)[str([5] * slots)])  # others make views of a size that is new

    assert of(6) == of(2)


def test_a_family_without_recurrent_layers(strict: Strict, tmp_path: Any) -> None:
    e = engine(make_toy(tmp_path / "toy"), mtp_varlen=False)
    guard(e, strict)
    requests: list[Request] = [request(str(i), prompt(9 + 40 * i, seed=i), temperature=0.5 * i) for i in range(3)]
    found = run(e, requests)
    assert strict.faults.pop("numpy") == sum(len(r.token_ids) for r in found.results.values())
    assert not strict.faults
