"""Engines on tiny checkpoints, for tests: results, records and the hash of every committed row come out.

`ByHand` runs windows that a test writes itself through an engine's model; `draft` asks its drafter alone.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from strata_cli.config import EngineConfig, SamplingParams
from strata_cli.engine.build import Loaded, load
from strata_cli.engine.engine import Engine
from strata_cli.engine.life import Life, Slot
from strata_cli.engine.record import StepRecord
from strata_cli.engine.types import Downgrade, Finished, Request, Result, Started, WindowDone
from strata_cli.engine.window import Share
from strata_cli.model.config import load_config
from strata_kernels.head.pool import Draws
from strata_kernels.window import Segment
from tests.support.tiny import make_tiny


@cache
def tiny(shape: str = "plain", seed: int = 0, agree: float = 0.8, **overrides: Any) -> Path:
    """A random checkpoint, made once a session; no token ends a text."""
    directory = Path(mkdtemp(prefix="strata-tiny-"))
    return make_tiny(directory, seed, shape=shape, agree=agree, eos_token_id=None, **overrides)


@cache
def loaded(directory: Path) -> Loaded:
    """A checkpoint's weights on the CPU."""
    return load(directory, load_config(directory), EngineConfig(device="cpu"))


def engine(directory: Path, *, eos: Sequence[int] = (), pages: int | None = None, **settings: Any) -> Engine:
    """An engine with these EngineConfig settings around the checkpoint's weights."""
    return loaded(directory).engine(EngineConfig(**{"device": "cpu", **settings}), eos, pages=pages)


def set_clock(engine: Engine, clock: Callable[[], float]) -> None:
    """Let the engine read this clock, in seconds, from now on."""
    engine.clock = engine.seating.clock = clock


@dataclass
class Run:
    """What came of some requests. `hashes[id]`: of the logits rows of its committed tokens, by position. `started`: how
    often each took a slot.
    """

    results: dict[str, Result] = field(default_factory=dict)
    records: list[StepRecord] = field(default_factory=list)
    downgrades: list[Downgrade] = field(default_factory=list)
    hashes: dict[str, list[bytes]] = field(default_factory=dict)
    started: Counter[str] = field(default_factory=Counter)

    def tokens(self, *ids: str) -> list[list[int]]:
        return [self.results[i].token_ids for i in ids or sorted(self.results)]

    def bits(self, *ids: str) -> list[list[bytes]]:
        return [self.hashes[i] for i in ids or sorted(self.results)]

    def drafting(self, *ids: str) -> list[tuple[int, int, list[int], list[int]]]:
        """Windows, drafts, and counts by position: what must be equal at fixed L."""
        specs = [self.results[i].spec for i in ids or sorted(self.results)]
        return [(s.windows, s.drafted, s.verified_at, s.accepted_at) for s in specs]


def run(
    engine: Engine, requests: Sequence[Request], between: Callable[[Engine, int], None] | None = None, limit: int = 5000
) -> Run:
    """Submit all requests and step until nothing is left; `between(engine, window)` is called after every window."""
    found = Run()

    def watch(request: str, position: int, row: torch.Tensor) -> None:
        found.hashes.setdefault(request, []).append(hashlib.sha256(row.numpy().tobytes()).digest())

    engine.judge.watch = watch
    for request in requests:
        engine.submit(request)
    steps = 0
    while engine.has_work:
        steps += 1
        assert steps < limit, "the engine does not come to an end"
        for event in engine.step():
            if isinstance(event, Finished):
                found.results[event.request_id] = event.result
            elif isinstance(event, WindowDone):
                found.records.append(event.record)
            elif isinstance(event, Started):
                found.started[event.request_id] += 1
            elif isinstance(event, Downgrade):
                found.downgrades.append(event)
        if between is not None:
            between(engine, len(found.records))
    for request_id, result in found.results.items():
        add_up(result, found.records)
        assert len(found.hashes.get(request_id, [])) == len(result.token_ids), "a row for every committed token"
    return found


def add_up(result: Result, records: Sequence[StepRecord]) -> None:
    """What a result says of itself is the sum of what its windows say. Holds in every test run."""
    sums: Counter[str] = Counter()
    for r in records:
        if result.request_id in r.request:
            i = r.request.index(result.request_id)
            counts = {"keeps": r.keeps[i], "windows": int(r.L[i] > 0), "drafted": max(r.L[i] - 1, 0)}
            sums.update({**counts, "verified": r.drafted_by[i], "accepted": r.accepted_by[i]})
            sums["first"] += r.keeps[i] if not r.L[i] else 0
    spec = result.spec
    assert sums["keeps"] == len(result.token_ids)
    assert sums["keeps"] - sums["first"] == spec.keeps
    assert (sums["verified"], sums["accepted"]) == (spec.verified, spec.accepted)
    assert (sum(spec.verified_at), sum(spec.accepted_at)) == (spec.verified, spec.accepted)
    assert all(a <= r <= v for a, r, v in zip(spec.accepted_at, spec.reached_at, spec.verified_at, strict=True))
    assert all(reached <= before for reached, before in zip(spec.reached_at[1:], spec.accepted_at))
    if result.error is None:  # a window that failed its request is none of its windows
        assert (sums["windows"], sums["drafted"]) == (spec.windows, spec.drafted)


def prompt(length: int, seed: int = 0, vocab: int = 131) -> list[int]:
    """Random token ids."""
    return torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def request(id: str, tokens: Sequence[int], **params: Any) -> Request:
    """Greedy unless told otherwise, 24 tokens."""
    return Request(id, list(tokens), SamplingParams(**{"temperature": 0.0, "max_tokens": 24, "seed": 1, **params}))


class ByHand:
    """The model of an engine over windows that a test writes: no scheduler, planner, drafter or draw takes part.

    Every slot has pages for `tokens` tokens; `lengths` of them are in the cache. `hidden` [n, D]: the rows of the last
    window after the final norm, by slot.
    """

    def __init__(self, engine: Engine, tokens: int):
        self.engine, self.lengths = engine, [0] * len(engine.seats)
        self.hidden: dict[int, torch.Tensor] = {}
        for index in range(len(engine.seats)):
            assert engine.kv.reserve(Slot(index, Life(request("by hand", [0]), 0, 0.0, 1, [0]), 1), tokens)

    def window(self, segments: Sequence[Segment]) -> dict[int, torch.Tensor]:
        """Scores [n, V] of all rows of each slot. Nothing is committed; prompt rows move the recurrent state."""
        runner, buffers = self.engine.runner, self.engine.runner.buffers
        ordered = sorted(segments, key=lambda s: s.certain)
        rows = buffers.lay(buffers.verify, ordered, runner.recurrent.replay)
        buffers.upload()
        every, nothing = torch.arange(rows.padded), torch.zeros(rows.padded, dtype=torch.int64)
        draws = Draws(every, nothing, nothing, nothing, nothing.view(-1, 1)[:, :0], rows.count)
        drawn = runner.model.draw(runner.model.forward(rows), draws, runner.sampler.pool)
        places = {s.slot: slice(end - s.rows, end) for s, end in zip(ordered, _ends(ordered))}
        self.hidden = {slot: drawn.hidden[place] for slot, place in places.items()}
        return {slot: drawn.scores[place] for slot, place in places.items()}

    def read(
        self, slots: Sequence[int], tokens: Sequence[int], captures: Sequence[tuple[int, int]] = ()
    ) -> torch.Tensor:
        """The same prompt rows for some slots, in one window; scores [n, V] of the first one's."""
        found = self.window([Segment(s, self.lengths[s], tokens, certain=True, captures=captures) for s in slots])
        for slot in slots:
            self.lengths[slot] += len(tokens)
            self.engine.runner.recurrent.commit(slot, 0)
        return found[slots[0]]

    def keep(self, slot: int, keeps: int) -> None:
        """The verdict: the first `keeps` decode rows of the slot's last window hold."""
        recurrent = self.engine.runner.recurrent
        self.lengths[slot] += keeps
        recurrent.pool.pending[:, slot] = keeps
        recurrent.commit(slot, keeps)

    def states(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Recurrent state and convolution columns [layers, S, ...] of all slots, kept rows included: the last slot,
        which must be a spare one, reads a row, and with it what is pending moves, as in any window.
        """
        self.window([Segment(len(self.lengths) - 1, 0, [0], certain=True)])
        pool = self.engine.runner.recurrent.pool
        return pool.state.clone(), pool.conv.clone()


def _ends(segments: Sequence[Segment]) -> list[int]:
    return list(accumulate(s.rows for s in segments))


def draft(engine: Engine, depths: dict[int, int], drafter: str = "mtp") -> dict[int, list[int]]:
    """Drafts by slot, `depths` of them at most: what the drafter leaves in the buffers, or knows by itself."""
    seats = {i: engine.seats[i] for i in depths}
    shares = [Share(s, L=depths[i] + 1, depth=depths[i], drafter=drafter) for i, s in seats.items() if s is not None]
    assert all(engine.seating.make_room(s.slot, s.L) for s in shares)
    proposal = engine.drafters[drafter].lay(shares, [])
    engine.runner.buffers.upload()
    made = engine.drafters[drafter].run(False).made
    chosen = engine.runner.buffers.chosen
    return {i: list(proposal.tokens.get(i, chosen[i, : m.drafts].tolist())) for i, m in made.items()}
