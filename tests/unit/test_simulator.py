"""The simulator drives the real planner, which holds its figures there (simulated time: the same everywhere)."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def sim() -> Iterator[ModuleType]:
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module("simulate_planner")
    sys.path.remove(str(EXAMPLES))


def rates(sim: ModuleType, *argv: str) -> dict[str, float]:
    args = sim.parser().parse_args(["--tokens", "5000", *argv])
    return {name: runs[0].per_s for name, runs in sim.simulate(args).items()}


@pytest.mark.parametrize("curve", [["--curve", "dense"], ["--curve", "35b", "--draft-step", "0.65"]])
@pytest.mark.parametrize("workload, regret", [("differ", 0.03), ("changing", 0.06)])
def test_near_the_oracle_and_never_behind_the_best_fixed_L(
    sim: ModuleType, curve: list[str], workload: str, regret: float
) -> None:
    rate = rates(sim, "--workload", workload, "--rows", "12", *curve)
    fixed = max(r for name, r in rate.items() if name.startswith("fixed"))
    assert rate["plan_rows"] >= rate["oracle"] * (1 - regret)
    assert rate["plan_rows"] >= fixed * 0.98
    assert rate["plan_rows"] >= rate["fixed L=1"] * 0.98


def test_unlike_slots_gain_over_the_best_fixed_L(sim: ModuleType) -> None:
    rate = rates(sim, "--workload", "differ", "--rows", "16")
    assert rate["plan_rows"] >= 1.03 * max(r for name, r in rate.items() if name.startswith("fixed"))


def test_plain_decoding_costs_what_the_curve_says(sim: ModuleType) -> None:
    """L = 1, four slots: 4 tokens in 30 + .05 x 4 ms."""
    assert rates(sim, "--workload", "differ")["fixed L=1"] == pytest.approx(4 / (30 + 0.05 * 4) * 1000)


def test_a_curve_from_a_file_and_arrivals_from_a_trace(sim: ModuleType, tmp_path: Path) -> None:
    curve, trace = tmp_path / "curve.json", tmp_path / "trace.csv"
    curve.write_text(json.dumps({"verify_ms": {"4": 10, "8": 20}, "step_ms": 1, "draft_ms": 0.5}))
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:17:0{i}.9799600,100,{20 + i}\n" for i in range(8))
    )
    args = sim.parser().parse_args(["--curve", str(curve), "--arrivals", str(trace), "--rows", "8"])
    for runs in sim.simulate(args).values():
        assert runs[0].tokens == sum(20 + i for i in range(8)), "every policy serves every token"
        assert len(runs[0].latencies_s) == 8


def test_telling_probabilities_help(sim: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a draft's own probability says much, chains that stop early beat chains that do not."""
    case = ["--workload", "differ", "--curve", "35b", "--confidence", "1", "--rows", "16"]
    stopping, go_on = rates(sim, *case)["plan_rows"], sim.Planner.go_on
    monkeypatch.setattr(sim.Planner, "go_on", lambda self, depth, made: go_on(self, depth, dict.fromkeys(made)))
    assert stopping > 1.05 * rates(sim, *case)["plan_rows"]


def test_prints_a_table(sim: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert sim.main(["--tokens", "300", "--warmup", "100", "--arrivals", "poisson", "--requests", "10"]) == 0
    out = capsys.readouterr().out
    assert "plan_rows" in out and "oracle" in out and "regret" in out
