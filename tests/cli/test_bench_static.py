"""Static batching: nobody joins until all that run are done, and nobody is forgotten."""

from itertools import pairwise
from pathlib import Path

import pytest

from strata_cli.bench.cases import Case
from strata_cli.bench.measure import run_here
from strata_cli.config import EngineConfig, SamplingParams
from strata_cli.session import Prompt, load_model, read_checkpoint
from tests.support.tiny import make_tiny

LENGTHS = (3, 9, 4, 12, 6)  # completion tokens


@pytest.mark.parametrize("arrivals", [None, [0.0, 0.0, 0.01, 0.02, 0.03]])
@pytest.mark.parametrize("static", [False, True])
def test_every_request_is_done(tmp_path: Path, static: bool, arrivals: list[float] | None) -> None:
    config = EngineConfig(batch=2, spec=2, mtp_varlen=False)
    checkpoint = read_checkpoint(str(make_tiny(tmp_path / "model", eos_token_id=None)), config)
    cases = [
        Case(str(i), Prompt([5 + i, 9, 7]), SamplingParams(temperature=0.0, max_tokens=n, seed=1))
        for i, n in enumerate(LENGTHS)
    ]
    engine = load_model(checkpoint, config).engine(config)
    running: list[set[str]] = []
    step = engine.step

    def watched() -> list:
        events = step()
        running.append({seat.life.request.id for seat in engine.seats if seat is not None})
        return events

    engine.step = watched  # type: ignore[method-assign]
    found = run_here(engine, checkpoint, cases, arrivals, static)
    assert {id: len(result.token_ids) for id, (_, result) in found.items()} == {
        str(i): n for i, n in enumerate(LENGTHS)
    }
    joined = any(before and after - before for before, after in pairwise(running))
    assert joined == (not static)
