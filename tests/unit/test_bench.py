"""The parts of a benchmark that need no model: arms, order, figures, ratios, traces."""

from pathlib import Path

import pytest

from strata_cli.bench.arms import parse_arms
from strata_cli.bench.cases import Case
from strata_cli.bench.figures import ArmFigures, RunFigures, order, ratios, same_tokens
from strata_cli.bench.measure import figures, from_records
from strata_cli.bench.trace import Arrival, fit, read_trace, trace_cases
from strata_cli.config import SamplingParams
from strata_cli.engine.types import Result, SpecStats, Timings
from strata_cli.errors import UsageError
from strata_cli.session import Prompt
from strata_cli.settings import resolve


@pytest.fixture(autouse=True)
def _no_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


BASE = resolve({"batch": 2, "temperature": 0.5}, {}, Path("none.toml"))


def test_an_arms_flags_stand_over_those_of_the_command():
    plain, wide = parse_arms(["plain:", "wide: --batch 8 --spec 1 --no-mtp-varlen --static"], BASE, False, [])
    assert (plain.settings.engine.batch, plain.settings.engine.spec, plain.static) == (2, 4, False)
    assert (wide.settings.engine.batch, wide.settings.engine.spec, wide.static) == (8, 1, True)
    assert wide.settings.engine.mtp_varlen is False
    assert plain.settings.sampling == wide.settings.sampling == {"temperature": 0.5}


def test_static_for_all_but_one():
    arms = parse_arms(["a:", "b: --no-static"], BASE, True, [])
    assert [a.static for a in arms] == [True, False]


def test_a_sweep_multiplies_the_arms():
    arms = parse_arms(["a:", "b: --spec 0"], BASE, False, [1, 4])
    assert [(a.name, a.settings.engine.batch, a.settings.engine.spec) for a in arms] == [
        ("a x1", 1, 4),
        ("a x4", 4, 4),
        ("b x1", 1, 0),
        ("b x4", 4, 0),
    ]


def test_reports_and_other_installations():
    saved, other, _ = parse_arms(["s: @r.json", "o: !/bin/sh --spec 2", "new:"], BASE, False, [])
    assert saved.report == Path("r.json")
    assert other.command == ("/bin/sh", "--spec", "2")


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        (["--spec 0"], "has no name"),
        (["a: --sepc 0"], "--sepc"),
        (["a: --spec 99"], "spec = 99"),
        (["a: --rounds 3"], "--rounds"),
        (["a: --spec 'x"], "quotation"),
        (["a:", "a: --spec 0"], "two arms"),
        (["a: @r.json"], "nothing to measure"),
        (["a: !"], "no path"),
        (["a: !/nowhere/strata", "b:"], "/nowhere/strata cannot be run"),
    ],
)
def test_bad_arms_are_refused(texts, named):
    with pytest.raises(UsageError) as caught:
        parse_arms(texts, BASE, False, [])
    assert named in str(caught.value)


def test_order_alternates():
    assert order(2, 4) == [[0, 1], [1, 0], [0, 1], [1, 0]]
    assert order(3, 2) == [[0, 1, 2], [2, 1, 0]]


def result(id: str, tokens: list[int], ttft_ms: float, decode_ms: float) -> Result:
    timings = Timings(ttft_ms=ttft_ms, decode_ms=decode_ms, decode_tok_s=(len(tokens) - 1) / decode_ms * 1000)
    return Result(id, tokens, "length", 3, 0, 1, timings, SpecStats())


def test_wall_time_ends_when_the_last_token_leaves():
    found = {
        "a": (0.0, result("a", [1, 2, 3], 500, 1000)),  # done at 1.5 s
        "b": (2.0, result("b", [4, 5], 300, 200)),  # comes at 2 s, done at 2.5 s
    }
    run = figures(found, ["x: y"])
    assert run.wall_s == pytest.approx(2.5)
    assert run.tokens == 5
    assert run.tok_s == pytest.approx(2.0)
    assert run.ttft_ms == [500, 300]
    assert run.decode_tok_s == pytest.approx([2.0, 5.0])
    assert run.texts["a"] != run.texts["b"]


def arm(name: str, walls: list[float], text: str = "t") -> dict:
    runs = [RunFigures(w, 100, [10.0], [50.0], SpecStats(), {"a": text, "b": "u"}) for w in walls]
    return ArmFigures(name, "", runs).as_json()


def test_ratios_are_of_the_same_round():
    """The second round was slow for both: medians alone would say 1.6, the pairs say 2."""
    slow, fast = arm("slow", [2.0, 20.0, 2.0, 20.0]), arm("fast", [1.0, 10.0, 1.0, 8.0])
    (pair,) = ratios([slow, fast])
    assert (pair["arm"], pair["over"]) == ("fast", "slow")
    assert (pair["median"], pair["low"], pair["high"]) == (2.0, 2.0, 2.5)


def test_a_saved_arm_is_no_pair():
    saved = {**arm("saved", [4.0]), "saved": "r.json"}
    (pair,) = ratios([saved, arm("new", [2.0, 1.0, 2.0])])
    assert (pair["median"], pair["low"], pair["high"]) == (2.0, None, None)


def test_texts_are_compared_by_request():
    (other,) = same_tokens([arm("a", [1.0]), arm("b", [1.0], text="other")])
    assert other == {"arm": "b", "requests": 2, "different": ["a"]}


def test_an_arm_whose_rounds_differ_is_not_steady():
    runs = [RunFigures(1.0, 1, [], [], SpecStats(), {"a": text}) for text in ("x", "y")]
    assert ArmFigures("n", "", runs).as_json()["steady"] is False
    assert arm("n", [1.0, 2.0])["steady"] is True


def test_records_of_an_older_engine_have_no_timings():
    records = [{"custom_id": "a", "token_ids": [1, 2, 3, 4]}]
    run = from_records(records, [{"step_ms": 300.0}, {"step_ms": 500.0}])
    assert (run.wall_s, run.tokens, run.tok_s) == (0.8, 4, 5.0)
    timed = [{**records[0], "timings": {"ttft_ms": 100.0, "decode_ms": 300.0, "decode_tok_s": 10.0}}]
    windows = [{"step_ms": 1.0, "L": [3, 0], "keeps": [2, 1], "drafted_by": [2, 0], "accepted_by": [1, 0]}]
    run = from_records(timed, windows)
    assert run.wall_s == pytest.approx(0.4)
    assert (run.spec.windows, run.spec.verified, run.spec.accepted, run.spec.keeps) == (1, 2, 1, 2)


TRACE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.6805910,5000,3000\n"
    "2023-11-16 18:15:52.6805900,7,0\n"
)


def test_a_trace_is_read_and_scaled(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text(TRACE)
    arrivals = read_trace(file, 10, 0.5)
    assert [a.at_s for a in arrivals] == pytest.approx([0.0, 2.0, 3.0], abs=1e-5)
    assert [(a.prompt_tokens, a.new_tokens) for a in arrivals] == [(374, 44), (5000, 3000), (7, 1)]
    assert len(read_trace(file, 2, 1.0)) == 2


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("A,B\n1,2\n", "no column TIMESTAMP"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n0,x,1\n", "t.csv:2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
    ],
)
def test_a_bad_trace_is_refused(tmp_path, text, named):
    file = tmp_path / "t.csv"
    file.write_text(text)
    with pytest.raises(UsageError, match=named):
        read_trace(file, 10, 1.0)


def test_lengths_are_clipped_to_the_context():
    fitted, clipped = fit([Arrival(0, 374, 44), Arrival(1, 5000, 3000), Arrival(2, 1000, 10)], 512)
    assert [(a.prompt_tokens, a.new_tokens) for a in fitted] == [(374, 44), (256, 256), (502, 10)]
    assert clipped == 2


def test_cases_of_a_trace_have_its_lengths():
    like = [Case("x", Prompt([1, 2, 3]), SamplingParams(seed=5, stop=("a",))), Case("y", Prompt([4]), SamplingParams())]
    first, second = trace_cases([Arrival(0, 9, 4), Arrival(1, 2, 7)], like)
    assert (len(first.prompt.ids), first.params.max_tokens) == (9, 4)
    assert (len(second.prompt.ids), second.params.max_tokens) == (2, 7)
    assert set(first.prompt.ids) == {1, 2, 3, 4}
    assert first.params.ignore_eos
    assert first.params.stop == ()
