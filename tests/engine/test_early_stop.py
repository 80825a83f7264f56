"""How the early stop of chains is asked, a read a step or one at the end, changes no text, and at fixed L no draft."""

from typing import Any

import pytest

from tests.engine.test_equalities import base, requests
from tests.support.engine import Run, engine, run, tiny

THRESHOLDS = [0.1, 0.3, 0.6, 0.95]


def runs(reads_free: bool, temperature: float, **settings: Any) -> tuple[Run, int]:
    """And the forwards of the head."""
    e = engine(tiny(), **settings)
    e.runner.reads_free = reads_free
    found = run(e, requests(temperature))
    assert e.runner.head is not None
    return found, e.runner.head.forwards


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("min_p", THRESHOLDS)
@pytest.mark.parametrize("accept", ["coupled", "rejection"])
def test_fixed_chains_that_end_early(accept: str, min_p: float, temperature: float) -> None:
    settings: dict[str, Any] = {"mtp_varlen": False, "spec_min_p": min_p, "accept": accept}
    (each, few), (once, many) = (runs(free, temperature, **settings) for free in (True, False))
    assert each.tokens() == once.tokens()
    assert each.bits() == once.bits()
    assert each.drafting() == once.drafting()
    assert [(r.L, r.keeps, r.reason, r.verified) for r in each.records] == [
        (r.L, r.keeps, r.reason, r.verified) for r in once.records
    ]
    assert few <= many  # reading each step saves what no chain is left for
    if min_p >= 0.6:
        assert few < many
    if accept == "coupled" or temperature == 0:
        assert (each.tokens(), each.bits()) == (base("plain", 0.8, temperature).tokens(), each.bits())


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("settings", [{}, {"spec_min_p": 0.3}, {"plan": "uniform"}, {"rows": 7}], ids=str)
def test_adaptive_chains(settings: dict[str, Any], temperature: float) -> None:
    expected = base("plain", 0.8, temperature)
    for reads_free in (True, False):
        found, _ = runs(reads_free, temperature, **settings)
        assert (found.tokens(), found.bits()) == (expected.tokens(), expected.bits())


def test_no_early_stop_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fixed L and no threshold nothing is read between draft and verify; with one, once where reads are dear."""
    counts = {}
    for name, settings, reads_free in (
        ("none", {}, True),
        ("each", {"spec_min_p": 0.1}, True),
        ("once", {"spec_min_p": 0.1}, False),
    ):
        e = engine(tiny(), mtp_varlen=False, **settings)
        e.runner.reads_free, reads = reads_free, [0]
        call = e.runner.buffers.read_probabilities

        def read(call: Any = call, reads: list[int] = reads) -> Any:
            reads[0] += 1
            return call()

        monkeypatch.setattr(e.runner.buffers, "read_probabilities", read)
        found = run(e, requests(0.0))
        drafting = sum(r.drafts > 0 or "acceptance" in r.reason for r in found.records)
        counts[name] = reads[0], drafting
    assert counts["none"][0] == 0
    assert counts["once"][0] == counts["once"][1]
    assert counts["each"][0] > counts["each"][1]
