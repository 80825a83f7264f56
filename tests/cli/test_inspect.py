"""`strata inspect` as a command: its numbers against a recount, its options, its refusals."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import typer
from msgspec.structs import asdict
from typer.testing import CliRunner

from strata_cli.commands.inspect import inspect
from strata_cli.engine.record import StatsHeader, StepRecord, describe
from strata_cli.errors import USAGE, StrataError
from tests.scripted_engine import ScriptedEngine

ROOT = Path(__file__).parents[2]
app = typer.Typer()
app.command()(inspect)


@pytest.fixture(autouse=True)
def page(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns and no colours, whatever the tests are started under."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def call(*args: object, stdin: bytes | None = None) -> str:
    """What the command prints on stdout."""
    result = CliRunner().invoke(app, [str(a) for a in args], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def write(path: Path, engine: ScriptedEngine, **config: object) -> list[dict]:
    head = {"schema": 1, "model": "demo", "profile": "cpu", "config": {"batch": 4, **config}, "version": "0.1.0"}
    windows = [asdict(r) for r in engine.records()]
    path.write_text("\n".join(map(json.dumps, [head, *windows])) + "\n")
    return windows


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "steps.jsonl"


def recount(windows: list[dict]) -> dict:
    """The same figures from the definitions, one plain loop each."""
    cells = [
        {name: w[name][i] for name in ("slot", "prompt", "L", "keeps", "reason", "drafted_by", "accepted_by")}
        for w in windows
        for i in range(w["slots"])
    ]
    rows = [c for c in cells if c["L"] >= 1]
    positions = []
    for j in range(1, max((c["drafted_by"] for c in rows), default=0) + 1):
        verified = sum(c["drafted_by"] >= j for c in rows)
        reached = sum(c["drafted_by"] >= j and c["accepted_by"] >= j - 1 for c in rows)
        accepted = sum(c["accepted_by"] >= j for c in rows)
        positions.append((j, verified, reached, accepted, accepted / verified, accepted / reached if reached else None))
    return {
        "windows": len(windows),
        "tokens": sum(sum(w["keeps"]) for w in windows),
        "seconds": windows[-1]["t"] - windows[0]["t"] + windows[0]["step_ms"] / 1000,
        "busy_ms": sum(w["step_ms"] for w in windows),
        "rows": sum(w["rows"] for w in windows),
        "prompt_rows": sum(sum(w["prompt"]) for w in windows),
        "padding_rows": sum(w["bucket"] - w["rows"] for w in windows),
        "prefix_hit_tokens": sum(w["prefix_hit_tokens"] for w in windows),
        "drafts": sum(w["drafts"] for w in windows),
        "verified": sum(w["verified"] for w in windows),
        "accepted": sum(w["accepted"] for w in windows),
        "requests": len({r for w in windows for r in w["request"]}),
        "mean_acceptance_length": sum(c["keeps"] for c in rows) / len(rows),
        "mean_slots": sum(w["slots"] * w["step_ms"] for w in windows) / sum(w["step_ms"] for w in windows),
        "positions": positions,
        "L": dict(Counter(str(c["L"]) for c in cells if c["L"] or not c["prompt"])),
        "keeps": dict(Counter(str(c["keeps"]) for c in cells if c["L"] or not c["prompt"])),
        "reasons": dict(Counter(c["reason"] for c in cells if c["L"] or not c["prompt"])),
    }


def compare(r: dict, windows: list[dict]) -> None:
    for name, value in recount(windows).items():
        ours = [tuple(p.values()) for p in r["positions"]] if name == "positions" else r[name]
        assert ours == (pytest.approx(value) if isinstance(value, float) else value), name
    assert r["tok_per_s"] == pytest.approx(r["tokens"] / r["seconds"])
    assert r["acceptance_rate"] == pytest.approx(r["accepted"] / r["verified"])
    kinds = Counter(w["kind"] for w in windows)
    assert {kind: k["windows"] for kind, k in r["kinds"].items()} == kinds
    for kind, k in r["kinds"].items():
        mine = [w for w in windows if w["kind"] == kind]
        assert k["tokens"] == sum(sum(w["keeps"]) for w in mine)
        assert k["ms"] == pytest.approx(sum(w["step_ms"] for w in mine))
        assert k["phases_ms"] == pytest.approx({p: sum(w["ms"][p] for w in mine) for p in mine[0]["ms"]})
    for s in r["slots"]:
        own = [(w, w["slot"].index(s["slot"])) for w in windows if s["slot"] in w["slot"]]
        assert s["tokens"] == sum(w["keeps"][i] for w, i in own)
        assert s["windows"] == sum(w["L"][i] >= 1 for w, i in own)
        assert s["sat_out"] == sum(w["L"][i] == 0 and w["prompt"][i] == 0 for w, i in own)
        assert s["verified"] == sum(w["drafted_by"][i] for w, i in own)
        assert s["accepted"] == sum(w["accepted_by"][i] for w, i in own)
        assert s["requests"] == len({w["request"][i] for w, i in own})
        assert s["busy_ms"] == pytest.approx(sum(w["step_ms"] for w, _ in own))
    for step in r["steps"]:
        if not step["prompt"] and step["rows_up_to"] <= 64:
            mine = [
                w["step_ms"] for w in windows if w["kind"] in ("chain", "batch") and w["rows"] == step["rows_up_to"]
            ]
            assert step["windows"] == len(mine) and step["ms_mean"] == pytest.approx(sum(mine) / len(mine))


@pytest.mark.parametrize("seed", [1, 2])
def test_json_equals_a_recount(file: Path, seed: int) -> None:
    engine = ScriptedEngine(requests=25, acceptance=(0.9, 0.3, 0.7, 0.6), rows=13, sit_out={3: 0.3}, seed=seed)
    windows = write(file, engine)
    compare(json.loads(call(file, "--json")), windows)


def test_since_counts_later_windows_only(file: Path) -> None:
    windows = write(file, ScriptedEngine(requests=25))
    later = [w for w in windows if w["t"] >= 1.5]
    assert 0 < len(later) < len(windows)
    for text in ("1.5", "1.5s", "0.025m"):
        compare(json.loads(call(file, "--json", "--since", text)), later)


def test_slot_counts_its_share_only(file: Path) -> None:
    windows = write(file, ScriptedEngine(requests=25))
    r = json.loads(call(file, "--json", "--slot", 2))
    own = [(w, w["slot"].index(2)) for w in windows if 2 in w["slot"]]
    assert [s["slot"] for s in r["slots"]] == [2] and r["slot"] == 2
    assert r["tokens"] == sum(w["keeps"][i] for w, i in own)
    assert r["verified"] == sum(w["drafted_by"][i] for w, i in own)
    assert r["drafts"] == sum(max(w["L"][i] - 1, 0) for w, i in own)


def test_help_explains_every_field_of_the_file() -> None:
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", call("--help")).split())  # a CI may force colours
    for struct in (StatsHeader, StepRecord):
        for name, meaning in describe(struct).items():
            assert f"{name}: {meaning}" in text


def test_the_example_counts_the_same(file: Path) -> None:
    write(file, ScriptedEngine(requests=12))
    command = [sys.executable, str(ROOT / "examples/read_step_stats.py"), str(file)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    r = json.loads(call(file, "--json"))
    assert f"{r['tokens']:,} tokens in {r['busy_ms'] / 1000:.1f} s of windows" in text
    for s in r["slots"]:
        mean, rate = s["mean_acceptance_length"], s["acceptance_rate"]
        assert f"slot {s['slot']}: {s['windows']} windows, {mean:.2f} tokens each, {rate:.1%} accepted" in text


def test_stdin(file: Path) -> None:
    write(file, ScriptedEngine(requests=5))
    whole, piped = json.loads(call(file, "--json")), json.loads(call("-", "--json", stdin=file.read_bytes()))
    assert piped.pop("file") == "stdin" and whole.pop("file") == str(file)
    assert piped == whole


def test_the_first_lines_answer_and_the_rest_is_there(file: Path) -> None:
    write(file, ScriptedEngine(requests=30, acceptance=(0.9, 0.9, 0.1, 0.9), prompt_tokens=(1, 8)))
    r, text = json.loads(call(file, "--json")), call(file)
    first = " ".join(text.split("\n\n")[0].split())
    assert f"{r['tok_per_s']:,.1f} tok/s" in first
    for cause in r["verdict"]["causes"][:3]:
        about = f", about {cause['share']:.0%}" if cause["share"] is not None else ""
        assert f"- {cause['cause']}{about}: {cause['what']}" in first
        assert f"try: {cause['try']}" in first
    for title in ("summary", "time by phase", "acceptance by position", "slots", "step_ms against rows", "why that L"):
        assert title in text
    assert "2 slow" in text


def test_no_line_is_wider_than_the_page_and_ascii_is_ascii(file: Path) -> None:
    write(file, ScriptedEngine(requests=30))
    text = call(file, "--ascii")
    assert text.isascii() and "#" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in call(file)  # nothing is cut


def test_two_files_are_compared(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    write(file, ScriptedEngine(requests=8), spec=4)
    write(other, ScriptedEngine(requests=8, acceptance=(0.4,)), spec=2)
    r = json.loads(call(file, other, "--json"))
    assert r["settings_that_differ"] == {"spec": [4, 2]}
    text = call(file, other)
    assert "spec: 4 and 2" in text
    ratio = r["b"]["tok_per_s"] / r["a"]["tok_per_s"]
    assert f"{ratio:.3f}" in next(line for line in text.splitlines() if line.startswith("tok/s "))


def test_html_is_one_page(file: Path, tmp_path: Path) -> None:
    write(file, ScriptedEngine(requests=8))
    out = tmp_path / "page.html"
    call(file, "--html", out)
    assert out.read_text().startswith("<!doctype html>") and "http" not in out.read_text()
    call(file, file, "--html", out)
    assert "B / A" in out.read_text()


def test_an_empty_file_is_read(file: Path) -> None:
    file.write_bytes(b"")
    assert "no windows" in call(file)
    assert json.loads(call(file, "--json"))["windows"] == 0


@pytest.mark.parametrize(
    "args, what",
    [
        (("nowhere.jsonl",), "nowhere.jsonl: No such file"),
        (("FILE", "FILE", "FILE"), "3 files given"),
        (("-", "-"), "stdin can be read once only"),
        (("FILE", "--since", "soon"), "--since soon is not a time"),
        (("FILE", "--since", "9h"), "is left with --since 32400"),
        (("FILE", "--slot", "9"), "is left with --slot 9"),
        (("FILE", "--html", "/nowhere/page.html"), "cannot write the page"),
        (("RECORDS",), "none of its 2 lines is a window's"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(file: Path, tmp_path: Path, args: tuple, what: str) -> None:
    write(file, ScriptedEngine(requests=3))
    records = tmp_path / "records.jsonl"
    records.write_text('{"custom_id": "a"}\n{"custom_id": "b"}\n')
    named = [{"FILE": file, "RECORDS": records}.get(a, a) for a in args]
    with pytest.raises(StrataError) as caught:
        call(*named)
    assert what in caught.value.what and "\n" not in caught.value.what
    assert caught.value.exit_code == USAGE


def test_it_needs_no_torch(file: Path) -> None:
    write(file, ScriptedEngine(requests=3))
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from strata_cli.commands.inspect import inspect\n"
        f"inspect([{str(file)!r}])\n"
        "import strata_cli.ui.live, strata_cli.ui.dashboard, strata_cli.engine.stats"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "tok/s" in ran.stdout
