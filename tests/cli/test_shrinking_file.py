"""Weights are read from the mapped file: one that shrinks under the process ends it, and costs no result."""

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.support.tiny import make_tiny, make_tokenizer

LINES = 400


def test_a_file_that_shrinks_corrupts_no_results_and_is_named_at_the_next_start(tmp_path: Path) -> None:
    model = make_tokenizer(make_tiny(tmp_path / "model"))
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    lines = [{"prompt": [5, 9, 30 + i % 40], "max_tokens": 40, "ignore_eos": True} for i in range(LINES)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-m", "strata_cli", "run", prompts, "-m", model, "-o", out, "--simple", "-q"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and (not out.exists() or out.read_bytes().count(b"\n") < 4):
            time.sleep(0.02)
        weights = model / "model.safetensors"
        with weights.open("r+b") as file:
            file.truncate(weights.stat().st_size // 2)
        process.communicate(timeout=60)
    assert process.returncode != 0
    *whole, torn = out.read_bytes().split(b"\n")
    assert 4 <= len(whole) < LINES and not torn
    assert all(json.loads(line)["error"] is None for line in whole)
    kept = out.read_bytes()
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=60)
    assert resumed.returncode == 2 and "cannot be resumed: model was" in resumed.stderr
    anew = subprocess.run([*command, "--overwrite"], capture_output=True, text=True, timeout=60)
    assert anew.returncode == 2 and "model.safetensors is truncated" in anew.stderr.splitlines()[0]
    assert "Traceback" not in resumed.stderr + anew.stderr
    assert out.read_bytes() == kept
