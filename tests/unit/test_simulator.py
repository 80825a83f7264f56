"""The simulator drives the real planner, which holds its figures there (simulated time: the same everywhere)."""

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def sim() -> Iterator[ModuleType]:
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module("simulate_planner")
    sys.path.remove(str(EXAMPLES))


def rates(sim: ModuleType, *argv: str, **tuning: float) -> dict[str, float]:
    args = sim.parser().parse_args(["--tokens", "5000", *argv])
    args.tuning = replace(args.tuning, **tuning)
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


def test_telling_probabilities_help(sim: ModuleType) -> None:
    """Where a draft's own probability says much, rows that are settled by it beat rows that are not."""
    case = ["--workload", "differ", "--curve", "35b", "--confidence", "1", "--rows", "16"]
    assert rates(sim, *case)["plan_rows"] > 1.05 * rates(sim, *case, bins=0)["plan_rows"]


def test_a_giant_slot_that_comes_and_goes_costs_less_where_it_may_sit_out(sim: ModuleType) -> None:
    case = ["--workload", "giant", "--curve", "35b", "--per-ctx", "0.0005"]
    assert rates(sim, *case)["plan_rows"] > 1.2 * rates(sim, *case, max_missed=0)["plan_rows"]


def test_each_rule_is_off_alone_by_a_value_of_tuning(sim: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    ablation = sys.modules["simulation.ablation"]
    off = [set(values) for values in ablation.RULES.values()]
    assert all(len(values) == 1 for values in off)
    tuning = {name for values in off for name in values} - {"blind", "fair"}
    assert tuning <= set(sim.Tuning.__dataclass_fields__)
    args = sim.parser().parse_args(["--warmup", "100"])
    ablation.ablate(args, {"differ": {"workload": "differ", "tokens": 300, "seeds": 1}})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| rule | differ |" and len(lines) == 2 + len(ablation.RULES)


def test_prints_a_table(sim: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert sim.main(["--tokens", "300", "--warmup", "100", "--arrivals", "poisson", "--requests", "10"]) == 0
    out = capsys.readouterr().out
    assert "plan_rows" in out and "oracle" in out and "regret" in out
