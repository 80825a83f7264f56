"""`strata bench` on a random checkpoint: what it runs, in which order, what it says. No time is asserted."""

import json
import sys
from pathlib import Path

import pytest

from strata_cli import app
from tests.support.tiny import make_tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny") / "model", seed=3, agree=0.8, eos_token_id=None)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "odd.jsonl"
    lines = [{"id": f"p{n}", "prompt": [(7 * i + n) % 131 for i in range(n)], "max_tokens": 16} for n in (5, 9, 70)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def bench(capfd: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    code = app.run(["bench", *map(str, args)])
    return code, *capfd.readouterr()


def test_default_arms_alternate_and_agree(model, prompts, tmp_path, capfd):
    report = tmp_path / "r.md"
    code, out, err = bench(capfd, prompts, "-m", model, "--rounds", 2, "--json", "--report", report)
    assert code == 0, err
    runs = [line.split(": ")[2] for line in err.splitlines() if ": round " in line]
    assert runs == ["no drafts", "fixed", "adaptive", "adaptive", "fixed", "no drafts"]
    (kind,) = json.loads(out)["kinds"]
    assert (kind["kind"], kind["requests"]) == ("odd", 3)
    none, fixed, adaptive = kind["arms"]
    assert [a["tokens"] for a in kind["arms"]] == [48, 48, 48]
    assert none["texts"] == fixed["texts"] == adaptive["texts"]
    assert [other["different"] for other in kind["same_tokens"]] == [[], []]
    assert none["spec"]["drafted"] == 0
    assert fixed["spec"]["accepted"] > 0
    assert all(len(a["tok_s"]) == 2 and a["steady"] for a in kind["arms"])
    assert len(kind["ratios"]) == 3
    page = report.read_text()
    assert "| fixed |" in page
    assert "tokens of adaptive and no drafts are the same" in page


def test_other_sampling_is_told(model, prompts, capfd):
    args = ("--arm", "cold: --temperature 0", "--arm", "hot: --temperature 5", "--rounds", 1, "-q")
    code, out, err = bench(capfd, prompts, "-m", model, *args)
    assert code == 0, err
    assert "tokens of hot and cold differ in 3 of 3 requests, the first p5" in out


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_replayed_drafts_are_as_right_as_asked_and_the_text_stays(model, prompts, capfd, rate):
    args = ("--arm", "none: --spec 0", "--arm", "replay: --no-mtp-varlen", "--replay-acceptance", rate, "--rounds", 1)
    code, out, err = bench(capfd, prompts, "-m", model, *args, "--temperature", 0.8, "--json")
    assert code == 0, err
    report = json.loads(out)
    none, replay = report["kinds"][0]["arms"]
    assert replay["spec"]["acceptance_rate"] == rate
    assert replay["texts"] == none["texts"]
    assert "replayed" in report["notes"][0]


def test_a_saved_report_and_another_installation(model, prompts, tmp_path, capfd, monkeypatch):
    code, out, err = bench(capfd, prompts, "-m", model, "--rounds", 1, "--json", "--arm", "before: --spec 0")
    assert code == 0, err
    saved, other = tmp_path / "saved.json", tmp_path / "strata"
    saved.write_text(out)
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m strata_cli.app "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'kernels'}")
    arms = ("--arm", f"before: @{saved}", "--arm", f"other: !{other} --spec 2", "--arm", "here: --spec 2")
    code, out, err = bench(capfd, prompts, "-m", model, "--rounds", 1, "--json", *arms)
    assert code == 0, err
    (kind,) = json.loads(out)["kinds"]
    before, theirs, ours = kind["arms"]
    assert before["texts"] == theirs["texts"] == ours["texts"]
    assert before["saved"] == str(saved)
    assert theirs["tokens"] == 48
    assert theirs["spec"]["verified"] > 0
    assert [pair["low"] is None for pair in kind["ratios"]] == [True, True, False]


def test_a_trace_joining_and_static(model, prompts, tmp_path, capfd):
    trace = tmp_path / "t.csv"
    rows = [(0.0, 5, 4), (0.001, 9, 30), (0.002, 2, 3), (0.003, 7, 400), (0.02, 6, 5)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{t},{p},{g}\n" for t, p, g in rows))
    args = ("--trace", trace, "--ctx", 100, "--batch", 2, "--rounds", 1, "--json")
    code, out, err = bench(capfd, prompts, "-m", model, *args, "--arm", "joining:", "--arm", "static: --static")
    assert code == 0, err
    report = json.loads(out)
    (kind,) = report["kinds"]
    joining, static = kind["arms"]
    assert joining["tokens"] == static["tokens"] == 4 + 30 + 3 + 50 + 5
    assert joining["texts"] == static["texts"]
    assert report["notes"] == ["1 of 5 requests of the trace clipped to the context of 100 tokens"]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("--arm", "a: --sepc 0"), "arm 'a'"),
        (("--rounds", 0), "--rounds"),
        (("--replay-acceptance", 1.5), "--replay-acceptance 1.5"),
        (("--replay-acceptance", 0.5, "--accept", "rejection"), "--accept coupled"),
        (("--sweep-batch", "1,x"), "--sweep-batch 1,x"),
        (("--arm", "a: @nowhere.json", "--arm", "b:"), "nowhere.json"),
        (("--arm", "a: !/nowhere/strata"), "/nowhere/strata"),
        (("--report", "/nowhere/r.md"), "/nowhere/r.md"),
        (("--trace", "/nowhere/t.csv"), "/nowhere/t.csv"),
        (("nowhere.jsonl",), "nowhere.jsonl"),
    ],
)
def test_bad_input_is_refused(model, capfd, args, named):
    code, out, err = bench(capfd, "-m", model, *args)
    assert (code, out) == (2, "")
    assert named in err
