"""The picture of the screen is drawn from a statistics file as it is written."""

import subprocess
import sys
from pathlib import Path

from strata_cli.engine.stats import StepStatsWriter
from tests.support.engine import engine, prompt, request, run, tiny

ROOT = Path(__file__).parents[2]


def test_a_moment_of_a_run_as_svg(tmp_path: Path) -> None:
    found = run(engine(tiny()), [request(f"story-{i}", prompt(9 + i)) for i in range(4)])
    writer = StepStatsWriter(tmp_path / "steps.jsonl")
    writer.begin({"model": "tiny", "profile": None, "config": {}, "version": "0"})
    for record in found.records:
        writer.write(record)
    writer.close()
    command = [sys.executable, str(ROOT / "examples/save_screen.py"), "steps.jsonl", "screen.svg", "--total", "4"]
    subprocess.run(command, cwd=tmp_path, check=True)
    picture = (tmp_path / "screen.svg").read_text()
    assert picture.startswith("<svg")
    assert "story" in picture
